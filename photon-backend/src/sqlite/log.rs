//! The event log.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::event::NewEvent;
use photon_core::ids::{Generation, MAX_SHARDS, Seq, Shard, TopicName};
use photon_core::store::{
    Appended, Bounds, Cursor, EventLog, ReadBatch, ReadLimit, TopicInfo, TopicSpec, Wake,
};
use photon_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::error::{Trouble, refused};
use super::topics::TopicRow;
use super::writer::Transaction;
use super::{SMALL_WRITE, SqliteStore, append, read, trim};

/// The last place that was given out in the file.
pub(super) fn last_seq(conn: &Connection) -> rusqlite::Result<u64> {
    conn.prepare_cached(
        "SELECT max(last_seq, ifnull((SELECT max(seq) FROM photon_event), 0)) FROM photon_meta WHERE only = 1",
    )?
    .query_row([], |row| row.get(0))
}

/// The ends of one shard.
pub(super) fn shard_bounds(conn: &Connection, topic: TopicRow, shard: Shard) -> rusqlite::Result<Bounds> {
    conn.prepare_cached(
        "SELECT floor, max(last, ifnull((SELECT max(last) FROM photon_segment g
             WHERE g.topic = s.topic AND g.shard = s.shard), 0))
         FROM photon_shard s WHERE topic = ?1 AND shard = ?2",
    )?
    .query_row(params![topic.id, shard.0], |row| {
        Ok(Bounds { shard, floor: Seq(row.get(0)?), end: Seq(row.get(1)?) })
    })
}

/// The ends of every shard, by number.
pub(super) fn bounds(conn: &Connection, topic: TopicRow) -> rusqlite::Result<Vec<Bounds>> {
    (0..topic.shards).map(|shard| shard_bounds(conn, topic, Shard(shard))).collect()
}

/// The places that a new position starts after at the earliest, by shard number.
pub(super) fn starts(conn: &Connection, topic: TopicRow) -> rusqlite::Result<Vec<Seq>> {
    conn.prepare_cached("SELECT max(floor, announced) FROM photon_shard WHERE topic = ?1 ORDER BY shard")?
        .query_map([topic.id], |row| row.get(0).map(Seq))?
        .collect()
}

pub(super) fn ensure_topic(tx: &mut Transaction<'_>, spec: &TopicSpec) -> Result<TopicInfo, Trouble> {
    let conn = tx.conn;
    let known = conn
        .prepare_cached("SELECT id, shards, key, generation FROM photon_topic WHERE name = ?1")?
        .query_row([spec.name.as_str()], |row| {
            let generation = Generation(Uuid::from_bytes(row.get(3)?));
            let topic = TopicRow { id: row.get(0)?, shards: row.get(1)? };
            Ok((topic, row.get::<_, Option<String>>(2)?, generation))
        })
        .optional()?;
    let Some((topic, key, generation)) = known else {
        create_topic(conn, spec)?;
        return Ok(TopicInfo { generation: spec.generation, shards: spec.shards });
    };
    let name = &spec.name;
    if topic.shards != spec.shards {
        let (kept, asked) = (topic.shards, spec.shards);
        return Err(refused(format!(
            "topic {name:?} has {kept} shards, not {asked}: give it {kept} again, or move its events to a topic \
             with another name"
        ))
        .into());
    }
    match (&key, &spec.key) {
        (Some(kept), Some(asked)) if kept != asked => Err(refused(format!(
            "topic {name:?} is ordered by the key {kept:?}, not {asked:?}: give it the first one again, or move \
             its events to a topic with another name"
        ))
        .into()),
        (None, Some(asked)) => {
            conn.execute("UPDATE photon_topic SET key = ?2 WHERE id = ?1", params![topic.id, asked])?;
            Ok(TopicInfo { generation, shards: topic.shards })
        }
        _ => Ok(TopicInfo { generation, shards: topic.shards }),
    }
}

