//! Positions of subscriptions.

use std::cmp::Ordering;
use std::time::Duration;

use async_trait::async_trait;

use super::leases::{Fence, Member};
use super::sideline::StoredDelivery;
use crate::error::StoreError;
use crate::ids::{Seq, Shard, SubscriptionId};
use crate::options::{Mode, Start};
use crate::time::Timestamp;

/// A run of records that are settled, both ends included. Places in between that hold no record count as
/// settled, too: records never appear behind one that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqRange {
    /// The first settled record.
    pub first: Seq,
    /// The last settled record.
    pub last: Seq,
}

impl SeqRange {
    /// Whether the place lies in the range.
    pub fn contains(self, seq: Seq) -> bool {
        self.first <= seq && seq <= self.last
    }
}

/// How far a subscription got in one shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Checkpoint {
    /// Every record up to here is settled.
    pub watermark: Seq,
    /// What is settled above the watermark: ascending, disjoint, all greater than it.
    pub ranges: Vec<SeqRange>,
}

impl Checkpoint {
    /// Whether the record at `seq` is settled.
    pub fn covers(&self, seq: Seq) -> bool {
        if seq <= self.watermark {
            return true;
        }
        let after = self.ranges.partition_point(|range| range.last < seq);
        self.ranges.get(after).is_some_and(|range| range.contains(seq))
    }

    /// Whether a commit of this checkpoint takes the place of the stored one: its watermark is higher, or it is the
    /// same and nothing that is settled in `stored` is left out. Else it is an older commit of the same owner that
    /// arrives late, and a no-op.
    pub fn replaces(&self, stored: &Checkpoint) -> bool {
        match self.watermark.cmp(&stored.watermark) {
            Ordering::Less => false,
            Ordering::Equal => self.includes(&stored.ranges),
            Ordering::Greater => true,
        }
    }

    /// Whether all these ranges, which are ascending, lie in the own ones. Those may touch one another.
    fn includes(&self, ranges: &[SeqRange]) -> bool {
        let mut own = self.ranges.iter().copied().peekable();
        ranges.iter().all(|range| {
            let mut first = range.first;
            while own.next_if(|own| own.last < first).is_some() {}
            while let Some(part) = own.peek().filter(|own| own.contains(first)) {
                if part.last >= range.last {
                    return true;
                }
                first = Seq(part.last.0 + 1);
                own.next();
            }
            false
        })
    }
}

/// How a subscription is made known to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// Where it starts if it is new.
    pub start: Start,
    /// `Group` or `Durable`; ephemeral subscriptions are not registered.
    pub mode: Mode,
    /// After how long without a commit the position may be forgotten.
    pub expire_after: Option<Duration>,
}

/// What the store knows about a subscription after `register`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Whether it was not known before.
    pub new: bool,
    /// For every shard, by number, the place that it starts after: fixed when it was new.
    pub starts: Vec<Seq>,
}

/// A checkpoint as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// The shard.
    pub shard: Shard,
    /// How far the subscription got. Before the first commit, its start.
    pub checkpoint: Checkpoint,
    /// The trials of the last commit, as it gave them.
    pub trials: Vec<Trial>,
    /// The owner before the present one, if it never [released](super::Leases::release) the shard: it may have
    /// ended in the middle of its work. `None` while nobody owns the shard.
    pub unended: Option<Member>,
    /// How often it was reset: an owner that sees it change holds the shard no more.
    pub resets: u64,
}

/// A delivery that may have been what ended the process of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// Its place in the shard.
    pub seq: Seq,
    /// How many owners ended while it ran alone.
    pub crashes: u32,
    /// Whether it may be running.
    pub stage: Stage,
}

/// Whether a delivery on trial may be running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It waits.
    Waits,
    /// It may be running, among others.
    Among,
    /// It may be running, and nothing else in its process is.
    Alone,
}

/// That a subscription takes no new deliveries, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paused {
    /// Why, as the one said who paused it.
    pub reason: String,
    /// When it was paused.
    pub since: Timestamp,
}

/// Where a subscription is to go on in one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardReset {
    /// The shard.
    pub shard: Shard,
    /// It goes on after this place. One before what is kept stands for the beginning, one behind the end for
    /// the end: [`Seq::ZERO`] and [`Seq::MAX`] are always allowed.
    pub after: Seq,
    /// Reset only if this is the fence of the shard's owner; `None`: whoever owns it.
    pub fence: Option<Fence>,
}

/// What became of the reset of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetOutcome {
    /// It was reset.
    Reset {
        /// Where it goes on: after this place.
        after: Seq,
        /// How many stored deliveries behind that place were removed, because they are read again.
        removed: u64,
    },
    /// Nothing was changed: another owner holds the shard.
    Fenced,
}

/// A known subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionInfo {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// How it was registered.
    pub mode: Mode,
    /// When it was registered.
    pub registered: Timestamp,
    /// When it last committed or was registered.
    pub active: Timestamp,
    /// After how long without a commit it may be forgotten.
    pub expire_after: Option<Duration>,
    /// Whether it is paused.
    pub paused: Option<Paused>,
}

/// The end of a stored delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowEnd {
    /// Its place in the shard.
    pub seq: Seq,
    /// The version that was worked on. If the row has another one, somebody else changed it and the end
    /// does not count.
    pub version: u64,
}

