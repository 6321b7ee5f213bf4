//! The event log.

use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use photon_core::error::StoreError;
use photon_core::event::NewEvent;
use photon_core::ids::{MAX_SHARDS, Seq, Shard, TopicName};
use photon_core::store::{
    Appended, Bounds, Cursor, EventLog, ReadBatch, ReadLimit, TopicInfo, TopicSpec, Wake,
};
use photon_core::time::Timestamp;

use super::RedisStore;
use super::error::{Effect, Trouble, refused};
use super::known::{Topic, mending};
use super::link::Use;
use super::scripts;

/// So many records go in one step, so that others come in between.
const TRIM_AT_ONCE: u64 = 100_000;

impl RedisStore {
    /// Floor and end of shards.
    pub(super) async fn bounds_of(
        &self,
        topic: &Topic,
        shards: impl Iterator<Item = Shard> + Clone,
    ) -> Result<Vec<Bounds>, Trouble> {
        let inner = &self.inner;
        let mut ask = redis::pipe();
        for shard in shards.clone() {
            ask.cmd("HMGET").arg(inner.keys.shard(&topic.name, shard)).arg("floor").arg("seq");
        }
        let found: Vec<(Option<u64>, Option<u64>)> = inner.links.ask(Use::Read, Effect::Read, &ask).await?;
        let bounds = |(shard, found): (Shard, (Option<u64>, Option<u64>))| match found {
            (Some(floor), Some(end)) => {
                topic.see(shard, Seq(end));
                Ok(Bounds { shard, floor: Seq(floor), end: Seq(end) })
            }
            _ => Err(Trouble::NoTopic),
        };
        shards.zip(found).map(bounds).collect()
    }

    async fn positions_at(&self, topic: &Topic, time: Timestamp) -> Result<Vec<Seq>, Trouble> {
        let inner = &self.inner;
        let position = async |shard| {
            let keys = [inner.keys.shard(&topic.name, shard), inner.keys.log(&topic.name, shard)];
            let answer = inner.links.run(Use::Read, Effect::Read, &scripts::POSITION, &keys, |command| {
                command.arg(time.0);
            });
            Ok(Seq(answer.await?))
        };
        try_join_all(topic.shard_numbers().map(position)).await
    }

    /// Announces a trim or does a part of it. Returns whether there is more to do.
    async fn trim_some(
        &self,
        topic: &Topic,
        shard: Shard,
        through: Seq,
        what: &str,
    ) -> Result<bool, Trouble> {
        let inner = &self.inner;
        let keys = [inner.keys.shard(&topic.name, shard), inner.keys.log(&topic.name, shard)];
        let answer = inner.links.run(Use::Control, Effect::Write, &scripts::TRIM, &keys, |command| {
            command.arg(what).arg(through.0).arg(TRIM_AT_ONCE);
        });
        answer.await
    }
}

#[async_trait]
impl EventLog for RedisStore {
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        if !(1..=MAX_SHARDS).contains(&spec.shards) {
            return Err(refused(format!(
                "topic {:?} cannot have {} shards: give it 1 to {MAX_SHARDS}",
                spec.name, spec.shards
            )));
        }
        self.make_topic(spec).await
    }

    async fn append(&self, topic: &TopicName, events: Vec<NewEvent>) -> Result<Vec<Appended>, StoreError> {
        self.append_all(topic, events).await
    }

    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        let topic = self.topic(topic).await?;
        for cursor in cursors {
            topic.check(cursor.shard)?;
        }
        mending!(self, topic, None, self.read_some(&topic, cursors, limit))
    }

    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        let topic = self.topic(topic).await?;
        mending!(self, topic, None, self.bounds_of(&topic, topic.shard_numbers()))
    }

    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError> {
        let topic = self.topic(topic).await?;
        mending!(self, topic, None, self.positions_at(&topic, time))
    }

    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let topic = self.topic(topic).await?;
        topic.check(shard)?;
        mending!(self, topic, None, self.trim_some(&topic, shard, through, "announce")).map(drop)
    }

    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let topic = self.topic(topic).await?;
        topic.check(shard)?;
        while mending!(self, topic, None, self.trim_some(&topic, shard, through, "trim"))? {}
        Ok(())
    }

    fn wake(&self, topic: &TopicName) -> Box<dyn Wake> {
        self.inner.wakes.listen(topic)
    }

    fn poll_interval(&self) -> Duration {
        self.inner.options.poll_interval
    }
}
