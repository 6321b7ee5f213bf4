//! The positions of subscriptions.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use photon_core::error::StoreError;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoints, Commit, CommitOutcome, Paused, Registered, Registration, ResetOutcome, ShardCommit,
    ShardOutcome, ShardReset, StoredCheckpoint, SubscriptionInfo,
};
use photon_core::time::Timestamp;

use super::cells::Step;
use super::records::{Change, PausedRecord, Stage, SubscriptionRecord};
use super::{Inner, NatsStore, now};
use crate::position::{check, no_such_shard, unregistered};

const AT_ONCE: usize = 64;
/// The activity of a subscription is written down so often while it commits.
const ACTIVITY_EVERY: Duration = Duration::from_secs(10);

/// What this process knows of a registered subscription. A life that has ended shows in the cells.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) life: u64,
    pub(super) starts: Vec<Seq>,
    expire_after: Option<Duration>,
    /// When its activity was last written down here.
    written: std::sync::Mutex<Option<Instant>>,
}

impl Known {
    fn of(record: &SubscriptionRecord) -> Self {
        Self {
            life: record.life,
            starts: record.starts.iter().copied().map(Seq).collect(),
            expire_after: record.expire_after_us.map(Duration::from_micros),
            written: std::sync::Mutex::default(),
        }
    }

    /// What the cell of a shard needs to begin.
    pub(super) fn start(&self, shard: Shard) -> (u64, Seq) {
        (self.life, self.starts.get(usize::from(shard.0)).copied().unwrap_or(Seq::ZERO))
    }

    /// Whether its activity is to be written down now.
    fn is_due(&self) -> bool {
        let every = self.expire_after.map_or(ACTIVITY_EVERY, |expiry| ACTIVITY_EVERY.min(expiry / 4));
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let due = written.is_none_or(|written| written.elapsed() >= every);
        if due {
            *written = Some(Instant::now());
        }
        due
    }
}

