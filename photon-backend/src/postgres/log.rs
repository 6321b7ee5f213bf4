//! The event log.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::event::NewEvent;
use photon_core::ids::{Seq, Shard, TopicName};
use photon_core::store::{
    Appended, Bounds, Cursor, EventLog, ReadBatch, ReadLimit, TopicInfo, TopicSpec, Wake,
};
use photon_core::time::Timestamp;
use tokio_postgres::Client;

use super::PostgresStore;
use super::error::{Effect, Trouble};
use super::param::params;
use super::read::{number, seq};
use super::schema::Schema;

/// So many records go in one transaction of a trim.
const TRIMMED_AT_ONCE: i64 = 8_192;

/// The ends of every shard, by number.
pub(super) async fn bounds(client: &Client, schema: &Schema, topic: i32) -> Result<Vec<Bounds>, Trouble> {
    let statement = "SELECT c.shard, t.floor, c.last FROM @shard c JOIN @trimmed t USING (topic, shard)
                     WHERE c.topic = $1 ORDER BY c.shard";
    let rows = client.query_typed(&schema.sql(statement), params![topic]).await?;
    rows.iter()
        .map(|row| {
            Ok(Bounds {
                shard: shard(row.try_get(0)?),
                floor: seq(row.try_get(1)?),
                end: seq(row.try_get(2)?),
            })
        })
        .collect()
}

/// The places that a new position starts after at the earliest, by shard number.
pub(super) async fn starts(client: &Client, schema: &Schema, topic: i32) -> Result<Vec<Seq>, Trouble> {
    let statement = "SELECT greatest(floor, announced) FROM @trimmed WHERE topic = $1 ORDER BY shard";
    let rows = client.query_typed(&schema.sql(statement), params![topic]).await?;
    rows.iter().map(|row| Ok(seq(row.try_get(0)?))).collect()
}

/// For every shard, by number, the last place whose record was taken in before `time`.
pub(super) async fn positions_at(
    client: &Client,
    schema: &Schema,
    topic: i32,
    time: Timestamp,
) -> Result<Vec<Seq>, Trouble> {
    let statement = "SELECT @position_at($1, c.shard, $2) FROM @shard c WHERE c.topic = $1 ORDER BY c.shard";
    let rows = client.query_typed(&schema.sql(statement), params![topic, time.0]).await?;
    rows.iter().map(|row| Ok(seq(row.try_get(0)?))).collect()
}

/// A shard as Postgres gives it.
pub(super) fn shard(number: i32) -> Shard {
    Shard(u16::try_from(number).unwrap_or(u16::MAX))
}

/// Removes some of the records of a shard up to and including `through`; `true` if there are more.
async fn trim_some(
    client: &Client,
    schema: &Schema,
    topic: i32,
    shard: i32,
    through: i64,
) -> Result<bool, Trouble> {
    let row = client
        .query_typed_one(
            &schema.sql(
                "SELECT t.floor, least(c.last, $3) FROM @trimmed t JOIN @shard c USING (topic, shard)
                 WHERE t.topic = $1 AND t.shard = $2 FOR UPDATE OF t",
            ),
            params![topic, shard, through],
        )
        .await?;
    let (floor, through): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    if through <= floor {
        return Ok(false);
    }
    let to = through.min(floor.saturating_add(TRIMMED_AT_ONCE));
    client
        .execute_typed(
            &schema.sql("DELETE FROM @event WHERE topic = $1 AND shard = $2 AND seq > $3 AND seq <= $4"),
            params![topic, shard, floor, to],
        )
        .await?;
    client
        .execute_typed(
            &schema.sql("UPDATE @trimmed SET floor = $3 WHERE topic = $1 AND shard = $2"),
            params![topic, shard, to],
        )
        .await?;
    Ok(to < through)
}

#[async_trait]
impl EventLog for PostgresStore {
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        self.make_topic(spec).await
    }

    async fn append(&self, topic: &TopicName, events: Vec<NewEvent>) -> Result<Vec<Appended>, StoreError> {
        self.append_batch(topic, &events).await
    }

    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        // Another shard goes first each time, so that a small limit starves none.
        let first = self.inner.reads.fetch_add(1, Ordering::Relaxed);
        self.read_batch(topic, cursors, limit, first).await
    }

    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        let row = self.topic(topic).await?;
        let session = self.inner.reserved.session().await?;
        session.run(Effect::Read, bounds(session.client(), &self.inner.schema, row.id)).await
    }

    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError> {
        let row = self.topic(topic).await?;
        let session = self.inner.reserved.session().await?;
        session.run(Effect::Read, positions_at(session.client(), &self.inner.schema, row.id, time)).await
    }

    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let row = self.topic(topic).await?;
        row.check(topic, shard)?;
        let session = self.inner.reserved.session().await?;
        let statement = self.inner.schema.sql(
            "UPDATE @trimmed t SET announced = greatest(t.announced, least($3, c.last)) FROM @shard c
             WHERE t.topic = $1 AND t.shard = $2 AND c.topic = t.topic AND c.shard = t.shard",
        );
        let parameters = params![row.id, i32::from(shard.0), number(through)];
        session.run(Effect::Write, session.client().execute_typed(&statement, parameters)).await?;
        Ok(())
    }

    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let row = self.topic(topic).await?;
        row.check(topic, shard)?;
        loop {
            // A connection for each step: others come in between.
            let session = self.inner.reserved.session().await?;
            let (client, schema) = (session.client(), &self.inner.schema);
            let step = trim_some(client, schema, row.id, i32::from(shard.0), number(through));
            if !session.transact(step).await? {
                return Ok(());
            }
        }
    }

    fn wake(&self, topic: &TopicName) -> Box<dyn Wake> {
        self.inner.wakes.listen(topic)
    }

    fn poll_interval(&self) -> Duration {
        self.inner.options.poll_interval
    }
}
