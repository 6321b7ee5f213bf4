//! How a subscription is named, and how the name is found.

use std::collections::BTreeSet;
use std::fmt;

use photon_core::ids::SubscriptionId;
use photon_core::options::Mode;
use photon_core::registry::Registry;
use photon_core::store::SubscriptionInfo;

use crate::error::{Error, Result};
use crate::inner::Inner;

/// The name of a subscription: of its group, `"billing"`, or of topic and group,
/// `("orders.placed", "billing")`. The group of a durable one may carry its instance, `"mail@pod-1"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRef {
    topic: Option<String>,
    group: String,
}

impl From<&str> for SubscriptionRef {
    fn from(group: &str) -> Self {
        // The way subscriptions are shown, "topic/group": a name can hold no slash.
        match group.split_once('/') {
            Some((topic, group)) => (topic, group).into(),
            None => Self { topic: None, group: group.to_owned() },
        }
    }
}

impl From<String> for SubscriptionRef {
    fn from(group: String) -> Self {
        group.as_str().into()
    }
}

impl From<&String> for SubscriptionRef {
    fn from(group: &String) -> Self {
        group.as_str().into()
    }
}

impl From<(&str, &str)> for SubscriptionRef {
    fn from((topic, group): (&str, &str)) -> Self {
        Self { topic: Some(topic.to_owned()), group: group.to_owned() }
    }
}

impl From<&SubscriptionId> for SubscriptionRef {
    fn from(id: &SubscriptionId) -> Self {
        Self { topic: Some(id.topic.to_string()), group: id.position_name() }
    }
}

impl From<SubscriptionId> for SubscriptionRef {
    fn from(id: SubscriptionId) -> Self {
        (&id).into()
    }
}

impl fmt::Display for SubscriptionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.topic {
            Some(topic) => write!(f, "{topic}/{}", self.group),
            None => f.write_str(&self.group),
        }
    }
}

impl SubscriptionRef {
    /// Whether this is a name of the subscription.
    pub(crate) fn names(&self, id: &SubscriptionId) -> bool {
        self.topic.as_deref().is_none_or(|topic| topic == id.topic.as_str())
            && (self.group == id.group.as_str() || self.group == id.position_name())
    }

    /// The subscription that is meant, among those that the store or the program knows.
    pub(crate) async fn find(&self, inner: &Inner) -> Result<SubscriptionId> {
        let stored = inner.store.list().await?;
        let known = known(&stored, inner);
        let mut matches = known.iter().filter(|id| self.names(id));
        match (matches.next(), matches.next()) {
            (Some(id), None) => Ok(id.clone()),
            (Some(_), Some(_)) => {
                let names: Vec<_> =
                    known.iter().filter(|id| self.names(id)).map(ToString::to_string).collect();
                Err(Error::Conflict(format!(
                    "{:?} names several subscriptions: {}; give topic and group, such as (\"topic\", \"group\")",
                    self.to_string(),
                    names.join(", ")
                )))
            }
            (None, _) => Err(Error::NotFound(self.not_found(&known))),
        }
    }

    fn not_found(&self, known: &BTreeSet<SubscriptionId>) -> String {
        const SHOWN: usize = 20;
        let mut names: Vec<_> = known.iter().take(SHOWN).map(ToString::to_string).collect();
        if known.len() > SHOWN {
            names.push(format!("and {} more", known.len() - SHOWN));
        }
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        format!("there is no subscription {:?}; known are: {names}", self.to_string())
    }
}

/// The subscriptions in the store and those of the program's handlers, started or not.
pub(crate) fn known(stored: &[SubscriptionInfo], inner: &Inner) -> BTreeSet<SubscriptionId> {
    let mut known: BTreeSet<_> = stored.iter().map(|info| info.subscription.clone()).collect();
    known.extend(handled(inner).map(|(id, _)| id));
    known
}

/// The subscriptions of the program's handlers that have a position, with their mode.
pub(crate) fn handled(inner: &Inner) -> impl Iterator<Item = (SubscriptionId, Mode)> {
    let declared = inner.registry.handlers.iter().filter_map(|handler| {
        let id = Registry::subscription(handler).ok()?;
        Some((id, handler.mode))
    });
    let added = inner.dynamic.all().into_iter().map(|spec| (spec.subscription.clone(), spec.mode));
    declared.chain(added).filter_map(|(mut id, mode)| {
        match mode {
            Mode::Group => {}
            Mode::Durable => id.instance = Some(inner.config.instance.clone()?),
            Mode::Ephemeral => return None,
        }
        Some((id, mode))
    })
}
