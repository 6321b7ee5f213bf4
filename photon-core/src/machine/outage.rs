//! How a loop lives through an outage: it tries again less and less often, and says so rarely.

use std::time::Duration;

use super::retry::Backoff;
use crate::time::Mono;

/// The failures of one loop in a row.
///
/// Report every end of a call, and call again no earlier than [`retry_at`](Self::retry_at). The waits grow
/// from [`FIRST_WAIT`](Self::FIRST_WAIT) to [`LONGEST_WAIT`](Self::LONGEST_WAIT), doubled each time.
#[derive(Debug, Clone, Default)]
pub struct Outage {
    failures: u32,
    since: Mono,
    retry_at: Mono,
    /// When a failure was mentioned last, of this outage or an earlier one.
    said_at: Option<Mono>,
    /// This outage was mentioned.
    is_told: bool,
}

impl Outage {
    /// The wait after the first failure.
    pub const FIRST_WAIT: Duration = Duration::from_millis(100);
    /// The longest wait.
    pub const LONGEST_WAIT: Duration = Duration::from_secs(5);
    /// Outages are mentioned in the log once in so long: a long one, and many short ones, too.
    pub const SAY_EVERY: Duration = Duration::from_secs(60);

    /// A call failed. Returns whether the log should mention it.
    pub fn handle_failed(&mut self, now: Mono) -> bool {
        if self.failures == 0 {
            self.since = now;
        }
        self.failures = self.failures.saturating_add(1);
        let waits = Backoff::Exponential { first: Self::FIRST_WAIT, max: Self::LONGEST_WAIT };
        self.retry_at = now + waits.delay(self.failures);
        let say = self.said_at.is_none_or(|said| now.since(said) >= Self::SAY_EVERY);
        if say {
            self.said_at = Some(now);
            self.is_told = true;
        }
        say
    }

    /// A call succeeded. Returns how long the outage lasted, if there was one that was mentioned: the log should
    /// mention its end, too.
    pub fn handle_succeeded(&mut self, now: Mono) -> Option<Duration> {
        let lasted = self.is_told.then(|| now.since(self.since));
        *self = Self { said_at: self.said_at, ..Self::default() };
        lasted
    }

    /// When to try again; the origin of time while nothing failed.
    pub fn retry_at(&self) -> Mono {
        self.retry_at
    }

    /// How many calls failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p10_waits_double_and_the_log_stays_quiet() {
        let mut outage = Outage::default();
        let mut now = Mono(1_000_000);
        let begin = now;
        let (mut waits, mut said) = (Vec::new(), 0);
        while now.since(begin) < Duration::from_secs(150) {
            said += u32::from(outage.handle_failed(now));
            waits.push(outage.retry_at().since(now).as_millis());
            now = outage.retry_at();
        }
        assert_eq!(waits[..8], [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(said, 3);
        assert_eq!(outage.handle_succeeded(now), Some(now.since(begin)));
        assert_eq!(outage.handle_succeeded(now), None);
        assert_eq!((outage.failures(), outage.retry_at()), (0, Mono(0)));
    }

    #[test]
    fn p10_a_store_that_comes_and_goes_is_mentioned_once_a_minute() {
        let mut outage = Outage::default();
        let (mut failures, mut ends) = (0, 0);
        for second in 0..600 {
            let now = Mono::default() + Duration::from_secs(second);
            failures += u32::from(outage.handle_failed(now));
            ends += u32::from(outage.handle_succeeded(now + Duration::from_millis(500)).is_some());
        }
        assert_eq!((failures, ends), (10, 10));
    }

    #[test]
    fn failures_without_end_do_not_overflow() {
        let mut outage = Outage { failures: u32::MAX - 1, ..Outage::default() };
        outage.handle_failed(Mono(u64::MAX));
        outage.handle_failed(Mono(u64::MAX));
        assert_eq!(outage.retry_at(), Mono(u64::MAX));
    }
}
