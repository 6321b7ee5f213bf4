//! What people do with a running subscription: pause it, and let it go on elsewhere.

use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{Checkpoint, Paused, ResetOutcome, ShardReset};
use photon_core::time::Timestamp;
use tokio_postgres::{Client, Row};

use crate::columns::encode_ranges;

use super::checkpoints::{find, unregistered};
use super::error::Trouble;
use super::param::params;
use super::read::number;
use super::schema::Schema;
use super::{leases, log};

/// A pause, from the columns `pause_reason` and `pause_since` that begin at `first`.
pub(super) fn read_pause(row: &Row, first: usize) -> Result<Option<Paused>, Trouble> {
    let Some(reason) = row.try_get::<_, Option<&[u8]>>(first)? else { return Ok(None) };
    let reason = String::from_utf8_lossy(reason).into_owned();
    Ok(Some(Paused { reason, since: Timestamp(row.try_get(first + 1)?) }))
}

pub(super) async fn paused(
    client: &Client,
    schema: &Schema,
    subscription: &SubscriptionId,
) -> Result<Option<Paused>, Trouble> {
    let statement =
        "SELECT s.pause_reason, s.pause_since FROM @subscription s JOIN @topic t ON t.id = s.topic
                     WHERE t.name = $1 AND s.position = $2";
    let (topic, position) = (subscription.topic.as_str(), subscription.position_name());
    let row = client.query_typed_opt(&schema.sql(statement), params![topic, position]).await?;
    row.map_or(Ok(None), |row| read_pause(&row, 0))
}

pub(super) async fn pause(
    client: &Client,
    schema: &Schema,
    subscription: &SubscriptionId,
    reason: Option<&str>,
) -> Result<Option<Paused>, Trouble> {
    let id = find(client, schema, subscription).await?.ok_or_else(|| unregistered(subscription))?;
    let lock = "SELECT pause_reason, pause_since FROM @subscription WHERE id = $1 FOR UPDATE";
    let row = client.query_typed_opt(&schema.sql(lock), params![id]).await?;
    let before = read_pause(&row.ok_or_else(|| unregistered(subscription))?, 0)?;
    if before.as_ref().map(|before| before.reason.as_str()) != reason {
        let update = "UPDATE @subscription SET pause_reason = $2, revision = revision + 1,
                          pause_since = CASE WHEN $2 IS NULL THEN NULL ELSE coalesce(pause_since, @now()) END
                      WHERE id = $1";
        client.execute_typed(&schema.sql(update), params![id, reason.map(str::as_bytes)]).await?;
    }
    Ok(before)
}

/// The shards are those of the topic.
pub(super) async fn reset(
    client: &Client,
    schema: &Schema,
    topic: i32,
    subscription: &SubscriptionId,
    shards: &[ShardReset],
) -> Result<Vec<ResetOutcome>, Trouble> {
    let id = find(client, schema, subscription).await?.ok_or_else(|| unregistered(subscription))?;
    let mut wanted: Vec<i32> = shards.iter().map(|reset| i32::from(reset.shard.0)).collect();
    wanted.sort_unstable();
    wanted.dedup();
    // Taken with the lock that `take_back` needs: a weaker one first could not be raised by two at once.
    let lock = "SELECT FROM (SELECT FROM @claim WHERE topic = $1 AND position = $2 AND shard = ANY ($3)
                    ORDER BY shard FOR UPDATE) locked";
    let (name, position) = (subscription.topic.as_str(), subscription.position_name());
    client.query_typed(&schema.sql(lock), params![name, position, wanted]).await?;
    let current = leases::current(client, schema, subscription, &wanted).await?;
    let lock = "SELECT FROM (SELECT FROM @checkpoint WHERE subscription = $1 AND shard = ANY ($2)
                    ORDER BY shard FOR UPDATE) locked";
    client.query_typed(&schema.sql(lock), params![id, wanted]).await?;
    // Nobody announces a trim of what a position is just put before.
    let lock = "SELECT FROM (SELECT FROM @trimmed WHERE topic = $1 AND shard = ANY ($2)
                    ORDER BY shard FOR SHARE) locked";
    client.query_typed(&schema.sql(lock), params![topic, wanted]).await?;
    let starts = log::starts(client, schema, topic).await?;
    let bounds = log::bounds(client, schema, topic).await?;
    let mut outcomes = Vec::with_capacity(shards.len());
    for reset in shards {
        if reset.fence.is_some_and(|fence| current.get(&reset.shard) != Some(&fence)) {
            outcomes.push(ResetOutcome::Fenced);
            continue;
        }
        let index = usize::from(reset.shard.0);
        let after = reset.after.max(starts[index]).min(bounds[index].end);
        let shard = vec![i32::from(reset.shard.0)];
        leases::take_back(client, schema, subscription, Some(shard)).await?;
        let removed = rewrite(client, schema, id, reset.shard, after).await?;
        outcomes.push(ResetOutcome::Reset { after, removed });
    }
    if outcomes.iter().any(|outcome| *outcome != ResetOutcome::Fenced) {
        raise_revision(client, schema, id).await?;
    }
    Ok(outcomes)
}

pub(super) async fn raise_revision(client: &Client, schema: &Schema, id: i64) -> Result<(), Trouble> {
    let statement = "UPDATE @subscription SET revision = revision + 1 WHERE id = $1";
    client.execute_typed(&schema.sql(statement), params![id]).await?;
    Ok(())
}

/// Sets the checkpoint to a place, and removes what is stored behind it. Returns how many rows there were.
async fn rewrite(
    client: &Client,
    schema: &Schema,
    subscription: i64,
    shard: Shard,
    after: Seq,
) -> Result<u64, Trouble> {
    let ranges = encode_ranges(&Checkpoint { watermark: after, ranges: Vec::new() });
    let shard = i32::from(shard.0);
    let checkpoint = "UPDATE @checkpoint SET watermark = $3, ranges = $4, trials = '', resets = resets + 1
                      WHERE subscription = $1 AND shard = $2";
    client
        .execute_typed(&schema.sql(checkpoint), params![subscription, shard, number(after), ranges])
        .await?;
    let rows = "WITH gone AS (DELETE FROM @delivery WHERE subscription = $1 AND shard = $2 AND seq > $3
                              RETURNING state)
                SELECT count(*) FILTER (WHERE state <> 4) FROM gone";
    let place = params![subscription, shard, number(after)];
    let removed: i64 = client.query_typed_one(&schema.sql(rows), place).await?.try_get(0)?;
    // A lane keeps its head if that stays, and loses the rows behind the place.
    let lanes = "DELETE FROM @lane WHERE subscription = $1 AND shard = $2 AND head > $3";
    client.execute_typed(&schema.sql(lanes), place).await?;
    let lanes = "UPDATE @lane l SET rows = (
                     SELECT count(*) FROM @delivery d WHERE d.subscription = $1 AND d.shard = $2
                         AND d.lane_id = l.lane_id AND d.state IN (0, 1, 3))
                 WHERE l.subscription = $1 AND l.shard = $2";
    client.execute_typed(&schema.sql(lanes), params![subscription, shard]).await?;
    Ok(removed.unsigned_abs())
}
