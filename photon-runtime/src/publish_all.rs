//! Many events on their way, a chunk at a time.

use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use photon_core::event::NewEvent;
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Key, Seq};
use photon_core::machine::shards::shard_of;
use photon_core::store::Appended;
use photon_core::topic::Topic;

use crate::batcher::{MAX_BATCH_BYTES, MAX_BATCH_EVENTS, checked_append};
use crate::error::{Error, Result};
use crate::outage::Outage;
use crate::publish::{Receipt, add_actor, add_header, check_headers, check_key, check_payload};
use crate::publisher::Core;
use crate::topics::TopicEntry;

/// Publishes many events when awaited; made by [`Photon::publish_all`](crate::Photon::publish_all).
#[must_use = "nothing is published until it is awaited"]
pub struct PublishAll<'a, I> {
    core: &'a Core,
    events: I,
    batch: Result<Batch>,
    wait: bool,
}

/// What all events have in common.
struct Batch {
    entry: Arc<TopicEntry>,
    headers: Headers,
}

impl<'a, I: Iterator<Item: Topic>> PublishAll<'a, I> {
    pub(crate) fn new(core: &'a Core, events: I) -> Self {
        let batch = core.topics.of::<I::Item>().map(|entry| {
            let headers = entry.headers(<I::Item as Topic>::CONTENT_TYPE);
            Batch { entry, headers }
        });
        Self { core, events, batch, wait: false }
    }

    /// Adds a header to every event. See [`Publish::header`](crate::Publish::header).
    pub fn header(mut self, name: impl Into<Box<str>>, value: impl AsRef<[u8]>) -> Self {
        self.batch = self.batch.and_then(|mut batch| {
            add_header(&mut batch.headers, name.into(), value.as_ref(), true)?;
            Ok(batch)
        });
        self
    }

    /// Says who caused the events. See [`Publish::actor`](crate::Publish::actor).
    pub fn actor<T: Send + Sync + 'static>(mut self, identity: &T) -> Self {
        self.batch = self.batch.and_then(|mut batch| {
            add_actor(&mut batch.headers, self.core, identity)?;
            Ok(batch)
        });
        self
    }

    /// Waits through an outage of the store instead of returning [`Error::Unavailable`]. Chunks that may have
    /// been stored are not repeated. Needs a tokio runtime with time enabled.
    pub fn wait(mut self) -> Self {
        self.wait = true;
        self
    }

    async fn run(self) -> Result<Vec<Receipt>> {
        let Self { core, events, batch, wait } = self;
        let Batch { entry, headers } = batch?;
        check_headers(&headers, &entry)?;
        let shards =
            through_outages(core, &entry, wait, || entry.ensure(&*core.store, &core.random)).await?.shards;
        let mut chunks = Chunks {
            core,
            entry: &entry,
            headers,
            shards,
            events: events.fuse(),
            scratch: Vec::new(),
            block: BytesMut::with_capacity(BLOCK_BYTES),
        };
        let mut receipts = Vec::new();
        let mut chunk = chunks.next();
        while !chunk.events.is_empty() {
            let Chunk { events, receipts: mut pending, end } = chunk;
            let mut write = pin!(write(core, &entry, events, wait));
            // The first poll hands the chunk to the store; the next one is encoded while that writes.
            let mut written = poll_fn(|cx| match write.as_mut().poll(cx) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => Poll::Ready(None),
            })
            .await;
            chunk = if end.is_none() && !matches!(written, Some(Err(_))) {
                chunks.next()
            } else {
                Chunk { end, ..Chunk::default() }
            };
            if written.is_none() {
                written = Some(write.await);
            }
            match written {
                Some(Ok(places)) => {
                    for (receipt, place) in pending.iter_mut().zip(places) {
                        receipt.seq = place.seq;
                        receipt.duplicate = place.duplicate;
                    }
                    receipts.append(&mut pending);
                }
                Some(Err(error)) => return Err(ended(receipts, error)),
                None => {}
            }
        }
        match chunk.end {
            None => Ok(receipts),
            Some(error) => Err(ended(receipts, error)),
        }
    }
}

