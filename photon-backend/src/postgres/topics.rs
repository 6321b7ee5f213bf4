//! Topics by name.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use photon_core::error::StoreError;
use photon_core::ids::{Generation, MAX_SHARDS, Shard, TopicName};
use photon_core::store::{TopicInfo, TopicSpec};
use tokio_postgres::Client;

use super::PostgresStore;
use super::error::{Effect, Trouble, refused};
use super::param::params;
use super::schema::Schema;
use crate::refusal::unknown_topic;

/// What a statement needs to know about a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicRow {
    pub(super) id: i32,
    pub(super) shards: u16,
}

impl TopicRow {
    /// Checks that the topic has the shard.
    pub(super) fn check(self, topic: &TopicName, shard: Shard) -> Result<(), StoreError> {
        if shard.0 < self.shards {
            return Ok(());
        }
        Err(refused(format!(
            "topic {topic:?} has no shard {shard}, its {} shards count from 0: use the shard count that \
             ensure_topic returned",
            self.shards
        )))
    }
}

/// The topics that were seen: they are never removed and never change.
#[derive(Debug, Default)]
pub(super) struct TopicCache(RwLock<HashMap<TopicName, TopicRow>>);

impl TopicCache {
    fn get(&self, name: &TopicName) -> Option<TopicRow> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn insert(&self, name: &TopicName, row: TopicRow) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), row);
    }
}

impl PostgresStore {
    /// The topic, which must have been ensured.
    pub(super) async fn topic(&self, name: &TopicName) -> Result<TopicRow, StoreError> {
        if let Some(row) = self.inner.topics.get(name) {
            return Ok(row);
        }
        let session = self.inner.reserved.session().await?;
        let found = session.run(Effect::Read, find(session.client(), &self.inner.schema, name)).await?;
        let row = found.ok_or_else(|| unknown_topic(name))?;
        self.inner.topics.insert(name, row);
        Ok(row)
    }

    pub(super) async fn make_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        if !(1..=MAX_SHARDS).contains(&spec.shards) {
            return Err(refused(format!(
                "topic {:?} cannot have {} shards: give it 1 to {MAX_SHARDS}",
                spec.name, spec.shards
            )));
        }
        let session = self.inner.reserved.session().await?;
        session.transact(ensure(session.client(), &self.inner.schema, spec)).await
    }
}

/// The topic, if it is there.
async fn find(client: &Client, schema: &Schema, name: &TopicName) -> Result<Option<TopicRow>, Trouble> {
    let found = client
        .query_typed_opt(&schema.sql("SELECT id, shards FROM @topic WHERE name = $1"), params![name.as_str()])
        .await?;
    found.map(|row| Ok(TopicRow { id: row.try_get(0)?, shards: count(row.try_get(1)?) })).transpose()
}

fn count(shards: i32) -> u16 {
    u16::try_from(shards).unwrap_or(0)
}

async fn ensure(client: &Client, schema: &Schema, spec: &TopicSpec) -> Result<TopicInfo, Trouble> {
    let (name, shards) = (spec.name.as_str(), i32::from(spec.shards));
    let made = client
        .query_typed_opt(
            &schema.sql(
                "INSERT INTO @topic (name, shards, key, generation) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (name) DO NOTHING RETURNING id",
            ),
            params![name, shards, spec.key, spec.generation.0],
        )
        .await?;
    if let Some(made) = made {
        let id: i32 = made.try_get(0)?;
        for table in ["@shard", "@trimmed"] {
            let insert = format!("INSERT INTO {table} (topic, shard) SELECT $1, generate_series(0, $2 - 1)");
            client.execute_typed(&schema.sql(&insert), params![id, shards]).await?;
        }
        return Ok(TopicInfo { generation: spec.generation, shards: spec.shards });
    }
    let row = client
        .query_typed_one(
            &schema.sql("SELECT shards, key, generation, id FROM @topic WHERE name = $1 FOR UPDATE"),
            params![name],
        )
        .await?;
    let kept = count(row.try_get(0)?);
    if kept != spec.shards {
        let asked = spec.shards;
        return Err(refused(format!(
            "topic {name:?} has {kept} shards, not {asked}: give it {kept} again, or move its events to a topic \
             with another name"
        ))
        .into());
    }
    match (row.try_get::<_, Option<String>>(1)?, &spec.key) {
        (Some(kept), Some(asked)) if kept != *asked => {
            return Err(refused(format!(
                "topic {name:?} is ordered by the key {kept:?}, not {asked:?}: give it the first one again, or move \
                 its events to a topic with another name"
            ))
            .into());
        }
        (None, Some(asked)) => {
            let id: i32 = row.try_get(3)?;
            client
                .execute_typed(
                    &schema.sql("UPDATE @topic SET key = $2 WHERE id = $1"),
                    params![id, asked.as_str()],
                )
                .await?;
        }
        _ => {}
    }
    Ok(TopicInfo { generation: Generation(row.try_get(2)?), shards: kept })
}
