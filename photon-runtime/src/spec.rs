//! A subscription that this program handles, wherever it was written down.

use std::sync::Arc;

use photon_core::descriptor::HandlerDescriptor;
use photon_core::function::HandlerCall;
use photon_core::handler::Needs;
use photon_core::ids::{GroupName, SubscriptionId, TopicName};
use photon_core::options::{Mode, Options};
use photon_core::registry::{Problem, Problems, Registry};
use photon_core::topic::TopicDescriptor;

use crate::error::{Error, Result};
use crate::executor::Around;
use crate::inner::Inner;
use crate::topics::DynamicTopic;

/// Where a subscription was written down, for messages.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// `file:line`.
    pub(crate) at: String,
    /// The name of the handler, or empty.
    pub(crate) name: String,
}

impl Place {
    pub(crate) fn problem(&self, message: impl Into<String>) -> Problem {
        Problem { at: self.at.clone(), name: self.name.clone(), message: message.into() }
    }
}

/// The topic of a subscription that is made at run time.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Named(DynamicTopic),
    Typed(&'static TopicDescriptor),
}

/// One subscription and its handler.
pub(crate) struct Spec {
    pub(crate) place: Place,
    /// Without the instance of a durable one.
    pub(crate) subscription: SubscriptionId,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    /// What the type of the event says about the topic.
    pub(crate) descriptor: Option<&'static TopicDescriptor>,
    /// The number of shards that was asked for.
    pub(crate) shards: Option<u16>,
    pub(crate) needs: Needs,
    pub(crate) call: HandlerCall,
}

impl Spec {
    /// The subscription of a handler that was found in the program.
    pub(crate) fn of(
        handler: &'static HandlerDescriptor,
        around: Option<&Around>,
    ) -> std::result::Result<Self, Problem> {
        let mut needs = Needs::default();
        (handler.needs)(&mut needs);
        let call: HandlerCall = match around.cloned() {
            None => Arc::new(handler.call),
            Some(around) => Arc::new(move |delivery| around(handler, delivery)),
        };
        Ok(Self {
            place: Place { at: format!("{}:{}", handler.file, handler.line), name: handler.name.to_owned() },
            subscription: Registry::subscription(handler)?,
            mode: handler.mode,
            options: handler.options.clone(),
            descriptor: handler.descriptor,
            shards: None,
            needs,
            call,
        })
    }

    /// The subscription, with the instance of a durable one.
    pub(crate) fn id(&self, inner: &Inner) -> SubscriptionId {
        let instance = inner.config.instance.clone().filter(|_| self.mode == Mode::Durable);
        SubscriptionId { instance, ..self.subscription.clone() }
    }

    /// A subscription that is made at run time; `takes` is the topic of the event that its handler takes.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the subscription")]
    pub(crate) fn dynamic(
        place: Place,
        target: Target,
        group: Option<String>,
        mode: Mode,
        options: Options,
        takes: Option<&'static TopicDescriptor>,
        needs: Needs,
        call: HandlerCall,
    ) -> Result<Self> {
        let refused = |message: String| Error::Start(Problems(vec![place.problem(message)]));
        let (topic, descriptor, shards) = match target {
            Target::Named(topic) => (topic.name().clone(), takes, topic.shard_count()),
            Target::Typed(descriptor) => (TopicName::new(descriptor.name)?, Some(descriptor), None),
        };
        if let Some(takes) = takes
            && takes.name != topic.as_str()
        {
            return Err(refused(format!(
                "the handler takes `{}`, whose topic is {:?}, but subscribes to {:?}",
                takes.type_name,
                takes.name,
                topic.as_str()
            )));
        }
        let Some(group) = group else {
            return Err(refused("has no group: name one with .group(\"...\")".to_owned()));
        };
        let group = GroupName::new(group).map_err(|error| refused(error.to_string()))?;
        let subscription = SubscriptionId::new(topic, group);
        Ok(Self { place, subscription, mode, options, descriptor, shards, needs, call })
    }
}
