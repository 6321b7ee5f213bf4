//! How far subscriptions got.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoint, Checkpoints, Commit, CommitOutcome, Paused, Registered, Registration, ResetOutcome,
    ShardCommit, ShardOutcome, ShardReset, StoredCheckpoint, SubscriptionInfo, Trial,
};
use photon_core::time::Timestamp;

use crate::rows::Rows;
use crate::{Content, Shelf, refused};

/// A registered subscription.
pub struct Position {
    mode: Mode,
    registered: Timestamp,
    active: Timestamp,
    expire_after: Option<Duration>,
    starts: Vec<Seq>,
    paused: Option<Paused>,
    pub revision: u64,
    pub shards: Vec<ShardPosition>,
}

/// What it wrote about one shard.
#[derive(Default)]
pub struct ShardPosition {
    pub checkpoint: Checkpoint,
    pub rows: Rows,
    trials: Vec<Trial>,
    resets: u64,
}

impl ShardPosition {
    fn starting_after(seq: Seq) -> Self {
        Self { checkpoint: Checkpoint { watermark: seq, ranges: Vec::new() }, ..Self::default() }
    }

    /// First the puts, then the checkpoint, then the ends: whoever dies in between has lost nothing.
    fn write(&mut self, commit: &ShardCommit) -> ShardOutcome {
        let mut conflicts = Vec::new();
        for put in &commit.puts {
            if !self.rows.put(put, self.checkpoint.covers(put.event.seq)) {
                conflicts.push(put.event.seq);
            }
        }
        // It never goes back.
        if commit.checkpoint.replaces(&self.checkpoint) {
            self.checkpoint = commit.checkpoint.clone();
        }
        self.trials.clone_from(&commit.trials);
        for end in &commit.ends {
            if !self.rows.end(*end, self.checkpoint.covers(end.seq)) {
                conflicts.push(end.seq);
            }
        }
        self.rows.remove_marks(self.checkpoint.watermark);
        ShardOutcome::Committed { conflicts }
    }
}

impl Content {
    fn position(&mut self, id: &SubscriptionId) -> Result<&mut Position, StoreError> {
        self.positions.get_mut(id).ok_or_else(|| refused(format!("{id} is unknown: register it first")))
    }
}

