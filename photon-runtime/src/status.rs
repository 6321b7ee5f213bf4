//! The state of topics, subscriptions and instances.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use photon_core::error::StoreErrorKind;
use photon_core::ids::{Incarnation, Seq, Shard, SubscriptionId, TopicName};
use photon_core::options::Mode;
use photon_core::store::{
    Bounds, Checkpoint, Cursor, DeadLetterFilter, MemberInfo, Paused, ReadLimit, ResetOutcome, Select,
    SubscriptionInfo,
};
use photon_core::time::Timestamp;

use crate::deadletters::DeadLetters;
use crate::error::{Error, Result};
use crate::inner::Inner;
use crate::live::{BreakerStatus, HeldUp};
use crate::position::{self, Position, ShardReset};
use crate::subscriptions::{SubscriptionRef, handled, known};

/// The state of one topic.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TopicStatus {
    /// Its name.
    pub topic: TopicName,
    /// The ends of each shard.
    pub shards: Vec<Bounds>,
}

/// How far a subscription got in one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardStatus {
    /// The shard.
    pub shard: Shard,
    /// Everything up to here is settled.
    pub watermark: Seq,
    /// The last place that was given out.
    pub end: Seq,
    /// How many places behind the watermark are not known to be settled: at most so many events wait.
    /// Checkpoints are written now and then, so it is a little late.
    pub lag: u64,
    /// When the store took in the oldest event that is not known to be settled and not stored beside the log;
    /// `None` if there is none.
    pub oldest_unsettled: Option<Timestamp>,
    /// The run of a process that works on it, see [`Snapshot::members`]; `None` if nobody does.
    pub owner: Option<Incarnation>,
}

/// The state of one subscription.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SubscriptionStatus {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// Who gets its events.
    pub mode: Mode,
    /// Whether this program has a handler for it. In the store without one, it is an orphan: it holds its dead
    /// letters and its place in the log, until a program handles it or somebody forgets it.
    pub has_handler: bool,
    /// When the store came to know it; `None` if it never started.
    pub registered: Option<Timestamp>,
    /// When it last wrote a checkpoint or started.
    pub active: Option<Timestamp>,
    /// After how long without a sign of life it may be forgotten.
    pub expire_after: Option<Duration>,
    /// How far it got; empty if it never started.
    pub shards: Vec<ShardStatus>,
    /// How many deliveries are parked or wait behind a parked one.
    pub parked: u64,
    /// How many dead letters it has.
    pub dead: u64,
    /// Why and since when it is paused, if it is.
    pub paused: Option<Paused>,
    /// Whether its loop runs in this process.
    pub runs_here: bool,
    /// What its breaker does in this process; `None` if it has none, or does not run here.
    pub breaker: Option<BreakerStatus>,
    /// The key that keeps it from reading on, as far as it runs in this process.
    pub held_up: Option<HeldUp>,
}

impl SubscriptionStatus {
    /// At most so many events wait, over all shards.
    pub fn lag(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lag).fold(0, u64::saturating_add)
    }

    /// When the store took in the oldest event that waits, over all shards.
    pub fn oldest_unsettled(&self) -> Option<Timestamp> {
        self.shards.iter().filter_map(|shard| shard.oldest_unsettled).min()
    }
}

/// The state of everything at about one time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// The name of the engine.
    pub engine: &'static str,
    /// When it was taken.
    pub taken: Timestamp,
    /// The topics that this program or a subscription names and that the store has, by name.
    pub topics: Vec<TopicStatus>,
    /// The subscriptions that the store or this program knows, by topic and group.
    pub subscriptions: Vec<SubscriptionStatus>,
    /// The running instances.
    pub members: Vec<MemberInfo>,
}

/// One subscription, by name. Nothing is looked up until it is asked something.
#[derive(Clone)]
pub struct SubscriptionHandle {
    inner: Arc<Inner>,
    name: SubscriptionRef,
}

impl SubscriptionHandle {
    pub(crate) fn new(inner: Arc<Inner>, name: SubscriptionRef) -> Self {
        Self { inner, name }
    }

    /// How far it got, and what it could not handle.
    ///
    /// # Errors
    /// `NotFound` or `Conflict` if the name fits none or several; else what the store says.
    pub async fn status(&self) -> Result<SubscriptionStatus> {
        let id = self.name.find(&self.inner).await?;
        let stored = self.inner.store.list().await?;
        let bounds = bounds(&self.inner, &id.topic).await?.unwrap_or_default();
        status(&self.inner, id, &stored, &bounds).await
    }

