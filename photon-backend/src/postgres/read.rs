//! Reading the log.

use bytes::Bytes;
use photon_core::envelope::HeadersDecoder;
use photon_core::error::StoreError;
use photon_core::event::Event;
use photon_core::ids::{EventId, Key, Seq, TopicName};
use photon_core::store::{Cursor, ReadBatch, ReadLimit, ShardRead};
use photon_core::time::Timestamp;
use tokio_postgres::Row;

use super::PostgresStore;
use super::error::{Effect, Target, Trouble};
use super::param::params;

/// One row for each record, and one without for a shard that gives none.
const RECORDS: &str =
    "SELECT n, floor, last, asked, seq, time, id, key, headers, payload FROM @read($1, $2, $3, $4, $5, $6)";

/// What the rows of one shard have shown.
#[derive(Clone, Copy)]
struct Seen {
    read: ShardRead,
    /// Whether it was its turn.
    was_asked: bool,
    /// Whether a record of it had to be left out.
    is_cut: bool,
    records: usize,
    bytes: usize,
}

struct Reading<'a> {
    topic: &'a TopicName,
    target: &'a Target,
    left: ReadLimit,
    records: Vec<Event>,
    shards: Vec<Option<Seen>>,
    headers: HeadersDecoder,
}

impl Reading<'_> {
    fn take(&mut self, cursors: &[Cursor], row: &Row) -> Result<(), Trouble> {
        let number: i64 = row.try_get(0)?;
        let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
        let Some(cursor) = cursors.get(index) else { return Ok(()) };
        let read = ShardRead {
            shard: cursor.shard,
            through: cursor.after,
            floor: seq(row.try_get(1)?),
            end: seq(row.try_get(2)?),
        };
        let was_asked = row.try_get(3)?;
        let seen =
            self.shards[index].get_or_insert(Seen { read, was_asked, is_cut: false, records: 0, bytes: 0 });
        let Some(place) = row.try_get::<_, Option<i64>>(4)? else { return Ok(()) };
        if seen.is_cut || self.left.records == 0 || self.left.bytes == 0 {
            seen.is_cut = true;
            return Ok(());
        }
        let payload: &[u8] = row.try_get(9)?;
        let headers = self.headers.decode(row.try_get(8)?).map_err(|error| {
            let what = format!("the record of {}/{} at {place}", self.topic, cursor.shard);
            self.target.strange(what).with_source(error)
        })?;
        seen.read.through = seq(place);
        seen.records += 1;
        seen.bytes += payload.len();
        self.left.records -= 1;
        self.left.bytes = self.left.bytes.saturating_sub(payload.len());
        self.records.push(Event {
            id: EventId(row.try_get(6)?),
            topic: self.topic.clone(),
            shard: cursor.shard,
            seq: seq(place),
            key: row.try_get::<_, Option<&[u8]>>(7)?.map(|key| Key::new(Bytes::copy_from_slice(key))),
            headers,
            payload: Bytes::copy_from_slice(payload),
            time: Timestamp(row.try_get(5)?),
        });
        Ok(())
    }

    /// Where the reader stands in a shard: at its end, if all that it has was returned.
    fn stand(seen: Seen, share: ReadLimit) -> ShardRead {
        let is_all =
            seen.was_asked && !seen.is_cut && seen.records < share.records && seen.bytes < share.bytes;
        let through = if is_all { seen.read.through.max(seen.read.end) } else { seen.read.through };
        ShardRead { through, ..seen.read }
    }
}

/// A place as Postgres gives it.
pub(super) fn seq(number: i64) -> Seq {
    Seq(number.unsigned_abs())
}

/// A place as Postgres takes it.
pub(super) fn number(seq: Seq) -> i64 {
    i64::try_from(seq.0).unwrap_or(i64::MAX)
}

impl PostgresStore {
    pub(super) async fn read_batch(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
        first: usize,
    ) -> Result<ReadBatch, StoreError> {
        let row = self.topic(topic).await?;
        for cursor in cursors {
            row.check(topic, cursor.shard)?;
        }
        if cursors.is_empty() {
            return Ok(ReadBatch::default());
        }
        let limit = ReadLimit { records: limit.records.max(1), bytes: limit.bytes.max(1) };
        let shards: Vec<i32> = cursors.iter().map(|cursor| i32::from(cursor.shard.0)).collect();
        let afters: Vec<i64> = cursors.iter().map(|cursor| number(cursor.after)).collect();
        let most = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
        let (records, bytes) = (most(limit.records), most(limit.bytes));
        let turn = most(first % cursors.len());
        let session = self.inner.work.session().await?;
        let statement = self.inner.schema.sql(RECORDS);
        let parameters = params![row.id, shards, afters, records, bytes, turn];
        let rows = session.run(Effect::Read, session.client().query_typed(&statement, parameters)).await?;
        drop(session);
        let mut reading = Reading {
            topic,
            target: &self.inner.target,
            left: limit,
            records: Vec::with_capacity(rows.len()),
            shards: vec![None; cursors.len()],
            headers: HeadersDecoder::default(),
        };
        let explain = |trouble: Trouble| self.inner.target.explain(trouble, Effect::Read);
        for row in &rows {
            reading.take(cursors, row).map_err(explain)?;
        }
        let asked = reading.shards.iter().flatten().filter(|seen| seen.was_asked).count().max(1);
        let share = ReadLimit { records: limit.records / asked, bytes: limit.bytes / asked };
        let missing = || self.inner.target.strange(format!("topic {topic:?} has lost its shards; it"));
        let stand = |seen: &Option<Seen>| seen.map(|seen| Reading::stand(seen, share)).ok_or_else(missing);
        let shards = reading.shards.iter().map(stand).collect::<Result<_, _>>()?;
        Ok(ReadBatch { records: reading.records, shards })
    }
}
