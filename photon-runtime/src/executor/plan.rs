//! What an executor is going to run, checked against the program and the store before anything runs.

use std::collections::HashMap;
use std::sync::Arc;

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::failure::Classify;
use photon_core::function::HandlerCall;
use photon_core::handler::Shared;
use photon_core::ids::{Generation, TopicName};
use photon_core::options::{Mode, Settings};
use photon_core::registry::{Problem, Problems};
use photon_core::store::{Registration, TopicSpec};
use photon_core::topic::{DEFAULT_SHARDS, TopicDescriptor};

use crate::check;
use crate::error::{Error, Result};
use crate::inner::Inner;
use crate::spec::Spec;

/// One subscription that is going to run.
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) settings: Settings,
    /// How many shards its topic has.
    pub(super) shards: u16,
    pub(super) shared: Arc<Shared>,
    pub(super) call: HandlerCall,
}

/// The plans for all subscriptions of the program, which are then known to the store.
pub(super) async fn plans(inner: &Inner) -> Result<Vec<Plan>> {
    let mut problems = check::problems(inner);
    let mut shards = topics(inner, &mut problems).await?;
    let mut specs: Vec<Arc<Spec>> = Vec::new();
    for handler in &inner.registry.handlers {
        // What keeps it from being one is among the problems already.
        specs.extend(Spec::of(handler, inner.around.as_ref()).ok().map(Arc::new));
    }
    specs.extend(inner.dynamic.all());
    for spec in &specs {
        problems.extend(topic_of(inner, spec, &mut shards).await?);
    }
    if !problems.is_empty() {
        problems.sort();
        problems.dedup();
        return Err(Error::Start(Problems(problems)));
    }
    let mut plans = Vec::new();
    for spec in &specs {
        plans.push(known(inner, spec, &shards).await?);
    }
    Ok(plans)
}

/// The plan for a subscription that is made at run time, which is then known to the store.
pub(super) async fn plan_one(inner: &Inner, spec: &Spec) -> Result<Plan> {
    let mut shards = Shards::new();
    let mut problems = check::of_dynamic(inner, spec);
    problems.extend(topic_of(inner, spec, &mut shards).await?);
    if !problems.is_empty() {
        return Err(Error::Start(Problems(problems)));
    }
    known(inner, spec, &shards).await
}

async fn known(inner: &Inner, spec: &Spec, shards: &Shards) -> Result<Plan> {
    let shards = shards.get(&spec.subscription.topic).copied().unwrap_or(DEFAULT_SHARDS);
    let plan = plan(inner, spec, shards)?;
    register(inner, &plan).await?;
    Ok(plan)
}

/// How many shards the topics have.
type Shards = HashMap<TopicName, u16>;

/// Makes all topics of the program, and tells how many shards each has. What a topic is refused for is a problem
/// of its declaration.
async fn topics(inner: &Inner, problems: &mut Vec<Problem>) -> Result<Shards> {
    let mut shards = Shards::new();
    for topic in &inner.registry.topics {
        let Ok(name) = TopicName::new(topic.name) else { continue };
        match ensure(inner, name.clone(), topic.shards, Some(topic)).await {
            Ok(has) => {
                shards.insert(name, has);
            }
            Err(error) if error.kind() == StoreErrorKind::Refused => {
                problems.push(Problem::at(format!("{}:{}", topic.file, topic.line), error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(shards)
}

/// Sees to the topic of a subscription, unless the program declares it, and to the shards of this instance.
async fn topic_of(inner: &Inner, spec: &Spec, shards: &mut Shards) -> Result<Option<Problem>> {
    let topic = &spec.subscription.topic;
    if !shards.contains_key(topic) {
        match undeclared(inner, spec).await {
            Ok(has) => {
                shards.insert(topic.clone(), has);
            }
            Err(error) if error.kind() == StoreErrorKind::Refused => {
                return Ok(Some(spec.place.problem(error.to_string())));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let (has, wanted) = (shards.get(topic).copied().unwrap_or(DEFAULT_SHARDS), spec.shards);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != has) {
        let message =
            format!("topic \"{topic}\" has {has} shards, not {wanted}: name the number that it has");
        return Ok(Some(spec.place.problem(message)));
    }
    let share = (spec.mode == Mode::Group).then(|| inner.config.share().shards_of(has, 0));
    Ok(share.and_then(std::result::Result::err).map(|error| spec.place.problem(error.to_string())))
}

/// A topic that the program subscribes to and does not declare: it is taken as it is, or made.
async fn undeclared(inner: &Inner, spec: &Spec) -> Result<u16, StoreError> {
    let topic = &spec.subscription.topic;
    if spec.descriptor.is_none()
        && let Ok(bounds) = inner.store.bounds(topic).await
        && let Ok(shards) = u16::try_from(bounds.len())
        && shards > 0
    {
        return Ok(shards);
    }
    let declared = spec.descriptor.map(|topic| topic.shards);
    let shards = declared.or(spec.shards).unwrap_or_else(|| inner.publisher.core().topics.declared(topic));
    ensure(inner, topic.clone(), shards, spec.descriptor).await
}

async fn ensure(
    inner: &Inner,
    name: TopicName,
    shards: u16,
    topic: Option<&TopicDescriptor>,
) -> Result<u16, StoreError> {
    let spec = TopicSpec {
        name,
        shards,
        key: topic.map(|topic| topic.key.to_owned()),
        generation: Generation(inner.publisher.core().random.uuid()),
    };
    Ok(inner.store.ensure_topic(&spec).await?.shards)
}

fn plan(inner: &Inner, spec: &Spec, shards: u16) -> Result<Plan> {
    let refused = |problem| Error::Start(Problems(vec![problem]));
    let subscription = spec.id(inner);
    let mut settings = Settings::resolve(&inner.config.options(&spec.options))
        .map_err(|messages| refused(spec.place.problem(messages.join("; "))))?;
    settings.settles = spec.needs.settles();
    if settings.settles && spec.mode == Mode::Ephemeral {
        let message = "an ephemeral subscription has no position that a transaction could settle: give it a group, or \
                       take the transaction out of its parameters";
        return Err(refused(spec.place.problem(message.to_owned())));
    }
    let shared = Arc::new(Shared {
        subscription,
        max_attempts: settings.retry.max_attempts,
        timeout: settings.timeout,
        extensions: inner.extensions.clone(),
    });
    let call = classified(spec.call.clone(), settings.classify);
    Ok(Plan { mode: spec.mode, settings, shards, shared, call })
}

/// The handler with its errors looked at by the subscription's `classify`, if it has one.
fn classified(call: HandlerCall, classify: Option<Classify>) -> HandlerCall {
    let Some(classify) = classify else { return call };
    Arc::new(move |delivery| {
        let running = call(delivery);
        Box::pin(async move { running.await.map_err(|error| error.classified(classify)) })
    })
}

impl Plan {
    /// How the subscription is known to the store; `None` if it has no position.
    pub(super) fn registration(&self) -> Option<Registration> {
        (self.mode != Mode::Ephemeral).then(|| Registration {
            subscription: self.shared.subscription.clone(),
            start: self.settings.start,
            mode: self.mode,
            expire_after: self.settings.expire_after,
        })
    }
}

async fn register(inner: &Inner, plan: &Plan) -> Result<()> {
    let Some(registration) = plan.registration() else { return Ok(()) };
    let registered = inner.store.register(&registration).await?;
    if registered.new {
        tracing::info!(subscription = %registration.subscription, start = ?registration.start, "new subscription");
    }
    Ok(())
}