    /// Pauses it, on all instances and across restarts: what runs ends and is written down, shards stay where they
    /// are, and nothing new is handed out until [`resume`](Self::resume). Instances in this process keep to it at
    /// once, others within a second or two. Pausing one that is paused replaces the reason.
    ///
    /// # Errors
    /// As [`status`](Self::status); `Conflict` if it has never started.
    pub async fn pause(&self, reason: impl AsRef<str>) -> Result<()> {
        self.set_pause(Some(reason.as_ref())).await
    }

    /// Ends a pause. One that is not paused stays as it is.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn resume(&self) -> Result<()> {
        self.set_pause(None).await
    }

    async fn set_pause(&self, reason: Option<&str>) -> Result<()> {
        let id = self.started().await?;
        let before = self.inner.store.pause(&id, reason).await?;
        self.inner.operator.send_modify(|count| *count += 1);
        let was = before.map(|paused| paused.reason);
        tracing::info!(subscription = %id, reason, was, "pause changed");
        Ok(())
    }

    /// Lets it go on elsewhere in its topic, on all instances: earlier to handle events again, later to leave some
    /// out. Instances that work on it break off what runs, which costs no attempt, and go on from there.
    ///
    /// Parked deliveries and dead letters behind the new position are removed, because their events are read again;
    /// those before it stay as they are. A position earlier than what is kept of the topic means the oldest event.
    ///
    /// # Errors
    /// As [`pause`](Self::pause); `Refused` for a shard or a place that the topic does not have.
    pub async fn reset_to(&self, position: Position) -> Result<Vec<ShardReset>> {
        let id = self.started().await?;
        let resets = position::resets(&self.inner, &id.topic, position).await?;
        let outcomes = self.inner.store.reset(&id, &resets).await?;
        self.inner.operator.send_modify(|count| *count += 1);
        let done: Vec<ShardReset> = resets
            .iter()
            .zip(outcomes)
            .filter_map(|(reset, outcome)| match outcome {
                ResetOutcome::Reset { after, removed } => {
                    Some(ShardReset { shard: reset.shard, after, removed })
                }
                // No fence was named.
                ResetOutcome::Fenced => None,
            })
            .collect();
        let removed: u64 = done.iter().map(|reset| reset.removed).sum();
        tracing::info!(subscription = %id, ?position, shards = done.len(), removed, "position reset");
        Ok(done)
    }

    /// The subscription, which the store must know.
    async fn started(&self) -> Result<SubscriptionId> {
        let id = self.name.find(&self.inner).await?;
        let stored = self.inner.store.list().await?;
        if stored.iter().any(|info| info.subscription == id) {
            return Ok(id);
        }
        Err(Error::Conflict(format!(
            "{id} has never started, so it has no position to change: start an executor that handles it first"
        )))
    }

    /// Its dead letters.
    pub fn dead_letters(&self) -> DeadLetters<'_> {
        DeadLetters::new(&self.inner, self.name.clone())
    }
}

impl std::fmt::Debug for SubscriptionHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SubscriptionHandle").field(&self.name).finish()
    }
}

pub(crate) async fn snapshot(inner: &Inner) -> Result<Snapshot> {
    let stored = inner.store.list().await?;
    let subscriptions = known(&stored, inner);
    let mut names: BTreeSet<TopicName> = subscriptions.iter().map(|id| id.topic.clone()).collect();
    names.extend(inner.publisher.core().topics.names());
    names.extend(inner.registry.topics.iter().filter_map(|topic| TopicName::new(topic.name).ok()));
    let mut topics = Vec::new();
    let mut ends = HashMap::new();
    for topic in names {
        if let Some(shards) = bounds(inner, &topic).await? {
            ends.insert(topic.clone(), shards.clone());
            topics.push(TopicStatus { topic, shards });
        }
    }
    let mut statuses = Vec::new();
    let members = inner.store.members().await?;
    for id in subscriptions {
        let bounds = ends.get(&id.topic).map_or(&[][..], Vec::as_slice);
        statuses.push(status(inner, id, &stored, bounds).await?);
    }
    Ok(Snapshot {
        engine: inner.store.engine(),
        taken: inner.clock.wall(),
        topics,
        subscriptions: statuses,
        members,
    })
}

