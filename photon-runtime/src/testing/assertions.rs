//! What a test claims about one subscription.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Write};
use std::sync::Arc;

use futures::FutureExt;
use photon_core::ids::{Key, SubscriptionId};
use photon_core::store::{DeadLetterFilter, Page, Select, StoredDelivery};
use photon_core::topic::{EventParam, Topic};

use super::diff;
use super::recorder::{End, Recorder, Run};
use crate::photon::Photon;

/// What happened in one subscription since the test began. Made by [`TestPhoton::subscription`](super::TestPhoton::subscription).
///
/// An assertion that fails panics at the line of the test, with what was expected and everything that ran. All of them
/// return `self`, so that they can be written one after another.
#[must_use = "call one of its assertions"]
#[derive(Clone)]
pub struct TestSubscription {
    id: SubscriptionId,
    photon: Photon,
    recorder: Arc<Recorder>,
}

impl TestSubscription {
    pub(super) fn new(id: SubscriptionId, photon: Photon, recorder: Arc<Recorder>) -> Self {
        Self { id, photon, recorder }
    }

    /// The events whose handler ended well and did not ignore them, in the order in which the handler began. Between
    /// different keys the order means nothing.
    ///
    /// # Panics
    /// If one of them is no `E`.
    #[track_caller]
    pub fn handled<E: EventParam>(&self) -> Vec<E> {
        let mut handled = Vec::new();
        for run in self.runs().iter().filter(|run| matches!(run.end, End::Done)) {
            match E::decode(&run.event) {
                Ok(event) => handled.push(event),
                Err(error) => self.fail(&format!("handled an event that cannot be read: {error}")),
            }
        }
        handled
    }

    /// Claims that exactly these events were handled: the handler ended well and did not ignore them. The events of
    /// one key in this order; between keys no order is promised, so any will do.
    #[track_caller]
    pub fn assert_handled<E: Topic + EventParam + PartialEq + Debug>(&self, expected: &[E]) -> &Self {
        let found = self.handled::<E>();
        let (expected, found) = (by_key(expected), by_key(&found));
        let keys: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
        let (mut text, mut equal) = (String::new(), true);
        for key in keys {
            let of_key = |events| BTreeMap::get(events, key).map(Vec::as_slice).unwrap_or_default();
            let (expected, found) = (of_key(&expected), of_key(&found));
            let lines = match key {
                Some(_) => diff::in_order(expected, found),
                None => diff::in_any_order(expected, found),
            };
            equal &= diff::is_equal(&lines);
            if let Some(key) = key {
                let _ = writeln!(text, "  key {:?}:", key.to_string());
            }
            diff::write(&mut text, &lines);
        }
        if !equal {
            self.fail(&format!("did not handle what was expected (-), but other events (+):\n{text}"));
        }
        self
    }

    /// Claims that no handler ended well.
    #[track_caller]
    pub fn assert_nothing_handled(&self) -> &Self {
        self.claim("deliveries handled", 0, self.count(|run| matches!(run.end, End::Done)))
    }

    /// Claims how often the handler ran, all deliveries together. Runs that deferred their delivery cost no attempt and
    /// do not count.
    #[track_caller]
    pub fn assert_attempts(&self, expected: u64) -> &Self {
        self.claim("attempts", expected, self.count(|run| !matches!(run.end, End::Deferred(..))))
    }

    /// Claims how many of the runs were repetitions, after an attempt that failed.
    #[track_caller]
    pub fn assert_retried(&self, expected: u64) -> &Self {
        self.claim("repetitions", expected, self.count(|run| run.attempt > 1))
    }

    /// Claims how many runs failed: with an error, a panic, or because their time ran out.
    #[track_caller]
    pub fn assert_failed(&self, expected: u64) -> &Self {
        self.claim("failed attempts", expected, self.count(|run| error_of(run).is_some()))
    }

    /// Claims that an attempt failed with an error, or panicked with a message, that contains `text`.
    #[track_caller]
    pub fn assert_failed_with(&self, text: &str) -> &Self {
        if !self.runs().iter().filter_map(error_of).any(|error| error.contains(text)) {
            self.fail(&format!("had no failure that contains {text:?}"));
        }
        self
    }

