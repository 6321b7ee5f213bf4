//! Stored deliveries as rows.

use bytes::Bytes;
use photon_core::envelope::{HeadersDecoder, encode_headers};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::Event;
use photon_core::handler::DeadReason;
use photon_core::ids::{EventId, Seq, Shard, TopicName};
use photon_core::store::{Failure, Lane, RowState, StoredDelivery};
use photon_core::time::Timestamp;
use rusqlite::{Connection, Row, params};
use uuid::Uuid;

use super::error::{File, Trouble};
use super::read::blob;

/// The columns that [`RowReader::read`] takes, in its order.
macro_rules! columns {
    () => {
        "shard, seq, version, state, due, attempts, lane, reason, first_failed, last_failed, \
         deferred_since, time, id, error, headers, payload"
    };
}
pub(super) use columns;

/// The state of a row that ended and that no checkpoint covers yet.
pub(super) const MARK: u8 = 4;

/// Whether a row in this state takes part in the order of its lane; what the index `photon_delivery_live`
/// holds.
pub(super) fn is_live(state: u8) -> bool {
    matches!(state, 0 | 1 | 3)
}

pub(super) fn encode_state(state: RowState) -> (u8, Option<i64>) {
    match state {
        RowState::Parked { due } => (0, Some(due.0)),
        RowState::Waiting => (1, None),
        RowState::Dead { blocks: false } => (2, None),
        RowState::Dead { blocks: true } => (3, None),
    }
}

/// Reads a state; `None` for a mark, or for a number that is no state.
pub(super) fn decode_state(state: u8, due: Option<i64>) -> Option<RowState> {
    match state {
        0 => Some(RowState::Parked { due: Timestamp(due.unwrap_or(0)) }),
        1 => Some(RowState::Waiting),
        2 => Some(RowState::Dead { blocks: false }),
        3 => Some(RowState::Dead { blocks: true }),
        _ => None,
    }
}

pub(super) fn strange(file: &File, what: impl std::fmt::Display) -> StoreError {
    let reason = format!(
        "the stored delivery {what} cannot be read: check the file with `PRAGMA integrity_check`, restore a copy"
    );
    file.error(StoreErrorKind::Corrupt, reason)
}

/// Reads rows of one subscription.
pub(super) struct RowReader<'a> {
    file: &'a File,
    topic: &'a TopicName,
    headers: HeadersDecoder,
}

impl<'a> RowReader<'a> {
    pub(super) fn new(file: &'a File, topic: &'a TopicName) -> Self {
        Self { file, topic, headers: HeadersDecoder::default() }
    }

    pub(super) fn read(&mut self, row: &Row<'_>) -> Result<StoredDelivery, Trouble> {
        let (shard, seq) = (Shard(row.get(0)?), Seq(row.get(1)?));
        let place = || format!("of {}/{shard} at {seq}", self.topic);
        let state = decode_state(row.get(3)?, row.get(4)?).ok_or_else(|| strange(self.file, place()))?;
        let lane = Lane::from_bytes(blob(row, 6)?).ok_or_else(|| strange(self.file, place()))?;
        let headers = self
            .headers
            .decode(blob(row, 14)?)
            .map_err(|error| strange(self.file, place()).with_source(error))?;
        let reason: Option<String> = row.get(7)?;
        let time = |column| row.get::<_, Option<i64>>(column).map(|time| time.map(Timestamp));
        Ok(StoredDelivery {
            event: Event {
                id: EventId(Uuid::from_bytes(row.get(12)?)),
                topic: self.topic.clone(),
                shard,
                seq,
                key: match lane {
                    Lane::Key(key) => Some(key),
                    Lane::Single(_) => None,
                },
                headers,
                payload: Bytes::copy_from_slice(blob(row, 15)?),
                time: Timestamp(row.get(11)?),
            },
            state,
            attempts: row.get(5)?,
            failure: Failure {
                error: row.get(13)?,
                reason: reason.as_deref().and_then(DeadReason::from_name),
                first_failed: time(8)?,
                last_failed: time(9)?,
                deferred_since: time(10)?,
            },
            version: row.get(2)?,
        })
    }
}

