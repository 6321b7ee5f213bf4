//! What an owner writes about shards.

use std::collections::HashMap;

use photon_core::event::Event;
use photon_core::ids::{Shard, SubscriptionId};
use photon_core::store::{Checkpoint, Commit, CommitOutcome, ShardCommit, ShardOutcome, StoredDelivery};
use tokio_postgres::Client;

use crate::columns::{encode_ranges, encode_trials};

use super::checkpoints::{read_checkpoint, unregistered};
use super::error::{Target, Trouble, refused};
use super::leases;
use super::log::shard;
use super::param::params;
use super::read::number;
use super::rows::{self, Changes, Known, MARK, Place, RowReader, columns, is_live};
use super::schema::Schema;

/// What is stored about a subscription, locked.
pub(super) struct Stored {
    pub(super) id: i64,
    shards: u16,
    pub(super) checkpoints: HashMap<Shard, Checkpoint>,
}

/// How checkpoints are locked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lock {
    /// To change them, or rows of any delivery.
    Own,
    /// To end one delivery: several may.
    Shared,
}

/// Locks the checkpoints of these shards.
pub(super) async fn lock(
    client: &Client,
    schema: &Schema,
    target: &Target,
    subscription: &SubscriptionId,
    shards: &[i32],
    lock: Lock,
) -> Result<Option<Stored>, Trouble> {
    let lock = match lock {
        Lock::Own => "FOR NO KEY UPDATE",
        Lock::Shared => "FOR SHARE",
    };
    let of = "SELECT s.id, t.shards FROM @subscription s JOIN @topic t ON t.id = s.topic
              WHERE t.name = $1 AND s.position = $2";
    let checkpoints = format!(
        "SELECT c.shard, c.watermark, c.ranges FROM @checkpoint c
         WHERE c.subscription = (SELECT id FROM ({of}) s) AND c.shard = ANY ($3) ORDER BY c.shard
         {lock}"
    );
    let (of, checkpoints) = (schema.sql(of), schema.sql(&checkpoints));
    let (topic, position, shards) =
        (subscription.topic.as_str(), subscription.position_name(), shards.to_vec());
    let of_parameters = params![topic, position];
    let parameters = params![topic, position, shards];
    let (found, rows) = futures::join!(
        client.query_typed_opt(&of, of_parameters),
        client.query_typed(&checkpoints, parameters),
    );
    let (Some(found), rows) = (found?, rows?) else { return Ok(None) };
    let checkpoints = rows
        .iter()
        .map(|row| Ok((shard(row.try_get(0)?), read_checkpoint(row, 1, target)?)))
        .collect::<Result<_, Trouble>>()?;
    let shards: i32 = found.try_get(1)?;
    Ok(Some(Stored { id: found.try_get(0)?, shards: u16::try_from(shards).unwrap_or(0), checkpoints }))
}

/// Writes a commit that only moves checkpoints on, in one statement, as nearly all are. `false` if it is more than that,
/// or not all of its shards are owned: then nothing is written.
pub(super) async fn advance(client: &Client, schema: &Schema, commit: &Commit) -> Result<bool, Trouble> {
    let is_more = |shard: &ShardCommit| !shard.puts.is_empty() || !shard.ends.is_empty();
    if commit.shards.is_empty() || commit.shards.iter().any(is_more) {
        return Ok(false);
    }
    let mut moves = Moves::default();
    let (mut epochs, mut holders) = (Vec::new(), Vec::new());
    for commit in &commit.shards {
        moves.push(commit, &commit.checkpoint);
        epochs.push(i64::try_from(commit.fence.epoch).unwrap_or(i64::MAX));
        holders.push(commit.fence.token.0);
    }
    let Moves { shards, watermarks, ranges, trials } = moves;
    let (topic, position) = (commit.subscription.topic.as_str(), commit.subscription.position_name());
    let statement = schema.sql("SELECT @advance($1, $2, $3, $4, $5, $6, $7, $8)");
    let parameters = params![topic, position, shards, epochs, holders, watermarks, ranges, trials];
    Ok(client.query_typed_one(&statement, parameters).await?.try_get(0)?)
}

