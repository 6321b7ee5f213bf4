//! Positions of subscriptions.

use std::time::Duration;

use async_trait::async_trait;
use photon_core::envelope::BadEnvelope;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Seq, Shard, SubscriptionId, TopicName};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoint, Checkpoints, Commit, CommitOutcome, Paused, Registered, Registration, ResetOutcome,
    ShardOutcome, ShardReset, StoredCheckpoint, SubscriptionInfo,
};
use photon_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::columns::{decode_ranges, decode_trials, encode_ranges};

use super::error::{File, Trouble};
use super::readers::Snapshot;
use super::writer::Transaction;
use super::{SMALL_WRITE, SqliteStore, append, commit, control, leases, log, topics};
pub(super) use crate::refusal::unregistered;

/// The number of a registered subscription.
pub(super) fn find(conn: &Connection, subscription: &SubscriptionId) -> rusqlite::Result<Option<u64>> {
    conn.prepare_cached(
        "SELECT s.id FROM photon_subscription s JOIN photon_topic t ON t.id = s.topic
         WHERE t.name = ?1 AND s.position = ?2",
    )?
    .query_row([subscription.topic.as_str(), &subscription.position_name()], |row| row.get(0))
    .optional()
}

/// What is stored of one shard: the checkpoint, and the trials in their encoding.
#[derive(Default)]
pub(super) struct Stored {
    pub(super) checkpoint: Checkpoint,
    pub(super) trials: Vec<u8>,
}

/// What is stored of one shard, if the subscription has the shard.
pub(super) fn load_one(
    conn: &Connection,
    file: &File,
    id: u64,
    shard: Shard,
) -> Result<Option<Stored>, Trouble> {
    let stored = conn
        .prepare_cached(
            "SELECT watermark, ranges, trials FROM photon_checkpoint WHERE subscription = ?1 AND shard = ?2",
        )?
        .query_row(params![id, shard.0], |row| Ok((Seq(row.get(0)?), row.get(1)?, row.get(2)?)))
        .optional()?;
    stored
        .map(|(watermark, ranges, trials)| {
            Ok(Stored { checkpoint: decode(file, watermark, ranges)?, trials })
        })
        .transpose()
}

fn decode(file: &File, watermark: Seq, ranges: Vec<u8>) -> Result<Checkpoint, Trouble> {
    let ranges = decode_ranges(watermark, ranges.into()).map_err(|error| unreadable(file, error))?;
    Ok(Checkpoint { watermark, ranges })
}

fn unreadable(file: &File, error: BadEnvelope) -> StoreError {
    let reason = "a checkpoint cannot be read: check the file with `PRAGMA integrity_check`, restore a copy";
    file.error(StoreErrorKind::Corrupt, reason).with_source(error)
}

