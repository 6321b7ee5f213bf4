//! What people do with a running subscription: pause it, and let it go on elsewhere.

use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{Checkpoint, Paused, ResetOutcome, ShardReset};
use photon_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use crate::columns::encode_ranges;

use super::checkpoints::{find, unregistered};
use super::error::Trouble;
use super::writer::Transaction;
use super::{leases, log};

/// A pause, from the columns `pause_reason` and `pause_since` that begin at `first`.
pub(super) fn read_pause(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<Paused>> {
    let Some(reason) = row.get(first)? else { return Ok(None) };
    Ok(Some(Paused { reason, since: Timestamp(row.get(first + 1)?) }))
}

pub(super) fn paused(conn: &Connection, subscription: u64) -> rusqlite::Result<Option<Paused>> {
    conn.prepare_cached("SELECT pause_reason, pause_since FROM photon_subscription WHERE id = ?1")?
        .query_row([subscription], |row| read_pause(row, 0))
}

pub(super) fn pause(
    tx: &mut Transaction<'_>,
    subscription: &SubscriptionId,
    reason: Option<&str>,
) -> Result<Option<Paused>, Trouble> {
    let id = find(tx.conn, subscription)?.ok_or_else(|| unregistered(subscription))?;
    let before = paused(tx.conn, id)?;
    let since = before.as_ref().map_or(tx.now, |before| before.since);
    if before.as_ref().map(|before| before.reason.as_str()) != reason {
        tx.conn
            .prepare_cached(
                "UPDATE photon_subscription SET pause_reason = ?2, pause_since = ?3, revision = revision + 1
                 WHERE id = ?1",
            )?
            .execute(params![id, reason, reason.map(|_| since.0)])?;
    }
    Ok(before)
}

pub(super) fn reset(
    tx: &mut Transaction<'_>,
    subscription: &SubscriptionId,
    shards: &[ShardReset],
) -> Result<Vec<ResetOutcome>, Trouble> {
    let id = find(tx.conn, subscription)?.ok_or_else(|| unregistered(subscription))?;
    let topic = tx.topic(&subscription.topic)?;
    for reset in shards {
        topic.check(&subscription.topic, reset.shard)?;
    }
    let (starts, bounds) = (log::starts(tx.conn, topic)?, log::bounds(tx.conn, topic)?);
    let mut outcomes = Vec::with_capacity(shards.len());
    for reset in shards {
        let (shard, index) = (reset.shard, usize::from(reset.shard.0));
        if let Some(fence) = reset.fence
            && !leases::is_current(tx.conn, subscription, shard, fence)?
        {
            outcomes.push(ResetOutcome::Fenced);
            continue;
        }
        leases::take_back(tx.conn, subscription, shard)?;
        let after = reset.after.max(starts[index]).min(bounds[index].end);
        let removed = rewrite(tx.conn, id, shard, after)?;
        outcomes.push(ResetOutcome::Reset { after, removed });
    }
    if outcomes.iter().any(|outcome| *outcome != ResetOutcome::Fenced) {
        tx.conn
            .prepare_cached("UPDATE photon_subscription SET revision = revision + 1 WHERE id = ?1")?
            .execute([id])?;
    }
    Ok(outcomes)
}

/// Sets the checkpoint to a place, and removes what is stored behind it. Returns how many rows there were.
fn rewrite(conn: &Connection, subscription: u64, shard: Shard, after: Seq) -> rusqlite::Result<u64> {
    let ranges = encode_ranges(&Checkpoint { watermark: after, ranges: Vec::new() });
    conn.prepare_cached(
        "UPDATE photon_checkpoint SET watermark = ?3, ranges = ?4, trials = x'', resets = resets + 1
         WHERE subscription = ?1 AND shard = ?2",
    )?
    .execute(params![subscription, shard.0, after.0, ranges])?;
    let place = params![subscription, shard.0, after.0];
    let removed = conn
        .prepare_cached(
            "SELECT count(*) FROM photon_delivery
             WHERE subscription = ?1 AND shard = ?2 AND seq > ?3 AND state <> 4",
        )?
        .query_row(place, |row| row.get(0))?;
    conn.prepare_cached("DELETE FROM photon_delivery WHERE subscription = ?1 AND shard = ?2 AND seq > ?3")?
        .execute(place)?;
    // A lane keeps its head if that stays, and loses the rows behind the place.
    conn.prepare_cached("DELETE FROM photon_lane WHERE subscription = ?1 AND shard = ?2 AND head > ?3")?
        .execute(place)?;
    conn.prepare_cached(
        "UPDATE photon_lane SET rows = (
             SELECT count(*) FROM photon_delivery d INDEXED BY photon_delivery_live
             WHERE d.subscription = ?1 AND d.shard = ?2 AND d.lane = photon_lane.lane AND d.state IN (0, 1, 3))
         WHERE subscription = ?1 AND shard = ?2",
    )?
    .execute(params![subscription, shard.0])?;
    Ok(removed)
}