/// Refuses what no owner can mean.
fn check(id: &SubscriptionId, commit: &ShardCommit, shards: usize) -> Result<(), StoreError> {
    let shard = commit.shard;
    if usize::from(shard.0) >= shards {
        return Err(refused(format!("{id} has no shard {shard}: its {shards} count from 0")));
    }
    match commit.puts.iter().find(|put| put.event.shard != shard || put.event.topic != id.topic) {
        Some(put) => Err(refused(format!(
            "the event at {} of {}/{} does not belong to shard {shard} of {id}: commit it with its own shard",
            put.event.seq, put.event.topic, put.event.shard
        ))),
        None => Ok(()),
    }
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

#[async_trait]
impl Checkpoints for Shelf {
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let id = &registration.subscription;
        let mut content = self.content();
        if let Some(known) = content.positions.get_mut(id) {
            (known.expire_after, known.active) = (registration.expire_after, now());
            return Ok(Registered { new: false, starts: known.starts.clone() });
        }
        let topic = content.topic(&id.topic)?;
        let starts = match registration.start {
            Start::Earliest => topic.starts(),
            Start::Latest => topic.ends(),
            Start::At(time) => topic.starts_at(time),
        };
        let position = Position {
            mode: registration.mode,
            registered: now(),
            active: now(),
            expire_after: registration.expire_after,
            starts: starts.clone(),
            paused: None,
            revision: 0,
            shards: starts.iter().map(|seq| ShardPosition::starting_after(*seq)).collect(),
        };
        content.positions.insert(id.clone(), position);
        Ok(Registered { new: true, starts })
    }

    async fn load(&self, subscription: &SubscriptionId) -> Result<Vec<StoredCheckpoint>, StoreError> {
        let mut content = self.content();
        content.position(subscription)?;
        let shards = (0..).map(Shard).zip(&content.positions[subscription].shards);
        let stored = |(shard, position): (Shard, &ShardPosition)| StoredCheckpoint {
            shard,
            checkpoint: position.checkpoint.clone(),
            trials: position.trials.clone(),
            unended: content.unended(subscription, shard),
            resets: position.resets,
        };
        Ok(shards.map(stored).collect())
    }

    async fn commit(&self, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let id = &commit.subscription;
        let mut content = self.content();
        let current: Vec<bool> =
            commit.shards.iter().map(|of| content.may_write(id, of.shard, of.fence)).collect();
        if !content.positions.contains_key(id) && !current.contains(&true) {
            // It was forgotten, and its claims with it: for their holders that is a lost lease.
            return Ok(vec![ShardOutcome::Fenced; commit.shards.len()]);
        }
        let position = content.position(id)?;
        for shard in &commit.shards {
            check(id, shard, position.shards.len())?;
        }
        let mut outcomes = Vec::new();
        for (shard, current) in commit.shards.iter().zip(current) {
            outcomes.push(if current {
                position.active = now();
                position.shards[usize::from(shard.shard.0)].write(shard)
            } else {
                ShardOutcome::Fenced
            });
        }
        Ok(outcomes)
    }

    async fn reset(
        &self,
        subscription: &SubscriptionId,
        shards: &[ShardReset],
    ) -> Result<Vec<ResetOutcome>, StoreError> {
        let mut content = self.content();
        content.position(subscription)?;
        let topic = content.topic(&subscription.topic)?;
        let (starts, ends) = (topic.starts(), topic.ends());
        if let Some(reset) = shards.iter().find(|reset| usize::from(reset.shard.0) >= ends.len()) {
            let (shard, count) = (reset.shard, ends.len());
            return Err(refused(format!("{subscription} has no shard {shard}: its {count} count from 0")));
        }
        let mut outcomes = Vec::new();
        for reset in shards {
            if reset.fence.is_some_and(|fence| !content.may_write(subscription, reset.shard, fence)) {
                outcomes.push(ResetOutcome::Fenced);
                continue;
            }
            // As if its owner had given it back: whoever claims it next has a greater epoch.
            content.take_back(|id, shard, _| id == subscription && shard == reset.shard);
            let index = usize::from(reset.shard.0);
            let after = reset.after.max(starts[index]).min(ends[index]);
            let position = content.position(subscription)?;
            let shard = &mut position.shards[index];
            shard.checkpoint = Checkpoint { watermark: after, ranges: Vec::new() };
            shard.trials.clear();
            shard.resets += 1;
            outcomes.push(ResetOutcome::Reset { after, removed: shard.rows.remove_after(after) });
            position.revision += 1;
        }
        Ok(outcomes)
    }

    async fn pause(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, StoreError> {
        let mut content = self.content();
        let position = content.position(subscription)?;
        let before = position.paused.clone();
        let since = before.as_ref().map_or_else(now, |before| before.since);
        position.paused = reason.map(|reason| Paused { reason: reason.to_owned(), since });
        position.revision += u64::from(position.paused != before);
        Ok(before)
    }

    async fn paused(&self, subscription: &SubscriptionId) -> Result<Option<Paused>, StoreError> {
        Ok(self.content().positions.get(subscription).and_then(|position| position.paused.clone()))
    }

    async fn list(&self) -> Result<Vec<SubscriptionInfo>, StoreError> {
        let content = self.content();
        let info = |(id, position): (&SubscriptionId, &Position)| SubscriptionInfo {
            subscription: id.clone(),
            mode: position.mode,
            registered: position.registered,
            active: position.active,
            expire_after: position.expire_after,
            paused: position.paused.clone(),
        };
        Ok(content.positions.iter().map(info).collect())
    }

    async fn forget(&self, subscription: &SubscriptionId) -> Result<(), StoreError> {
        let mut content = self.content();
        content.positions.remove(subscription);
        content.take_back(|id, _, _| id == subscription);
        Ok(())
    }
}