fn create_topic(conn: &Connection, spec: &TopicSpec) -> rusqlite::Result<()> {
    conn.execute(
        "INSERT INTO photon_topic (name, shards, key, generation) VALUES (?1, ?2, ?3, ?4)",
        params![spec.name.as_str(), spec.shards, spec.key, spec.generation.0.as_bytes()],
    )?;
    let topic = conn.last_insert_rowid();
    let mut insert = conn.prepare_cached(
        "INSERT INTO photon_shard (topic, shard, floor, last, time) VALUES (?1, ?2, 0, 0, 0)",
    )?;
    for shard in 0..spec.shards {
        insert.execute(params![topic, shard])?;
    }
    Ok(())
}

/// For every shard, the last place whose record was taken in before `time`.
pub(super) fn positions_at(
    conn: &Connection,
    topic: TopicRow,
    time: Timestamp,
) -> rusqlite::Result<Vec<Seq>> {
    bounds(conn, topic)?.into_iter().map(|bounds| position_at(conn, topic, bounds, time)).collect()
}

/// Halves the span of places, because segments are not indexed by their time, which never goes back.
fn position_at(conn: &Connection, topic: TopicRow, bounds: Bounds, time: Timestamp) -> rusqlite::Result<Seq> {
    let mut next = conn.prepare_cached(
        "SELECT last, time FROM photon_segment WHERE topic = ?1 AND shard = ?2 AND last > ?3
         ORDER BY last LIMIT 1",
    )?;
    // Everything up to `low` is earlier; everything after `high` is not.
    let (mut low, mut high) = (bounds.floor.0, bounds.end.0);
    while low < high {
        let middle = low + (high - low) / 2;
        let segment = next
            .query_row(params![topic.id, bounds.shard.0, middle], |row| {
                Ok((row.get::<_, u64>(0)?, row.get::<_, i64>(1)?))
            })
            .optional()?;
        match segment {
            Some((last, at)) if at < time.0 => low = last,
            _ => high = middle,
        }
    }
    Ok(Seq(low))
}

#[async_trait]
impl EventLog for SqliteStore {
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        if !(1..=MAX_SHARDS).contains(&spec.shards) {
            return Err(refused(format!(
                "topic {:?} cannot have {} shards: give it 1 to {MAX_SHARDS}",
                spec.name, spec.shards
            )));
        }
        let spec = spec.clone();
        self.inner.writer.run(SMALL_WRITE, move |tx| ensure_topic(tx, &spec)).await
    }

    async fn append(&self, topic: &TopicName, events: Vec<NewEvent>) -> Result<Vec<Appended>, StoreError> {
        let (topic, window) = (topic.clone(), self.inner.options.dedup_window);
        let bytes = events.iter().map(append::weight).sum();
        self.inner.writer.run(bytes, move |tx| append::append(tx, &topic, &events, window)).await
    }

    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        let (topic, cursors) = (topic.clone(), cursors.to_vec());
        // Another shard goes first each time, so that a small limit starves none.
        let first = self.inner.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.readers.run(move |snapshot| read::read(snapshot, &topic, &cursors, limit, first)).await
    }

    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        let topic = topic.clone();
        let look = move |snapshot: &mut super::readers::Snapshot<'_>| {
            let topic = snapshot.topic(&topic)?;
            Ok(bounds(snapshot.conn, topic)?)
        };
        self.inner.readers.run(look).await
    }

    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError> {
        let topic = topic.clone();
        let look = move |snapshot: &mut super::readers::Snapshot<'_>| {
            let topic = snapshot.topic(&topic)?;
            Ok(positions_at(snapshot.conn, topic, time)?)
        };
        self.inner.readers.run(look).await
    }

    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let topic = topic.clone();
        let announce = move |tx: &mut Transaction<'_>| trim::announce(tx, &topic, shard, through);
        self.inner.writer.run(SMALL_WRITE, announce).await
    }

    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        loop {
            let topic = topic.clone();
            let trim = move |tx: &mut Transaction<'_>| trim::trim_some(tx, &topic, shard, through);
            if self.inner.writer.run(SMALL_WRITE, trim).await? == trim::Progress::Done {
                return Ok(());
            }
        }
    }

    fn wake(&self, topic: &TopicName) -> Box<dyn Wake> {
        self.inner.wakes.listen(topic)
    }

    fn poll_interval(&self) -> Duration {
        // Appends of every process wake; this is only a net below it.
        Duration::from_secs(1)
    }
}
