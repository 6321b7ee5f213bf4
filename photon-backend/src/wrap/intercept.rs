//! Handing every call of a store on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use photon_core::error::StoreError;
use photon_core::event::NewEvent;
use photon_core::handler::Extensions;
use photon_core::ids::{Incarnation, Seq, Shard, SubscriptionId, TopicName};
use photon_core::store::{
    Appended, Bounds, Checkpoints, Claim, ClaimResult, Commit, CommitOutcome, Cursor, DeadLetterFilter,
    EventLog, Fence, Head, Lane, Leases, Member, MemberInfo, Outbox, Page, Paused, ReadBatch, ReadLimit,
    Registered, Registration, ResetOutcome, RowRef, Select, ShardClaim, ShardReset, Sideline, Store,
    StoredCheckpoint, StoredDelivery, SubscriptionInfo, TopicInfo, TopicSpec, Wake,
};
use photon_core::time::Timestamp;

use super::call::{Call, Op};

/// A call that was not made yet. Dropping it means that it never is.
pub type Pending<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

macro_rules! intercept {
    ($(
        $(#[$doc:meta])*
        fn $method:ident($($arg:ident: $type:ty),*) -> $output:ty { $call:expr }
    )+) => {
        /// What a wrapper does differently from the store inside.
        ///
        /// By default every method of the contract goes through [`around`](Self::around), and that makes the
        /// call. Override `around` to do something about all calls, or a method to do something about it.
        #[async_trait]
        pub trait Intercept: Send + Sync + fmt::Debug + 'static {
            /// Makes a call; in here it can be watched, delayed, or left out.
            async fn around<T: Send>(&self, call: Call<'_>, run: Pending<'_, T>) -> Result<T, StoreError> {
                let _ = call;
                run.await
            }

            $(
                $(#[$doc])*
                async fn $method(&self, inner: &dyn Store, $($arg: $type),*) -> Result<$output, StoreError> {
                    self.around($call, inner.$method($($arg),*)).await
                }
            )+

            /// See [`EventLog::wake`].
            fn wake(&self, inner: &dyn Store, topic: &TopicName) -> Box<dyn Wake> {
                inner.wake(topic)
            }
        }
    };
}

intercept! {
    /// See [`EventLog::ensure_topic`].
    fn ensure_topic(spec: &TopicSpec) -> TopicInfo { Call::topic(Op::EnsureTopic, &spec.name) }
    /// See [`EventLog::append`].
    fn append(topic: &TopicName, events: Vec<NewEvent>) -> Vec<Appended> {
        Call::topic(Op::Append, topic).items(events.len())
    }
    /// See [`EventLog::read`].
    fn read(topic: &TopicName, cursors: &[Cursor], limit: ReadLimit) -> ReadBatch {
        Call::topic(Op::Read, topic).items(cursors.len())
    }
    /// See [`EventLog::bounds`].
    fn bounds(topic: &TopicName) -> Vec<Bounds> { Call::topic(Op::Bounds, topic) }
    /// See [`EventLog::position_at`].
    fn position_at(topic: &TopicName, time: Timestamp) -> Vec<Seq> { Call::topic(Op::PositionAt, topic) }
    /// See [`EventLog::announce_trim`].
    fn announce_trim(topic: &TopicName, shard: Shard, through: Seq) -> () {
        Call::topic(Op::AnnounceTrim, topic).shard(shard)
    }
    /// See [`EventLog::trim`].
    fn trim(topic: &TopicName, shard: Shard, through: Seq) -> () { Call::topic(Op::Trim, topic).shard(shard) }
    /// See [`Checkpoints::register`].
    fn register(registration: &Registration) -> Registered {
        Call::subscription(Op::Register, &registration.subscription)
    }
    /// See [`Checkpoints::load`].
    fn load(subscription: &SubscriptionId) -> Vec<StoredCheckpoint> { Call::subscription(Op::Load, subscription) }
    /// See [`Checkpoints::commit`].
    fn commit(commit: &Commit) -> CommitOutcome {
        Call::subscription(Op::Commit, &commit.subscription).items(commit.shards.len())
    }
    /// See [`Checkpoints::reset`].
    fn reset(subscription: &SubscriptionId, shards: &[ShardReset]) -> Vec<ResetOutcome> {
        Call::subscription(Op::Reset, subscription).items(shards.len())
    }
    /// See [`Checkpoints::pause`].
    fn pause(subscription: &SubscriptionId, reason: Option<&str>) -> Option<Paused> {
        Call::subscription(Op::Pause, subscription)
    }
    /// See [`Checkpoints::paused`].
    fn paused(subscription: &SubscriptionId) -> Option<Paused> { Call::subscription(Op::Paused, subscription) }
    /// See [`Checkpoints::list`].
    fn list() -> Vec<SubscriptionInfo> { Call::plain(Op::List) }
    /// See [`Checkpoints::forget`].
    fn forget(subscription: &SubscriptionId) -> () { Call::subscription(Op::Forget, subscription) }
    /// See [`Sideline::heads`].
    fn heads(subscription: &SubscriptionId, shard: Shard, after: Seq, limit: usize) -> Vec<Head> {
        Call::subscription(Op::Heads, subscription).shard(shard)
    }
    /// See [`Sideline::lane`].
    fn lane(subscription: &SubscriptionId, shard: Shard, lane: &Lane, limit: usize) -> Vec<StoredDelivery> {
        Call::subscription(Op::Lane, subscription).shard(shard)
    }
    /// See [`Sideline::rows_in`].
    fn rows_in(subscription: &SubscriptionId, shard: Shard, after: Seq, through: Seq) -> Vec<RowRef> {
        Call::subscription(Op::RowsIn, subscription).shard(shard)
    }
    /// See [`Sideline::get`].
    fn get(subscription: &SubscriptionId, shard: Shard, seqs: &[Seq]) -> Vec<StoredDelivery> {
        Call::subscription(Op::Get, subscription).shard(shard).items(seqs.len())
    }
    /// See [`Sideline::scan`].
    fn scan(subscription: &SubscriptionId, select: &Select, page: Page) -> Vec<StoredDelivery> {
        Call::subscription(Op::Scan, subscription)
    }
    /// See [`Sideline::count`].
    fn count(subscription: &SubscriptionId, select: &Select) -> u64 { Call::subscription(Op::Count, subscription) }
    /// See [`Sideline::redrive`].
    fn redrive(subscription: &SubscriptionId, filter: &DeadLetterFilter, limit: usize) -> u64 {
        Call::subscription(Op::Redrive, subscription)
    }
    /// See [`Sideline::discard`].
    fn discard(subscription: &SubscriptionId, filter: &DeadLetterFilter, limit: usize) -> u64 {
        Call::subscription(Op::Discard, subscription)
    }
    /// See [`Sideline::revision`].
    fn revision(subscription: &SubscriptionId) -> u64 { Call::subscription(Op::Revision, subscription) }
    /// See [`Leases::join`].
    fn join(member: &Member) -> () { Call::member(Op::Join, member.incarnation) }
    /// See [`Leases::heartbeat`].
    fn heartbeat(incarnation: Incarnation) -> () { Call::member(Op::Heartbeat, incarnation) }
    /// See [`Leases::claim`].
    fn claim(incarnation: Incarnation, claims: &[Claim]) -> Vec<ClaimResult> {
        Call::member(Op::Claim, incarnation).items(claims.len())
    }
    /// See [`Leases::release`].
    fn release(incarnation: Incarnation, shards: &[ShardClaim]) -> () {
        Call::member(Op::Release, incarnation).items(shards.len())
    }
    /// See [`Leases::leave`].
    fn leave(incarnation: Incarnation) -> () { Call::member(Op::Leave, incarnation) }
    /// See [`Leases::holders`].
    fn holders(subscription: &SubscriptionId) -> Vec<(Shard, Fence)> {
        Call::subscription(Op::Holders, subscription)
    }
    /// See [`Leases::members`].
    fn members() -> Vec<MemberInfo> { Call::plain(Op::Members) }
}

/// A store whose calls go through an [`Intercept`].
#[derive(Debug)]
pub struct Wrapped<I> {
    inner: Arc<dyn Store>,
    intercept: I,
}

impl<I: Intercept> Wrapped<I> {
    /// Puts `intercept` around `inner`.
    pub fn new(inner: Arc<dyn Store>, intercept: I) -> Self {
        Self { inner, intercept }
    }

    /// What is around the store.
    pub fn intercept(&self) -> &I {
        &self.intercept
    }

    /// The store inside.
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }
}