fn paused(record: Option<PausedRecord>) -> Option<Paused> {
    record.map(|PausedRecord { reason, since }| Paused { reason, since: Timestamp(since) })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Inner {
    /// The record of a subscription that is known.
    async fn registered(&self, id: &SubscriptionId) -> Result<Option<SubscriptionRecord>, StoreError> {
        let record = match self.record::<SubscriptionRecord>(&self.names.subscription(id)).await? {
            None => self.register_anew(id).await?,
            Some(record) if record.stage == Stage::Forgotten => {
                self.remembered.forgotten(id);
                None
            }
            known => known,
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &record {
            None => drop(known.remove(id)),
            Some(record) if known.get(id).is_some_and(|known| known.life == record.life) => {}
            Some(record) => drop(known.insert(id.clone(), Arc::new(Known::of(record)))),
        }
        Ok(record)
    }

    /// What does not change of a subscription that is known.
    pub(super) async fn known(&self, id: &SubscriptionId) -> Result<Option<Arc<Known>>, StoreError> {
        let find = || self.known.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if let Some(known) = find() {
            return Ok(Some(known));
        }
        self.registered(id).await?;
        Ok(find())
    }

    /// Changes the record of a subscription that is registered.
    async fn change_registered<R>(
        &self,
        id: &SubscriptionId,
        what: &str,
        mut change: impl FnMut(SubscriptionRecord) -> Change<SubscriptionRecord, R>,
    ) -> Result<R, StoreError> {
        self.change(what, &self.names.subscription(id), |record: Option<SubscriptionRecord>| {
            let record = record.filter(|record| record.stage != Stage::Forgotten);
            Ok(change(record.ok_or_else(|| unregistered(id))?))
        })
        .await
    }

    pub(super) async fn revision(&self, id: &SubscriptionId) -> Result<u64, StoreError> {
        Ok(self.registered(id).await?.map_or(0, |record| record.revision))
    }

    /// Tells owners that somebody changed the subscription.
    pub(super) async fn raise_revision(&self, id: &SubscriptionId) -> Result<(), StoreError> {
        let what = format!("the change of subscription {id} cannot be told to its owners");
        self.change_registered(id, &what, |record| {
            Change::Write(SubscriptionRecord { revision: record.revision + 1, ..record }, ())
        })
        .await
    }

    async fn starts(&self, id: &SubscriptionId, start: Start) -> Result<Vec<u64>, StoreError> {
        let topic = self.topic(&id.topic).await?;
        let record = self.topic_record(&topic).await?;
        let earliest: Vec<u64> = (0..topic.shards).map(|shard| record.start(shard)).collect();
        let wanted: Vec<u64> = match start {
            Start::Earliest => return Ok(earliest),
            Start::Latest => self.ends(&topic).await?,
            Start::At(time) => self.positions(&topic, time).await?,
        };
        Ok(wanted.into_iter().zip(earliest).map(|(wanted, earliest)| wanted.max(earliest)).collect())
    }

    /// Announces a subscription, which [`settle`](Self::settle) then makes registered. `false` if another process did.
    pub(super) async fn begin(
        &self,
        registration: &Registration,
        life: u64,
        revision: u64,
        starts: &[u64],
    ) -> Result<bool, StoreError> {
        let id = &registration.subscription;
        let what = format!("subscription {id} cannot be registered");
        self.change(&what, &self.names.subscription(id), |record: Option<SubscriptionRecord>| {
            if record.is_some_and(|record| record.stage != Stage::Forgotten || record.life >= life) {
                return Ok(Change::Keep(false));
            }
            let record = SubscriptionRecord {
                life,
                stage: Stage::Announced,
                durable: registration.mode == Mode::Durable,
                registered: now().0,
                active: now().0,
                expire_after_us: registration.expire_after.map(micros),
                starts: starts.to_vec(),
                revision,
                paused: None,
            };
            Ok(Change::Write(record, true))
        })
        .await
    }

    /// Raises the starts of a subscription that became known while a trim was announced, and makes it registered.
    pub(super) async fn settle(&self, id: &SubscriptionId) -> Result<SubscriptionRecord, StoreError> {
        let topic = self.topic(&id.topic).await?;
        let trimmed = self.topic_record(&topic).await?;
        let what = format!("subscription {id} cannot be registered");
        self.change_registered(id, &what, |mut record| {
            if record.stage == Stage::Registered {
                return Change::Keep(record);
            }
            for (shard, start) in (0..).zip(&mut record.starts) {
                *start = trimmed.start(shard).max(*start);
            }
            record.stage = Stage::Registered;
            Change::Write(record.clone(), record)
        })
        .await
    }

    /// Clears what an earlier life of a subscription left.
    async fn clear(&self, id: &SubscriptionId, record: &SubscriptionRecord) -> Result<(), StoreError> {
        let what = format!("what is left of subscription {id} cannot be removed");
        let what = &what;
        let clear = async |shard: u16| {
            self.change_cell(id, Shard(shard), what, |cell, touched| {
                let untouched = cell.epoch == 0 && !cell.begun;
                if !untouched && cell.clear(record.life, touched) { Step::Write(()) } else { Step::Keep(()) }
            })
            .await
        };
        let shards = 0..u16::try_from(record.starts.len()).unwrap_or(u16::MAX);
        stream::iter(shards).map(clear).buffered(AT_ONCE).try_collect::<()>().await
    }

    async fn commit_one(
        &self,
        id: &SubscriptionId,
        commit: &ShardCommit,
    ) -> Result<(ShardOutcome, bool), StoreError> {
        let shard = commit.shard;
        let what = format!("the progress of subscription {id} in shard {shard} cannot be written");
        let fenced = |cell: &super::cell::Cell| !cell.is_current(commit.fence);
        let Some(known) = self.known(id).await? else {
            // It was forgotten, and its claims with it: for their holders that is a lost lease.
            let fenced = self.look(id, shard, fenced).await?;
            return if fenced { Ok((ShardOutcome::Fenced, false)) } else { Err(unregistered(id)) };
        };
        check(id, std::slice::from_ref(commit), known.starts.len())?;
        // Who lost the shard is told before anything large is stored for it.
        if !commit.puts.is_empty() && self.look(id, shard, fenced).await? {
            return Ok((ShardOutcome::Fenced, false));
        }
        let stripped = self.store_bodies(id, commit, &what).await?;
        let outcome = self
            .change_cell(id, shard, &what, |cell, touched| {
                if fenced(cell) {
                    return Step::Keep(ShardOutcome::Fenced);
                }
                Step::Write(cell.commit(known.start(shard), &stripped, touched))
            })
            .await?;
        if outcome == ShardOutcome::Fenced {
            return Ok((outcome, false));
        }
        self.remembered.committed(id, shard, commit.checkpoint.watermark);
        Ok((outcome, known.is_due()))
    }

    async fn write_activity(&self, id: &SubscriptionId) -> Result<(), StoreError> {
        let what = format!("the activity of subscription {id} cannot be written");
        self.change_registered(id, &what, |record| {
            let active = record.active.max(now().0);
            Change::Write(SubscriptionRecord { active, ..record }, ())
        })
        .await
    }
}

#[async_trait]
impl Checkpoints for NatsStore {
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let inner = &self.inner;
        let id = &registration.subscription;
        let what = format!("subscription {id} cannot be registered");
        let subject = inner.names.subscription(id);
        let expire_after_us = registration.expire_after.map(micros);
        loop {
            let found = inner.record::<SubscriptionRecord>(&subject).await?;
            let before = found.as_ref().filter(|record| record.stage == Stage::Forgotten);
            if let Some(forgotten) = before {
                inner.clear(id, forgotten).await?;
            }
            if found.is_none() || before.is_some() {
                let life = before.map_or(1, |record| record.life + 1);
                let revision = before.map_or(0, |record| record.revision);
                let starts = inner.starts(id, registration.start).await?;
                if !inner.begin(registration, life, revision, &starts).await? {
                    continue;
                }
                let record = inner.settle(id).await?;
                inner.remembered.registered(registration, &record);
                return Ok(Registered { new: true, starts: record.starts.into_iter().map(Seq).collect() });
            }
            let record = inner.settle(id).await?;
            inner
                .change_registered(id, &what, |record| {
                    let active = record.active.max(now().0);
                    Change::Write(SubscriptionRecord { active, expire_after_us, ..record }, ())
                })
                .await?;
            inner.remembered.registered(registration, &record);
            return Ok(Registered { new: false, starts: record.starts.into_iter().map(Seq).collect() });
        }
    }

    async fn load(&self, subscription: &SubscriptionId) -> Result<Vec<StoredCheckpoint>, StoreError> {
        let inner = &self.inner;
        let record = inner.registered(subscription).await?.ok_or_else(|| unregistered(subscription))?;
        let load = async |(shard, start): (u16, u64)| {
            let shard = Shard(shard);
            inner
                .look(subscription, shard, |cell| StoredCheckpoint {
                    shard,
                    checkpoint: cell.checkpoint(Seq(start)),
                    trials: cell.position.trials.clone(),
                    unended: cell.unended(),
                    resets: cell.position.resets,
                })
                .await
        };
        let loaded: Vec<StoredCheckpoint> =
            stream::iter((0..).zip(record.starts)).map(load).buffered(AT_ONCE).try_collect().await?;
        for stored in &loaded {
            inner.remembered.loaded(subscription, stored.shard, stored.checkpoint.watermark);
        }
        Ok(loaded)
    }

    async fn commit(&self, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let inner = &self.inner;
        let id = &commit.subscription;
        let one = async |shard: &ShardCommit| inner.commit_one(id, shard).await;
        let done: Vec<(ShardOutcome, bool)> =
            stream::iter(&commit.shards).map(one).buffered(AT_ONCE).try_collect().await?;
        if done.iter().any(|(_, active)| *active) {
            // The commit is written: that its date is not cannot undo it.
            let _ = inner.write_activity(id).await;
        }
        Ok(done.into_iter().map(|(outcome, _)| outcome).collect())
    }

    async fn reset(
        &self,
        subscription: &SubscriptionId,
        shards: &[ShardReset],
    ) -> Result<Vec<ResetOutcome>, StoreError> {
        let inner = &self.inner;
        inner.registered(subscription).await?.ok_or_else(|| unregistered(subscription))?;
        let known = inner.known(subscription).await?.ok_or_else(|| unregistered(subscription))?;
        let topic = inner.topic(&subscription.topic).await?;
        if let Some(reset) = shards.iter().find(|reset| reset.shard.0 >= topic.shards) {
            return Err(no_such_shard(subscription, reset.shard, topic.shards.into()));
        }
        let trimmed = inner.topic_record(&topic).await?;
        let mut outcomes = Vec::with_capacity(shards.len());
        for reset in shards {
            let shard = reset.shard;
            let end = inner.end(&topic, shard).await?;
            let after = Seq(reset.after.0.max(trimmed.start(shard.0)).min(end));
            let what = format!("subscription {subscription} cannot be reset in shard {shard}");
            let outcome = inner.change_cell(subscription, shard, &what, |cell, touched| {
                if reset.fence.is_some_and(|fence| !cell.is_current(fence)) {
                    return Step::Keep(ResetOutcome::Fenced);
                }
                Step::Write(cell.reset(known.start(shard), after, touched))
            });
            outcomes.push(outcome.await?);
        }
        if outcomes.iter().any(|outcome| *outcome != ResetOutcome::Fenced) {
            inner.raise_revision(subscription).await?;
        }
        Ok(outcomes)
    }

    async fn pause(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, StoreError> {
        let what = format!("subscription {subscription} cannot be paused or resumed");
        let since = now().0;
        self.inner
            .change_registered(subscription, &what, |mut record| {
                let before = record.paused.clone();
                let since = before.as_ref().map_or(since, |before| before.since);
                record.paused = reason.map(|reason| PausedRecord { reason: reason.to_owned(), since });
                if record.paused == before {
                    return Change::Keep(paused(before));
                }
                record.revision += 1;
                Change::Write(record, paused(before))
            })
            .await
    }

    async fn paused(&self, subscription: &SubscriptionId) -> Result<Option<Paused>, StoreError> {
        let record = self.inner.registered(subscription).await?;
        Ok(paused(record.and_then(|record| record.paused)))
    }

    async fn list(&self) -> Result<Vec<SubscriptionInfo>, StoreError> {
        let inner = &self.inner;
        let subjects = inner.js.subjects(&inner.state, &inner.names.subscriptions()).await?;
        let ids: Vec<SubscriptionId> =
            subjects.iter().filter_map(|subject| inner.names.read_subscription(subject)).collect();
        let info = async |id: SubscriptionId| {
            let record = inner.registered(&id).await?;
            Ok::<_, StoreError>(record.map(|record| SubscriptionInfo {
                subscription: id,
                mode: if record.durable { Mode::Durable } else { Mode::Group },
                registered: Timestamp(record.registered),
                active: Timestamp(record.active),
                expire_after: record.expire_after_us.map(Duration::from_micros),
                paused: paused(record.paused),
            }))
        };
        let known: Vec<_> = stream::iter(ids).map(info).buffered(AT_ONCE).try_collect().await?;
        let mut known: Vec<SubscriptionInfo> = known.into_iter().flatten().collect();
        known.sort_unstable_by(|a, b| a.subscription.cmp(&b.subscription));
        Ok(known)
    }

    async fn forget(&self, subscription: &SubscriptionId) -> Result<(), StoreError> {
        let inner = &self.inner;
        let what = format!("subscription {subscription} cannot be forgotten");
        let subject = inner.names.subscription(subscription);
        let gone = inner
            .change(&what, &subject, |record: Option<SubscriptionRecord>| {
                let Some(mut record) = record else { return Ok(Change::Keep(None)) };
                if record.stage == Stage::Forgotten {
                    return Ok(Change::Keep(Some(record)));
                }
                (record.stage, record.paused) = (Stage::Forgotten, None);
                Ok(Change::Write(record.clone(), Some(record)))
            })
            .await?;
        inner.remembered.forgotten(subscription);
        inner.known.lock().unwrap_or_else(PoisonError::into_inner).remove(subscription);
        match gone {
            Some(record) => inner.clear(subscription, &record).await,
            None => Ok(()),
        }
    }
}
