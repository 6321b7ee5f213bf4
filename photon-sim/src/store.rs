//! The one store of a run, watched by the judge: what it says happened, happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use photon_backend::memory::MemoryStore;
use photon_backend::wrap::{Intercept, Wrapped};
use photon_core::error::StoreError;
use photon_core::event::NewEvent;
use photon_core::ids::{Incarnation, Seq, Shard, SubscriptionId, TopicName};
use photon_core::store::{
    Appended, Checkpoints, Claim, ClaimResult, Commit, CommitOutcome, Cursor, DeadLetterFilter, Member, Page,
    ReadBatch, ReadLimit, Select, ShardClaim, Sideline, Stage, Store, StoredCheckpoint,
};
use uuid::Uuid;

use crate::event::number;
use crate::history::Place;
use crate::judge::{Shared, Stored};

/// The most rows that a run can have.
const ALL: usize = 10_000;

/// Tells the judge what happens in a memory store.
#[derive(Debug)]
pub(crate) struct Watch {
    judge: Shared,
    store: MemoryStore,
}

impl Watch {
    pub(crate) fn over(store: &MemoryStore, judge: Shared) -> Arc<Wrapped<Self>> {
        let watch = Self { judge, store: store.clone() };
        Arc::new(Wrapped::new(Arc::new(store.clone()), watch))
    }
}

/// What the store holds of a shard. A memory store answers at once.
pub(crate) async fn look(
    store: &MemoryStore,
    id: &SubscriptionId,
    shard: Shard,
) -> Result<Stored, StoreError> {
    let checkpoints = store.load(id).await?;
    let rows = store.rows_in(id, shard, Seq::ZERO, Seq(i64::MAX.unsigned_abs())).await?;
    Ok(Stored {
        checkpoint: checkpoints[usize::from(shard.0)].checkpoint.clone(),
        rows: rows.into_iter().map(|row| (row.seq.0, row.state)).collect::<BTreeMap<_, _>>(),
    })
}

/// The places of which the store says that they run alone in their process.
pub(crate) async fn alone(store: &MemoryStore, id: &SubscriptionId) -> Result<Vec<Place>, StoreError> {
    let stored = store.load(id).await?;
    let of_shard = |stored: StoredCheckpoint| {
        let alone = stored.trials.into_iter().filter(|trial| trial.stage == Stage::Alone);
        alone.map(move |trial| (stored.shard.0, trial.seq.0)).collect::<Vec<_>>()
    };
    Ok(stored.into_iter().flat_map(of_shard).collect())
}

/// The places of the dead letters that match.
pub(crate) async fn dead(store: &MemoryStore, id: &SubscriptionId) -> Result<Vec<Place>, StoreError> {
    let select = Select::Dead(DeadLetterFilter::default());
    let rows = store.scan(id, &select, Page::first(ALL)).await?;
    Ok(rows.iter().map(|row| (row.event.shard.0, row.event.seq.0)).collect())
}

fn gone(before: &[Place], after: &[Place]) -> Vec<Place> {
    before.iter().copied().filter(|place| !after.contains(place)).collect()
}

#[async_trait]
impl Intercept for Watch {
    async fn append(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Appended>, StoreError> {
        let new: Vec<_> = events
            .iter()
            .map(|event| {
                let key = event.key.as_ref().and_then(|key| key.as_bytes().first().copied());
                (event.shard, number(&event.payload), key)
            })
            .collect();
        let places = inner.append(topic, events).await?;
        let mut judge = self.judge.lock();
        for ((shard, n, key), place) in new.into_iter().zip(&places) {
            if !place.duplicate {
                judge.appended(n, key, (shard.0, place.seq.0));
            }
        }
        Ok(places)
    }

    async fn read(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        self.judge.lock().reads(limit.records);
        inner.read(topic, cursors, limit).await
    }

    /// All processes of a run are one process. Of an owner that crashed in the simulation it is said that it was
    /// another one, elsewhere.
    async fn load(
        &self,
        inner: &dyn Store,
        subscription: &SubscriptionId,
    ) -> Result<Vec<StoredCheckpoint>, StoreError> {
        let mut stored = inner.load(subscription).await?;
        let judge = self.judge.lock();
        for member in stored.iter_mut().filter_map(|stored| stored.unended.as_mut()) {
            if judge.has_crashed(member.incarnation) {
                member.incarnation = Incarnation(Uuid::max());
                "elsewhere".clone_into(&mut member.host);
            }
        }
        Ok(stored)
    }

    async fn join(&self, inner: &dyn Store, member: &Member) -> Result<(), StoreError> {
        self.judge.lock().joins(member.incarnation);
        inner.join(member).await
    }

    async fn commit(&self, inner: &dyn Store, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let outcome = inner.commit(commit).await?;
        let group = commit.subscription.group.as_str();
        for (shard, outcome) in commit.shards.iter().zip(&outcome) {
            let stored = look(&self.store, &commit.subscription, shard.shard).await?;
            self.judge.lock().committed(group, shard, outcome, &stored);
        }
        Ok(outcome)
    }

    async fn claim(
        &self,
        inner: &dyn Store,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        let results = inner.claim(incarnation, claims).await?;
        let mut judge = self.judge.lock();
        for (claim, result) in claims.iter().zip(&results) {
            if let ClaimResult::Granted(fence) = result {
                judge.granted(claim.shard.subscription.group.as_str(), claim.shard.shard, *fence);
            }
        }
        Ok(results)
    }

    async fn release(
        &self,
        inner: &dyn Store,
        incarnation: Incarnation,
        shards: &[ShardClaim],
    ) -> Result<(), StoreError> {
        {
            let mut judge = self.judge.lock();
            for claim in shards {
                judge.released(incarnation, claim.subscription.group.as_str(), claim.shard);
            }
        }
        inner.release(incarnation, shards).await
    }

    async fn redrive(
        &self,
        inner: &dyn Store,
        id: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let before = dead(&self.store, id).await?;
        let changed = inner.redrive(id, filter, limit).await?;
        let places = gone(&before, &dead(&self.store, id).await?);
        self.judge.lock().redriven(id.group.as_str(), places);
        Ok(changed)
    }

    async fn discard(
        &self,
        inner: &dyn Store,
        id: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let before = dead(&self.store, id).await?;
        let changed = inner.discard(id, filter, limit).await?;
        let places = gone(&before, &dead(&self.store, id).await?);
        self.judge.lock().discarded(id.group.as_str(), places);
        Ok(changed)
    }
}