/// Writes a whole row with this version, over one that may be there.
pub(super) fn write(
    conn: &Connection,
    subscription: u64,
    row: &StoredDelivery,
    lane: &[u8],
    version: u64,
) -> rusqlite::Result<()> {
    let (state, due) = encode_state(row.state);
    let Failure { error, reason, first_failed, last_failed, deferred_since } = &row.failure;
    let time = |time: &Option<Timestamp>| time.map(|time| time.0);
    let mut headers = Vec::new();
    encode_headers(&row.event.headers, &mut headers);
    conn.prepare_cached(concat!(
        "INSERT OR REPLACE INTO photon_delivery (subscription, ",
        columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)"
    ))?
    .execute(params![
        subscription,
        row.event.shard.0,
        row.event.seq.0,
        version,
        state,
        due,
        row.attempts,
        lane,
        reason.map(DeadReason::as_str),
        time(first_failed),
        time(last_failed),
        time(deferred_since),
        row.event.time.0,
        row.event.id.0.as_bytes(),
        error,
        headers,
        &row.event.payload[..],
    ])?;
    Ok(())
}

/// Ends a row: removes it, or leaves a mark if no checkpoint covers its place.
pub(super) fn close(
    conn: &Connection,
    place: Place,
    state: u8,
    lane: &[u8],
    covered: bool,
) -> rusqlite::Result<()> {
    let Place { subscription, shard, seq } = place;
    let statement = if covered {
        "DELETE FROM photon_delivery WHERE subscription = ?1 AND shard = ?2 AND seq = ?3"
    } else {
        "UPDATE photon_delivery SET state = 4, version = version + 1, due = NULL, lane = NULL, reason = NULL,
             first_failed = NULL, last_failed = NULL, deferred_since = NULL, time = NULL, id = NULL,
             error = NULL, headers = NULL, payload = NULL
         WHERE subscription = ?1 AND shard = ?2 AND seq = ?3"
    };
    conn.prepare_cached(statement)?.execute(params![subscription, shard.0, seq.0])?;
    if is_live(state) { leave_lane(conn, place, lane) } else { Ok(()) }
}

/// Where a row lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) subscription: u64,
    pub(super) shard: Shard,
    pub(super) seq: Seq,
}

/// A row became live.
pub(super) fn enter_lane(conn: &Connection, place: Place, lane: &[u8]) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO photon_lane (subscription, shard, lane, head, rows) VALUES (?1, ?2, ?3, ?4, 1)
         ON CONFLICT DO UPDATE SET head = min(head, excluded.head), rows = rows + 1",
    )?
    .execute(params![place.subscription, place.shard.0, lane, place.seq.0])?;
    Ok(())
}

/// A row is not live any more. The row shows that already.
pub(super) fn leave_lane(conn: &Connection, place: Place, lane: &[u8]) -> rusqlite::Result<()> {
    let key = params![place.subscription, place.shard.0, lane, place.seq.0];
    let removed = conn
        .prepare_cached(
            "DELETE FROM photon_lane WHERE subscription = ?1 AND shard = ?2 AND lane = ?3 AND rows <= 1",
        )?
        .execute(&key[..3])?;
    if removed == 0 {
        conn.prepare_cached(
            "UPDATE photon_lane SET rows = rows - 1, head = CASE WHEN head <> ?4 THEN head ELSE (
                 SELECT min(d.seq) FROM photon_delivery d INDEXED BY photon_delivery_live
                 WHERE d.subscription = ?1 AND d.shard = ?2 AND d.lane = ?3 AND d.state IN (0, 1, 3)) END
             WHERE subscription = ?1 AND shard = ?2 AND lane = ?3",
        )?
        .execute(key)?;
    }
    Ok(())
}
