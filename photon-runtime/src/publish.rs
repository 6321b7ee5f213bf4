//! One event on its way from the caller to the store.

use std::any::type_name;
use std::cell::Cell;
use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use photon_core::event::NewEvent;
use photon_core::headers::{ACTOR, CONTENT_TYPE, Headers};
use photon_core::identity::Identities;
use photon_core::ids::{EventId, Key, MAX_KEY_BYTES, Seq, Shard, ToKey};
use photon_core::machine::shards::shard_of;
use photon_core::topic::Topic;

use crate::error::{Error, Result};
use crate::outage::Outage;
pub use crate::publish_all::PublishAll;
use crate::publisher::Core;
use crate::topics::{DynamicTopic, TopicEntry};

/// The longest dedup id, in bytes.
pub const MAX_DEDUP_ID_BYTES: usize = 256;

/// The proof that an event is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The id that this publish gave to the event.
    pub id: EventId,
    /// The shard.
    pub shard: Shard,
    /// The place in the shard. For a duplicate: the place of the first one.
    pub seq: Seq,
    /// Whether an event with the same dedup id was stored already, so that this one was not.
    pub duplicate: bool,
}

/// An event that is ready but for the id and the shard.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) entry: Arc<TopicEntry>,
    pub(crate) key: Option<Key>,
    pub(crate) headers: Headers,
    pub(crate) payload: Bytes,
    pub(crate) dedup_id: Option<String>,
    typed: bool,
}

impl Draft {
    pub(crate) fn typed<E: Topic>(core: &Core, event: &E) -> Result<Self> {
        let entry = core.topics.of::<E>()?;
        let payload = with_scratch(|scratch| {
            event.encode(scratch)?;
            check_payload(scratch.len(), core.max_payload, &entry)?;
            Ok::<_, Error>(Bytes::copy_from_slice(scratch))
        })?;
        let headers = entry.headers(E::CONTENT_TYPE);
        Ok(Self { key: event.key(), headers, payload, dedup_id: None, typed: true, entry })
    }

    pub(crate) fn raw(core: &Core, topic: &DynamicTopic, payload: Bytes) -> Result<Self> {
        let entry = core.topics.dynamic(topic)?;
        check_payload(payload.len(), core.max_payload, &entry)?;
        Ok(Self { entry, key: None, headers: Headers::new(), payload, dedup_id: None, typed: false })
    }

    /// The same verdict on every engine.
    fn check(&self) -> Result<()> {
        check_key(self.key.as_ref(), &self.entry)?;
        check_headers(&self.headers, &self.entry)?;
        let Some(dedup_id) = &self.dedup_id else { return Ok(()) };
        match dedup_id.len() {
            0 => Err(Error::refused("the dedup id is empty: leave it out, or give 1 to 256 bytes")),
            1..=MAX_DEDUP_ID_BYTES => Ok(()),
            bytes => Err(Error::TooLarge {
                what: format!("the dedup id of an event of topic \"{}\"", self.entry.name),
                bytes,
                limit: MAX_DEDUP_ID_BYTES,
                hint: "use a hash of it",
            }),
        }
    }

    /// Its shard. Without a key a repetition must land in the shard of the first one, where its dedup id is known.
    pub(crate) fn shard(&self, id: EventId, shards: u16) -> Shard {
        let dedup_key = self.dedup_id.as_ref().map(|id| Key::new(id.clone()));
        shard_of(self.key.as_ref().or(dedup_key.as_ref()), id, shards)
    }

    async fn publish(self, core: &Core, id: EventId) -> Result<Receipt> {
        let _room = core.gate.enter(self.payload.len()).await?;
        let info = self.entry.ensure(&*core.store, &core.random).await?;
        let shard = self.shard(id, info.shards);
        let Draft { entry, key, headers, payload, dedup_id, .. } = self;
        let event = NewEvent { id, shard, key, headers, payload, dedup_id };
        let place = entry.batcher.append(&core.store, &entry.name, event).await?;
        tracing::trace!(topic = %entry.name, event = %id, shard = shard.0, seq = place.seq.0, "published");
        Ok(Receipt { id, shard, seq: place.seq, duplicate: place.duplicate })
    }

