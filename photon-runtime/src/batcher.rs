//! Groups publishes that happen at the same time into one append.
//!
//! While one append of a topic is under way, later publishes gather in the next batch. Nobody owns a batch:
//! its append is a future that all its publishers share, and each of them drives it. So one that is dropped
//! neither loses nor blocks the others, and no task is needed that would have to outlive them. A batch waits
//! for the one before it by driving it as well.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{FutureExt, Shared, WeakShared};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::ids::TopicName;
use photon_core::store::{Appended, Store};
use tracing::Instrument;

/// The most events of one append.
pub(crate) const MAX_BATCH_EVENTS: usize = 512;
/// A batch with this many bytes of payload takes no more events.
pub(crate) const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// What an append gave.
pub(crate) type Answer = Result<Arc<Vec<Appended>>, Arc<StoreError>>;

type Flight = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Groups the publishes to one topic.
#[derive(Default)]
pub(crate) struct Batcher {
    newest: Mutex<Option<Batch>>,
}

/// The batch that was opened last. The flight is held weakly: when all its publishers are gone, so is it.
struct Batch {
    gathering: Arc<Gathering>,
    flight: WeakShared<Flight>,
}

/// The events of a batch, until its append begins.
struct Gathering(Mutex<Gathered>);

#[derive(Default)]
struct Gathered {
    events: Vec<NewEvent>,
    bytes: usize,
    /// The append began, or the batch is full.
    closed: bool,
}

impl Batcher {
    /// Appends the event together with others, and returns the place of this one.
    pub(crate) async fn append(
        &self,
        store: &Arc<dyn Store>,
        topic: &TopicName,
        event: NewEvent,
    ) -> Result<Appended, Arc<StoreError>> {
        let (flight, index) = self.enter(store, topic, event);
        let places = flight.await?;
        // `checked_append` made sure that there is a place for every event.
        places.get(index).copied().ok_or_else(|| Arc::new(wrong_count(topic, index + 1, places.len())))
    }

    /// Puts the event in the newest batch or, if that takes no more, in a new one behind it.
    fn enter(&self, store: &Arc<dyn Store>, topic: &TopicName, event: NewEvent) -> (Shared<Flight>, usize) {
        let mut newest = lock(&self.newest);
        let before = newest.as_ref().and_then(|batch| batch.flight.upgrade());
        let event = match (&before, newest.as_ref()) {
            (Some(flight), Some(batch)) => match batch.gathering.push(event) {
                Ok(index) => return (flight.clone(), index),
                Err(event) => event,
            },
            _ => event,
        };
        let gathering = Arc::new(Gathering(Mutex::default()));
        // A new batch takes at least one event.
        let index = gathering.push(event).unwrap_or(0);
        let flight = fly(before, gathering.clone(), store.clone(), topic.clone());
        let flight: Flight = Box::pin(flight);
        let flight = flight.shared();
        *newest = flight.downgrade().map(|flight| Batch { gathering, flight });
        (flight, index)
    }
}

impl Gathering {
    /// Takes the event and returns its index, or gives it back.
    fn push(&self, event: NewEvent) -> Result<usize, NewEvent> {
        let mut gathered = lock(&self.0);
        if gathered.closed {
            return Err(event);
        }
        gathered.bytes += event.payload.len();
        gathered.events.push(event);
        gathered.closed = gathered.events.len() >= MAX_BATCH_EVENTS || gathered.bytes >= MAX_BATCH_BYTES;
        Ok(gathered.events.len() - 1)
    }

    fn close(&self) -> Vec<NewEvent> {
        let mut gathered = lock(&self.0);
        gathered.closed = true;
        std::mem::take(&mut gathered.events)
    }
}

async fn fly(
    before: Option<Shared<Flight>>,
    gathering: Arc<Gathering>,
    store: Arc<dyn Store>,
    topic: TopicName,
) -> Answer {
    if let Some(before) = before {
        // Its outcome is its publishers' affair.
        let _ = before.await;
    }
    let events = gathering.close();
    checked_append(&*store, &topic, events).await.map(Arc::new).map_err(Arc::new)
}

/// Appends, and makes sure that the store answers for every event.
pub(crate) async fn checked_append(
    store: &dyn Store,
    topic: &TopicName,
    events: Vec<NewEvent>,
) -> Result<Vec<Appended>, StoreError> {
    let count = events.len();
    let span = tracing::debug_span!("publish", topic = topic.as_str(), events = count);
    // A panic of a store must not reach every publisher that shares the batch.
    let append = AssertUnwindSafe(store.append(topic, events).instrument(span)).catch_unwind();
    let places = append.await.unwrap_or_else(|_| {
        let message =
            format!("the store panicked while it appended to topic \"{topic}\": see the log of the panic");
        Err(StoreError::new(StoreErrorKind::Unknown, message))
    })?;
    if places.len() == count { Ok(places) } else { Err(wrong_count(topic, count, places.len())) }
}

fn wrong_count(topic: &TopicName, events: usize, places: usize) -> StoreError {
    let message = format!(
        "the store answered {places} places for {events} events of topic \"{topic}\": \
         it breaks the contract of EventLog::append, run the conformance suite on it"
    );
    StoreError::new(StoreErrorKind::Unknown, message)
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Batcher")
    }
}

/// The data behind these locks is whole at every instant, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
