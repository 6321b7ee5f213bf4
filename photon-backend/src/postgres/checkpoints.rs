//! Positions of subscriptions.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use photon_core::error::StoreError;
use photon_core::ids::{SubscriptionId, TopicName};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoint, Checkpoints, Commit, CommitOutcome, Paused, Registered, Registration, ResetOutcome,
    ShardOutcome, ShardReset, StoredCheckpoint, SubscriptionInfo,
};
use photon_core::time::Timestamp;
use tokio_postgres::{Client, Row};

use crate::columns::{decode_ranges, decode_trials, encode_ranges};

use super::PostgresStore;
use super::error::{Effect, Target, Trouble};
use super::log::{self, shard};
use super::param::params;
use super::read::{number, seq};
use super::schema::Schema;
use super::{commit, control, leases};
pub(super) use crate::refusal::unregistered;

/// The number of a registered subscription.
pub(super) async fn find(
    client: &Client,
    schema: &Schema,
    subscription: &SubscriptionId,
) -> Result<Option<i64>, Trouble> {
    let statement = "SELECT s.id FROM @subscription s JOIN @topic t ON t.id = s.topic
                     WHERE t.name = $1 AND s.position = $2";
    let (topic, position) = (subscription.topic.as_str(), subscription.position_name());
    let found = client.query_typed_opt(&schema.sql(statement), params![topic, position]).await?;
    found.map(|row| Ok(row.try_get(0)?)).transpose()
}

/// A checkpoint, from the columns watermark and ranges that begin at `first`.
pub(super) fn read_checkpoint(row: &Row, first: usize, target: &Target) -> Result<Checkpoint, Trouble> {
    let watermark = seq(row.try_get(first)?);
    let ranges = decode_ranges(watermark, Bytes::copy_from_slice(row.try_get(first + 1)?))
        .map_err(|error| target.strange("a checkpoint").with_source(error))?;
    Ok(Checkpoint { watermark, ranges })
}

async fn register(
    client: &Client,
    schema: &Schema,
    topic: i32,
    registration: &Registration,
) -> Result<Registered, Trouble> {
    let position = registration.subscription.position_name();
    let expire_after = registration.expire_after.map(micros);
    // Until the end of the transaction nobody announces that records go: whoever does sees the new one.
    client
        .query_typed(
            &schema
                .sql("SELECT FROM (SELECT FROM @trimmed WHERE topic = $1 ORDER BY shard FOR SHARE) locked"),
            params![topic],
        )
        .await?;
    let made = client
        .query_typed_opt(
            &schema.sql(
                "INSERT INTO @subscription (topic, position, mode, registered, active, expire_after)
                 SELECT $1, $2, $3, now, now, $4 FROM @now() now
                 ON CONFLICT (topic, position) DO NOTHING RETURNING id",
            ),
            params![topic, position, encode_mode(registration.mode), expire_after],
        )
        .await?;
    let Some(made) = made else {
        return renew(client, schema, topic, &position, expire_after).await;
    };
    let starts = match registration.start {
        Start::Earliest => log::starts(client, schema, topic).await?,
        Start::Latest => log::bounds(client, schema, topic).await?.iter().map(|bounds| bounds.end).collect(),
        Start::At(time) => {
            let positions = log::positions_at(client, schema, topic, time).await?.into_iter();
            positions
                .zip(log::starts(client, schema, topic).await?)
                .map(|(at, start)| at.max(start))
                .collect()
        }
    };
    let id: i64 = made.try_get(0)?;
    let (shards, places): (Vec<i32>, Vec<i64>) = (0..).zip(starts.iter().map(|start| number(*start))).unzip();
    client
        .execute_typed(
            &schema.sql(
                "INSERT INTO @checkpoint (subscription, shard, start, watermark, ranges)
                 SELECT $1, u.shard, u.start, u.start, $4 FROM unnest($2, $3) u(shard, start)",
            ),
            params![id, shards, places, encode_ranges(&Checkpoint::default())],
        )
        .await?;
    Ok(Registered { new: true, starts })
}

