//! The publishing half of a Photon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use photon_core::handler::{Delivery, Extensions, FromDelivery, HandlerError, Needs};
use photon_core::ids::EventId;
use photon_core::store::Store;
use photon_core::topic::Topic;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::publish::{Draft, Publish, PublishAll};
use crate::random::{EventIds, Random};
use crate::topics::{DynamicTopic, TopicCache};

/// Publishes events. Take it as a parameter of a handler, or from [`Photon::publisher`](crate::Photon::publisher).
///
/// It is a cheap handle that keeps the store open, but neither handlers nor an executor alive: after a shutdown
/// it stays usable as a value, and publishing answers [`Error::Closed`].
#[derive(Clone)]
pub struct Publisher {
    core: Arc<Core>,
}

/// What publishing needs, apart from the event.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) ids: EventIds,
    /// What the user gave to the builder, for the identity factory. It holds no handle to Photon itself.
    pub(crate) extensions: Extensions,
    pub(crate) topics: TopicCache,
    pub(crate) gate: Gate,
    /// The largest payload, in bytes.
    pub(crate) max_payload: usize,
}

impl Core {
    pub(crate) fn next_id(&self) -> EventId {
        self.ids.next(self.clock.wall(), &self.random)
    }
}

impl Publisher {
    pub(crate) fn new(core: Core) -> Self {
        Self { core: Arc::new(core) }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Publishes one event. See [`Photon::publish`](crate::Photon::publish).
    pub fn publish<E: Topic>(&self, event: &E) -> Publish {
        Publish::new(self.core.clone(), Draft::typed(&self.core, event))
    }

    /// Publishes many events in order. See [`Photon::publish_all`](crate::Photon::publish_all).
    pub fn publish_all<I>(&self, events: I) -> PublishAll<'_, I::IntoIter>
    where
        I: IntoIterator,
        I::Item: Topic,
    {
        PublishAll::new(&self.core, events.into_iter())
    }

    /// Publishes bytes. See [`Photon::publish_raw`](crate::Photon::publish_raw).
    pub fn publish_raw<T>(&self, topic: T, payload: impl Into<Bytes>) -> Publish
    where
        T: TryInto<DynamicTopic>,
        Error: From<T::Error>,
    {
        let draft = topic.try_into().map_err(Error::from);
        let draft = draft.and_then(|topic| Draft::raw(&self.core, &topic, payload.into()));
        Publish::new(self.core.clone(), draft)
    }

    /// Refuses every publish from now on, and returns when those under way are answered, or after `patience`: a
    /// future that was begun and then left alone would be waited for for ever.
    pub(crate) async fn close(&self, patience: Duration) {
        let clock = self.core.clock;
        let deadline = clock.instant(clock.mono() + patience);
        if tokio::time::timeout_at(deadline, self.core.gate.close()).await.is_err() {
            self.core.gate.shut();
            tracing::warn!(
                waited = ?patience,
                "publishing has ended, but some publishes are still under way: their futures are not awaited any \
                 more, or the store does not answer"
            );
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("store", &self.core.store.engine()).finish_non_exhaustive()
    }
}

impl FromDelivery for Publisher {
    async fn from_delivery(delivery: &Delivery) -> std::result::Result<Self, HandlerError> {
        delivery.extension::<Publisher>().cloned().ok_or_else(|| HandlerError::retry(MISSING))
    }

    fn needs(needs: &mut Needs) {
        needs.extension::<Publisher>(MISSING);
    }
}

const MISSING: &str = "needs a Publisher, which Photon::builder() provides: build the Photon with it";

/// Bounds what is on its way to the store, and closes the way at the end.
#[derive(Debug)]
pub(crate) struct Gate(Semaphore);

impl Gate {
    /// How much may be on its way, in KiB; a small event counts as one.
    const KIB: u32 = 64 * 1024;

    pub(crate) fn new() -> Self {
        Self(Semaphore::new(Self::KIB as usize))
    }

    /// Waits for room for so many bytes of payload, in order of arrival.
    pub(crate) async fn enter(&self, bytes: usize) -> Result<SemaphorePermit<'_>> {
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(Self::KIB).min(Self::KIB);
        self.0.acquire_many(kib).await.map_err(|_| Error::Closed)
    }

    /// Whether publishing has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    async fn close(&self) {
        // All the room is free when everybody who entered has left. An error: it is closed already.
        let everything = self.0.acquire_many(Self::KIB).await;
        self.shut();
        drop(everything);
    }

    /// Lets nobody in any more. Who is inside stays.
    fn shut(&self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn p05_what_is_on_its_way_is_bounded_by_its_size() {
        let gate = Gate::new();
        let inside: Vec<_> = (0..63).map(|_| gate.enter(MIB).now_or_never().unwrap().unwrap()).collect();
        let mut large = Box::pin(gate.enter(MIB));
        assert!((&mut large).now_or_never().is_none());
        // Nobody overtakes the one that waits.
        assert!(gate.enter(1).now_or_never().is_none());
        drop(inside);
        let inside = (&mut large).now_or_never().unwrap().unwrap();
        assert!(gate.enter(1_000 * MIB).now_or_never().is_none());
        drop(inside);
        // What is larger than everything gets everything.
        let _all = gate.enter(1_000 * MIB).now_or_never().unwrap().unwrap();
        assert!(gate.enter(0).now_or_never().is_none());
    }

    #[test]
    fn a_closed_gate_lets_nobody_in() {
        let gate = Gate::new();
        let inside = gate.enter(MIB).now_or_never().unwrap().unwrap();
        let mut close = Box::pin(gate.close());
        assert!((&mut close).now_or_never().is_none());
        let mut late = Box::pin(gate.enter(1));
        assert!((&mut late).now_or_never().is_none());
        drop(inside);
        close.now_or_never().unwrap();
        assert!(matches!(late.now_or_never(), Some(Err(Error::Closed))));
        gate.close().now_or_never().unwrap();
    }
}
