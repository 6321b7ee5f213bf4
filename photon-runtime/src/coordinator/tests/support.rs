//! Instances, a link to the store that can be cut, and a log that can be read.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use photon_backend::memory::MemoryStore;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{GroupName, Incarnation, InstanceId, Shard, SubscriptionId, TopicName};
use photon_core::store::{Claim, ClaimResult, Fence, Leases, Member, MemberInfo, ShardClaim};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::DefaultGuard;

use super::TTL;
use crate::clock::Clock;
use crate::coordinator::{Assignment, Membership, Ownership, StaticCoordinator};

pub(super) fn subscription() -> SubscriptionId {
    SubscriptionId::new(TopicName::new("orders").unwrap(), GroupName::new("billing").unwrap())
}

/// One process with one subscription to a topic of two shards, both its own.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) membership: Arc<Membership>,
    pub(super) ownership: Ownership,
    pub(super) running: JoinHandle<()>,
}

impl Instance {
    pub(super) async fn start(leases: Arc<dyn Leases>, name: &str) -> Self {
        Self::try_start(leases, name).await.unwrap()
    }

    pub(super) async fn try_start(leases: Arc<dyn Leases>, name: &str) -> Result<Self, StoreError> {
        let name = InstanceId::new(name).unwrap();
        let membership = Arc::new(Membership::join(leases, name, TTL, Clock::system()).await?);
        let wanted = [Shard(0), Shard(1)];
        let (coordinator, ownership) = StaticCoordinator::new(membership.clone(), subscription(), wanted);
        let running = tokio::spawn(coordinator.run());
        Ok(Self { membership, ownership, running })
    }

    pub(super) async fn next(&mut self) -> Assignment {
        timeout(TTL * 1_000, self.ownership.next()).await.expect("something happens").expect("it runs")
    }

    /// The fences of both shards, which are assigned next.
    pub(super) async fn fences(&mut self) -> Vec<Fence> {
        match self.next().await {
            Assignment::Assigned(shards) => {
                assert_eq!(shards.iter().map(|(shard, _)| shard.0).collect::<Vec<_>>(), [0, 1]);
                shards.into_iter().map(|(_, fence)| fence).collect()
            }
            Assignment::Lost(shards) => panic!("lost {shards:?}"),
        }
    }

    /// The epochs of both shards, which are assigned next.
    pub(super) async fn assigned(&mut self) -> Vec<u64> {
        self.fences().await.into_iter().map(|fence| fence.epoch).collect()
    }

    /// The fence of this epoch for the present incarnation.
    pub(super) fn fence(&self, epoch: u64) -> Fence {
        Fence { epoch, token: self.membership.standing().borrow().expect("a member") }
    }

    pub(super) async fn is_quiet_for(&mut self, time: Duration) -> bool {
        timeout(time, self.ownership.next()).await.is_err()
    }

    pub(super) fn may_work(&self) -> bool {
        let me = *self.membership.standing().borrow();
        me.is_some_and(|me| self.membership.may_work(me))
    }

    pub(super) fn may_work_in(&self, runtime: &Runtime) -> bool {
        runtime.block_on(async { self.may_work() })
    }

    /// Ends without a word to the store.
    pub(super) async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
        drop(self.membership);
        tokio::task::yield_now().await;
    }
}

/// A process of its own: it stands still while nothing runs on it.
pub(super) fn frozen_runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Lets a process run for a while.
pub(super) fn run(runtime: &Runtime, time: Duration) {
    runtime.block_on(async { tokio::time::sleep(time).await });
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Up,
    Refuses,
    Hangs,
}

/// The way of one process to the store.
pub(super) struct Link {
    store: Arc<MemoryStore>,
    state: watch::Sender<State>,
    calls: AtomicU64,
    heartbeats: watch::Sender<u64>,
}

impl Link {
    pub(super) fn to(store: Arc<MemoryStore>) -> Arc<Self> {
        let (state, heartbeats) = (watch::channel(State::Up).0, watch::channel(0).0);
        Arc::new(Self { store, state, calls: AtomicU64::new(0), heartbeats })
    }

    pub(super) fn cut(&self, hang: bool) {
        self.state.send_replace(if hang { State::Hangs } else { State::Refuses });
    }

    pub(super) fn mend(&self) {
        self.state.send_replace(State::Up);
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) async fn wait_for_heartbeat(&self) {
        self.heartbeats.subscribe().changed().await.unwrap();
        // The answer arrives at the sender.
        tokio::task::yield_now().await;
    }

    async fn pass(&self) -> Result<(), StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let state = *self.state.borrow();
        match state {
            State::Up => Ok(()),
            State::Refuses => Err(StoreError::new(StoreErrorKind::Unavailable, "the engine is away")),
            // A connection that was cut does not come back by itself.
            State::Hangs => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Leases for Link {
    async fn join(&self, member: &Member) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.join(member).await
    }

    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.heartbeat(incarnation).await?;
        self.heartbeats.send_modify(|count| *count += 1);
        Ok(())
    }

    async fn claim(&self, me: Incarnation, claims: &[Claim]) -> Result<Vec<ClaimResult>, StoreError> {
        self.pass().await?;
        self.store.claim(me, claims).await
    }

    async fn release(&self, me: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.release(me, shards).await
    }

    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.leave(incarnation).await
    }

    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError> {
        self.pass().await?;
        self.store.holders(subscription).await
    }

    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError> {
        self.pass().await?;
        self.store.members().await
    }
}

/// The warnings of this thread while it is kept.
pub(super) struct Warnings {
    said: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

impl Warnings {
    pub(super) fn capture() -> Self {
        let said = Arc::new(Mutex::new(Vec::new()));
        Self { _guard: tracing::subscriber::set_default(Log(said.clone())), said }
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.said.lock().unwrap())
    }
}

struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
