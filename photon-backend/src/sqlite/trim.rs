//! Trimming.

use photon_core::ids::{Seq, Shard, TopicName};
use rusqlite::params;

use super::error::Trouble;
use super::log::{last_seq, shard_bounds};
use super::writer::Transaction;

/// So many records go in one transaction, so that appends come in between.
const RECORDS_AT_ONCE: u64 = 8_192;
/// The same for the segments that hold them.
const SEGMENTS_AT_ONCE: usize = 1_024;

/// Whether a trim has come to its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    More,
}

/// Lets new positions start behind `through`.
pub(super) fn announce(
    tx: &mut Transaction<'_>,
    topic: &TopicName,
    shard: Shard,
    through: Seq,
) -> Result<(), Trouble> {
    let row = tx.topic(topic)?;
    row.check(topic, shard)?;
    let through = through.min(shard_bounds(tx.conn, row, shard)?.end);
    tx.conn
        .prepare_cached(
            "UPDATE photon_shard SET announced = max(announced, ?3) WHERE topic = ?1 AND shard = ?2",
        )?
        .execute(params![row.id, shard.0, through.0])?;
    Ok(())
}

/// Removes some of the records of a shard up to and including `through`.
pub(super) fn trim_some(
    tx: &mut Transaction<'_>,
    topic: &TopicName,
    shard: Shard,
    through: Seq,
) -> Result<Progress, Trouble> {
    let row = tx.topic(topic)?;
    row.check(topic, shard)?;
    let conn = tx.conn;
    let bounds = shard_bounds(conn, row, shard)?;
    let through = through.min(bounds.end);
    if through <= bounds.floor {
        return Ok(Progress::Done);
    }
    // What the events show now must be known when they are gone.
    conn.prepare_cached("UPDATE photon_meta SET last_seq = ?1 WHERE only = 1")?.execute([last_seq(conn)?])?;
    conn.prepare_cached(
        "UPDATE photon_shard SET (last, time) = (
             SELECT last, time FROM photon_segment g WHERE g.topic = ?1 AND g.shard = ?2
             ORDER BY last DESC LIMIT 1)
         WHERE topic = ?1 AND shard = ?2",
    )?
    .execute(params![row.id, shard.0])?;

    let segments: Vec<(u64, u64)> = conn
        .prepare_cached(
            "SELECT first, last FROM photon_segment WHERE topic = ?1 AND shard = ?2 AND first <= ?3
             ORDER BY last LIMIT ?4",
        )?
        .query_map(params![row.id, shard.0, through.0, SEGMENTS_AT_ONCE], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut floor = through.0;
    let mut left = RECORDS_AT_ONCE;
    let mut progress = Progress::Done;
    for (index, (first, last)) in segments.iter().copied().enumerate() {
        let to = last.min(through.0).min(first + left - 1);
        conn.prepare_cached("DELETE FROM photon_event WHERE seq BETWEEN ?1 AND ?2")?.execute([first, to])?;
        let place = params![row.id, shard.0, last, to + 1];
        if to == last {
            conn.prepare_cached("DELETE FROM photon_segment WHERE topic = ?1 AND shard = ?2 AND last = ?3")?
                .execute(&place[..3])?;
        } else {
            conn.prepare_cached(
                "UPDATE photon_segment SET first = ?4 WHERE topic = ?1 AND shard = ?2 AND last = ?3",
            )?
            .execute(place)?;
        }
        left -= to + 1 - first;
        if to < last.min(through.0) || left == 0 || index + 1 == SEGMENTS_AT_ONCE {
            (floor, progress) = (to, Progress::More);
            break;
        }
    }
    conn.prepare_cached("UPDATE photon_shard SET floor = ?3 WHERE topic = ?1 AND shard = ?2")?
        .execute(params![row.id, shard.0, floor])?;
    Ok(progress)
}
