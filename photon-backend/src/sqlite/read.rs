//! Reading the log.

use bytes::Bytes;
use photon_core::envelope::HeadersDecoder;
use photon_core::event::Event;
use photon_core::ids::{EventId, Key, Seq, Shard, TopicName};
use photon_core::store::{Cursor, ReadBatch, ReadLimit, ShardRead};
use photon_core::time::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Row, params};
use uuid::Uuid;

use super::error::Trouble;
use super::log::shard_bounds;
use super::readers::Snapshot;
use super::topics::TopicRow;

/// The records of a shard after a place, in order, from segment to segment.
const RECORDS: &str = "
    SELECT e.seq, e.id, e.key, e.headers, e.payload, g.time
    FROM photon_segment g CROSS JOIN photon_event e ON e.seq BETWEEN max(g.first, ?3 + 1) AND g.last
    WHERE g.topic = ?1 AND g.shard = ?2 AND g.last > ?3
    ORDER BY g.last, e.seq
    LIMIT ?4";

/// Reads what follows the cursors. The limit is shared out evenly among the shards that have records, in
/// rounds; `first` is the index of the cursor that begins.
pub(super) fn read(
    snapshot: &mut Snapshot<'_>,
    topic: &TopicName,
    cursors: &[Cursor],
    limit: ReadLimit,
    first: usize,
) -> Result<ReadBatch, Trouble> {
    let row = snapshot.topic(topic)?;
    let mut shards = Vec::with_capacity(cursors.len());
    for cursor in cursors {
        row.check(topic, cursor.shard)?;
        let bounds = shard_bounds(snapshot.conn, row, cursor.shard)?;
        let shard = cursor.shard;
        shards.push(ShardRead { shard, through: cursor.after, floor: bounds.floor, end: bounds.end });
    }
    let mut reading = Reading {
        snapshot,
        topic,
        row,
        records: Vec::new(),
        left: ReadLimit { records: limit.records.max(1), bytes: limit.bytes.max(1) },
        headers: HeadersDecoder::default(),
    };
    let mut open: Vec<usize> = (0..shards.len()).collect();
    open.rotate_left(first % shards.len().max(1));
    while !open.is_empty() && !reading.is_full() {
        let share = reading.share(open.len());
        let mut more = Vec::new();
        for index in open {
            if reading.is_full() {
                break;
            }
            if reading.turn(&mut shards[index], share)? == Turn::More {
                more.push(index);
            }
        }
        open = more;
    }
    Ok(ReadBatch { records: reading.records, shards })
}

/// Whether a shard may have records left.
#[derive(PartialEq, Eq)]
enum Turn {
    More,
    Done,
}

struct Reading<'a, 'b> {
    snapshot: &'a Snapshot<'b>,
    topic: &'a TopicName,
    row: TopicRow,
    records: Vec<Event>,
    left: ReadLimit,
    headers: HeadersDecoder,
}

impl Reading<'_, '_> {
    fn is_full(&self) -> bool {
        self.left.records == 0 || self.left.bytes == 0
    }

    fn share(&self, among: usize) -> ReadLimit {
        ReadLimit { records: self.left.records.div_ceil(among), bytes: self.left.bytes.div_ceil(among) }
    }

    /// Reads on in one shard, up to its share.
    fn turn(&mut self, shard: &mut ShardRead, share: ReadLimit) -> Result<Turn, Trouble> {
        if shard.through >= shard.end {
            return Ok(Turn::Done);
        }
        let most = share.records.min(self.left.records);
        let (mut records, mut bytes) = (0, 0);
        let mut statement = self.snapshot.conn.prepare_cached(RECORDS)?;
        let after = shard.through.0;
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![self.row.id, shard.shard.0, after, limit])?;
        while let Some(row) = rows.next()? {
            let event = self.event(row, shard.shard)?;
            shard.through = event.seq;
            records += 1;
            bytes += event.payload.len();
            self.left.records -= 1;
            self.left.bytes = self.left.bytes.saturating_sub(event.payload.len());
            self.records.push(event);
            if bytes >= share.bytes || self.is_full() {
                return Ok(Turn::More);
            }
        }
        if records < most {
            shard.through = shard.end;
            return Ok(Turn::Done);
        }
        Ok(Turn::More)
    }

    fn event(&mut self, row: &Row<'_>, shard: Shard) -> Result<Event, Trouble> {
        let seq = Seq(row.get(0)?);
        let place = || format!("{}/{shard} at {seq}", self.topic);
        let headers = self
            .headers
            .decode(blob(row, 3)?)
            .map_err(|error| self.snapshot.file.bad_envelope(error, place()))?;
        Ok(Event {
            id: EventId(Uuid::from_bytes(row.get(1)?)),
            topic: self.topic.clone(),
            shard,
            seq,
            key: optional_blob(row, 2)?.map(|key| Key::new(Bytes::copy_from_slice(key))),
            headers,
            payload: Bytes::copy_from_slice(blob(row, 4)?),
            time: Timestamp(row.get(5)?),
        })
    }
}

/// The bytes in a column, without a copy.
pub(super) fn blob<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<&'a [u8]> {
    optional_blob(row, column)?
        .ok_or_else(|| rusqlite::Error::InvalidColumnType(column, "a BLOB".to_owned(), Type::Null))
}

/// The bytes in a column that may be empty, without a copy.
pub(super) fn optional_blob<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<Option<&'a [u8]>> {
    let value = row.get_ref(column)?;
    value
        .as_blob_or_null()
        .map_err(|_| rusqlite::Error::InvalidColumnType(column, "a BLOB".to_owned(), value.data_type()))
}