fn register(tx: &mut Transaction<'_>, registration: &Registration) -> Result<Registered, Trouble> {
    let conn = tx.conn;
    let subscription = &registration.subscription;
    let expire_after = registration.expire_after.map(micros);
    if let Some(id) = find(conn, subscription)? {
        conn.prepare_cached(
            "UPDATE photon_subscription SET active = max(active, ?2), expire_after = ?3 WHERE id = ?1",
        )?
        .execute(params![id, tx.now.0, expire_after])?;
        let starts = conn
            .prepare_cached("SELECT start FROM photon_checkpoint WHERE subscription = ?1 ORDER BY shard")?
            .query_map([id], |row| Ok(Seq(row.get(0)?)))?
            .collect::<rusqlite::Result<_>>()?;
        return Ok(Registered { new: false, starts });
    }
    let topic = tx.topic(&subscription.topic)?;
    let starts: Vec<Seq> = match registration.start {
        Start::Earliest => log::starts(conn, topic)?,
        Start::Latest => log::bounds(conn, topic)?.iter().map(|bounds| bounds.end).collect(),
        Start::At(time) => {
            let positions = log::positions_at(conn, topic, time)?.into_iter();
            positions.zip(log::starts(conn, topic)?).map(|(at, start)| at.max(start)).collect()
        }
    };
    conn.prepare_cached(
        "INSERT INTO photon_subscription (topic, position, mode, registered, active, expire_after, revision)
         VALUES (?1, ?2, ?3, ?4, ?4, ?5, 0)",
    )?
    .execute(params![
        topic.id,
        subscription.position_name(),
        encode_mode(registration.mode),
        tx.now.0,
        expire_after
    ])?;
    let id = conn.last_insert_rowid();
    let mut insert = conn.prepare_cached(
        "INSERT INTO photon_checkpoint (subscription, shard, start, watermark, ranges)
         VALUES (?1, ?2, ?3, ?3, ?4)",
    )?;
    let no_ranges = encode_ranges(&Checkpoint::default());
    for (shard, start) in starts.iter().enumerate() {
        insert.execute(params![id, shard, start.0, no_ranges])?;
    }
    Ok(Registered { new: true, starts })
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn encode_mode(mode: Mode) -> u8 {
    match mode {
        Mode::Group => 0,
        Mode::Durable => 1,
        Mode::Ephemeral => 2,
    }
}

fn load(
    snapshot: &mut Snapshot<'_>,
    subscription: &SubscriptionId,
) -> Result<Vec<StoredCheckpoint>, Trouble> {
    let id = find(snapshot.conn, subscription)?.ok_or_else(|| unregistered(subscription))?;
    let mut statement = snapshot.conn.prepare_cached(
        "SELECT shard, watermark, ranges, trials, resets FROM photon_checkpoint WHERE subscription = ?1 ORDER BY shard",
    )?;
    let mut unended = leases::unended(snapshot.conn, snapshot.file, subscription)?;
    let mut rows = statement.query([id])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let checkpoint = decode(snapshot.file, Seq(row.get(1)?), row.get(2)?)?;
        let trials = decode_trials(row.get::<_, Vec<u8>>(3)?.into())
            .map_err(|error| unreadable(snapshot.file, error))?;
        let shard = Shard(row.get(0)?);
        let unended = unended.remove(&shard);
        all.push(StoredCheckpoint { shard, checkpoint, trials, unended, resets: row.get(4)? });
    }
    Ok(all)
}

fn list(snapshot: &mut Snapshot<'_>) -> Result<Vec<SubscriptionInfo>, Trouble> {
    let mut statement = snapshot.conn.prepare_cached(
        "SELECT t.name, s.position, s.mode, s.registered, s.active, s.expire_after, s.pause_reason, s.pause_since
         FROM photon_subscription s JOIN photon_topic t ON t.id = s.topic ORDER BY t.name, s.position",
    )?;
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(info(row, snapshot.file)?);
    }
    Ok(all)
}

fn info(row: &Row<'_>, file: &File) -> Result<SubscriptionInfo, Trouble> {
    let strange = |what: String| {
        file.error(StoreErrorKind::Corrupt, format!("it lists a subscription that is none: {what}"))
    };
    let (topic, position): (String, String) = (row.get(0)?, row.get(1)?);
    let subscription = TopicName::new(topic)
        .and_then(|topic| SubscriptionId::from_position_name(topic, &position))
        .map_err(|error| strange(error.to_string()))?;
    let mode = match row.get::<_, u8>(2)? {
        0 => Mode::Group,
        1 => Mode::Durable,
        2 => Mode::Ephemeral,
        other => return Err(strange(format!("{subscription} has the unknown mode {other}")).into()),
    };
    Ok(SubscriptionInfo {
        subscription,
        mode,
        registered: Timestamp(row.get(3)?),
        active: Timestamp(row.get(4)?),
        expire_after: row.get::<_, Option<u64>>(5)?.map(Duration::from_micros),
        paused: control::read_pause(row, 6)?,
    })
}