/// Writes what passes its fence.
pub(super) async fn write(
    client: &Client,
    schema: &Schema,
    target: &Target,
    commit: &Commit,
) -> Result<CommitOutcome, Trouble> {
    let subscription = &commit.subscription;
    let shards: Vec<i32> = commit.shards.iter().map(|shard| i32::from(shard.shard.0)).collect();
    // Both go out at once; the server takes them one after the other.
    let (fences, stored) = futures::join!(
        leases::current(client, schema, subscription, &shards),
        lock(client, schema, target, subscription, &shards, Lock::Own),
    );
    let (fences, stored) = (fences?, stored?);
    let is_current = |shard: &&ShardCommit| fences.get(&shard.shard) == Some(&shard.fence);
    let owned: Vec<&ShardCommit> = commit.shards.iter().filter(is_current).collect();
    let Some(stored) = stored else {
        // It was forgotten, and its claims with it: for their holders that is a lost lease.
        return if owned.is_empty() {
            Ok(vec![ShardOutcome::Fenced; commit.shards.len()])
        } else {
            Err(unregistered(subscription).into())
        };
    };
    check(subscription, &commit.shards, stored.shards)?;
    let mut places = Vec::new();
    for commit in &owned {
        places.extend(commit.puts.iter().map(|row| (commit.shard, row.event.seq)));
        places.extend(commit.ends.iter().map(|row| (commit.shard, row.seq)));
    }
    let known = rows::known(client, schema, stored.id, places).await?;
    let mut writing = Writing { client, schema, target, stored: &stored, known, changes: Changes::default() };
    let mut conflicts: HashMap<Shard, Vec<_>> = HashMap::new();
    let mut checkpoints = Vec::with_capacity(owned.len());
    for commit in &owned {
        let (checkpoint, rows) = writing.shard(commit).await?;
        conflicts.insert(commit.shard, rows);
        checkpoints.push((*commit, checkpoint));
    }
    let changes = writing.changes;
    store(client, schema, &stored, &checkpoints, changes).await?;
    let outcome = commit.shards.iter().map(|commit| match conflicts.remove(&commit.shard) {
        Some(conflicts) if fences.get(&commit.shard) == Some(&commit.fence) => {
            ShardOutcome::Committed { conflicts }
        }
        _ => ShardOutcome::Fenced,
    });
    Ok(outcome.collect())
}

/// Refuses what no owner can mean: a shard that is not there, or a row of another shard.
fn check(subscription: &SubscriptionId, commits: &[ShardCommit], shards: u16) -> Result<(), Trouble> {
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

/// A commit on its way: what the rows are like after what was decided so far.
struct Writing<'a> {
    client: &'a Client,
    schema: &'a Schema,
    target: &'a Target,
    stored: &'a Stored,
    known: HashMap<Place, Known>,
    changes: Changes<'a>,
}

impl<'a> Writing<'a> {
    /// Decides about the rows of one shard. Returns its checkpoint, and the rows that are in conflict.
    async fn shard(
        &mut self,
        commit: &'a ShardCommit,
    ) -> Result<(&'a Checkpoint, Vec<photon_core::ids::Seq>), Trouble> {
        let Some(stored) = self.stored.checkpoints.get(&commit.shard) else {
            return Err(self.target.strange(format!("the checkpoint of shard {}", commit.shard)).into());
        };
        let mut conflicts = Vec::new();
        for row in &commit.puts {
            if !self.put(row, stored.covers(row.event.seq)).await? {
                conflicts.push(row.event.seq);
            }
        }
        let replaces = commit.checkpoint.replaces(stored);
        let checkpoint = if replaces { &commit.checkpoint } else { stored };
        for row in &commit.ends {
            if !self.end((commit.shard, row.seq), row.version, checkpoint) {
                conflicts.push(row.seq);
            }
        }
        Ok((checkpoint, conflicts))
    }

