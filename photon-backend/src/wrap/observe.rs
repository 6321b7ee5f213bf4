//! Watching the calls of a store: figures for metrics, and for tests the calls themselves.
//!
//! ```
//! # use std::sync::Arc;
//! # use photon_backend::memory::MemoryStore;
//! use photon_backend::wrap::Op;
//! use photon_backend::wrap::observe::record;
//! use photon_core::store::Leases;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), photon_core::error::StoreError> {
//! let store = record(Arc::new(MemoryStore::new()));
//! store.members().await?;
//! assert_eq!(store.intercept().seen(Op::Members).ended, 1);
//! assert_eq!(store.intercept().take_records()[0].to_string(), "members: ok");
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::store::Store;
use tokio::time::Instant;

use super::{Call, Intercept, Op, Pending, Wrapped};

/// A store whose calls are watched.
pub type ObservedStore = Wrapped<Observer>;

/// Counts and times the calls of a store. Read it with [`Wrapped::intercept`].
pub fn observe(store: Arc<dyn Store>) -> ObservedStore {
    Wrapped::new(store, Observer::default())
}

/// Like [`observe`], and keeps every call as a [`Record`], in the order they ended. Memory grows until
/// [`Observer::take_records`] is called: for tests.
pub fn record(store: Arc<dyn Store>) -> ObservedStore {
    Wrapped::new(store, Observer { records: Some(Mutex::default()), ..Observer::default() })
}

/// A call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The method.
    pub op: Op,
    /// The method and what the call was about, in one line.
    pub call: String,
    /// How it ended.
    pub end: End,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It succeeded.
    Ok,
    /// It failed with an error of this kind.
    Failed(StoreErrorKind),
    /// The caller dropped it: it may have had its effect or not.
    Dropped,
}

/// `commit orders/billing [1]: failed (Unavailable)`
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            End::Ok => write!(f, "{}: ok", self.call),
            End::Failed(kind) => write!(f, "{}: failed ({kind:?})", self.call),
            End::Dropped => write!(f, "{}: dropped", self.call),
        }
    }
}

/// What was seen of the calls so far.
#[derive(Debug)]
pub struct Observer {
    ops: Vec<Counters>,
    records: Option<Mutex<Vec<Record>>>,
}

#[derive(Debug, Default)]
struct Counters {
    started: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    micros: AtomicU64,
    slowest_micros: AtomicU64,
}

/// What was seen of the calls of one method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Calls that were made.
    pub started: u64,
    /// Calls that returned, with whatever answer. The others run still, or their futures were dropped.
    pub ended: u64,
    /// Calls that returned an error.
    pub failed: u64,
    /// How long the calls that returned took, all together.
    pub total: Duration,
    /// How long the longest of them took.
    pub slowest: Duration,
}

impl Default for Observer {
    fn default() -> Self {
        Self { ops: Op::ALL.iter().map(|_| Counters::default()).collect(), records: None }
    }
}

impl Observer {
    /// What was seen of the calls of one method.
    pub fn seen(&self, op: Op) -> Seen {
        let counters = &self.ops[op as usize];
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Seen {
            started: load(&counters.started),
            ended: load(&counters.ended),
            failed: load(&counters.failed),
            total: Duration::from_micros(load(&counters.micros)),
            slowest: Duration::from_micros(load(&counters.slowest_micros)),
        }
    }

    /// The calls since the last call of this, in the order they ended. Empty if they are not kept, see [`record`].
    pub fn take_records(&self) -> Vec<Record> {
        let lock = |records: &Mutex<Vec<Record>>| {
            std::mem::take(&mut *records.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.records.as_ref().map(lock).unwrap_or_default()
    }
}

/// Writes a call down when it ends, also when it is dropped.
struct Recording<'a> {
    records: &'a Mutex<Vec<Record>>,
    record: Option<Record>,
}

impl<'a> Recording<'a> {
    fn new(records: &'a Mutex<Vec<Record>>, call: &Call<'_>) -> Self {
        Self { records, record: Some(Record { op: call.op, call: call.to_string(), end: End::Dropped }) }
    }

    fn end(mut self, end: End) {
        if let Some(record) = &mut self.record {
            record.end = end;
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).extend(self.record.take());
    }
}

#[async_trait]
impl Intercept for Observer {
    async fn around<T: Send>(&self, call: Call<'_>, run: Pending<'_, T>) -> Result<T, StoreError> {
        let counters = &self.ops[call.op as usize];
        counters.started.fetch_add(1, Ordering::Relaxed);
        let recording = self.records.as_ref().map(|records| Recording::new(records, &call));
        let start = Instant::now();
        let result = run.await;
        if let Some(recording) = recording {
            recording.end(result.as_ref().map_or_else(|error| End::Failed(error.kind()), |_| End::Ok));
        }
        let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        counters.micros.fetch_add(micros, Ordering::Relaxed);
        counters.slowest_micros.fetch_max(micros, Ordering::Relaxed);
        counters.failed.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
        counters.ended.fetch_add(1, Ordering::Relaxed);
        result
    }
}