    /// Claims how many deliveries the handler ignored.
    #[track_caller]
    pub fn assert_ignored(&self, expected: u64) -> &Self {
        self.claim("ignored deliveries", expected, self.count(|run| matches!(run.end, End::Ignored(_))))
    }

    /// Claims how many runs deferred their delivery.
    #[track_caller]
    pub fn assert_deferred(&self, expected: u64) -> &Self {
        self.claim("deferrals", expected, self.count(|run| matches!(run.end, End::Deferred(..))))
    }

    /// Claims how many deliveries are parked now: they wait for a later attempt, or behind one that does.
    #[track_caller]
    pub fn assert_parked(&self, expected: u64) -> &Self {
        self.claim("parked deliveries", expected, self.parked())
    }

    /// Claims how many dead letters there are now.
    #[track_caller]
    pub fn assert_dead(&self, expected: u64) -> &Self {
        self.claim("dead letters", expected, self.dead())
    }

    /// How many deliveries are parked now.
    #[track_caller]
    pub fn parked(&self) -> u64 {
        self.rows(&Select::Parked).len() as u64
    }

    /// How many dead letters there are now.
    #[track_caller]
    pub fn dead(&self) -> u64 {
        self.rows(&Select::Dead(DeadLetterFilter::default())).len() as u64
    }

    fn runs(&self) -> Vec<Run> {
        self.recorder.runs(&self.id)
    }

    fn count(&self, which: impl Fn(&Run) -> bool) -> u64 {
        self.runs().iter().filter(|run| which(run)).count() as u64
    }

    /// The stored deliveries. The memory engine answers at once.
    #[track_caller]
    fn rows(&self, select: &Select) -> Vec<StoredDelivery> {
        let scan = self.photon.store().scan(&self.id, select, Page::first(usize::MAX));
        match scan.now_or_never() {
            Some(Ok(rows)) => rows,
            Some(Err(error)) => panic!("{}: {error}", self.id),
            None => panic!("{}: the engine of a test answers at once", self.id),
        }
    }

    #[track_caller]
    fn claim(&self, what: &str, expected: u64, found: u64) -> &Self {
        if expected != found {
            self.fail(&format!("has another number of {what}\n  - expected {expected}\n  + found {found}\n"));
        }
        self
    }

    #[track_caller]
    fn fail(&self, message: &str) -> ! {
        let mut text = format!("subscription {} {}\n", self.id, message.trim_end());
        let runs = self.runs();
        if runs.is_empty() {
            text.push_str("nothing ran in it (does the test wait with t.run_until_quiet().await?)\n");
        } else {
            text.push_str("what ran in it:\n");
            list(&mut text, &runs);
        }
        for (what, select) in
            [("parked", Select::Parked), ("dead", Select::Dead(DeadLetterFilter::default()))]
        {
            for row in self.rows(&select) {
                let _ = writeln!(
                    text,
                    "{what} is shard {} seq {}, after attempt {}: {}",
                    row.event.shard, row.event.seq, row.attempts, row.failure.error
                );
            }
        }
        panic!("{}", text.trim_end())
    }
}

fn list(text: &mut String, runs: &[Run]) {
    /// So many lines are read; of more the last ones tell most.
    const SHOWN: usize = 50;
    let from = runs.len().saturating_sub(SHOWN);
    if from > 0 {
        let _ = writeln!(text, "  ({from} earlier runs)");
    }
    for run in &runs[from..] {
        let _ = writeln!(text, "  {run}");
    }
}

/// The events of each key, in their order.
fn by_key<E: Topic>(events: &[E]) -> BTreeMap<Option<Key>, Vec<&E>> {
    let mut keys: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events {
        keys.entry(event.key()).or_default().push(event);
    }
    keys
}

/// The error of a run that failed.
fn error_of(run: &Run) -> Option<&str> {
    match &run.end {
        End::Failed(_, error) | End::Panicked(error) => Some(error),
        End::BrokenOff => Some("ran out of time, or was broken off"),
        End::Running | End::Done | End::Ignored(_) | End::Deferred(..) => None,
    }
}

impl Debug for TestSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestSubscription").field(&self.id).finish()
    }
}
