//! Publishing within a transaction of the user.

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use crate::error::StoreError;
use crate::event::NewEvent;
use crate::ids::TopicName;

/// What a store can do whose engine also holds the user's own tables: take events in with a transaction of the
/// user, so that they are in the log if and only if it commits. Reached through
/// [`Store::as_outbox`](super::Store::as_outbox).
///
/// Staged events get their places after the commit, those of one transaction in their order. A transaction that
/// stays open, or is rolled back, holds nobody up.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// What the transaction must execute to stage the events. Nothing is written yet.
    ///
    /// # Errors
    /// `Refused` if the topic was not ensured, a shard is out of range, or an event has a dedup id: a transaction
    /// is stored once by itself.
    async fn stage(&self, topic: &TopicName, events: &[NewEvent]) -> Result<Staged, StoreError>;

    /// Moves what was committed before the call into the log. It gets there by itself, too; this is for who waits until
    /// everything is handled.
    ///
    /// # Errors
    /// What the engine says; what was moved until then stays moved.
    async fn flush(&self) -> Result<(), StoreError>;
}

/// A statement with its values, one element an event in each column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// It takes `topic` as `$1` and the columns as `$2` to `$6`, in the order of the fields.
    pub statement: String,
    /// The number of the topic.
    pub topic: i32,
    /// The shards.
    pub shards: Vec<i32>,
    /// The ids.
    pub ids: Vec<Uuid>,
    /// The keys.
    pub keys: Vec<Option<Vec<u8>>>,
    /// The headers, encoded.
    pub headers: Vec<Vec<u8>>,
    /// The payloads.
    pub payloads: Vec<Bytes>,
}