    /// Stores a delivery. `covered`: whether the checkpoint that was stored before counts it as settled. `false`
    /// if somebody else changed the row.
    async fn put(&mut self, row: &'a StoredDelivery, covered: bool) -> Result<bool, Trouble> {
        let place = (row.event.shard, row.event.seq);
        let was_live = match self.known.get(&place) {
            Some(known) if known.state != MARK && known.version == row.version => is_live(known.state),
            Some(known) if known.state != MARK && known.version == row.version + 1 => {
                return self.is_same_write(row).await;
            }
            Some(_) => return Ok(false),
            // A new row for a place that is settled without a row is the repetition of a put whose row has come
            // to an end since.
            None if row.version > 0 || covered => return Ok(false),
            None => false,
        };
        let (version, lane) = (row.version + 1, row.lane().to_bytes());
        self.changes.put(row, version);
        self.changes.count(place.0, &lane, was_live, row.state.is_live());
        let state = rows::state_number(row.state);
        self.known.insert(place, Known { version, state, lane });
        Ok(true)
    }

    /// Whether the stored row is what an earlier attempt of the same put left behind.
    async fn is_same_write(&self, row: &StoredDelivery) -> Result<bool, Trouble> {
        let statement = concat!(
            "SELECT ",
            columns!(),
            " FROM @delivery WHERE subscription = $1 AND shard = $2 AND seq = $3"
        );
        let parameters = params![self.stored.id, i32::from(row.event.shard.0), number(row.event.seq)];
        let found = self.client.query_typed(&self.schema.sql(statement), parameters).await?;
        let found = RowReader::new(self.target, &row.event.topic).read_all(&found)?;
        Ok(found.into_iter().any(|stored| StoredDelivery { version: row.version, ..stored } == *row))
    }

    /// Ends a row. `false` if it has another version.
    fn end(&mut self, place: Place, version: u64, checkpoint: &Checkpoint) -> bool {
        let Some(known) = self.known.get(&place).filter(|known| known.state != MARK) else { return true };
        if known.version != version {
            return false;
        }
        let is_covered = checkpoint.covers(place.1);
        self.changes.close(place, is_covered);
        self.changes.count(place.0, &known.lane, is_live(known.state), false);
        if is_covered {
            self.known.remove(&place);
        } else {
            self.known.insert(place, Known { version: version + 1, state: MARK, lane: Vec::new() });
        }
        true
    }
}

/// Writes rows, checkpoints with their trials and the date of it, and removes the marks that are covered now.
async fn store(
    client: &Client,
    schema: &Schema,
    stored: &Stored,
    checkpoints: &[(&ShardCommit, &Checkpoint)],
    changes: Changes<'_>,
) -> Result<(), Trouble> {
    if checkpoints.is_empty() {
        return Ok(());
    }
    changes.write(client, schema, stored.id).await?;
    let mut moves = Moves::default();
    for (commit, checkpoint) in checkpoints {
        moves.push(commit, checkpoint);
    }
    let Moves { shards, watermarks, ranges, trials } = moves;
    let moved = schema.sql(
        "UPDATE @checkpoint c SET watermark = u.watermark, ranges = u.ranges, trials = u.trials, active = @now()
         FROM unnest($2, $3, $4, $5) u(shard, watermark, ranges, trials) WHERE c.subscription = $1 AND c.shard = u.shard",
    );
    let marks = schema.sql(
        "DELETE FROM @delivery d USING unnest($2, $3) u(shard, watermark)
         WHERE d.subscription = $1 AND d.shard = u.shard AND d.seq <= u.watermark AND d.state = 4",
    );
    let (checkpoints, covered) =
        (params![stored.id, shards, watermarks, ranges, trials], params![stored.id, shards, watermarks]);
    let (moved, marks) =
        futures::join!(client.execute_typed(&moved, checkpoints), client.execute_typed(&marks, covered));
    moved?;
    marks?;
    Ok(())
}

/// Checkpoints as columns.
#[derive(Default)]
struct Moves {
    shards: Vec<i32>,
    watermarks: Vec<i64>,
    ranges: Vec<Vec<u8>>,
    trials: Vec<Vec<u8>>,
}

impl Moves {
    fn push(&mut self, commit: &ShardCommit, checkpoint: &Checkpoint) {
        self.shards.push(i32::from(commit.shard.0));
        self.watermarks.push(number(checkpoint.watermark));
        self.ranges.push(encode_ranges(checkpoint));
        self.trials.push(encode_trials(&commit.trials));
    }
}

/// Whether any checkpoint covers the place.
pub(super) fn is_covered(checkpoints: &HashMap<Shard, Checkpoint>, place: Place) -> bool {
    checkpoints.get(&place.0).is_some_and(|checkpoint| checkpoint.covers(place.1))
}