    async fn publish_through_outages(self, core: &Core, id: EventId) -> Result<Receipt> {
        let mut outage = Outage::new();
        loop {
            let error = match self.clone().publish(core, id).await {
                Ok(receipt) => return Ok(receipt),
                Err(error) => error,
            };
            // A repetition is safe if nothing was written, or if the store recognises it.
            let repeatable =
                error.is_transient() || (matches!(error, Error::Unknown(_)) && self.dedup_id.is_some());
            if !repeatable {
                return Err(error);
            }
            outage.wait(core, &self.entry.name, error).await?;
        }
    }
}

/// Publishes one event when awaited; made by [`Photon::publish`](crate::Photon::publish).
///
/// The event is encoded already. Everything that is wrong with the event is reported by the await.
#[must_use = "nothing is published until it is awaited"]
pub struct Publish {
    core: Arc<Core>,
    draft: Result<Draft>,
    wait: bool,
}

impl Publish {
    pub(crate) fn new(core: Arc<Core>, draft: Result<Draft>) -> Self {
        Self { core, draft, wait: false }
    }

    /// Sets the ordering key, in place of the one that the topic finds in the event. `None` takes it away.
    /// At most 64 KiB.
    pub fn key(self, key: impl ToKey) -> Self {
        self.edit(|draft, _| {
            draft.key = key.to_key();
            Ok(())
        })
    }

    /// Adds a header; an earlier value is replaced. Names starting with `photon-` are Photon's own, and the
    /// content type of a typed event is its topic's affair. At most 64 KiB in all.
    pub fn header(self, name: impl Into<Box<str>>, value: impl AsRef<[u8]>) -> Self {
        self.edit(|draft, _| add_header(&mut draft.headers, name.into(), value.as_ref(), draft.typed))
    }

    /// Makes repeated publishes one event: while the store remembers the id (10 minutes unless set), a second
    /// event with the same id in the same topic and shard is not stored, and its receipt tells the place of the
    /// first. 1 to 256 bytes. Equal ids must come with equal keys, so that they meet in one shard.
    #[expect(clippy::needless_pass_by_value, reason = "a call reads better without a borrow")]
    pub fn dedup_id(self, id: impl ToString) -> Self {
        self.edit(|draft, _| {
            draft.dedup_id = Some(id.to_string());
            Ok(())
        })
    }

    /// Says who caused the event: handlers get it as `Actor<T>`. The builder needs `.identity(factory)`.
    pub fn actor<T: Send + Sync + 'static>(self, identity: &T) -> Self {
        self.edit(|draft, core| add_actor(&mut draft.headers, core, identity))
    }

    /// Waits through an outage of the store instead of returning [`Error::Unavailable`]. What may have been
    /// stored is not repeated, unless the event has a dedup id. Needs a tokio runtime with time enabled.
    pub fn wait(mut self) -> Self {
        self.wait = true;
        self
    }

    /// Publishes it within a transaction of the user, see [`Photon::publish_in`](crate::Photon::publish_in).
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "postgres")]
    pub async fn within<T>(self, transaction: &mut T) -> Result<EventId>
    where
        T: photon_backend::postgres::PostgresTransaction,
    {
        let draft = self.draft?;
        draft.check()?;
        let id = self.core.next_id();
        crate::publish_in::stage(&self.core, draft, id, transaction).await
    }

    /// Publishes it within a transaction on a connection of the caller's, see
    /// [`Photon::publish_in_blocking`](crate::Photon::publish_in_blocking).
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "sqlite")]
    pub fn within_blocking(self, conn: &photon_backend::sqlite::rusqlite::Connection) -> Result<Receipt> {
        let draft = self.draft?;
        draft.check()?;
        let id = self.core.next_id();
        crate::publish_in::append(&self.core, draft, id, conn)
    }

    fn edit(mut self, change: impl FnOnce(&mut Draft, &Core) -> Result<()>) -> Self {
        self.draft = self.draft.and_then(|mut draft| {
            change(&mut draft, &self.core)?;
            Ok(draft)
        });
        self
    }
}

