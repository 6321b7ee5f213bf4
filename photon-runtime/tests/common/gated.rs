//! A memory store whose appends wait for leave, and fail when told to.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use photon_backend::memory::MemoryStore;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::ids::{Incarnation, Seq, Shard, SubscriptionId, TopicName};
use photon_core::store::*;
use photon_core::time::Timestamp;
use tokio::sync::Semaphore;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does not happen.
    Away,
    /// It happens, and the answer gets lost.
    Lost,
    /// Only so many events of the batch are stored, and the answer gets lost.
    Torn(usize),
    /// It happens, and the answer leaves out the last place.
    Short,
    /// The store panics.
    Panic,
    /// The engine has no room.
    Full,
}

#[derive(Debug)]
pub(crate) struct GatedStore {
    inner: MemoryStore,
    pub(crate) gate: Semaphore,
    pub(crate) faults: Mutex<VecDeque<Fault>>,
    pub(crate) topic_faults: Mutex<VecDeque<Fault>>,
    /// The number of events of every append that was begun.
    pub(crate) batches: Mutex<Vec<usize>>,
    pub(crate) ensured: Mutex<usize>,
}

impl GatedStore {
    /// With room for so many appends until more is given.
    pub(crate) fn new(appends: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(),
            gate: Semaphore::new(appends),
            faults: Mutex::default(),
            topic_faults: Mutex::default(),
            batches: Mutex::default(),
            ensured: Mutex::default(),
        })
    }

    pub(crate) fn open() -> Arc<Self> {
        Self::new(Semaphore::MAX_PERMITS / 2)
    }

    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().unwrap().extend(faults);
    }

    pub(crate) fn batches(&self) -> Vec<usize> {
        self.batches.lock().unwrap().clone()
    }
}

fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, format!("told to be {kind:?}"))
}

#[async_trait]
impl EventLog for GatedStore {
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        *self.ensured.lock().unwrap() += 1;
        let fault = self.topic_faults.lock().unwrap().pop_front();
        // Others get the chance to ask at the same time.
        tokio::task::yield_now().await;
        match fault {
            Some(Fault::Away) => return Err(error(StoreErrorKind::Unavailable)),
            Some(Fault::Lost) => return Err(error(StoreErrorKind::Unknown)),
            _ => {}
        }
        self.inner.ensure_topic(spec).await
    }

    async fn append(
        &self,
        topic: &TopicName,
        mut events: Vec<NewEvent>,
    ) -> Result<Vec<Appended>, StoreError> {
        self.batches.lock().unwrap().push(events.len());
        self.gate.acquire().await.unwrap().forget();
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            Some(Fault::Away) => return Err(error(StoreErrorKind::Unavailable)),
            Some(Fault::Full) => return Err(error(StoreErrorKind::Full)),
            Some(Fault::Panic) => panic!("told to panic"),
            Some(Fault::Torn(kept)) => events.truncate(kept),
            _ => {}
        }
        let mut places = self.inner.append(topic, events).await?;
        match fault {
            Some(Fault::Lost | Fault::Torn(_)) => return Err(error(StoreErrorKind::Unknown)),
            Some(Fault::Short) => drop(places.pop()),
            _ => {}
        }
        Ok(places)
    }

    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        self.inner.read(topic, cursors, limit).await
    }

    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        self.inner.bounds(topic).await
    }

    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError> {
        self.inner.position_at(topic, time).await
    }

    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        self.inner.announce_trim(topic, shard, through).await
    }

    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        self.inner.trim(topic, shard, through).await
    }

    fn wake(&self, topic: &TopicName) -> Box<dyn Wake> {
        self.inner.wake(topic)
    }

    fn poll_interval(&self) -> Duration {
        self.inner.poll_interval()
    }
}

macro_rules! delegate {
    ($trait:ident { $(fn $name:ident($($arg:ident: $ty:ty),*) -> $ok:ty;)* }) => {
        #[async_trait]
        impl $trait for GatedStore {
            $(async fn $name(&self, $($arg: $ty),*) -> Result<$ok, StoreError> {
                self.inner.$name($($arg),*).await
            })*
        }
    };
}

delegate! { Checkpoints {
    fn register(registration: &Registration) -> Registered;
    fn load(subscription: &SubscriptionId) -> Vec<StoredCheckpoint>;
    fn commit(commit: &Commit) -> CommitOutcome;
    fn reset(id: &SubscriptionId, shards: &[ShardReset]) -> Vec<ResetOutcome>;
    fn pause(id: &SubscriptionId, reason: Option<&str>) -> Option<Paused>;
    fn paused(id: &SubscriptionId) -> Option<Paused>;
    fn list() -> Vec<SubscriptionInfo>;
    fn forget(subscription: &SubscriptionId) -> ();
} }

delegate! { Sideline {
    fn heads(id: &SubscriptionId, shard: Shard, after: Seq, limit: usize) -> Vec<Head>;
    fn lane(id: &SubscriptionId, shard: Shard, lane: &Lane, limit: usize) -> Vec<StoredDelivery>;
    fn rows_in(id: &SubscriptionId, shard: Shard, after: Seq, through: Seq) -> Vec<RowRef>;
    fn get(id: &SubscriptionId, shard: Shard, seqs: &[Seq]) -> Vec<StoredDelivery>;
    fn scan(id: &SubscriptionId, select: &Select, page: Page) -> Vec<StoredDelivery>;
    fn count(id: &SubscriptionId, select: &Select) -> u64;
    fn redrive(id: &SubscriptionId, filter: &DeadLetterFilter, limit: usize) -> u64;
    fn discard(id: &SubscriptionId, filter: &DeadLetterFilter, limit: usize) -> u64;
    fn revision(id: &SubscriptionId) -> u64;
} }

delegate! { Leases {
    fn join(member: &Member) -> ();
    fn heartbeat(incarnation: Incarnation) -> ();
    fn claim(incarnation: Incarnation, claims: &[Claim]) -> Vec<ClaimResult>;
    fn release(incarnation: Incarnation, shards: &[ShardClaim]) -> ();
    fn leave(incarnation: Incarnation) -> ();
    fn holders(id: &SubscriptionId) -> Vec<(Shard, Fence)>;
    fn members() -> Vec<MemberInfo>;
} }

impl Store for GatedStore {
    fn engine(&self) -> &'static str {
        "gated"
    }
}
