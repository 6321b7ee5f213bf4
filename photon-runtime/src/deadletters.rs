//! Dead letters: to read, to redrive, to discard.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use photon_core::error::DecodeError;
use photon_core::event::Event;
use photon_core::handler::DeadReason;
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Key, Seq, Shard, SubscriptionId, ToKey, TopicName};
use photon_core::store::{DeadLetterFilter, Page, RowState, Select, StoredDelivery};
use photon_core::time::{Mono, Timestamp};
use photon_core::topic::EventParam;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::inner::Inner;
use crate::subscriptions::SubscriptionRef;

/// A delivery that was given up on, with all that is needed to understand it.
#[derive(Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The id of the event.
    pub event_id: EventId,
    /// The topic of the event.
    pub topic: TopicName,
    /// The shard of the event.
    pub shard: Shard,
    /// The place of the event in its shard.
    pub seq: Seq,
    /// The ordering key of the event.
    pub key: Option<Key>,
    /// How many attempts failed, since it was published or last redriven.
    pub attempts: u32,
    /// Why it was given up on.
    pub reason: DeadReason,
    /// The last error with its causes. After a redrive, the error before it stands behind in parentheses.
    pub error: String,
    /// When the first attempt failed.
    pub first_failed: Option<Timestamp>,
    /// When the last attempt failed.
    pub last_failed: Option<Timestamp>,
    /// Whether later events of the key wait for it.
    pub blocks_key: bool,
    /// When the event was published.
    pub published: Timestamp,
    /// The headers of the event.
    pub headers: Headers,
    /// The payload, as it was published.
    pub payload: Bytes,
}

impl DeadLetter {
    fn new(row: StoredDelivery) -> Self {
        let StoredDelivery { event, state, attempts, failure, .. } = row;
        Self {
            event_id: event.id,
            topic: event.topic,
            shard: event.shard,
            seq: event.seq,
            key: event.key,
            attempts,
            // Every dead row has a reason; an engine that lost it still gives the letter.
            reason: failure.reason.unwrap_or(DeadReason::Exhausted),
            error: failure.error,
            first_failed: failure.first_failed,
            last_failed: failure.last_failed,
            blocks_key: matches!(state, RowState::Dead { blocks: true }),
            published: event.time,
            headers: event.headers,
            payload: event.payload,
        }
    }

    /// Its place, for [`Page::after`] and [`DeadLetters::letter`].
    pub fn place(&self) -> (Shard, Seq) {
        (self.shard, self.seq)
    }

    /// The event, as its handler got it.
    pub fn event(&self) -> Event {
        Event {
            id: self.event_id,
            topic: self.topic.clone(),
            shard: self.shard,
            seq: self.seq,
            key: self.key.clone(),
            headers: self.headers.clone(),
            payload: self.payload.clone(),
            time: self.published,
        }
    }

    /// Reads the payload: `letter.decode::<OrderPlaced>()?`.
    ///
    /// # Errors
    /// The payload is not one of an `E`. A letter with the reason [`DeadReason::Undecodable`] was none when it died.
    pub fn decode<E: EventParam>(&self) -> Result<E, DecodeError> {
        E::decode(&self.event())
    }
}

impl fmt::Debug for DeadLetter {
    /// Without the payload and the values of headers, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("event_id", &self.event_id)
            .field("topic", &self.topic)
            .field("shard", &self.shard.0)
            .field("seq", &self.seq.0)
            .field("key", &self.key)
            .field("attempts", &self.attempts)
            .field("reason", &self.reason)
            .field("error", &self.error)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// One dead letter, named by its place or by the id of its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Letter {
    /// The one of the event at this place.
    Place(Shard, Seq),
    /// The one of this event. Finding it reads the dead letters one after another.
    Event(EventId),
}

impl From<(Shard, Seq)> for Letter {
    fn from((shard, seq): (Shard, Seq)) -> Self {
        Letter::Place(shard, seq)
    }
}

impl From<EventId> for Letter {
    fn from(id: EventId) -> Self {
        Letter::Event(id)
    }
}

impl From<&DeadLetter> for Letter {
    fn from(letter: &DeadLetter) -> Self {
        Letter::Place(letter.shard, letter.seq)
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Letter::Place(shard, seq) => write!(f, "at shard {shard}, seq {seq}"),
            Letter::Event(id) => write!(f, "of event {id}"),
        }
    }
}

/// The dead letters of a subscription, or those that are picked from them. Made by
/// [`Photon::dead_letters`](crate::Photon::dead_letters).
///
/// Every answer starts with finding the subscription: `NotFound` or `Conflict` if its name fits none or several.
#[must_use = "end with .list(...), .show(...), .count(), .redrive() or .discard()"]
#[derive(Clone)]
pub struct DeadLetters<'a> {
    inner: &'a Inner,
    subscription: SubscriptionRef,
    filter: DeadLetterFilter,
    event: Option<EventId>,
    rate: Option<u32>,
}