fn forget(tx: &mut Transaction<'_>, subscription: &SubscriptionId) -> Result<(), Trouble> {
    leases::take_back_all(tx.conn, subscription)?;
    let Some(id) = find(tx.conn, subscription)? else { return Ok(()) };
    for statement in [
        "DELETE FROM photon_delivery WHERE subscription = ?1",
        "DELETE FROM photon_lane WHERE subscription = ?1",
        "DELETE FROM photon_checkpoint WHERE subscription = ?1",
        "DELETE FROM photon_subscription WHERE id = ?1",
    ] {
        tx.conn.prepare_cached(statement)?.execute([id])?;
    }
    Ok(())
}

/// Writes what passes its fence.
fn write(tx: &mut Transaction<'_>, commit: &Commit) -> Result<CommitOutcome, Trouble> {
    let conn = tx.conn;
    let subscription = &commit.subscription;
    let mut current = Vec::with_capacity(commit.shards.len());
    for shard in &commit.shards {
        current.push(leases::is_current(conn, subscription, shard.shard, shard.fence)?);
    }
    let any = current.contains(&true);
    let Some(id) = find(conn, subscription)? else {
        // It was forgotten, and its claims with it: for their holders that is a lost lease.
        return if any {
            Err(unregistered(subscription).into())
        } else {
            Ok(vec![ShardOutcome::Fenced; commit.shards.len()])
        };
    };
    let shards = topics::find(conn, &subscription.topic)?.map_or(0, |topic| topic.shards);
    commit::check(subscription, &commit.shards, shards)?;
    let mut outcome = Vec::with_capacity(commit.shards.len());
    for (shard, current) in commit.shards.iter().zip(current) {
        outcome.push(if current {
            commit::write_shard(conn, tx.file, id, shard)?
        } else {
            ShardOutcome::Fenced
        });
    }
    if any {
        conn.prepare_cached("UPDATE photon_subscription SET active = max(active, ?2) WHERE id = ?1")?
            .execute(params![id, tx.now.0])?;
    }
    Ok(outcome)
}

#[async_trait]
impl Checkpoints for SqliteStore {
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let registration = registration.clone();
        self.inner.writer.run(SMALL_WRITE, move |tx| register(tx, &registration)).await
    }

    async fn load(&self, subscription: &SubscriptionId) -> Result<Vec<StoredCheckpoint>, StoreError> {
        let subscription = subscription.clone();
        self.inner.readers.run(move |snapshot| load(snapshot, &subscription)).await
    }

    async fn commit(&self, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let commit = commit.clone();
        let puts = commit.shards.iter().flat_map(|shard| &shard.puts);
        let bytes = puts.map(|put| put.event.payload.len() + append::ROW_BYTES).sum::<usize>() + SMALL_WRITE;
        self.inner.writer.run(bytes, move |tx| write(tx, &commit)).await
    }

    async fn reset(
        &self,
        subscription: &SubscriptionId,
        shards: &[ShardReset],
    ) -> Result<Vec<ResetOutcome>, StoreError> {
        let (subscription, shards) = (subscription.clone(), shards.to_vec());
        self.inner.writer.run(SMALL_WRITE, move |tx| control::reset(tx, &subscription, &shards)).await
    }

    async fn pause(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, StoreError> {
        let (subscription, reason) = (subscription.clone(), reason.map(ToOwned::to_owned));
        let work = move |tx: &mut Transaction<'_>| control::pause(tx, &subscription, reason.as_deref());
        self.inner.writer.run(SMALL_WRITE, work).await
    }

    async fn paused(&self, subscription: &SubscriptionId) -> Result<Option<Paused>, StoreError> {
        self.look_at(subscription, |snapshot, id, _| Ok(control::paused(snapshot.conn, id)?)).await
    }

    async fn list(&self) -> Result<Vec<SubscriptionInfo>, StoreError> {
        self.inner.readers.run(list).await
    }

    async fn forget(&self, subscription: &SubscriptionId) -> Result<(), StoreError> {
        let subscription = subscription.clone();
        self.inner.writer.run(SMALL_WRITE, move |tx| forget(tx, &subscription)).await
    }
}
