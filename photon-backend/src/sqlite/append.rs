//! Appending.

use std::time::Duration;

use photon_core::envelope::encode_headers;
use photon_core::event::NewEvent;
use photon_core::ids::{Key, Seq, Shard, TopicName};
use photon_core::store::Appended;
use photon_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::error::Trouble;
use super::topics::TopicRow;
use super::writer::Transaction;

/// About how many bytes a row takes beside the payload.
pub(super) const ROW_BYTES: usize = 100;

/// About how many bytes an event takes in the file.
pub(super) fn weight(event: &NewEvent) -> usize {
    let key = event.key.as_ref().map_or(0, |key| key.as_bytes().len());
    event.payload.len() + key + ROW_BYTES
}

/// Appends a batch: shard by shard, so that each shard gets one run of places.
pub(super) fn append(
    tx: &mut Transaction<'_>,
    topic: &TopicName,
    events: &[NewEvent],
    window: Duration,
) -> Result<Vec<Appended>, Trouble> {
    let row = tx.topic(topic)?;
    for event in events {
        row.check(topic, event.shard)?;
    }
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|&index| events[index].shard);
    let mut batch = Batch {
        topic: row,
        events,
        window,
        insert: tx.conn.prepare_cached(
            "INSERT INTO photon_event (seq, id, key, headers, payload) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?,
        headers: Vec::new(),
        appended: vec![Appended { seq: Seq::ZERO, duplicate: false }; events.len()],
    };
    for run in order.chunk_by(|&a, &b| events[a].shard == events[b].shard) {
        batch.append_run(tx, run)?;
    }
    let Batch { appended, .. } = batch;
    tx.wake(topic);
    Ok(appended)
}

struct Batch<'a> {
    topic: TopicRow,
    events: &'a [NewEvent],
    window: Duration,
    insert: CachedStatement<'a>,
    headers: Vec<u8>,
    appended: Vec<Appended>,
}

impl Batch<'_> {
    /// Appends the events at the indices in `run`, which are all of one shard.
    fn append_run(&mut self, tx: &mut Transaction<'_>, run: &[usize]) -> Result<(), Trouble> {
        let Some(&first) = run.first() else { return Ok(()) };
        let shard = self.events[first].shard;
        let dedup = Dedup { conn: tx.conn, topic: self.topic, shard, time: tx.now, window: self.window };
        let mut span: Option<(u64, u64)> = None;
        for &index in run {
            let event = &self.events[index];
            if let Some(id) = event.dedup_id.as_deref()
                && let Some(seq) = dedup.find(id)?
            {
                self.appended[index] = Appended { seq, duplicate: true };
                continue;
            }
            let seq = tx.next_seq()?;
            self.insert(seq, event)?;
            if let Some(id) = event.dedup_id.as_deref() {
                dedup.remember(id, seq)?;
            }
            self.appended[index].seq = Seq(seq);
            span = Some((span.map_or(seq, |(first, _)| first), seq));
        }
        match span {
            Some((first, last)) => Ok(insert_segment(tx, self.topic, shard, first, last)?),
            None => Ok(()),
        }
    }

    fn insert(&mut self, seq: u64, event: &NewEvent) -> rusqlite::Result<()> {
        self.headers.clear();
        encode_headers(&event.headers, &mut self.headers);
        let key = event.key.as_ref().map(Key::as_bytes);
        self.insert.execute(params![seq, event.id.0.as_bytes(), key, self.headers, &event.payload[..]])?;
        Ok(())
    }
}

/// Notes which places one append filled, and when: never earlier than the one before in the shard.
fn insert_segment(
    tx: &Transaction<'_>,
    topic: TopicRow,
    shard: Shard,
    first: u64,
    last: u64,
) -> rusqlite::Result<()> {
    tx.conn
        .prepare_cached(
            "INSERT INTO photon_segment (topic, shard, last, first, time)
             VALUES (?1, ?2, ?3, ?4, max(?5, ifnull(
                 (SELECT time FROM photon_segment WHERE topic = ?1 AND shard = ?2 ORDER BY last DESC LIMIT 1),
                 (SELECT time FROM photon_shard WHERE topic = ?1 AND shard = ?2))))",
        )?
        .execute(params![topic.id, shard.0, last, first, tx.now.0])?;
    Ok(())
}

/// The ids that a shard has seen within the window.
struct Dedup<'a> {
    conn: &'a Connection,
    topic: TopicRow,
    shard: Shard,
    time: Timestamp,
    window: Duration,
}

impl Dedup<'_> {
    /// The place of the first event with this id, if it is in the window.
    fn find(&self, id: &str) -> rusqlite::Result<Option<Seq>> {
        let found: Option<(u64, i64)> = self
            .conn
            .prepare_cached(
                "SELECT seq, time FROM photon_dedup WHERE topic = ?1 AND shard = ?2 AND dedup_id = ?3",
            )?
            .query_row(params![self.topic.id, self.shard.0, id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(found.filter(|(_, time)| !self.is_over(*time)).map(|(seq, _)| Seq(seq)))
    }

    /// Remembers an id, and forgets up to two that are over: so the table shrinks back.
    fn remember(&self, id: &str, seq: u64) -> rusqlite::Result<()> {
        if self.window.is_zero() {
            return Ok(());
        }
        self.conn
            .prepare_cached(
                "INSERT OR REPLACE INTO photon_dedup (topic, shard, dedup_id, seq, time)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![self.topic.id, self.shard.0, id, seq, self.time.0])?;
        let window = i64::try_from(self.window.as_micros()).unwrap_or(i64::MAX);
        self.conn
            .prepare_cached(
                "DELETE FROM photon_dedup
                 WHERE n IN (SELECT n FROM photon_dedup ORDER BY n LIMIT 2) AND time <= ?1",
            )?
            .execute([self.time.0.saturating_sub(window)])?;
        Ok(())
    }

    fn is_over(&self, time: i64) -> bool {
        Timestamp(time).saturating_add(self.window) <= self.time
    }
}
