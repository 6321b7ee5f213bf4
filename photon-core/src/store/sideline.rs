//! Deliveries that are stored beside the log: parked, waiting behind one that is, or dead.

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::StoreError;
use crate::event::Event;
use crate::handler::DeadReason;
use crate::ids::{Key, Seq, Shard, SubscriptionId};
use crate::time::Timestamp;

/// What runs one after another: the deliveries of one key, or a delivery without a key alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// The deliveries of a key.
    Key(Key),
    /// The delivery at this place, which has no key.
    Single(Seq),
}

impl Lane {
    /// The lane of an event.
    pub fn of(event: &Event) -> Self {
        match &event.key {
            Some(key) => Lane::Key(key.clone()),
            None => Lane::Single(event.seq),
        }
    }

    /// The lane as bytes, for engines that index it: different lanes give different bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Lane::Key(key) => [b"k", key.as_bytes()].concat(),
            Lane::Single(seq) => [b"s".as_slice(), &seq.0.to_be_bytes()].concat(),
        }
    }

    /// Reads back what [`to_bytes`](Self::to_bytes) wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (b'k', key) => Some(Lane::Key(Key::new(Bytes::copy_from_slice(key)))),
            (b's', seq) => Some(Lane::Single(Seq(u64::from_be_bytes(seq.try_into().ok()?)))),
            _ => None,
        }
    }
}

/// The state of a stored delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowState {
    /// It runs again at this time; at once if it is past.
    Parked {
        /// When it is due.
        due: Timestamp,
    },
    /// It runs as soon as nothing of its lane is stored before it.
    Waiting,
    /// It was given up on.
    Dead {
        /// Whether the later deliveries of its lane wait for a redrive or discard.
        blocks: bool,
    },
}

impl RowState {
    /// Whether it takes part in the order of its lane.
    pub fn is_live(self) -> bool {
        !matches!(self, RowState::Dead { blocks: false })
    }
}

/// What is known about the failures of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// The error of the last attempt with its causes, cut to [`Failure::MAX_ERROR_BYTES`]. After a redrive, the
    /// error before it stands behind in parentheses.
    pub error: String,
    /// Why it was given up on, if it was.
    pub reason: Option<DeadReason>,
    /// When the first attempt failed.
    pub first_failed: Option<Timestamp>,
    /// When the last attempt failed.
    pub last_failed: Option<Timestamp>,
    /// When it was first deferred, if the last thing that happened to it was a deferral.
    pub deferred_since: Option<Timestamp>,
}

impl Failure {
    /// The most of an error text that is kept, in bytes.
    pub const MAX_ERROR_BYTES: usize = 8 * 1024;

    const BEFORE_REDRIVE: &str = " (before the redrive: ";

    /// Takes in the error of an attempt that failed at this time.
    pub fn note(&mut self, error: String, at: Timestamp) {
        // A redrive keeps the error and starts the dates over.
        let redriven = self.first_failed.is_none() && self.deferred_since.is_none();
        self.replace_error(error, redriven);
        self.last_failed = Some(at);
        self.deferred_since = None;
        self.first_failed.get_or_insert(at);
    }

    /// Takes in that it was deferred. The caller keeps the dates.
    pub fn note_deferral(&mut self, reason: &str) {
        let redriven = self.first_failed.is_none() && self.deferred_since.is_none();
        self.replace_error(format!("deferred: {reason}"), redriven);
    }

    fn replace_error(&mut self, error: String, redriven: bool) {
        let (last, before) = match self.error.split_once(Self::BEFORE_REDRIVE) {
            Some((last, rest)) => (last, rest.strip_suffix(')').unwrap_or(rest)),
            None => (self.error.as_str(), ""),
        };
        let before = if redriven { last } else { before };
        self.error = if before.is_empty() {
            Self::cut(error)
        } else {
            let most = Self::MAX_ERROR_BYTES / 2 - Self::BEFORE_REDRIVE.len();
            let (error, before) = (cut_to(error, most), cut_to(before.to_owned(), most));
            format!("{error}{}{before})", Self::BEFORE_REDRIVE)
        };
    }

    /// Cuts a text to [`MAX_ERROR_BYTES`](Self::MAX_ERROR_BYTES), at a character.
    pub fn cut(text: String) -> String {
        cut_to(text, Self::MAX_ERROR_BYTES)
    }
}

fn cut_to(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = text.floor_char_boundary(most - 4);
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}

/// A delivery in the store, whole: it can run without its record in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDelivery {
    /// The event. Its shard and seq are the key of the row within the subscription.
    pub event: Event,
    /// Its state.
    pub state: RowState,
    /// Attempts that ended, since it was published or last redriven.
    pub attempts: u32,
    /// Its failures so far.
    pub failure: Failure,
    /// Grows with every change of the row; set by the store. In a put: the version to replace, 0 if the row
    /// is new.
    pub version: u64,
}

impl StoredDelivery {
    /// The lane of the event.
    pub fn lane(&self) -> Lane {
        Lane::of(&self.event)
    }
}

/// The first live row of a lane, without the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The lane.
    pub lane: Lane,
    /// The place of the row.
    pub seq: Seq,
    /// Its state.
    pub state: RowState,
    /// Its version.
    pub version: u64,
    /// How many live rows the lane has.
    pub rows: u64,
}

/// A row or the mark of one that ended, without the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRef {
    /// The place of the row.
    pub seq: Seq,
    /// Its state; `None` for the mark of one that ended and that no checkpoint covers yet.
    pub state: Option<RowState>,
}

