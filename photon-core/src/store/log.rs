//! The event log.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::StoreError;
use crate::event::{Event, NewEvent};
use crate::ids::{Generation, Seq, Shard, TopicName};
use crate::time::Timestamp;

/// What a topic must look like in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// Its name.
    pub name: TopicName,
    /// Its number of shards.
    pub shards: u16,
    /// How its key is found, see [`TopicDescriptor::key`](crate::topic::TopicDescriptor::key).
    /// `None` leaves it open: nothing is compared, and an existing topic keeps what it has.
    pub key: Option<String>,
    /// The generation that a new topic gets; made at random by the caller.
    pub generation: Generation,
}

/// What a topic looks like in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInfo {
    /// The life of the topic that is in the store.
    pub generation: Generation,
    /// Its number of shards.
    pub shards: u16,
}

/// What became of one event of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its place; for a duplicate, the place of the first.
    pub seq: Seq,
    /// Whether the store had an event with the same dedup id already and did not store this one.
    pub duplicate: bool,
}

/// Where a reader stands in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The shard.
    pub shard: Shard,
    /// Everything up to here has been read.
    pub after: Seq,
}

/// How much one read may return over all its shards. At least one record is returned if there is one; fewer than there
/// is room for may be, and then [`ShardRead::through`] is before [`ShardRead::end`] in some shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimit {
    /// At most so many records.
    pub records: usize,
    /// Stop after the record that takes the payloads to so many bytes or more.
    pub bytes: usize,
}

/// What a read saw of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRead {
    /// The shard.
    pub shard: Shard,
    /// Where the reader stands now: nothing that exists or will exist at or before it was left out. Never
    /// before the cursor.
    pub through: Seq,
    /// Everything up to here was trimmed. A cursor before it lost records.
    pub floor: Seq,
    /// The last place that was given out in this life of the topic. A cursor behind it means that the log
    /// lost its end.
    pub end: Seq,
}

/// Records of several shards. Within a shard they ascend; shards may be mixed.
#[derive(Debug, Clone, Default)]
pub struct ReadBatch {
    /// The records.
    pub records: Vec<Event>,
    /// One entry for each cursor of the call, in its order.
    pub shards: Vec<ShardRead>,
}

/// The ends of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The shard.
    pub shard: Shard,
    /// Everything up to here was trimmed; 0 if nothing was.
    pub floor: Seq,
    /// The last place that was given out; 0 if none was.
    pub end: Seq,
}

/// The durable, ordered logs of topics.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Makes the topic, or checks that it is what `spec` says. Safe to call from many processes at once.
    ///
    /// # Errors
    /// `Refused`, naming both values, if the topic has another number of shards or another key.
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError>;

    /// Appends the events and returns the place of each, in order. Within a shard, places ascend in batch
    /// order, and start after every place given out before.
    ///
    /// # Errors
    /// On any error a prefix of the batch per shard may be stored, nothing else; with a kind other than
    /// `Unknown` nothing is. `Refused` if the topic was not ensured or a shard is out of range.
    async fn append(&self, topic: &TopicName, events: Vec<NewEvent>) -> Result<Vec<Appended>, StoreError>;

    /// The records after each cursor. The order of visibility is the order of places: a record never
    /// appears at or before a place that a reader has passed. Every append that returned before the call is
    /// seen.
    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError>;

    /// The ends of every shard, by shard number.
    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError>;

    /// For every shard, by number, the last place whose record was taken in before `time`; a reader that
    /// starts after it gets everything from `time` on.
    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError>;

    /// Makes public that the records of a shard up to and including `through` are going to be trimmed: whatever
    /// becomes known or is reset from now on starts behind that place. Removes nothing, never goes back.
    ///
    /// Whoever trims announces it first, then lists the subscriptions, and trims no more than they have settled:
    /// one that became known before the announcement is in the list, a later one starts behind it.
    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError>;

    /// Removes the records of a shard up to and including `through`. Places are not used again, and the
    /// floor never goes back. The caller has made sure that no subscription needs them.
    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError>;

    /// A listener for new records of the topic, from now on.
    fn wake(&self, topic: &TopicName) -> Box<dyn Wake>;

    /// How often a reader should look even though nothing woke it.
    fn poll_interval(&self) -> Duration;
}

/// Tells that there may be new records. It is a hint: it can come for nothing, and readers look from time
/// to time without it.
#[async_trait]
pub trait Wake: Send {
    /// Returns when something may have been appended since the listener was made or last returned.
    /// Dropping the future loses nothing.
    async fn wait(&mut self);
}