/// What a registration does to a subscription that is known.
async fn renew(
    client: &Client,
    schema: &Schema,
    topic: i32,
    position: &str,
    expire_after: Option<i64>,
) -> Result<Registered, Trouble> {
    let row = client
        .query_typed_one(
            &schema.sql(
                "UPDATE @subscription SET active = greatest(active, @now()), expire_after = $3
                 WHERE topic = $1 AND position = $2 RETURNING id",
            ),
            params![topic, position, expire_after],
        )
        .await?;
    let rows = client
        .query_typed(
            &schema.sql("SELECT start FROM @checkpoint WHERE subscription = $1 ORDER BY shard"),
            params![row.try_get::<_, i64>(0)?],
        )
        .await?;
    let starts = rows.iter().map(|row| Ok(seq(row.try_get(0)?))).collect::<Result<_, Trouble>>()?;
    Ok(Registered { new: false, starts })
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn encode_mode(mode: Mode) -> i32 {
    match mode {
        Mode::Group => 0,
        Mode::Durable => 1,
        Mode::Ephemeral => 2,
    }
}

async fn load(
    client: &Client,
    schema: &Schema,
    target: &Target,
    subscription: &SubscriptionId,
) -> Result<Vec<StoredCheckpoint>, Trouble> {
    let statement = "SELECT c.shard, c.watermark, c.ranges, c.resets, c.trials, o.unended
                     FROM @topic t JOIN @subscription s ON s.topic = t.id
                         JOIN @checkpoint c ON c.subscription = s.id
                         LEFT JOIN @claim o ON o.topic = t.name AND o.position = s.position
                             AND o.shard = c.shard AND o.holder IS NOT NULL
                     WHERE t.name = $1 AND s.position = $2 ORDER BY c.shard";
    let (topic, position) = (subscription.topic.as_str(), subscription.position_name());
    let rows = client.query_typed(&schema.sql(statement), params![topic, position]).await?;
    if rows.is_empty() {
        return Err(unregistered(subscription).into());
    }
    rows.iter()
        .map(|row| {
            let resets: i64 = row.try_get(3)?;
            let trials = decode_trials(Bytes::copy_from_slice(row.try_get(4)?))
                .map_err(|error| target.strange("a checkpoint").with_source(error))?;
            let unended: Option<&[u8]> = row.try_get(5)?;
            Ok(StoredCheckpoint {
                shard: shard(row.try_get(0)?),
                checkpoint: read_checkpoint(row, 1, target)?,
                trials,
                unended: unended.map(|owner| leases::read_owner(owner, target)).transpose()?,
                resets: resets.unsigned_abs(),
            })
        })
        .collect()
}

async fn list(client: &Client, schema: &Schema, target: &Target) -> Result<Vec<SubscriptionInfo>, Trouble> {
    let statement =
        "SELECT t.name, s.position, s.mode, s.registered,
                            greatest(s.active, (SELECT max(c.active) FROM @checkpoint c WHERE c.subscription = s.id)),
                            s.expire_after, s.pause_reason, s.pause_since
                     FROM @subscription s JOIN @topic t ON t.id = s.topic ORDER BY t.name, s.position";
    let rows = client.query_typed(&schema.sql(statement), &[]).await?;
    rows.iter().map(|row| info(row, target)).collect()
}

fn info(row: &Row, target: &Target) -> Result<SubscriptionInfo, Trouble> {
    let (topic, position): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
    let subscription = TopicName::new(topic)
        .and_then(|topic| SubscriptionId::from_position_name(topic, position))
        .map_err(|error| target.strange("the name of a subscription").with_source(error))?;
    let mode = match row.try_get::<_, i32>(2)? {
        0 => Mode::Group,
        1 => Mode::Durable,
        2 => Mode::Ephemeral,
        other => return Err(target.strange(format!("mode {other} of subscription {subscription}")).into()),
    };
    let expire_after: Option<i64> = row.try_get(5)?;
    Ok(SubscriptionInfo {
        subscription,
        mode,
        registered: Timestamp(row.try_get(3)?),
        active: Timestamp(row.try_get(4)?),
        expire_after: expire_after.map(|micros| Duration::from_micros(micros.unsigned_abs())),
        paused: control::read_pause(row, 6)?,
    })
}

async fn forget(client: &Client, schema: &Schema, subscription: &SubscriptionId) -> Result<(), Trouble> {
    leases::take_back(client, schema, subscription, None).await?;
    let Some(id) = find(client, schema, subscription).await? else { return Ok(()) };
    for statement in [
        "SELECT FROM (SELECT FROM @checkpoint WHERE subscription = $1 ORDER BY shard FOR UPDATE) locked",
        "DELETE FROM @delivery WHERE subscription = $1",
        "DELETE FROM @lane WHERE subscription = $1",
        "DELETE FROM @checkpoint WHERE subscription = $1",
        "DELETE FROM @subscription WHERE id = $1",
    ] {
        client.query_typed(&schema.sql(statement), params![id]).await?;
    }
    Ok(())
}

#[async_trait]
impl Checkpoints for PostgresStore {
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let topic = self.topic(&registration.subscription.topic).await?;
        let session = self.inner.reserved.session().await?;
        session.transact(register(session.client(), &self.inner.schema, topic.id, registration)).await
    }

    async fn load(&self, subscription: &SubscriptionId) -> Result<Vec<StoredCheckpoint>, StoreError> {
        let session = self.inner.reserved.session().await?;
        let (schema, target) = (&self.inner.schema, &self.inner.target);
        session.run(Effect::Read, load(session.client(), schema, target, subscription)).await
    }

    async fn commit(&self, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let session = self.inner.reserved.session().await?;
        let (schema, target) = (&self.inner.schema, &self.inner.target);
        let advanced = commit::advance(session.client(), schema, commit);
        if session.run(Effect::Write, advanced).await? {
            return Ok(vec![ShardOutcome::Committed { conflicts: Vec::new() }; commit.shards.len()]);
        }
        // Boxed, because it is large, and every driver would be with it.
        session.transact(Box::pin(commit::write(session.client(), schema, target, commit))).await
    }

    async fn reset(
        &self,
        subscription: &SubscriptionId,
        shards: &[ShardReset],
    ) -> Result<Vec<ResetOutcome>, StoreError> {
        let topic = self.topic(&subscription.topic).await?;
        for reset in shards {
            topic.check(&subscription.topic, reset.shard)?;
        }
        let session = self.inner.reserved.session().await?;
        let (schema, client) = (&self.inner.schema, session.client());
        session.transact(control::reset(client, schema, topic.id, subscription, shards)).await
    }

    async fn pause(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, StoreError> {
        let session = self.inner.reserved.session().await?;
        session.transact(control::pause(session.client(), &self.inner.schema, subscription, reason)).await
    }

    async fn paused(&self, subscription: &SubscriptionId) -> Result<Option<Paused>, StoreError> {
        let session = self.inner.reserved.session().await?;
        session.run(Effect::Read, control::paused(session.client(), &self.inner.schema, subscription)).await
    }

    async fn list(&self) -> Result<Vec<SubscriptionInfo>, StoreError> {
        let session = self.inner.reserved.session().await?;
        let (schema, target) = (&self.inner.schema, &self.inner.target);
        session.run(Effect::Read, list(session.client(), schema, target)).await
    }

    async fn forget(&self, subscription: &SubscriptionId) -> Result<(), StoreError> {
        let session = self.inner.reserved.session().await?;
        session.transact(forget(session.client(), &self.inner.schema, subscription)).await
    }
}