impl<I: Intercept> Store for Wrapped<I> {
    fn engine(&self) -> &'static str {
        self.inner.engine()
    }

    fn as_outbox(&self) -> Option<&dyn Outbox> {
        self.inner.as_outbox()
    }

    fn extend(&self, extensions: &mut Extensions) {
        self.inner.extend(extensions);
    }
}

#[async_trait]
impl<I: Intercept> EventLog for Wrapped<I> {
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        self.intercept.ensure_topic(&*self.inner, spec).await
    }

    async fn append(&self, topic: &TopicName, events: Vec<NewEvent>) -> Result<Vec<Appended>, StoreError> {
        self.intercept.append(&*self.inner, topic, events).await
    }

    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        self.intercept.read(&*self.inner, topic, cursors, limit).await
    }

    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        self.intercept.bounds(&*self.inner, topic).await
    }

    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError> {
        self.intercept.position_at(&*self.inner, topic, time).await
    }

    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        self.intercept.announce_trim(&*self.inner, topic, shard, through).await
    }

    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        self.intercept.trim(&*self.inner, topic, shard, through).await
    }

    fn wake(&self, topic: &TopicName) -> Box<dyn Wake> {
        self.intercept.wake(&*self.inner, topic)
    }

    fn poll_interval(&self) -> Duration {
        self.inner.poll_interval()
    }
}

