//! Topics by name.

use std::collections::HashMap;

use photon_core::ids::{Shard, TopicName};
use rusqlite::{Connection, OptionalExtension};

use super::error::{Trouble, refused};
use crate::refusal::unknown_topic;

/// What a statement needs to know about a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicRow {
    pub(super) id: u64,
    pub(super) shards: u16,
}

impl TopicRow {
    /// Checks that the topic has the shard.
    pub(super) fn check(self, topic: &TopicName, shard: Shard) -> Result<(), Trouble> {
        if shard.0 < self.shards {
            return Ok(());
        }
        Err(refused(format!(
            "topic {topic:?} has no shard {shard}, its {} shards count from 0: use the shard count that \
             ensure_topic returned",
            self.shards
        ))
        .into())
    }
}

/// The topics that a connection has seen: they are never removed and never change.
#[derive(Debug, Default)]
pub(super) struct TopicCache(HashMap<TopicName, TopicRow>);

impl TopicCache {
    /// The topic, which must have been ensured.
    pub(super) fn get(&mut self, conn: &Connection, name: &TopicName) -> Result<TopicRow, Trouble> {
        if let Some(row) = self.0.get(name) {
            return Ok(*row);
        }
        let row = find(conn, name)?.ok_or_else(|| unknown_topic(name))?;
        self.0.insert(name.clone(), row);
        Ok(row)
    }
}

/// The topic, if it is there.
pub(super) fn find(conn: &Connection, name: &TopicName) -> rusqlite::Result<Option<TopicRow>> {
    conn.prepare_cached("SELECT id, shards FROM photon_topic WHERE name = ?1")?
        .query_row([name.as_str()], |row| Ok(TopicRow { id: row.get(0)?, shards: row.get(1)? }))
        .optional()
}
