//! Names of streams and subjects.
//!
//! Names of users hold letters, digits and `.` `_` `-` `:`. A dot would split a subject, and a colon is not good
//! in a directory name everywhere; both become a character that no name holds, so that different names stay
//! different and none grows.

use std::fmt::Write;

use photon_core::ids::{GroupName, Incarnation, InstanceId, Seq, Shard, SubscriptionId, TopicName};
use uuid::Uuid;

/// The streams and subjects of one namespace.
#[derive(Debug, Clone)]
pub(super) struct Names {
    namespace: String,
}

impl Names {
    pub(super) fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned() }
    }

    /// The stream of everything beside the logs.
    pub(super) fn state_stream(&self) -> String {
        format!("{}-state", self.namespace)
    }

    pub(super) fn state_subjects(&self) -> String {
        format!("{}.state.>", self.namespace)
    }

    pub(super) fn log_stream(&self, topic: &TopicName) -> String {
        format!("{}-log-{}", self.namespace, escape(topic.as_str()))
    }

    pub(super) fn log_subjects(&self, topic: &TopicName) -> String {
        format!("{}.log.{}.*", self.namespace, escape(topic.as_str()))
    }

    pub(super) fn log(&self, topic: &TopicName, shard: Shard) -> String {
        format!("{}.log.{}.{shard}", self.namespace, escape(topic.as_str()))
    }

    /// Where it is told that something was appended; in no stream.
    pub(super) fn wake(&self, topic: &TopicName) -> String {
        format!("{}.wake.{}", self.namespace, escape(topic.as_str()))
    }

    pub(super) fn topic(&self, topic: &TopicName) -> String {
        format!("{}.state.topic.{}", self.namespace, escape(topic.as_str()))
    }

    pub(super) fn subscriptions(&self) -> String {
        format!("{}.state.subscription.*.*", self.namespace)
    }

    pub(super) fn subscription(&self, id: &SubscriptionId) -> String {
        format!("{}.state.subscription.{}", self.namespace, position(id))
    }

    /// Reads a subject of [`subscription`](Self::subscription).
    pub(super) fn read_subscription(&self, subject: &str) -> Option<SubscriptionId> {
        read_position(subject.strip_prefix(&format!("{}.state.subscription.", self.namespace))?)
    }

    pub(super) fn members(&self) -> String {
        format!("{}.state.member.*", self.namespace)
    }

    pub(super) fn member(&self, incarnation: Incarnation) -> String {
        format!("{}.state.member.{}", self.namespace, incarnation.0.simple())
    }

    pub(super) fn read_member(&self, subject: &str) -> Option<Incarnation> {
        let id = subject.strip_prefix(&format!("{}.state.member.", self.namespace))?;
        Uuid::try_parse(id).ok().map(Incarnation)
    }

    pub(super) fn cells(&self) -> String {
        format!("{}.state.shard.*.*.*", self.namespace)
    }

    /// The journal of one shard of a subscription.
    pub(super) fn cell(&self, id: &SubscriptionId, shard: Shard) -> String {
        format!("{}.state.shard.{}.{shard}", self.namespace, position(id))
    }

    /// The journals of all shards of a subscription.
    pub(super) fn cell_of(&self, id: &SubscriptionId) -> String {
        format!("{}.state.shard.{}.*", self.namespace, position(id))
    }

    pub(super) fn read_cell(&self, subject: &str) -> Option<(SubscriptionId, Shard)> {
        let rest = subject.strip_prefix(&format!("{}.state.shard.", self.namespace))?;
        let (id, shard) = rest.rsplit_once('.')?;
        Some((read_position(id)?, Shard(shard.parse().ok()?)))
    }

    /// Pieces of journal entries that are too large for one message.
    pub(super) fn parts(&self, id: &SubscriptionId, shard: Shard) -> String {
        format!("{}.state.part.{}.{shard}", self.namespace, position(id))
    }

    /// The content of all stored deliveries of a shard.
    pub(super) fn bodies(&self, id: &SubscriptionId, shard: Shard) -> String {
        format!("{}.state.body.{}.{shard}.*.*", self.namespace, position(id))
    }

    /// The content of one stored delivery.
    pub(super) fn body(&self, id: &SubscriptionId, shard: Shard, seq: Seq, digest: u128) -> String {
        format!("{}.state.body.{}.{shard}.{seq}.{digest:032x}", self.namespace, position(id))
    }
}

/// What is wrong with a namespace.
pub(super) fn namespace_problem(namespace: &str) -> Option<&'static str> {
    if namespace.is_empty() || namespace.len() > 32 {
        return Some("it must have 1 to 32 characters");
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!namespace.chars().all(fits)).then_some("only ASCII letters, digits and '_' are allowed")
}

fn escape(name: &str) -> String {
    name.replace('.', "~").replace(':', "=")
}

fn unescape(name: &str) -> String {
    name.replace('~', ".").replace('=', ":")
}

fn position(id: &SubscriptionId) -> String {
    let instance = id.instance.as_ref().map(|instance| format!("@{}", escape(instance.as_str())));
    let group = escape(id.group.as_str());
    format!("{}.{group}{}", escape(id.topic.as_str()), instance.unwrap_or_default())
}

fn read_position(text: &str) -> Option<SubscriptionId> {
    let (topic, position) = text.split_once('.')?;
    let (group, instance) = match position.split_once('@') {
        None => (position, None),
        Some((group, instance)) => (group, Some(InstanceId::new(unescape(instance)).ok()?)),
    };
    let (topic, group) = (TopicName::new(unescape(topic)).ok()?, GroupName::new(unescape(group)).ok()?);
    Some(SubscriptionId { topic, group, instance })
}

/// What tells an event with a dedup id from others in its topic, as a header can hold it.
pub(super) fn dedup(shard: Shard, id: &str) -> String {
    let mut out = format!("{shard}:");
    for byte in id.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(byte.into()),
            _ => drop(write!(out, "%{byte:02x}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn p11_names_come_back_and_never_split_a_subject(
            topic in "[a-z0-9]([a-z:_-][.]?){0,5}[A-Z0-9]",
            group in "[a-z0-9]([a-z:_-][.]?){0,5}[A-Z0-9]",
            instance in proptest::option::of("[a-z]([a-z:_-][.]?){0,5}[0-9]"),
            shard: u16,
        ) {
            let names = Names::new("photon");
            let id = SubscriptionId {
                topic: TopicName::new(topic).unwrap(),
                group: GroupName::new(group).unwrap(),
                instance: instance.map(|name| InstanceId::new(name).unwrap()),
            };
            prop_assert_eq!(names.read_subscription(&names.subscription(&id)), Some(id.clone()));
            let cell = names.cell(&id, Shard(shard));
            prop_assert_eq!(cell.split('.').count(), 6);
            prop_assert_eq!(names.read_cell(&cell), Some((id.clone(), Shard(shard))));
            prop_assert!(!names.log_stream(&id.topic).contains(['.', ':', '*', '>', '/', '\\', ' ']));
            prop_assert_eq!(names.log(&id.topic, Shard(shard)).split('.').count(), 4);
        }

        #[test]
        fn p11_dedup_ids_stay_apart_and_fit_a_header(a: String, b: String, shard: u16) {
            let (x, y) = (dedup(Shard(shard), &a), dedup(Shard(shard), &b));
            prop_assert_eq!(x == y, a == b);
            prop_assert!(x.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
