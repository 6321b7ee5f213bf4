//! What an owner writes about a shard.

use photon_core::event::Event;
use photon_core::ids::{Shard, SubscriptionId};
use photon_core::store::{Checkpoint, RowEnd, ShardCommit, ShardOutcome, StoredDelivery};
use rusqlite::{Connection, OptionalExtension, params};

use crate::columns::{encode_ranges, encode_trials};

use super::checkpoints::load_one;
use super::error::{File, Trouble, refused};
use super::rows::{self, MARK, Place, RowReader, columns, is_live};

/// Refuses what no owner can mean: a shard that is not there, or a row of another shard.
pub(super) fn check(
    subscription: &SubscriptionId,
    commits: &[ShardCommit],
    shards: u16,
) -> Result<(), Trouble> {
    for commit in commits {
        let shard = commit.shard;
        if shard.0 >= shards {
            return Err(refused(format!(
                "subscription {subscription} has no shard {shard}, its {shards} shards count from 0: commit \
                 only shards that were claimed"
            ))
            .into());
        }
        let foreign = |event: &Event| event.shard != shard || event.topic != subscription.topic;
        if let Some(put) = commit.puts.iter().find(|put| foreign(&put.event)) {
            return Err(refused(format!(
                "the delivery of {}/{} at {} cannot be stored for shard {shard} of {subscription}: commit it \
                 with its own shard",
                put.event.topic, put.event.shard, put.event.seq
            ))
            .into());
        }
    }
    Ok(())
}

/// Writes puts, checkpoint and ends of a shard whose fence was found good.
pub(super) fn write_shard(
    conn: &Connection,
    file: &File,
    subscription: u64,
    commit: &ShardCommit,
) -> Result<ShardOutcome, Trouble> {
    let mut conflicts = Vec::new();
    let place = |seq| Place { subscription, shard: commit.shard, seq };
    let stored = load_one(conn, file, subscription, commit.shard)?.unwrap_or_default();
    for row in &commit.puts {
        let seq = row.event.seq;
        if !put(conn, file, place(seq), row, stored.checkpoint.covers(seq))? {
            conflicts.push(seq);
        }
    }
    let replaces = commit.checkpoint.replaces(&stored.checkpoint);
    let checkpoint = if replaces { &commit.checkpoint } else { &stored.checkpoint };
    let trials = encode_trials(&commit.trials);
    if *checkpoint != stored.checkpoint || trials != stored.trials {
        store(conn, subscription, commit.shard, checkpoint, &trials)?;
    }
    for row in &commit.ends {
        if !end(conn, place(row.seq), *row, checkpoint)? {
            conflicts.push(row.seq);
        }
    }
    conn.prepare_cached(
        "DELETE FROM photon_delivery WHERE (subscription, shard, seq) IN (
             SELECT subscription, shard, seq FROM photon_delivery INDEXED BY photon_delivery_mark
             WHERE subscription = ?1 AND shard = ?2 AND seq <= ?3 AND state = 4)",
    )?
    .execute(params![subscription, commit.shard.0, checkpoint.watermark.0])?;
    Ok(ShardOutcome::Committed { conflicts })
}

fn store(
    conn: &Connection,
    subscription: u64,
    shard: Shard,
    checkpoint: &Checkpoint,
    trials: &[u8],
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE photon_checkpoint SET watermark = ?3, ranges = ?4, trials = ?5
         WHERE subscription = ?1 AND shard = ?2",
    )?
    .execute(params![
        subscription,
        shard.0,
        checkpoint.watermark.0,
        encode_ranges(checkpoint),
        trials
    ])?;
    Ok(())
}

/// A row that is there: its version, state and lane.
pub(super) type Known = (u64, u8, Option<Vec<u8>>);

pub(super) fn known(conn: &Connection, place: Place) -> rusqlite::Result<Option<Known>> {
    conn.prepare_cached(
        "SELECT version, state, lane FROM photon_delivery
         WHERE subscription = ?1 AND shard = ?2 AND seq = ?3",
    )?
    .query_row(params![place.subscription, place.shard.0, place.seq.0], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })
    .optional()
}

/// Stores a delivery. `covered`: whether the checkpoint that was stored before counts it as settled. `false`
/// if somebody else changed the row.
fn put(
    conn: &Connection,
    file: &File,
    place: Place,
    row: &StoredDelivery,
    covered: bool,
) -> Result<bool, Trouble> {
    let was_live = match known(conn, place)? {
        Some((version, state, _)) if state != MARK && version == row.version => is_live(state),
        Some((version, state, _)) if state != MARK && version == row.version + 1 => {
            return is_same_write(conn, file, place, row);
        }
        Some(_) => return Ok(false),
        // A new row for a place that is settled without a row is the repetition of a put whose row has come
        // to an end since.
        None if row.version > 0 || covered => return Ok(false),
        None => false,
    };
    let lane = row.lane().to_bytes();
    rows::write(conn, place.subscription, row, &lane, row.version + 1)?;
    match (was_live, row.state.is_live()) {
        (false, true) => rows::enter_lane(conn, place, &lane)?,
        (true, false) => rows::leave_lane(conn, place, &lane)?,
        _ => {}
    }
    Ok(true)
}

/// Whether the stored row is what an earlier attempt of the same put left behind.
fn is_same_write(
    conn: &Connection,
    file: &File,
    place: Place,
    row: &StoredDelivery,
) -> Result<bool, Trouble> {
    let mut statement = conn.prepare_cached(concat!(
        "SELECT ",
        columns!(),
        " FROM photon_delivery WHERE subscription = ?1 AND shard = ?2 AND seq = ?3"
    ))?;
    let mut found = statement.query(params![place.subscription, place.shard.0, place.seq.0])?;
    let Some(found) = found.next()? else { return Ok(false) };
    let stored = RowReader::new(file, &row.event.topic).read(found)?;
    Ok(StoredDelivery { version: row.version, ..stored } == *row)
}

/// Ends a row. `false` if it has another version.
fn end(conn: &Connection, place: Place, row: RowEnd, checkpoint: &Checkpoint) -> Result<bool, Trouble> {
    match known(conn, place)? {
        None | Some((_, MARK, _)) => Ok(true),
        Some((version, ..)) if version != row.version => Ok(false),
        Some((_, state, lane)) => {
            let covered = checkpoint.covers(place.seq);
            rows::close(conn, place, state, &lane.unwrap_or_default(), covered)?;
            Ok(true)
        }
    }
}

/// Whether any checkpoint covers the place.
pub(super) fn is_covered(conn: &Connection, file: &File, place: Place) -> Result<bool, Trouble> {
    let stored = load_one(conn, file, place.subscription, place.shard)?;
    Ok(stored.is_some_and(|stored| stored.checkpoint.covers(place.seq)))
}