/// What one owner writes about one shard, in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardCommit {
    /// The shard.
    pub shard: Shard,
    /// The right to write.
    pub fence: Fence,
    /// Deliveries to store: parked, waiting behind one, or dead. A row of the same place is replaced if its
    /// version is the one given (0 for a row that must not exist yet, or exists with an earlier attempt of
    /// the same write).
    pub puts: Vec<StoredDelivery>,
    /// How far the subscription got. It counts the `puts` as settled.
    pub checkpoint: Checkpoint,
    /// Stored deliveries that came to an end.
    pub ends: Vec<RowEnd>,
    /// Deliveries on trial, ascending. They replace those of the commit before; mostly there are none.
    pub trials: Vec<Trial>,
}

/// What one subscription writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// At most one entry a shard.
    pub shards: Vec<ShardCommit>,
}

/// What became of the part of a commit that concerns one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardOutcome {
    /// Written. The rows in `conflicts` had been changed by somebody else and were left alone.
    Committed {
        /// Places of rows whose version was another.
        conflicts: Vec<Seq>,
    },
    /// Nothing was written: another owner holds the shard.
    Fenced,
}

/// What became of a commit, an entry a shard in the order of the call.
pub type CommitOutcome = Vec<ShardOutcome>;

/// The positions of subscriptions.
#[async_trait]
pub trait Checkpoints: Send + Sync {
    /// Makes a subscription known. The first call fixes where it starts, in numbers; from then on trimming
    /// counts it. Later calls change nothing but `expire_after`, and renew its activity.
    ///
    /// # Errors
    /// `Refused` if the topic was not ensured.
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError>;

    /// The checkpoints of every shard, by number. Every commit that returned before the call is seen.
    ///
    /// # Errors
    /// `Refused` if the subscription is not registered.
    async fn load(&self, subscription: &SubscriptionId) -> Result<Vec<StoredCheckpoint>, StoreError>;

    /// Writes, shard by shard: first the puts, then the checkpoint with the trials, then the ends; in one transaction where
    /// the engine has them, in this order where not.
    ///
    /// - Under a fence that is not the current one, nothing of that shard is written.
    /// - A watermark never goes back: a lower one is a no-op, and the stored ranges stay. So is a checkpoint with the
    ///   same watermark that leaves out some of the stored ranges: [`Checkpoint::replaces`] tells. That is a commit
    ///   whose answer got lost and that takes effect after a later one. The trials are
    ///   written all the same.
    /// - A row that ends is removed if the stored checkpoint covers its place; else it stays as a mark that
    ///   [`Sideline::rows_in`](super::Sideline::rows_in) shows, and is removed by a later commit whose watermark reaches it.
    /// - The same commit twice has the effect of one.
    async fn commit(&self, commit: &Commit) -> Result<CommitOutcome, StoreError>;

    /// Lets a subscription go on after other places. For each shard, in one step:
    ///
    /// - The checkpoint is the place alone, without ranges, and may lie before the one it replaces.
    /// - The shard is taken from its owner, as if it had been given back: nothing is written under its fence any
    ///   more. `resets` of the shard grows by one, and so does the
    ///   [`revision`](super::Sideline::revision) of the subscription.
    /// - Rows and marks behind the place are removed: their records are read again. Rows at or before it stay as
    ///   they are, parked or dead.
    ///
    /// One outcome for each entry, in order.
    ///
    /// # Errors
    /// `Refused` if the subscription is not registered or has no such shard.
    async fn reset(
        &self,
        subscription: &SubscriptionId,
        shards: &[ShardReset],
    ) -> Result<Vec<ResetOutcome>, StoreError>;

    /// Pauses a subscription for a reason, or lets it go on with `None`. Pausing one that is paused replaces the
    /// reason and keeps the date. What changes raises the [`revision`](super::Sideline::revision). Owners keep to
    /// it by themselves: a paused one may still commit. Returns what held before.
    ///
    /// # Errors
    /// `Refused` if the subscription is not registered.
    async fn pause(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, StoreError>;

    /// Whether a subscription is paused; one that is not registered is not.
    async fn paused(&self, subscription: &SubscriptionId) -> Result<Option<Paused>, StoreError>;

    /// Every known subscription.
    async fn list(&self) -> Result<Vec<SubscriptionInfo>, StoreError>;

    /// Forgets a subscription with its position, its stored deliveries and its claims. Unknown: a no-op.
    async fn forget(&self, subscription: &SubscriptionId) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn checkpoint() -> impl Strategy<Value = Checkpoint> {
        (0u64..4, proptest::collection::vec((1u64..4, 0u64..3), 0..4)).prop_map(|(watermark, parts)| {
            let mut at = watermark;
            let ranges = parts.into_iter().map(|(gap, length)| {
                let first = at + gap;
                at = first + length;
                SeqRange { first: Seq(first), last: Seq(at) }
            });
            Checkpoint { ranges: ranges.collect(), watermark: Seq(watermark) }
        })
    }

    proptest! {
        #[test]
        fn p04_a_checkpoint_is_replaced_unless_something_would_get_lost(
            new in checkpoint(),
            stored in checkpoint(),
        ) {
            let keeps_all = (0..40).all(|seq| new.covers(Seq(seq)) || !stored.covers(Seq(seq)));
            let expected = match new.watermark.cmp(&stored.watermark) {
                Ordering::Less => false,
                Ordering::Equal => keeps_all,
                Ordering::Greater => true,
            };
            prop_assert_eq!(new.replaces(&stored), expected);
        }
    }
}