#[async_trait]
impl<I: Intercept> Checkpoints for Wrapped<I> {
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        self.intercept.register(&*self.inner, registration).await
    }

    async fn load(&self, subscription: &SubscriptionId) -> Result<Vec<StoredCheckpoint>, StoreError> {
        self.intercept.load(&*self.inner, subscription).await
    }

    async fn commit(&self, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        self.intercept.commit(&*self.inner, commit).await
    }

    async fn reset(
        &self,
        subscription: &SubscriptionId,
        shards: &[ShardReset],
    ) -> Result<Vec<ResetOutcome>, StoreError> {
        self.intercept.reset(&*self.inner, subscription, shards).await
    }

    async fn pause(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, StoreError> {
        self.intercept.pause(&*self.inner, subscription, reason).await
    }

    async fn paused(&self, subscription: &SubscriptionId) -> Result<Option<Paused>, StoreError> {
        self.intercept.paused(&*self.inner, subscription).await
    }

    async fn list(&self) -> Result<Vec<SubscriptionInfo>, StoreError> {
        self.intercept.list(&*self.inner).await
    }

    async fn forget(&self, subscription: &SubscriptionId) -> Result<(), StoreError> {
        self.intercept.forget(&*self.inner, subscription).await
    }
}

#[async_trait]
impl<I: Intercept> Sideline for Wrapped<I> {
    async fn heads(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError> {
        self.intercept.heads(&*self.inner, subscription, shard, after, limit).await
    }

    async fn lane(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        lane: &Lane,
        limit: usize,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        self.intercept.lane(&*self.inner, subscription, shard, lane, limit).await
    }

    async fn rows_in(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError> {
        self.intercept.rows_in(&*self.inner, subscription, shard, after, through).await
    }

    async fn get(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: &[Seq],
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        self.intercept.get(&*self.inner, subscription, shard, seqs).await
    }

    async fn scan(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        page: Page,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        self.intercept.scan(&*self.inner, subscription, select, page).await
    }

    async fn count(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError> {
        self.intercept.count(&*self.inner, subscription, select).await
    }

    async fn redrive(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.intercept.redrive(&*self.inner, subscription, filter, limit).await
    }

    async fn discard(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.intercept.discard(&*self.inner, subscription, filter, limit).await
    }

    async fn revision(&self, subscription: &SubscriptionId) -> Result<u64, StoreError> {
        self.intercept.revision(&*self.inner, subscription).await
    }
}

#[async_trait]
impl<I: Intercept> Leases for Wrapped<I> {
    async fn join(&self, member: &Member) -> Result<(), StoreError> {
        self.intercept.join(&*self.inner, member).await
    }

    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.intercept.heartbeat(&*self.inner, incarnation).await
    }

    async fn claim(
        &self,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        self.intercept.claim(&*self.inner, incarnation, claims).await
    }

    async fn release(&self, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError> {
        self.intercept.release(&*self.inner, incarnation, shards).await
    }

    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.intercept.leave(&*self.inner, incarnation).await
    }

    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError> {
        self.intercept.holders(&*self.inner, subscription).await
    }

    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError> {
        self.intercept.members(&*self.inner).await
    }
}
