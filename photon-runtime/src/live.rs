//! What the loops of this process do right now, for people.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use photon_core::ids::{Key, Shard, SubscriptionId};
use photon_core::time::Timestamp;

/// What the breaker of a subscription does in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerStatus {
    /// Deliveries run.
    Closed,
    /// Too many attempts failed: nothing is handed out.
    Open {
        /// When that began.
        since: Timestamp,
        /// When one delivery is tried.
        until: Timestamp,
    },
    /// One delivery runs, or is waited for, and decides.
    HalfOpen {
        /// When the breaker opened.
        since: Timestamp,
    },
}

/// A key with so much stored behind a delivery that cannot run that its subscription reads nothing more, see
/// [`Settings::max_blocked`](photon_core::options::Settings::max_blocked).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldUp {
    /// The shard.
    pub shard: Shard,
    /// The key.
    pub key: Option<Key>,
    /// How many deliveries of the key were stored when it was reached, the first one included.
    pub stored: u64,
    /// Whether the first of them is a dead letter: redrive or discard it. Else it waits for its next attempt.
    pub dead: bool,
}

/// What one loop does.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoopStatus {
    /// What its breaker does, if it has one.
    pub(crate) breaker: Option<BreakerStatus>,
    /// What keeps it from reading on.
    pub(crate) held_up: Option<HeldUp>,
}

/// The loops that run in this process.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<BTreeMap<SubscriptionId, LoopStatus>>);

impl Live {
    /// A loop runs, and its breaker, if it has one, does this.
    pub(crate) fn set(&self, subscription: &SubscriptionId, breaker: Option<BreakerStatus>) {
        self.loops().entry(subscription.clone()).or_default().breaker = breaker;
    }

    /// This keeps a loop from reading on, or nothing does any more.
    pub(crate) fn hold_up(&self, subscription: &SubscriptionId, held_up: Option<HeldUp>) {
        if let Some(status) = self.loops().get_mut(subscription) {
            status.held_up = held_up;
        }
    }

    /// The loop has ended.
    pub(crate) fn remove(&self, subscription: &SubscriptionId) {
        self.loops().remove(subscription);
    }

    /// Whether the loop runs here.
    pub(crate) fn runs(&self, subscription: &SubscriptionId) -> bool {
        self.loops().contains_key(subscription)
    }

    /// What the breaker does; `None` if there is none, or the loop does not run here.
    pub(crate) fn breaker(&self, subscription: &SubscriptionId) -> Option<BreakerStatus> {
        self.loops().get(subscription).and_then(|status| status.breaker)
    }

    /// What keeps the loop from reading on, if it runs here.
    pub(crate) fn held_up(&self, subscription: &SubscriptionId) -> Option<HeldUp> {
        self.loops().get(subscription).and_then(|status| status.held_up.clone())
    }

    fn loops(&self) -> MutexGuard<'_, BTreeMap<SubscriptionId, LoopStatus>> {
        // A map stays whole when a thread that held the lock panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
