//! A subscription with events and an owner, for the checks about commits and stored deliveries.

use std::sync::Arc;

use photon_core::event::{Event, NewEvent};
use photon_core::handler::DeadReason;
use photon_core::ids::{Incarnation, Seq, Shard, SubscriptionId};
use photon_core::options::Start;
use photon_core::store::{
    Checkpoint, Commit, DeadLetterFilter, Failure, Fence, Head, Page, RowEnd, RowRef, RowState, Select,
    SeqRange, ShardCommit, ShardOutcome, Stage, Store, StoredCheckpoint, StoredDelivery, Trial,
};
use photon_core::time::Timestamp;

use super::kit::{Kit, Topic, event, join, keyed, registration, shard_claim, take};
use super::verdict::{Outcome, Violation};

/// Everything dead.
pub(super) fn any_dead() -> DeadLetterFilter {
    DeadLetterFilter::default()
}

pub(super) const FIRST_PAGE: Page = Page { after: None, limit: 1_000 };
pub(super) const PARKED: RowState = RowState::Parked { due: Timestamp(1_000_000) };
pub(super) const DEAD: RowState = RowState::Dead { blocks: false };
pub(super) const BLOCKING: RowState = RowState::Dead { blocks: true };

/// One shard of a registered subscription with an owner.
pub(super) struct Owned {
    pub(super) store: Arc<dyn Store>,
    pub(super) topic: Topic,
    pub(super) subscription: SubscriptionId,
    pub(super) shard: u16,
    pub(super) owner: Incarnation,
    pub(super) fence: Fence,
    /// The events of the shard.
    pub(super) events: Vec<Event>,
}

/// What one commit writes about the shard.
#[derive(Clone, Default)]
pub(super) struct Write {
    puts: Vec<StoredDelivery>,
    checkpoint: Checkpoint,
    ends: Vec<RowEnd>,
    trials: Vec<Trial>,
}

impl Write {
    /// Moves the watermark.
    pub(super) fn to(watermark: Seq) -> Self {
        Self { checkpoint: Checkpoint { watermark, ranges: Vec::new() }, ..Self::default() }
    }

    pub(super) fn range(mut self, first: Seq, last: Seq) -> Self {
        self.checkpoint.ranges.push(SeqRange { first, last });
        self
    }

    pub(super) fn put(mut self, row: StoredDelivery) -> Self {
        self.puts.push(row);
        self
    }

    pub(super) fn end(mut self, row: &StoredDelivery) -> Self {
        self.ends.push(RowEnd { seq: row.event.seq, version: row.version });
        self
    }

    pub(super) fn trial(mut self, seq: Seq, crashes: u32, stage: Stage) -> Self {
        self.trials.push(Trial { seq, crashes, stage });
        self
    }

    pub(super) fn shard(self, shard: u16, fence: Fence) -> ShardCommit {
        let Self { puts, checkpoint, ends, trials } = self;
        ShardCommit { shard: Shard(shard), fence, puts, checkpoint, ends, trials }
    }
}

/// Writes what concerns one shard.
pub(super) async fn commit_shard(
    store: &dyn Store,
    subscription: &SubscriptionId,
    shard: ShardCommit,
) -> Outcome<ShardOutcome> {
    let commit = Commit { subscription: subscription.clone(), shards: vec![shard] };
    let outcome = store.commit(&commit).await?;
    let [outcome] = <[ShardOutcome; 1]>::try_from(outcome).map_err(|o| {
        Violation::new(format!("a commit of one shard must have one outcome, it has {}", o.len()))
    })?;
    Ok(outcome)
}

impl Kit<'_> {
    /// A topic of one shard with so many events without keys.
    pub(super) async fn owned(&self, count: u64) -> Outcome<Owned> {
        self.owned_events((0..count).map(|number| event(0, number)).collect()).await
    }

    /// A topic of one shard with an event for each key.
    pub(super) async fn owned_keys(&self, keys: &[&str]) -> Outcome<Owned> {
        self.owned_events((0..).zip(keys).map(|(number, key)| keyed(0, number, key)).collect()).await
    }

    pub(super) async fn owned_events(&self, events: Vec<NewEvent>) -> Outcome<Owned> {
        let topic = self.topic(1).await?;
        topic.append(events).await?;
        Owned::new(topic, 0, "group").await
    }
}

impl Owned {
    /// Registers a group and takes one shard for it.
    pub(super) async fn new(topic: Topic, shard: u16, group: &str) -> Outcome<Self> {
        let store = Arc::clone(&topic.store);
        let subscription = topic.subscription(group)?;
        store.register(&registration(subscription.clone(), Start::Earliest)).await?;
        let owner = join(&*store).await?;
        let fence = take(&*store, owner, &shard_claim(&subscription, shard)).await?;
        let events = topic.read_all(shard).await?;
        Ok(Self { store, topic, subscription, shard, owner, fence, events })
    }

