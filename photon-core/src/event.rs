//! Events: before they are stored and after.

use std::fmt;

use bytes::Bytes;

use crate::headers::Headers;
use crate::ids::{EventId, Key, Seq, Shard, TopicName};
use crate::time::Timestamp;

/// An event as the log gives it back.
///
/// Cloning shares the bytes. `Debug` leaves payload and header values out, because they may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// The identity that the publisher gave it.
    pub id: EventId,
    /// The topic it was published to.
    pub topic: TopicName,
    /// The shard its key fell into.
    pub shard: Shard,
    /// Its place in the shard.
    pub seq: Seq,
    /// The ordering key, if it has one.
    pub key: Option<Key>,
    /// What travels beside the payload.
    pub headers: Headers,
    /// The encoded value.
    pub payload: Bytes,
    /// When the store took it in, by the store's clock; never earlier than its predecessor in the shard.
    pub time: Timestamp,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("shard", &self.shard.0)
            .field("seq", &self.seq.0)
            .field("key", &self.key)
            .field("headers", &self.headers)
            .field("payload_bytes", &self.payload.len())
            .field("time", &self.time)
            .finish()
    }
}

/// An event on its way into the log.
#[derive(Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// A fresh id.
    pub id: EventId,
    /// The shard, computed with [`crate::machine::shards::shard_of`].
    pub shard: Shard,
    /// The ordering key, if it has one.
    pub key: Option<Key>,
    /// What travels beside the payload.
    pub headers: Headers,
    /// The encoded value.
    pub payload: Bytes,
    /// If set, a second event with the same id in the same shard and window is not stored.
    pub dedup_id: Option<String>,
}

impl fmt::Debug for NewEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewEvent")
            .field("id", &self.id)
            .field("shard", &self.shard.0)
            .field("key", &self.key)
            .field("headers", &self.headers)
            .field("payload_bytes", &self.payload.len())
            .field("dedup_id", &self.dedup_id)
            .finish()
    }
}