impl<'a, I> IntoFuture for PublishAll<'a, I>
where
    I: Iterator<Item: Topic> + Send + 'a,
{
    type Output = Result<Vec<Receipt>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<I> fmt::Debug for PublishAll<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("PublishAll");
        match &self.batch {
            Ok(batch) => out.field("topic", &batch.entry.name).field("headers", &batch.headers),
            Err(error) => out.field("error", error),
        };
        out.finish_non_exhaustive()
    }
}

fn ended(receipts: Vec<Receipt>, error: Error) -> Error {
    if receipts.is_empty() { error } else { Error::Partial { receipts, source: Box::new(error) } }
}

/// Events of one append.
#[derive(Default)]
struct Chunk {
    events: Vec<NewEvent>,
    /// Their receipts, still without a place.
    receipts: Vec<Receipt>,
    /// What is wrong with the event after them: the last chunk has been reached.
    end: Option<Error>,
}

/// Turns an iterator into chunks.
struct Chunks<'a, I> {
    core: &'a Core,
    entry: &'a TopicEntry,
    headers: Headers,
    shards: u16,
    events: std::iter::Fuse<I>,
    scratch: Vec<u8>,
    block: BytesMut,
}

/// Payloads and keys share blocks of this many bytes: one allocation for many, and a small one never holds more alive.
const BLOCK_BYTES: usize = 64 * 1024;

impl<I: Iterator<Item: Topic>> Chunks<'_, I> {
    fn next(&mut self) -> Chunk {
        let mut chunk = Chunk::default();
        let now = self.core.clock.wall();
        let mut bytes = 0;
        while chunk.events.len() < MAX_BATCH_EVENTS && bytes < MAX_BATCH_BYTES {
            let Some(event) = self.events.next() else { break };
            if chunk.events.is_empty() {
                let expected = self.events.size_hint().0.saturating_add(1).min(MAX_BATCH_EVENTS);
                chunk.events.reserve(expected);
                chunk.receipts.reserve(expected);
            }
            let id = self.core.ids.next(now, &self.core.random);
            match self.encode(&event, id) {
                Ok(event) => {
                    bytes += event.payload.len();
                    chunk.receipts.push(Receipt { id, shard: event.shard, seq: Seq::ZERO, duplicate: false });
                    chunk.events.push(event);
                }
                Err(error) => {
                    chunk.end = Some(error);
                    break;
                }
            }
        }
        chunk
    }

    fn encode(&mut self, event: &I::Item, id: EventId) -> Result<NewEvent> {
        self.scratch.clear();
        event.encode(&mut self.scratch)?;
        check_payload(self.scratch.len(), self.core.max_payload, self.entry)?;
        let payload = share(&mut self.block, &self.scratch);
        let key = event.key();
        check_key(key.as_ref(), self.entry)?;
        let shard = shard_of(key.as_ref(), id, self.shards);
        let key = key.map(|key| Key::new(share(&mut self.block, key.as_bytes())));
        Ok(NewEvent { id, shard, key, headers: self.headers.clone(), payload, dedup_id: None })
    }
}

/// A copy of the bytes in the block, of which clones cost no allocation.
fn share(block: &mut BytesMut, bytes: &[u8]) -> Bytes {
    block.extend_from_slice(bytes);
    block.split().freeze()
}

async fn write(core: &Core, entry: &TopicEntry, events: Vec<NewEvent>, wait: bool) -> Result<Vec<Appended>> {
    let bytes = events.iter().map(|event| event.payload.len()).sum();
    if !wait {
        let _room = core.gate.enter(bytes).await?;
        return Ok(checked_append(&*core.store, &entry.name, events).await?);
    }
    through_outages(core, entry, true, || async {
        let _room = core.gate.enter(bytes).await?;
        Ok(checked_append(&*core.store, &entry.name, events.clone()).await?)
    })
    .await
}

/// Repeats what wrote nothing because the store is away, if `wait`.
async fn through_outages<T, F>(
    core: &Core,
    entry: &TopicEntry,
    wait: bool,
    attempt: impl Fn() -> F + Send,
) -> Result<T>
where
    F: Future<Output = Result<T>> + Send,
{
    let mut outage = Outage::new();
    loop {
        match attempt().await {
            Err(error) if wait && error.is_transient() => outage.wait(core, &entry.name, error).await?,
            result => return result,
        }
    }
}