/// The ends of the shards; `None` if the store does not have the topic.
async fn bounds(inner: &Inner, topic: &TopicName) -> Result<Option<Vec<Bounds>>> {
    match inner.store.bounds(topic).await {
        Ok(bounds) => Ok(Some(bounds)),
        Err(error) if error.kind() == StoreErrorKind::Refused => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn status(
    inner: &Inner,
    id: SubscriptionId,
    stored: &[SubscriptionInfo],
    bounds: &[Bounds],
) -> Result<SubscriptionStatus> {
    let handler_mode = handled(inner).find(|(handled, _)| *handled == id).map(|(_, mode)| mode);
    let info = stored.iter().find(|info| info.subscription == id);
    let mut status = SubscriptionStatus {
        mode: info.map(|info| info.mode).or(handler_mode).unwrap_or_default(),
        has_handler: handler_mode.is_some(),
        registered: info.map(|info| info.registered),
        active: info.map(|info| info.active),
        expire_after: info.and_then(|info| info.expire_after),
        shards: Vec::new(),
        parked: 0,
        dead: 0,
        paused: info.and_then(|info| info.paused.clone()),
        runs_here: inner.live.runs(&id),
        breaker: inner.live.breaker(&id),
        held_up: inner.live.held_up(&id),
        subscription: id,
    };
    if info.is_some() {
        let id = &status.subscription;
        let holders = inner.store.holders(id).await?;
        for stored in inner.store.load(id).await? {
            let mut shard = shard_status(stored.shard, &stored.checkpoint, bounds);
            let holder = holders.iter().find(|(held, _)| *held == stored.shard);
            shard.owner = holder.map(|(_, fence)| fence.token);
            if shard.lag > 0 {
                shard.oldest_unsettled = first_after(inner, &id.topic, stored.shard, shard.watermark).await?;
            }
            status.shards.push(shard);
        }
        status.parked = inner.store.count(id, &Select::Parked).await?;
        status.dead = inner.store.count(id, &Select::Dead(DeadLetterFilter::default())).await?;
    }
    Ok(status)
}

/// When the store took in the first record after a place. Behind a watermark that is one that is not settled.
async fn first_after(
    inner: &Inner,
    topic: &TopicName,
    shard: Shard,
    after: Seq,
) -> Result<Option<Timestamp>> {
    let limit = ReadLimit { records: 1, bytes: 1 };
    let batch = inner.store.read(topic, &[Cursor { shard, after }], limit).await?;
    Ok(batch.records.first().map(|event| event.time))
}

fn shard_status(shard: Shard, checkpoint: &Checkpoint, bounds: &[Bounds]) -> ShardStatus {
    let bounds = bounds.iter().find(|bounds| bounds.shard == shard);
    let (floor, end) = bounds.map_or((Seq::ZERO, Seq::ZERO), |bounds| (bounds.floor, bounds.end));
    // What was trimmed does not wait.
    let from = checkpoint.watermark.max(floor);
    let settled_above: u64 = checkpoint
        .ranges
        .iter()
        .filter(|range| range.last > from && range.first <= end)
        .map(|range| range.last.0.min(end.0) - range.first.0.max(from.0 + 1) + 1)
        .sum();
    let lag = end.0.saturating_sub(from.0).saturating_sub(settled_above);
    ShardStatus { shard, watermark: checkpoint.watermark, end, lag, oldest_unsettled: None, owner: None }
}

#[cfg(test)]
mod tests {
    use photon_core::store::SeqRange;

    use super::*;

    #[test]
    fn lag_leaves_out_what_is_settled_or_trimmed() {
        let range = |first, last| SeqRange { first: Seq(first), last: Seq(last) };
        let checkpoint = Checkpoint { watermark: Seq(10), ranges: vec![range(12, 13), range(15, 20)] };
        let lag = |floor, end| {
            let bounds = [Bounds { shard: Shard(0), floor: Seq(floor), end: Seq(end) }];
            shard_status(Shard(0), &checkpoint, &bounds).lag
        };
        assert_eq!(lag(0, 20), 2);
        assert_eq!(lag(0, 25), 7);
        assert_eq!(lag(11, 25), 6);
        assert_eq!(lag(12, 16), 1);
        assert_eq!(lag(30, 30), 0);
        assert_eq!(lag(0, 5), 0);
    }
}