/// Which dead letters are meant. Empty: all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterFilter {
    /// Of this key.
    pub key: Option<Key>,
    /// Of this place.
    pub place: Option<(Shard, Seq)>,
    /// Given up on for this reason.
    pub reason: Option<DeadReason>,
    /// Last failed at this time or later.
    pub failed_since: Option<Timestamp>,
    /// Last failed before this time.
    pub failed_before: Option<Timestamp>,
}

impl DeadLetterFilter {
    /// Those that were given up on for this reason.
    pub fn reason(reason: DeadReason) -> Self {
        Self { reason: Some(reason), ..Self::default() }
    }

    /// Those whose last attempt failed at this time or later.
    pub fn failed_since(time: Timestamp) -> Self {
        Self { failed_since: Some(time), ..Self::default() }
    }

    /// Those whose last attempt failed before this time.
    pub fn failed_before(time: Timestamp) -> Self {
        Self { failed_before: Some(time), ..Self::default() }
    }

    /// Whether a row is meant.
    pub fn matches(&self, row: &StoredDelivery) -> bool {
        let failed = row.failure.last_failed;
        matches!(row.state, RowState::Dead { .. })
            && self.key.as_ref().is_none_or(|key| row.event.key.as_ref() == Some(key))
            && self.place.is_none_or(|place| place == (row.event.shard, row.event.seq))
            && self.reason.is_none_or(|reason| row.failure.reason == Some(reason))
            && self.failed_since.is_none_or(|since| failed.is_some_and(|at| at >= since))
            && self.failed_before.is_none_or(|before| failed.is_some_and(|at| at < before))
    }
}

/// Which rows a scan is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// Dead letters that match.
    Dead(DeadLetterFilter),
    /// Parked and waiting deliveries.
    Parked,
}

impl Select {
    /// Whether a row is meant.
    pub fn matches(&self, row: &StoredDelivery) -> bool {
        match self {
            Select::Dead(filter) => filter.matches(row),
            Select::Parked => !matches!(row.state, RowState::Dead { .. }),
        }
    }
}

/// A part of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Rows after this place; `None` starts at the beginning. Rows come by shard, then seq.
    pub after: Option<(Shard, Seq)>,
    /// At most so many.
    pub limit: usize,
}

impl Page {
    /// The first rows.
    pub const fn first(limit: usize) -> Self {
        Self { after: None, limit }
    }

    /// The rows after a place, which the last row of the page before tells.
    pub const fn after(place: (Shard, Seq), limit: usize) -> Self {
        Self { after: Some(place), limit }
    }
}

/// The parked and dead deliveries of subscriptions. Owners write through
/// [`Checkpoints::commit`](super::Checkpoints::commit) only.
#[async_trait]
pub trait Sideline: Send + Sync {
    /// The heads of lanes with live rows in a shard, by seq: those with a seq greater than `after`, at most
    /// `limit`. A head is the smallest live row of its lane.
    async fn heads(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError>;

    /// The first live rows of a lane, by seq, at most `limit`.
    async fn lane(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        lane: &Lane,
        limit: usize,
    ) -> Result<Vec<StoredDelivery>, StoreError>;

    /// Rows and marks with a seq in `after < seq <= through`, by seq; dead ones too.
    async fn rows_in(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError>;

    /// The rows at these places, by seq; places without a row are left out.
    async fn get(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: &[Seq],
    ) -> Result<Vec<StoredDelivery>, StoreError>;

    /// The rows that are meant, by shard and seq.
    async fn scan(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        page: Page,
    ) -> Result<Vec<StoredDelivery>, StoreError>;

    /// How many rows are meant.
    async fn count(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError>;

    /// Makes dead rows run again: they become parked, due at once, with no attempts. At most `limit`, the
    /// smallest places first. Returns how many.
    async fn redrive(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError>;

    /// Ends dead rows without running them. One that no checkpoint covers stays as a mark. At most `limit`,
    /// the smallest places first. Returns how many.
    async fn discard(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError>;

    /// A number that grows with every redrive, discard, pause, resume and reset of the subscription: an owner
    /// that sees it change looks at the heads again, at `paused` and at the resets of its shards.
    async fn revision(&self, subscription: &SubscriptionId) -> Result<u64, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_redrive_the_new_error_stands_beside_the_old() {
        let mut failure = Failure::default();
        failure.note("first".to_owned(), Timestamp(1));
        failure.note("second".to_owned(), Timestamp(2));
        assert_eq!(failure.error, "second");
        assert_eq!((failure.first_failed, failure.last_failed), (Some(Timestamp(1)), Some(Timestamp(2))));
        for round in 0..3 {
            // What a redrive does.
            (failure.first_failed, failure.deferred_since) = (None, None);
            failure.note(format!("third {round}"), Timestamp(3));
            failure.note(format!("fourth {round}"), Timestamp(4));
            let before = if round == 0 { "second".to_owned() } else { format!("fourth {}", round - 1) };
            assert_eq!(failure.error, format!("fourth {round} (before the redrive: {before})"));
        }
    }

    #[test]
    fn a_deferral_is_no_error_from_before_a_redrive() {
        let mut failure = Failure::default();
        failure.note_deferral("quota");
        failure.deferred_since = Some(Timestamp(1));
        failure.note_deferral("quota again");
        assert_eq!(failure.error, "deferred: quota again");
        failure.note("no".to_owned(), Timestamp(2));
        assert_eq!(failure.error, "no");
    }

    #[test]
    fn two_long_errors_fit_together() {
        let long = "é".repeat(Failure::MAX_ERROR_BYTES);
        let mut failure = Failure { error: long.clone(), ..Failure::default() };
        failure.note(long, Timestamp(1));
        assert!(failure.error.len() <= Failure::MAX_ERROR_BYTES, "{}", failure.error.len());
        assert!(failure.error.ends_with(" ...)"));
    }
}
