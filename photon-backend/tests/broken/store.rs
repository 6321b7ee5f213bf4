//! Stores that break one rule each.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use photon_backend::wrap::{Intercept, Wrapped};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::ids::{Incarnation, Seq, Shard, SubscriptionId, TopicName};
use photon_core::store::{
    Appended, Checkpoint, Claim, ClaimResult, Commit, CommitOutcome, DeadLetterFilter, Fence, Head,
    ReadBatch, ReadLimit, Registered, Registration, RowRef, RowState, ShardOutcome, Store, StoredCheckpoint,
    StoredDelivery, TopicInfo, TopicSpec, Wake,
};

/// What a store does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    ReordersABatch,
    LosesNowAndThen,
    AppliesTwice,
    StoresAPartOfWhatItRefuses,
    ShowsRecordsLate,
    IgnoresLimits,
    ReusesPlacesAfterATrim,
    TrimsOneTooMany,
    ForgetsDedupIds,
    ForgetsDedupIdsWithATrim,
    MendsPayloads,
    TakesTheEmptyKeyForNone,
    AcceptsAnotherShardCount,
    ForgetsWakesBeforeTheWait,
    RegistersAnew,
    LowersWatermarks,
    TakesRangesAway,
    LosesRanges,
    LoadsWhatWas,
    LosesTrials,
    TakesEveryEndForOneInOrder,
    DropsRowsOfALowerWatermark,
    LetsOneFencedShardStopAll,
    DoesNotFence,
    ComparesNoTokens,
    IgnoresVersions,
    EndsAnyVersion,
    LeavesNoMarks,
    HidesWaitingHeads,
    RedrivesForLater,
    RedrivesInEverySubscription,
    RedrivesMoreThanTheLimit,
    RenewsWhatWasLost,
    StartsEpochsOver,
    ReplacesLiveHolders,
    /// The harness opens another store.
    IsNotDurable,
}

/// A store with a bug.
#[derive(Debug)]
pub(crate) struct Broken {
    bug: Bug,
    inner: Arc<dyn Store>,
    state: Mutex<State>,
}

/// What the bugs need to remember.
#[derive(Debug, Default)]
struct State {
    appends: u64,
    shown: BTreeSet<(TopicName, Shard, Seq)>,
    trimmed: BTreeSet<TopicName>,
    offsets: HashMap<(TopicName, Shard), u64>,
    fences: HashMap<(SubscriptionId, Shard), Fence>,
    committed: HashMap<(SubscriptionId, Shard), Checkpoint>,
    loaded: HashMap<SubscriptionId, Vec<StoredCheckpoint>>,
}

