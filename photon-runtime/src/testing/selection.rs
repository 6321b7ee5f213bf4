//! Which of the linked subscriptions a test runs.

use std::collections::HashSet;

use photon_core::descriptor::HandlerDescriptor;
use photon_core::ids::SubscriptionId;
use photon_core::options::Mode;
use photon_core::registry::Registry;
use photon_core::topic::TopicDescriptor;

use crate::check;
use crate::config::Config;
use crate::subscriptions::SubscriptionRef;

/// The subscriptions that run, and those that cannot. A test is told about the latter when it names one: what it
/// does not use does not keep it from running.
#[derive(Default)]
pub(super) struct Selection {
    pub(super) runs: Vec<SubscriptionId>,
    pub(super) left_out: Vec<LeftOut>,
}

/// A subscription that does not run in a test.
pub(super) struct LeftOut {
    pub(super) subscription: SubscriptionId,
    pub(super) reason: String,
}

/// What a test asks for.
pub(super) struct Wanted {
    /// These subscriptions and no others.
    pub(super) only: Option<Vec<SubscriptionRef>>,
    /// Of two types with one topic, this one.
    pub(super) topic: Option<&'static TopicDescriptor>,
}

/// A handler with its subscription.
type Candidate = (SubscriptionId, &'static HandlerDescriptor);

impl Selection {
    /// Sorts the handlers of a program, and gives the registry of those that run.
    pub(super) fn of(linked: &Registry, wanted: &Wanted, config: &Config) -> (Self, Registry) {
        let mut selection = Self::default();
        let mut candidates = Vec::new();
        for &handler in &linked.handlers {
            // A name that is no name cannot be named by the test either.
            let Ok(mut id) = Registry::subscription(handler) else { continue };
            if handler.mode == Mode::Durable {
                id.instance.clone_from(&config.instance);
            }
            match wanted.refuse(&id, handler) {
                Some(reason) => selection.left_out.push(LeftOut { subscription: id, reason }),
                None => candidates.push((id, handler)),
            }
        }
        let mut handlers = Vec::new();
        for candidate @ (id, handler) in &candidates {
            if let Some(reason) = alone(handler, config).or_else(|| beside(&candidates, candidate)) {
                selection.left_out.push(LeftOut { subscription: id.clone(), reason });
                continue;
            }
            selection.runs.push(id.clone());
            handlers.push(*handler);
        }
        let topics = handlers.iter().filter_map(|handler| handler.descriptor).collect();
        (selection, Registry::new(handlers, topics))
    }

    /// Every name, for messages.
    pub(super) fn names(&self) -> Vec<String> {
        let left_out = self.left_out.iter().map(|left_out| &left_out.subscription);
        let names: HashSet<_> = self.runs.iter().chain(left_out).map(ToString::to_string).collect();
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        names
    }
}

impl Wanted {
    fn refuse(&self, id: &SubscriptionId, handler: &HandlerDescriptor) -> Option<String> {
        if self.only.as_ref().is_some_and(|only| !only.iter().any(|name| name.names(id))) {
            return Some("is left out by .only(...)".to_owned());
        }
        let (wanted, takes) = (self.topic?, handler.descriptor?);
        (takes.name == wanted.name && !std::ptr::eq(takes, wanted)).then(|| {
            format!("takes `{}`, and the test begins with a `{}`", takes.type_name, wanted.type_name)
        })
    }
}

/// What keeps a handler from running at all.
fn alone(handler: &'static HandlerDescriptor, config: &Config) -> Option<String> {
    let topics = handler.descriptor.into_iter().collect();
    let problems = Registry::new(vec![handler], topics).problems();
    let problems = problems.into_iter().map(|problem| problem.message);
    problems.chain(check::settings(config, handler)).next()
}

/// What keeps a handler from running beside the others.
fn beside(candidates: &[Candidate], (id, handler): &Candidate) -> Option<String> {
    candidates.iter().find_map(|(other_id, other)| {
        let at = || format!("{} at {}:{}", other.name, other.file, other.line);
        if other_id == id && !std::ptr::eq(*other, *handler) {
            return Some(format!("is also the subscription of {}: name another group", at()));
        }
        let (mine, others) = (handler.descriptor?, other.descriptor?);
        (mine.name == others.name && !std::ptr::eq(mine, others)).then(|| {
            format!(
                "takes `{}`, and {} takes `{}` from the same topic: pick one of them with .only(...)",
                mine.type_name,
                at(),
                others.type_name
            )
        })
    })
}
