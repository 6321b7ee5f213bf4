//! The names of the keys.
//!
//! Names of topics, groups and instances hold ASCII letters, digits, `.`, `_`, `-` and `:` only, which their types
//! see to; so a `/`, a brace or an `@` in a key is always ours, and two names never give one key. What the hot path
//! touches of one shard has the hash tag `{topic/shard}`.

use photon_core::ids::{Incarnation, Shard, SubscriptionId, TopicName};

/// Names keys under one prefix.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
}

/// How many keys hold the rows of a shard of a subscription: the rows and five indexes.
pub(super) const ROW_KEYS: usize = 6;

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The number of the layout.
    pub(super) fn format(&self) -> String {
        format!("{}:format", self.prefix)
    }

    /// A key for trying out what the server allows.
    pub(super) fn probe(&self) -> String {
        format!("{}:probe", self.prefix)
    }

    pub(super) fn topic(&self, topic: &TopicName) -> String {
        format!("{}:{{{topic}}}:topic", self.prefix)
    }

    fn of_shard(&self, topic: &TopicName, shard: Shard, what: &str) -> String {
        format!("{}:{{{topic}/{shard}}}:{what}", self.prefix)
    }

    pub(super) fn shard(&self, topic: &TopicName, shard: Shard) -> String {
        self.of_shard(topic, shard, "shard")
    }

    pub(super) fn log(&self, topic: &TopicName, shard: Shard) -> String {
        self.of_shard(topic, shard, "log")
    }

    pub(super) fn dedup(&self, topic: &TopicName, shard: Shard) -> [String; 2] {
        ["dedup", "ages"].map(|what| self.of_shard(topic, shard, what))
    }

    /// The position of a subscription in a shard, with the epoch of its owner.
    pub(super) fn position(&self, subscription: &SubscriptionId, shard: Shard) -> String {
        self.of_shard(&subscription.topic, shard, &format!("position/{}", subscription.position_name()))
    }

    /// The stored deliveries of a subscription in a shard, in the order that the scripts know.
    pub(super) fn rows(&self, subscription: &SubscriptionId, shard: Shard) -> [String; ROW_KEYS] {
        let position = subscription.position_name();
        ["rows", "dead", "parked", "marks", "live", "heads"]
            .map(|what| self.of_shard(&subscription.topic, shard, &format!("{what}/{position}")))
    }

    pub(super) fn subscription(&self, subscription: &SubscriptionId) -> String {
        format!("{}:{{{}}}:subscription/{}", self.prefix, subscription.topic, subscription.position_name())
    }

    /// The set of the names of all subscriptions, see [`subscription_name`].
    pub(super) fn subscriptions(&self) -> String {
        format!("{}:subscriptions", self.prefix)
    }

    /// Members, and their heartbeats.
    pub(super) fn members(&self) -> [String; 2] {
        ["members", "heartbeats"].map(|what| format!("{}:{what}", self.prefix))
    }

    /// The positions that a member holds.
    pub(super) fn held(&self, incarnation: Incarnation) -> String {
        format!("{}:held/{}", self.prefix, incarnation.0)
    }

    /// The channel that tells of appends. Channels are the same in all databases of a server.
    pub(super) fn channel(&self, database: i64, topic: &TopicName) -> String {
        format!("{}/{database}/{topic}", self.prefix)
    }
}

/// A subscription as a member of the set of all.
pub(super) fn subscription_name(subscription: &SubscriptionId) -> String {
    format!("{}/{}", subscription.topic, subscription.position_name())
}

/// Reads back what [`subscription_name`] wrote.
pub(super) fn parse_subscription(name: &str) -> Option<SubscriptionId> {
    let (topic, position) = name.split_once('/')?;
    SubscriptionId::from_position_name(TopicName::new(topic).ok()?, position).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use photon_core::ids::{GroupName, InstanceId};

    #[test]
    fn keys_of_one_shard_lie_in_one_slot_and_names_stay_apart() {
        let keys = Keys::new("photon");
        let topic = TopicName::new("orders:placed").unwrap();
        let mut subscription = SubscriptionId::new(topic.clone(), GroupName::new("billing").unwrap());
        let log = keys.log(&topic, Shard(3));
        assert_eq!(log, "photon:{orders:placed/3}:log");
        assert_eq!(keys.position(&subscription, Shard(3)), "photon:{orders:placed/3}:position/billing");
        assert_eq!(parse_subscription(&subscription_name(&subscription)), Some(subscription.clone()));
        subscription.instance = Some(InstanceId::new("pod-1").unwrap());
        assert_eq!(keys.rows(&subscription, Shard(3))[0], "photon:{orders:placed/3}:rows/billing@pod-1");
        assert_eq!(parse_subscription(&subscription_name(&subscription)), Some(subscription));
        assert_eq!(parse_subscription("nothing of ours"), None);
    }
}