/// How many letters one call to the store changes or reads.
const BATCH: usize = 1_000;

#[derive(Debug, Clone, Copy)]
enum Action {
    Redrive,
    Discard,
}

impl<'a> DeadLetters<'a> {
    pub(crate) fn new(inner: &'a Inner, subscription: SubscriptionRef) -> Self {
        Self { inner, subscription, filter: DeadLetterFilter::default(), event: None, rate: None }
    }

    /// Picks those that match. Parts that are set replace what an earlier call picked.
    pub fn filter(mut self, filter: DeadLetterFilter) -> Self {
        let before = self.filter;
        self.filter = DeadLetterFilter {
            key: filter.key.or(before.key),
            place: filter.place.or(before.place),
            reason: filter.reason.or(before.reason),
            failed_since: filter.failed_since.or(before.failed_since),
            failed_before: filter.failed_before.or(before.failed_before),
        };
        self
    }

    /// Picks those of a key.
    pub fn key(self, key: impl ToKey) -> Self {
        self.filter(DeadLetterFilter { key: key.to_key(), ..DeadLetterFilter::default() })
    }

    /// Picks one.
    pub fn letter(mut self, letter: impl Into<Letter>) -> Self {
        match letter.into() {
            Letter::Place(shard, seq) => self.filter.place = Some((shard, seq)),
            Letter::Event(id) => self.event = Some(id),
        }
        self
    }

