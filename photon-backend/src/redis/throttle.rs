//! Log lines that could come in masses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So often a line is let through.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts something, and lets it be mentioned once a minute.
#[derive(Default)]
pub(super) struct Throttle {
    count: AtomicU64,
    said: Mutex<Option<(Instant, u64)>>,
}

impl Throttle {
    /// Counts one. `say` gets how many were not mentioned since the last time.
    pub(super) fn count(&self, say: impl FnOnce(u64)) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match *said {
            Some((at, _)) if at.elapsed() < INTERVAL => return,
            Some((_, before)) => before,
            None => 0,
        };
        *said = Some((Instant::now(), count));
        drop(said);
        say(count.saturating_sub(before + 1));
    }

    pub(super) fn total(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