    /// The place of an event, counted from 0.
    pub(super) fn seq(&self, index: usize) -> Seq {
        self.events[index].seq
    }

    pub(super) fn last_seq(&self) -> Seq {
        self.events.last().map_or(Seq::ZERO, |event| event.seq)
    }

    /// A new row for an event.
    pub(super) fn row(&self, index: usize, state: RowState) -> StoredDelivery {
        let dead = matches!(state, RowState::Dead { .. });
        StoredDelivery {
            event: self.events[index].clone(),
            state,
            attempts: 2,
            failure: Failure {
                error: format!("failure of number {index}"),
                reason: dead.then_some(DeadReason::Exhausted),
                first_failed: Some(Timestamp(5_000_000)),
                last_failed: Some(Timestamp(6_000_000)),
                deferred_since: None,
            },
            version: 0,
        }
    }

    /// What the commit came to.
    pub(super) async fn commit_any(&self, write: Write) -> Outcome<ShardOutcome> {
        let shard = write.shard(self.shard, self.fence);
        commit_shard(&*self.store, &self.subscription, shard).await
    }

    /// Commits; nothing may be in conflict.
    #[track_caller]
    pub(super) fn commit(&self, write: Write) -> impl Future<Output = Outcome> {
        let conflict = Violation::new("a commit of the owner must be written without conflicts");
        async move {
            let outcome = self.commit_any(write).await?;
            if outcome == (ShardOutcome::Committed { conflicts: Vec::new() }) {
                return Ok(());
            }
            Err(conflict.context(format!("the outcome is {outcome:?}")))
        }
    }

    /// Commits; exactly these rows must be in conflict.
    pub(super) async fn commit_with_conflicts(&self, write: Write, expected: &[Seq]) -> Outcome {
        let mut outcome = self.commit_any(write).await?;
        if let ShardOutcome::Committed { conflicts } = &mut outcome {
            conflicts.sort_unstable();
        }
        let expected = ShardOutcome::Committed { conflicts: expected.to_vec() };
        ensure_eq!(outcome, expected, "rows that somebody else changed");
        Ok(())
    }

    /// Stores rows for the events with these numbers and counts everything as settled.
    pub(super) async fn store_rows(&self, states: &[(usize, RowState)]) -> Outcome {
        let rows = states.iter().map(|(index, state)| self.row(*index, *state));
        self.commit(rows.fold(Write::to(self.last_seq()), Write::put)).await
    }

    pub(super) async fn checkpoint(&self) -> Outcome<Checkpoint> {
        Ok(self.load().await?.checkpoint)
    }

    pub(super) async fn load(&self) -> Outcome<StoredCheckpoint> {
        let stored = self.store.load(&self.subscription).await?;
        let shard = Shard(self.shard);
        stored
            .into_iter()
            .find(|stored| stored.shard == shard)
            .ok_or_else(|| Violation::new("load leaves a shard out"))
    }

    /// The row at a place.
    pub(super) async fn get(&self, seq: Seq) -> Outcome<Option<StoredDelivery>> {
        let rows = self.store.get(&self.subscription, Shard(self.shard), &[seq]).await?;
        ensure!(rows.len() <= 1, "one place gave {} rows", rows.len());
        Ok(rows.into_iter().next())
    }

    /// The row at a place, which must be there.
    pub(super) async fn stored(&self, index: usize) -> Outcome<StoredDelivery> {
        let row = self.get(self.seq(index)).await?;
        row.ok_or_else(|| Violation::new(format!("the row of event number {index} is missing")))
    }

    /// All rows and marks.
    pub(super) async fn refs(&self) -> Outcome<Vec<RowRef>> {
        let through = Seq(i64::MAX.unsigned_abs());
        Ok(self.store.rows_in(&self.subscription, Shard(self.shard), Seq::ZERO, through).await?)
    }

    /// All heads.
    pub(super) async fn heads(&self) -> Outcome<Vec<Head>> {
        Ok(self.store.heads(&self.subscription, Shard(self.shard), Seq::ZERO, 1_000).await?)
    }

    pub(super) async fn scan(&self, select: &Select) -> Outcome<Vec<StoredDelivery>> {
        Ok(self.store.scan(&self.subscription, select, FIRST_PAGE).await?)
    }

    pub(super) async fn redrive(&self, filter: &DeadLetterFilter) -> Outcome<u64> {
        Ok(self.store.redrive(&self.subscription, filter, 1_000).await?)
    }

    pub(super) async fn discard(&self, filter: &DeadLetterFilter) -> Outcome<u64> {
        Ok(self.store.discard(&self.subscription, filter, 1_000).await?)
    }
}

/// The places of stored deliveries.
pub(super) fn places(rows: &[StoredDelivery]) -> Vec<(Shard, Seq)> {
    rows.iter().map(|row| (row.event.shard, row.event.seq)).collect()
}
