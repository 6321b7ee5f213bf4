//! The positions of subscriptions.

use std::time::Duration;

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoint, Checkpoints, Commit, CommitOutcome, Paused, Registered, Registration, ResetOutcome,
    ShardCommit, ShardOutcome, ShardReset, StoredCheckpoint, SubscriptionInfo,
};
use photon_core::time::Timestamp;

use super::MemoryStore;
use super::leases::LeaseBook;
use crate::position::{ShardPosition, check, no_such_shard, unregistered};

/// A registered subscription.
pub(super) struct Position {
    mode: Mode,
    registered: Timestamp,
    active: Timestamp,
    expire_after: Option<Duration>,
    starts: Vec<Seq>,
    pub(super) shards: Vec<ShardPosition>,
    pub(super) revision: u64,
    paused: Option<Paused>,
}

impl Position {
    fn new(registration: &Registration, starts: Vec<Seq>, now: Timestamp) -> Self {
        let shard = |watermark: &Seq| ShardPosition {
            checkpoint: Checkpoint { watermark: *watermark, ranges: Vec::new() },
            ..ShardPosition::default()
        };
        Self {
            mode: registration.mode,
            registered: now,
            active: now,
            expire_after: registration.expire_after,
            shards: starts.iter().map(shard).collect(),
            starts,
            revision: 0,
            paused: None,
        }
    }

    /// A shard, if the topic has it.
    pub(super) fn shard(&self, shard: Shard) -> Option<&ShardPosition> {
        self.shards.get(usize::from(shard.0))
    }
}

#[async_trait]
impl Checkpoints for MemoryStore {
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let now = self.now();
        let mut book = self.book();
        if let Some(known) = book.positions.get_mut(&registration.subscription) {
            known.expire_after = registration.expire_after;
            known.active = now;
            return Ok(Registered { new: false, starts: known.starts.clone() });
        }
        let starts = self.with_log(&registration.subscription.topic, |log| {
            Ok(match registration.start {
                Start::Earliest => log.starts(),
                Start::Latest => log.ends(),
                Start::At(time) => log.starts_at(time),
            })
        })?;
        let position = Position::new(registration, starts.clone(), now);
        book.positions.insert(registration.subscription.clone(), position);
        Ok(Registered { new: true, starts })
    }

    async fn load(&self, subscription: &SubscriptionId) -> Result<Vec<StoredCheckpoint>, StoreError> {
        let book = self.book();
        let position = book.positions.get(subscription).ok_or_else(|| unregistered(subscription))?;
        let stored = |(shard, position): (u16, &ShardPosition)| StoredCheckpoint {
            shard: Shard(shard),
            checkpoint: position.checkpoint.clone(),
            trials: position.trials.clone(),
            unended: book.leases.unended(subscription, Shard(shard)),
            resets: position.resets,
        };
        Ok((0..).zip(&position.shards).map(stored).collect())
    }

    async fn commit(&self, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let now = self.now();
        let mut book = self.book();
        let book = &mut *book;
        let current = |leases: &LeaseBook, shard: &ShardCommit| {
            leases.is_current(&commit.subscription, shard.shard, shard.fence)
        };
        let Some(position) = book.positions.get_mut(&commit.subscription) else {
            // It was forgotten, and its claims with it: for their holders that is a lost lease.
            if commit.shards.iter().any(|shard| current(&book.leases, shard)) {
                return Err(unregistered(&commit.subscription));
            }
            return Ok(vec![ShardOutcome::Fenced; commit.shards.len()]);
        };
        check(&commit.subscription, &commit.shards, position.shards.len())?;
        let mut outcome = Vec::with_capacity(commit.shards.len());
        for shard in &commit.shards {
            outcome.push(if current(&book.leases, shard) {
                position.active = now;
                position.shards[usize::from(shard.shard.0)].write(shard)
            } else {
                ShardOutcome::Fenced
            });
        }
        Ok(outcome)
    }

    async fn reset(
        &self,
        subscription: &SubscriptionId,
        shards: &[ShardReset],
    ) -> Result<Vec<ResetOutcome>, StoreError> {
        let mut book = self.book();
        let book = &mut *book;
        let position = book.positions.get_mut(subscription).ok_or_else(|| unregistered(subscription))?;
        let (starts, ends) = self.with_log(&subscription.topic, |log| Ok((log.starts(), log.ends())))?;
        if let Some(reset) = shards.iter().find(|reset| usize::from(reset.shard.0) >= starts.len()) {
            return Err(no_such_shard(subscription, reset.shard, starts.len()));
        }
        let mut outcomes = Vec::with_capacity(shards.len());
        for reset in shards {
            let (shard, index) = (reset.shard, usize::from(reset.shard.0));
            if reset.fence.is_some_and(|fence| !book.leases.is_current(subscription, shard, fence)) {
                outcomes.push(ResetOutcome::Fenced);
                continue;
            }
            book.leases.take_back(subscription, shard);
            let after = reset.after.max(starts[index]).min(ends[index]);
            outcomes.push(position.shards[index].reset(after));
        }
        position.revision += u64::from(outcomes.iter().any(|outcome| *outcome != ResetOutcome::Fenced));
        Ok(outcomes)
    }

    async fn pause(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, StoreError> {
        let now = self.now();
        let mut book = self.book();
        let position = book.positions.get_mut(subscription).ok_or_else(|| unregistered(subscription))?;
        let before = position.paused.clone();
        let since = before.as_ref().map_or(now, |before| before.since);
        position.paused = reason.map(|reason| Paused { reason: reason.to_owned(), since });
        position.revision += u64::from(position.paused != before);
        Ok(before)
    }

    async fn paused(&self, subscription: &SubscriptionId) -> Result<Option<Paused>, StoreError> {
        Ok(self.book().positions.get(subscription).and_then(|position| position.paused.clone()))
    }

    async fn list(&self) -> Result<Vec<SubscriptionInfo>, StoreError> {
        let book = self.book();
        let mut known: Vec<SubscriptionInfo> = book
            .positions
            .iter()
            .map(|(subscription, position)| SubscriptionInfo {
                subscription: subscription.clone(),
                mode: position.mode,
                registered: position.registered,
                active: position.active,
                expire_after: position.expire_after,
                paused: position.paused.clone(),
            })
            .collect();
        known.sort_unstable_by(|a, b| a.subscription.cmp(&b.subscription));
        Ok(known)
    }

    async fn forget(&self, subscription: &SubscriptionId) -> Result<(), StoreError> {
        let mut book = self.book();
        book.leases.forget(subscription);
        let forgotten = book.positions.remove(subscription);
        drop(book);
        drop(forgotten);
        Ok(())
    }
}