    /// Changes at most so many of them a second, at least 1, so that a redrive of many does not run into what they
    /// died of. The call then takes as long as that needs; what it did not come to when it is dropped, or its
    /// process ends, stays dead.
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rate = Some(per_second.max(1));
        self
    }

    /// A page of them, by shard and seq: `Page::first(50)`, then `Page::after(last.place(), 50)`.
    pub async fn list(self, page: Page) -> Result<Vec<DeadLetter>> {
        let Some((id, filter)) = self.resolve().await? else { return Ok(Vec::new()) };
        let rows = self.inner.store.scan(&id, &Select::Dead(filter), page).await?;
        Ok(rows.into_iter().map(DeadLetter::new).collect())
    }

    /// One of them, whole.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Conflict` if it was redriven and has not ended yet.
    pub async fn show(self, letter: impl Into<Letter>) -> Result<DeadLetter> {
        let picked = self.letter(letter);
        let mut letters = picked.clone().list(Page::first(1)).await?;
        match letters.pop() {
            Some(letter) => Ok(letter),
            None => Err(picked.why_none().await),
        }
    }

    /// How many there are.
    pub async fn count(self) -> Result<u64> {
        let Some((id, filter)) = self.resolve().await? else { return Ok(0) };
        Ok(self.inner.store.count(&id, &Select::Dead(filter)).await?)
    }

    /// Gives the picked ones back to their subscription, and only to it: they run again, with no attempts behind
    /// them, in the order of their key, and before what waits behind them. Returns how many.
    ///
    /// Each is given back in one step: when this is broken off, by a crash or by dropping it, some are given back and
    /// the others are still dead. Calling it again goes on with those; none runs twice because of that.
    ///
    /// # Errors
    /// `Refused` if nothing was picked: see [`redrive_all`](Self::redrive_all). If a letter or a key was picked
    /// and there is nothing to redrive: `Conflict` if it was redriven already and has not ended yet, else
    /// `NotFound`.
    pub async fn redrive(self) -> Result<u64> {
        self.change_picked(Action::Redrive).await
    }

    /// Redrives all of them, or all that were picked. None: 0.
    pub async fn redrive_all(self) -> Result<u64> {
        self.change(Action::Redrive).await
    }

    /// Removes the picked ones for good, without running them; what waited behind them goes on. Returns how
    /// many.
    ///
    /// # Errors
    /// As [`redrive`](Self::redrive).
    pub async fn discard(self) -> Result<u64> {
        self.change_picked(Action::Discard).await
    }

    /// Discards all of them, or all that were picked. None: 0.
    pub async fn discard_all(self) -> Result<u64> {
        self.change(Action::Discard).await
    }

    async fn change_picked(self, action: Action) -> Result<u64> {
        if self.filter == DeadLetterFilter::default() && self.event.is_none() {
            let verb = action.verb();
            return Err(Error::refused(format!(
                "nothing was picked to {verb}: use .key(...), .letter(...) or .filter(...), or .{verb}_all()"
            )));
        }
        let names_some = self.filter.key.is_some() || self.filter.place.is_some() || self.event.is_some();
        match self.clone().change(action).await? {
            0 if names_some => Err(self.why_none().await),
            changed => Ok(changed),
        }
    }

    async fn change(self, action: Action) -> Result<u64> {
        let Some((id, filter)) = self.resolve().await? else { return Ok(0) };
        let store = &self.inner.store;
        // Counted first, so that letters which die again at once are not redriven for ever.
        let wanted = store.count(&id, &Select::Dead(filter.clone())).await?;
        let mut changed = 0;
        let mut pace = Pace::new(self.rate, self.inner.clock);
        while changed < wanted {
            let limit = usize::try_from(wanted - changed).unwrap_or(BATCH).min(pace.batch());
            pace.wait().await;
            let now = match action {
                Action::Redrive => store.redrive(&id, &filter, limit).await?,
                Action::Discard => store.discard(&id, &filter, limit).await?,
            };
            if now == 0 {
                break;
            }
            changed += now;
            // The loop of the subscription, if it runs here, looks at once.
            self.inner.operator.send_modify(|count| *count += 1);
        }
        tracing::info!(subscription = %id, changed, action = action.verb(), "dead letters changed");
        Ok(changed)
    }

    /// The subscription and the filter; `None` if the event that was picked has no dead letter.
    async fn resolve(&self) -> Result<Option<(SubscriptionId, DeadLetterFilter)>> {
        let id = self.subscription.find(self.inner).await?;
        let mut filter = self.filter.clone();
        if let Some(event) = self.event {
            match self.find(&id, event, &Select::Dead(filter.clone())).await? {
                Some(place) => filter.place = Some(place),
                None => return Ok(None),
            }
        }
        Ok(Some((id, filter)))
    }

    async fn find(&self, id: &SubscriptionId, event: EventId, rows: &Select) -> Result<Option<(Shard, Seq)>> {
        let mut page = Page::first(BATCH);
        loop {
            let rows = self.inner.store.scan(id, rows, page).await?;
            let Some(last) = rows.last() else { return Ok(None) };
            if let Some(row) = rows.iter().find(|row| row.event.id == event) {
                return Ok(Some((row.event.shard, row.event.seq)));
            }
            page = Page::after((last.event.shard, last.event.seq), BATCH);
        }
    }

    /// Why there is no dead letter of the name that was given, or what kept that from being found out.
    async fn why_none(&self) -> Error {
        self.look_for_trace().await.unwrap_or_else(|error| error)
    }

    async fn look_for_trace(&self) -> Result<Error> {
        let id = self.subscription.find(self.inner).await?;
        let letter = match (self.event, self.filter.place) {
            (Some(event), _) => Letter::Event(event),
            (None, Some((shard, seq))) => Letter::Place(shard, seq),
            (None, None) => {
                let key = self.filter.key.as_ref().map(ToString::to_string).unwrap_or_default();
                return Ok(Error::NotFound(format!(
                    "key {key:?} has no dead letter in {id} that was picked"
                )));
            }
        };
        let state = match letter {
            Letter::Event(event) => {
                let parked = self.find(&id, event, &Select::Parked).await?;
                parked.map(|_| RowState::Waiting)
            }
            Letter::Place(shard, seq) => {
                let rows = self.inner.store.get(&id, shard, &[seq]).await?;
                rows.first().map(|row| row.state)
            }
        };
        Ok(match state {
            Some(RowState::Parked { .. } | RowState::Waiting) => Error::Conflict(format!(
                "the delivery {letter} in {id} is not dead: it was redriven already, or still has attempts, \
                 and waits for its turn"
            )),
            Some(RowState::Dead { .. }) => Error::NotFound(format!(
                "the dead letter {letter} in {id} does not match the rest of what was picked"
            )),
            None => Error::NotFound(format!(
                "there is no dead letter {letter} in {id}: it was discarded, or redriven and settled, or never was"
            )),
        })
    }
}

/// How fast letters are changed.
struct Pace {
    clock: Clock,
    rate: Option<u32>,
    next: Mono,
}

impl Pace {
    /// How many times a second letters are changed.
    const STEPS: u32 = 10;

    fn new(rate: Option<u32>, clock: Clock) -> Self {
        Self { clock, rate, next: clock.mono() }
    }

    /// How many at a time.
    fn batch(&self) -> usize {
        self.rate.map_or(BATCH, |rate| (rate.div_ceil(Self::STEPS) as usize).min(BATCH))
    }

    /// Waits until the next batch may be changed.
    async fn wait(&mut self) {
        let Some(rate) = self.rate else { return };
        self.clock.sleep_until(self.next).await;
        let batch = u32::try_from(self.batch()).unwrap_or(u32::MAX);
        self.next = self.next.max(self.clock.mono()) + Duration::from_secs(1) * batch / rate;
    }
}

impl Action {
    fn verb(self) -> &'static str {
        match self {
            Action::Redrive => "redrive",
            Action::Discard => "discard",
        }
    }
}

impl fmt::Debug for DeadLetters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetters")
            .field("subscription", &self.subscription)
            .field("filter", &self.filter)
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}
