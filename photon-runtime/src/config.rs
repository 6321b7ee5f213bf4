//! What a Photon is set to, and where it comes from: the attribute of a handler, the builder over it, and the
//! environment over both.

mod environment;
mod parse;
mod url;

use std::collections::BTreeMap;
use std::time::Duration;

use photon_core::ids::{InstanceId, Shard, TopicName, name_problem};
use photon_core::machine::assignment::StaticShare;
use photon_core::options::Options;

pub(crate) use environment::Environment;
pub use environment::{Variable, variables};
pub(crate) use url::{Engine, SecretUrl};

use crate::retention::Retention;

/// The largest payload of an event, in bytes, unless set: 1 MiB.
pub const DEFAULT_MAX_PAYLOAD: usize = 1024 * 1024;
/// The largest payload that can be allowed, in bytes: 256 MiB.
pub const MAX_MAX_PAYLOAD: usize = 256 * 1024 * 1024;

/// The longest that an instance may be silent before it loses its shards.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(3_600);

/// Which part of the shards an instance works on: instance `index` of `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupMember {
    /// The number of this instance, from 0.
    pub index: u32,
    /// How many instances there are.
    pub count: u32,
}

impl GroupMember {
    /// What is wrong with it, or `None`.
    pub(crate) fn problem(self) -> Option<String> {
        let Self { index, count } = self;
        if count == 0 || count > 65_536 {
            return Some(format!("the group has {count} instances, allowed are 1 to 65536"));
        }
        (index >= count).then(|| {
            format!(
                "instance {index} of {count} does not exist: the index counts from 0, so the last one is {}",
                count - 1
            )
        })
    }
}

impl Default for GroupMember {
    /// The only instance.
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

/// What a Photon runs with, all layers put together. See [`Photon::config`](crate::Photon::config).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The stable name of this instance, if one was given; `durable` subscriptions need it.
    pub instance: Option<InstanceId>,
    /// Which part of the shards this instance works on. Default: all.
    pub group: GroupMember,
    /// The shards that this instance works on, of every topic, instead of what [`group`](Self::group) says.
    pub group_shards: Option<Vec<u16>>,
    /// How long events are kept, of the topics that [`topic_retention`](Self::topic_retention) does not name.
    pub retention: Retention,
    /// How long the events of these topics are kept.
    pub topic_retention: BTreeMap<String, Retention>,
    /// The largest payload, in bytes. Default: 1 MiB, or what the engine takes if that is less.
    pub max_payload: Option<usize>,
    /// How long a drain waits for running handlers. Default 30 s.
    pub drain_timeout: Duration,
    /// After how long without a sign of life an instance loses its shards. Default 5 s.
    pub lease_ttl: Duration,
    /// Whether to start although no handler is linked. Default: no.
    pub allow_no_handlers: bool,
    /// What the builder sets for all subscriptions: over the attributes.
    pub builder_options: Options,
    /// What the environment sets for all subscriptions: over everything.
    pub environment_options: Options,
}

impl Config {
    /// The options of a subscription whose attribute sets `attribute`: attribute < builder < environment.
    pub fn options(&self, attribute: &Options) -> Options {
        self.environment_options.clone().over(self.builder_options.clone()).over(attribute.clone())
    }

    /// Which shards of a topic are this instance's, in a subscription of a group.
    pub(crate) fn share(&self) -> StaticShare {
        match &self.group_shards {
            Some(shards) => StaticShare::Listed(shards.iter().copied().map(Shard).collect()),
            None => StaticShare::Nth { index: self.group.index, count: self.group.count },
        }
    }

    /// How long the events of a topic are kept.
    pub(crate) fn retention_of(&self, topic: &TopicName) -> Retention {
        self.topic_retention.get(topic.as_str()).copied().unwrap_or(self.retention)
    }

    /// What is wrong with the numbers, each with the builder's method that sets it.
    pub(crate) fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if let Some(problem) = self.group.problem() {
            problems.push(("group", problem));
        }
        if self.group_shards.is_some() && self.group != GroupMember::default() {
            let message =
                "the shards are listed, and an index and a count are given, too: keep one".to_owned();
            problems.push(("group_shards", message));
        }
        if self.group_shards.as_ref().is_some_and(Vec::is_empty) {
            problems.push(("group_shards", "the list of shards is empty: name at least one".to_owned()));
        }
        problems.extend(self.retention.problem().map(|problem| ("retention", problem)));
        for (topic, retention) in &self.topic_retention {
            if let Some(reason) = name_problem(topic) {
                problems.push(("topic_retention", format!("topic name {topic:?} is not usable: {reason}")));
            }
            let problem = retention.problem();
            problems
                .extend(problem.map(|problem| ("topic_retention", format!("topic {topic:?}: {problem}"))));
        }
        if let Some(bytes) = self.max_payload.filter(|bytes| !(1..=MAX_MAX_PAYLOAD).contains(bytes)) {
            let message =
                format!("the largest payload is {bytes} bytes, allowed are 1 to {MAX_MAX_PAYLOAD} (256 MiB)");
            problems.push(("max_payload", message));
        }
        let ttl = self.lease_ttl;
        if !(Duration::from_millis(500)..=LONGEST_TTL).contains(&ttl) {
            problems.push(("lease_ttl", format!("the lease time is {ttl:?}, allowed are 500ms to 1h")));
        }
        if self.drain_timeout > Duration::from_secs(86_400) {
            let message = format!("the drain timeout is {:?}, allowed is up to a day", self.drain_timeout);
            problems.push(("drain_timeout", message));
        }
        problems
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            instance: None,
            group: GroupMember::default(),
            group_shards: None,
            retention: Retention::FOREVER,
            topic_retention: BTreeMap::new(),
            max_payload: None,
            drain_timeout: Duration::from_secs(30),
            lease_ttl: Duration::from_secs(5),
            allow_no_handlers: false,
            builder_options: Options::NONE,
            environment_options: Options::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_over_the_builder_and_that_over_the_attribute() {
        let options =
            |concurrency, prefetch, window| Options { concurrency, prefetch, window, ..Options::NONE };
        let config = Config {
            builder_options: options(Some(2), Some(2), None),
            environment_options: options(Some(3), None, None),
            ..Config::default()
        };
        let merged = config.options(&options(Some(1), Some(1), Some(1)));
        assert_eq!(merged, options(Some(3), Some(2), Some(1)));
    }

    #[test]
    fn numbers_out_of_range_are_all_found() {
        let config = Config {
            group: GroupMember { index: 3, count: 3 },
            max_payload: Some(0),
            lease_ttl: Duration::ZERO,
            drain_timeout: Duration::from_secs(90_000),
            ..Config::default()
        };
        let names: Vec<_> = config.problems().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["group", "max_payload", "lease_ttl", "drain_timeout"]);
        for (shards, group) in
            [(Vec::new(), GroupMember::default()), (vec![1], GroupMember { index: 1, count: 2 })]
        {
            let config = Config { group, group_shards: Some(shards), ..Config::default() };
            assert_eq!(config.problems().len(), 1);
        }
        assert_eq!(Config::default().problems(), []);
    }
}
