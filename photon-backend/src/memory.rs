//! The memory store: everything in the process, nothing on disk.

mod leases;
mod log;
mod positions;
mod sideline;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use photon_core::ids::{SubscriptionId, TopicName};
use photon_core::store::Store;
use photon_core::time::Timestamp;

use self::leases::LeaseBook;
use self::log::TopicSlot;
use self::positions::Position;

/// The clock that a [`MemoryStore`] reads: append times, due times of redriven rows, dates for people.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What can be set for a [`MemoryStore`].
#[derive(Clone)]
pub struct MemoryOptions {
    /// The clock of the store. Default: the system's wall clock. It may jump; the append times of a shard
    /// never go back.
    pub clock: Clock,
    /// For how long after an event with a dedup id another one with the same id is not stored. Every such
    /// id is kept in memory for so long. Default: 10 minutes; with zero every event is stored.
    pub dedup_window: Duration,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { clock: Arc::new(|| SystemTime::now().into()), dedup_window: Duration::from_secs(600) }
    }
}

impl fmt::Debug for MemoryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryOptions").field("dedup_window", &self.dedup_window).finish_non_exhaustive()
    }
}

/// A store in memory, for tests and for events that need not outlive the process.
///
/// A clone is another handle on the same content: give one to a second runtime to stand for another
/// process, or for the same one after a restart. It keeps every event until it is trimmed.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    options: MemoryOptions,
    topics: RwLock<HashMap<TopicName, Arc<TopicSlot>>>,
    /// Taken before the lock of a topic where both are needed.
    book: Mutex<Book>,
}

/// Everything beside the logs.
#[derive(Default)]
struct Book {
    positions: HashMap<SubscriptionId, Position>,
    leases: LeaseBook,
}

impl MemoryStore {
    /// An empty store with the default options.
    pub fn new() -> Self {
        Self::with_options(MemoryOptions::default())
    }

    /// An empty store that reads this clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self::with_options(MemoryOptions { clock, ..MemoryOptions::default() })
    }

    /// An empty store with these options.
    pub fn with_options(options: MemoryOptions) -> Self {
        Self { inner: Arc::new(Inner { options, topics: RwLock::default(), book: Mutex::default() }) }
    }

    fn now(&self) -> Timestamp {
        (self.inner.options.clock)()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A panic while it was held can only come out of a failed allocation; every change is a single step.
        self.inner.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topics = self.inner.topics.read().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("MemoryStore")
            .field("options", &self.inner.options)
            .field("topics", &topics)
            .finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn engine(&self) -> &'static str {
        "memory"
    }
}