impl IntoFuture for Publish {
    type Output = Result<Receipt>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Receipt>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Publish { core, draft, wait } = self;
        Box::pin(async move {
            let draft = draft?;
            draft.check()?;
            let id = core.next_id();
            if wait {
                // Boxed, so that the usual way stays small.
                Box::pin(draft.publish_through_outages(&core, id)).await
            } else {
                draft.publish(&core, id).await
            }
        })
    }
}

impl fmt::Debug for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Publish");
        match &self.draft {
            Ok(draft) => out
                .field("topic", &draft.entry.name)
                .field("key", &draft.key)
                .field("headers", &draft.headers)
                .field("payload_bytes", &draft.payload.len()),
            Err(error) => out.field("error", error),
        };
        out.finish_non_exhaustive()
    }
}

pub(crate) fn check_payload(bytes: usize, limit: usize, entry: &TopicEntry) -> Result<()> {
    if bytes <= limit {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: format!("the payload of an event of topic \"{}\"", entry.name),
        bytes,
        limit,
        hint: "store the large part elsewhere and publish a reference, or raise .max_payload(...) on the builder",
    })
}

pub(crate) fn check_key(key: Option<&Key>, entry: &TopicEntry) -> Result<()> {
    match key.map_or(0, |key| key.as_bytes().len()) {
        0..=MAX_KEY_BYTES => Ok(()),
        bytes => Err(Error::TooLarge {
            what: format!("the key of an event of topic \"{}\"", entry.name),
            bytes,
            limit: MAX_KEY_BYTES,
            hint: "use a hash of it as the key",
        }),
    }
}

pub(crate) fn check_headers(headers: &Headers, entry: &TopicEntry) -> Result<()> {
    match headers.problem() {
        None => Ok(()),
        Some(problem) => {
            Err(Error::refused(format!("an event of topic \"{}\" is refused: {problem}", entry.name)))
        }
    }
}

pub(crate) fn add_header(headers: &mut Headers, name: Box<str>, value: &[u8], typed: bool) -> Result<()> {
    if name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("photon-")) {
        let message = format!("header {name:?} is refused: names that start with photon- are Photon's own");
        return Err(Error::refused(message));
    }
    if typed && name.eq_ignore_ascii_case(CONTENT_TYPE) {
        let message =
            "header \"content-type\" is refused: the topic's type sets it; use publish_raw for bytes";
        return Err(Error::refused(message));
    }
    headers.insert(name, Bytes::copy_from_slice(value));
    Ok(())
}

pub(crate) fn add_actor<T: Send + Sync + 'static>(
    headers: &mut Headers,
    core: &Core,
    identity: &T,
) -> Result<()> {
    let name = type_name::<T>();
    let Some(identities) = core.extensions.get::<Identities<T>>() else {
        let message = format!(
            "the actor of type {name} cannot be written: add .identity(factory) for it to the builder"
        );
        return Err(Error::refused(message));
    };
    let bytes = identities.write(identity).map_err(|source| Error::Refused {
        message: format!("the identity factory could not write the actor of type {name}"),
        source: Some(source),
    })?;
    headers.insert(ACTOR, bytes);
    Ok(())
}

/// Lends a buffer that is kept for the next call, unless it grew large.
fn with_scratch<T>(use_it: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    thread_local! {
        static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    const KEPT_BYTES: usize = 64 * 1024;
    // Taken out while in use: an encoder that publishes itself gets another one.
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    scratch.clear();
    let result = use_it(&mut scratch);
    if scratch.capacity() <= KEPT_BYTES {
        let _ = SCRATCH.try_with(|kept| kept.set(scratch));
    }
    result
}