impl Broken {
    pub(crate) fn over(inner: Arc<dyn Store>, bug: Bug) -> Wrapped<Self> {
        Wrapped::new(inner.clone(), Self { bug, inner, state: Mutex::default() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The commit as the bug changes it.
    async fn spoil(&self, inner: &dyn Store, mut commit: Commit) -> Result<Commit, StoreError> {
        let id = &commit.subscription;
        for shard in &mut commit.shards {
            let granted = self.state().fences.get(&(id.clone(), shard.shard)).copied();
            match (self.bug, granted) {
                (Bug::DoesNotFence, Some(granted)) => shard.fence = granted,
                (Bug::ComparesNoTokens, Some(granted)) if granted.epoch == shard.fence.epoch => {
                    shard.fence = granted;
                }
                (Bug::StartsEpochsOver, Some(granted)) if granted.token == shard.fence.token => {
                    shard.fence = granted;
                }
                (Bug::LosesRanges, _) => shard.checkpoint.ranges.clear(),
                (Bug::LosesTrials, _) => shard.trials.clear(),
                (Bug::DropsRowsOfALowerWatermark, _) => {
                    let stored = inner.load(id).await?;
                    let stored = stored.iter().find(|stored| stored.shard == shard.shard);
                    if stored.is_some_and(|stored| stored.checkpoint.watermark > shard.checkpoint.watermark) {
                        shard.puts.clear();
                        shard.ends.clear();
                    }
                }
                (Bug::IgnoresVersions, _) => {
                    for put in &mut shard.puts {
                        let rows = inner.get(id, shard.shard, &[put.event.seq]).await?;
                        put.version = rows.first().map_or(put.version, |row| row.version);
                    }
                }
                (Bug::EndsAnyVersion, _) => {
                    for end in &mut shard.ends {
                        let rows = inner.get(id, shard.shard, &[end.seq]).await?;
                        end.version = rows.first().map_or(end.version, |row| row.version);
                    }
                }
                _ => {}
            }
        }
        Ok(commit)
    }
}

#[async_trait]
impl Intercept for Broken {
    async fn ensure_topic(&self, inner: &dyn Store, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        let result = inner.ensure_topic(spec).await;
        match result {
            Err(error)
                if self.bug == Bug::AcceptsAnotherShardCount && error.to_string().contains("shard") =>
            {
                Ok(TopicInfo { generation: spec.generation, shards: spec.shards })
            }
            result => result,
        }
    }

    async fn append(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        mut events: Vec<NewEvent>,
    ) -> Result<Vec<Appended>, StoreError> {
        match self.bug {
            Bug::ReordersABatch => {
                events.reverse();
                let mut places = inner.append(topic, events).await?;
                places.reverse();
                Ok(places)
            }
            Bug::LosesNowAndThen if !events.is_empty() => {
                let lost = {
                    let mut state = self.state();
                    state.appends += 1;
                    state.appends.is_multiple_of(23)
                };
                let last = events[events.len() - 1].shard;
                let lose = lost && events.len() > 1;
                if lose {
                    events.pop();
                }
                let mut places = inner.append(topic, events).await?;
                if lose {
                    let bounds = inner.bounds(topic).await?;
                    let seq = Seq(bounds[usize::from(last.0)].end.0 + 1_000);
                    places.push(Appended { seq, duplicate: false });
                }
                Ok(places)
            }
            Bug::AppliesTwice => {
                inner.append(topic, events.clone()).await?;
                inner.append(topic, events).await
            }
            Bug::StoresAPartOfWhatItRefuses => match inner.append(topic, events.clone()).await {
                Err(error) if error.kind() == StoreErrorKind::Refused && !events.is_empty() => {
                    let _ = inner.append(topic, events.drain(..1).collect()).await;
                    Err(error)
                }
                result => result,
            },
            Bug::ReusesPlacesAfterATrim => {
                let shards: Vec<Shard> = events.iter().map(|event| event.shard).collect();
                let mut places = inner.append(topic, events).await?;
                let state = self.state();
                for (place, shard) in places.iter_mut().zip(shards) {
                    let offset = state.offsets.get(&(topic.clone(), shard)).copied().unwrap_or_default();
                    place.seq.0 = place.seq.0.saturating_sub(offset);
                }
                Ok(places)
            }
            Bug::ForgetsDedupIds => {
                for event in &mut events {
                    event.dedup_id = None;
                }
                inner.append(topic, events).await
            }
            Bug::ForgetsDedupIdsWithATrim if self.state().trimmed.contains(topic) => {
                for event in &mut events {
                    event.dedup_id = None;
                }
                inner.append(topic, events).await
            }
            Bug::MendsPayloads => {
                for event in &mut events {
                    event.payload = Bytes::from(String::from_utf8_lossy(&event.payload).into_owned());
                }
                inner.append(topic, events).await
            }
            Bug::TakesTheEmptyKeyForNone => {
                for event in &mut events {
                    event.key = event.key.take().filter(|key| !key.as_bytes().is_empty());
                }
                inner.append(topic, events).await
            }
            _ => inner.append(topic, events).await,
        }
    }

    async fn read(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        cursors: &[photon_core::store::Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        let limit = match self.bug {
            Bug::IgnoresLimits => ReadLimit { records: usize::MAX, bytes: usize::MAX },
            _ => limit,
        };
        let mut batch = inner.read(topic, cursors, limit).await?;
        if self.bug == Bug::ShowsRecordsLate {
            let mut state = self.state();
            // As where sequence numbers are given out before the commit, and the store is busy.
            let shown = |seq: Seq| seq.0 < 60 || !seq.0.is_multiple_of(5);
            batch.records.retain(|event| {
                shown(event.seq) || !state.shown.insert((topic.clone(), event.shard, event.seq))
            });
        }
        Ok(batch)
    }

    async fn trim(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        shard: Shard,
        mut through: Seq,
    ) -> Result<(), StoreError> {
        self.state().trimmed.insert(topic.clone());
        let end = inner.bounds(topic).await?.iter().find(|bounds| bounds.shard == shard).map(|b| b.end);
        if Some(through) >= end {
            self.state().offsets.insert((topic.clone(), shard), through.0);
        }
        if self.bug == Bug::TrimsOneTooMany {
            through.0 += 1;
        }
        inner.trim(topic, shard, through).await
    }

    fn wake(&self, inner: &dyn Store, topic: &TopicName) -> Box<dyn Wake> {
        if self.bug == Bug::ForgetsWakesBeforeTheWait {
            return Box::new(Forgetful { store: self.inner.clone(), topic: topic.clone() });
        }
        inner.wake(topic)
    }

    async fn register(
        &self,
        inner: &dyn Store,
        registration: &Registration,
    ) -> Result<Registered, StoreError> {
        let registered = inner.register(registration).await?;
        if self.bug != Bug::RegistersAnew || registered.new {
            return Ok(registered);
        }
        let ends = inner.bounds(&registration.subscription.topic).await?;
        Ok(Registered { new: true, starts: ends.iter().map(|bounds| bounds.end).collect() })
    }

    async fn load(
        &self,
        inner: &dyn Store,
        subscription: &SubscriptionId,
    ) -> Result<Vec<StoredCheckpoint>, StoreError> {
        let mut now = inner.load(subscription).await?;
        let mut state = self.state();
        match self.bug {
            Bug::LowersWatermarks | Bug::TakesRangesAway => {
                for stored in &mut now {
                    let last = state.committed.get(&(subscription.clone(), stored.shard));
                    let lowers = self.bug == Bug::LowersWatermarks;
                    let last = last.filter(|last| lowers || last.watermark == stored.checkpoint.watermark);
                    stored.checkpoint = last.unwrap_or(&stored.checkpoint).clone();
                }
                Ok(now)
            }
            Bug::TakesEveryEndForOneInOrder => {
                for stored in &mut now {
                    stored.unended = None;
                }
                Ok(now)
            }
            Bug::LoadsWhatWas => Ok(state.loaded.insert(subscription.clone(), now.clone()).unwrap_or(now)),
            _ => Ok(now),
        }
    }

    async fn commit(&self, inner: &dyn Store, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let commit = self.spoil(inner, commit.clone()).await?;
        if self.bug == Bug::LetsOneFencedShardStopAll {
            let current = |shard: &photon_core::store::ShardCommit| {
                let granted = self.state().fences.get(&(commit.subscription.clone(), shard.shard)).copied();
                granted == Some(shard.fence)
            };
            if !commit.shards.iter().all(current) {
                return Ok(vec![ShardOutcome::Fenced; commit.shards.len()]);
            }
        }
        let outcome = inner.commit(&commit).await?;
        let mut state = self.state();
        for (shard, outcome) in commit.shards.iter().zip(&outcome) {
            if *outcome != ShardOutcome::Fenced {
                let place = (commit.subscription.clone(), shard.shard);
                state.committed.insert(place, shard.checkpoint.clone());
            }
        }
        Ok(outcome)
    }

    async fn heads(
        &self,
        inner: &dyn Store,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError> {
        let mut heads = inner.heads(subscription, shard, after, limit).await?;
        if self.bug == Bug::HidesWaitingHeads {
            heads.retain(|head| head.state != RowState::Waiting);
        }
        Ok(heads)
    }

    async fn rows_in(
        &self,
        inner: &dyn Store,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError> {
        let mut rows = inner.rows_in(subscription, shard, after, through).await?;
        if self.bug == Bug::LeavesNoMarks {
            rows.retain(|row| row.state.is_some());
        }
        Ok(rows)
    }

    async fn get(
        &self,
        inner: &dyn Store,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: &[Seq],
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let mut rows = inner.get(subscription, shard, seqs).await?;
        if self.bug == Bug::RedrivesForLater {
            for row in rows.iter_mut().filter(|row| row.attempts == 0) {
                if let RowState::Parked { due } = &mut row.state {
                    due.0 = due.0.saturating_add(3_600_000_000);
                }
            }
        }
        Ok(rows)
    }

    async fn redrive(
        &self,
        inner: &dyn Store,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        match self.bug {
            Bug::RedrivesInEverySubscription => {
                let mut changed = 0;
                for known in inner.list().await? {
                    if known.subscription.topic == subscription.topic {
                        changed += inner.redrive(&known.subscription, filter, limit).await?;
                    }
                }
                Ok(changed)
            }
            Bug::RedrivesMoreThanTheLimit => inner.redrive(subscription, filter, limit + 1).await,
            _ => inner.redrive(subscription, filter, limit).await,
        }
    }

    async fn heartbeat(&self, inner: &dyn Store, incarnation: Incarnation) -> Result<(), StoreError> {
        match inner.heartbeat(incarnation).await {
            Err(_) if self.bug == Bug::RenewsWhatWasLost => Ok(()),
            result => result,
        }
    }

    async fn claim(
        &self,
        inner: &dyn Store,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        let mut claims = claims.to_vec();
        if self.bug == Bug::ReplacesLiveHolders {
            let members = inner.members().await?;
            for claim in &mut claims {
                let holder = claim
                    .replace
                    .and_then(|(holder, _)| members.iter().find(|info| info.member.incarnation == holder));
                claim.replace = holder.map(|info| (info.member.incarnation, info.heartbeat));
            }
        }
        let mut results = inner.claim(incarnation, &claims).await?;
        let mut state = self.state();
        for (claim, result) in claims.iter().zip(&mut results) {
            if let ClaimResult::Granted(fence) = result {
                state.fences.insert((claim.shard.subscription.clone(), claim.shard.shard), *fence);
                if self.bug == Bug::StartsEpochsOver {
                    fence.epoch = 1;
                }
            }
        }
        Ok(results)
    }
}

/// Listens anew in each wait.
struct Forgetful {
    store: Arc<dyn Store>,
    topic: TopicName,
}

#[async_trait]
impl Wake for Forgetful {
    async fn wait(&mut self) {
        self.store.wake(&self.topic).wait().await;
    }
}
