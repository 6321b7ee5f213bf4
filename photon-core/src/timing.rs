//! Timing that cannot work together, with the arithmetic.
//!
//! Only what is impossible is refused. What is merely long is not: retries that wait are stored, so a drain does
//! not wait for them, and a lease is renewed beside a handler that runs for long.

use std::time::Duration;

use crate::options::Settings;
use crate::time::spell;

/// Limits from outside of the subscription.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a drain waits for handlers that run, where a longer attempt is a mistake; none where somebody wants
    /// attempts to be broken off.
    pub drain_timeout: Option<Duration>,
}

/// What cannot work, each with what to change; empty if everything can.
pub fn problems(settings: &Settings, limits: Limits) -> Vec<String> {
    [drain(settings, limits), first_retry(settings), expiry(settings)].into_iter().flatten().collect()
}

/// A drain that ends before an attempt may: each shutdown would break attempts off that are in order.
fn drain(settings: &Settings, limits: Limits) -> Option<String> {
    let drain_timeout = limits.drain_timeout?;
    (settings.timeout > drain_timeout).then(|| {
        format!(
            "timeout {}, over the drain limit of {}: a shutdown would break off attempts that are still in time; \
             lower timeout, or raise .drain_timeout(...) or PHOTON_DRAIN_TIMEOUT",
            spell(settings.timeout),
            spell(drain_timeout)
        )
    })
}

/// Retries that all come too late.
fn first_retry(settings: &Settings) -> Option<String> {
    let retry = &settings.retry;
    let limit = retry.give_up_after?;
    let first = retry.backoff.delay(1);
    (retry.max_attempts > 1 && first > limit).then(|| {
        format!(
            "max_attempts {}, but attempt 2 would start {} after the first failure, over give_up_after {}: no retry \
             would ever run; raise give_up_after, shorten the backoff {}, or set max_attempts = 1",
            retry.max_attempts,
            spell(first),
            spell(limit),
            retry.backoff
        )
    })
}

/// A position that may be forgotten while a delivery of it waits.
fn expiry(settings: &Settings) -> Option<String> {
    let expiry = settings.expire_after?;
    let retry = &settings.retry;
    let (attempt, wait) =
        (1..retry.max_attempts).map(|n| (n, retry.longest_delay(n))).max_by_key(|(_, wait)| *wait)?;
    let sum = wait.saturating_add(settings.timeout);
    (sum > expiry).then(|| {
        format!(
            "backoff {} after attempt {attempt} with jitter {} + timeout {} = {}, over expire_after {}: the position \
             could be forgotten while a delivery waits; raise expire_after or shorten the backoff",
            spell(wait),
            retry.jitter,
            spell(settings.timeout),
            spell(sum),
            spell(expiry)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::retry::{Backoff, RetryPolicy};

    const LIMITS: Limits = Limits { drain_timeout: Some(Duration::from_secs(30)) };
    const DAY: Duration = Duration::from_secs(86_400);

    fn problem(change: impl FnOnce(&mut Settings)) -> Option<String> {
        let mut settings = Settings::default();
        change(&mut settings);
        let mut problems = problems(&settings, LIMITS);
        assert!(problems.len() <= 1, "{problems:?}");
        problems.pop()
    }

    #[test]
    fn p12_what_is_merely_long_is_fine() {
        assert_eq!(problem(|_| {}), None);
        // Waiting retries are stored by the drain: the sum of all attempts may be as long as it likes.
        let patient = RetryPolicy {
            max_attempts: 50,
            backoff: Backoff::Fixed(7 * DAY),
            give_up_after: Some(400 * DAY),
            ..RetryPolicy::default()
        };
        assert_eq!(problem(|settings| settings.retry = patient), None);
    }

    #[test]
    fn p12_an_attempt_longer_than_the_drain_is_refused() {
        let said = problem(|settings| settings.timeout = Duration::from_secs(600)).unwrap();
        assert!(said.starts_with("timeout 10m, over the drain limit of 30s: "), "{said}");
        let settings = Settings { timeout: Duration::from_secs(600), ..Settings::default() };
        for enough in [Some(Duration::from_secs(600)), None] {
            assert_eq!(problems(&settings, Limits { drain_timeout: enough }), Vec::<String>::new());
        }
    }

    #[test]
    fn p12_retries_that_all_come_too_late_are_refused() {
        let late = |max_attempts| RetryPolicy {
            max_attempts,
            backoff: Backoff::Fixed(Duration::from_secs(3_600)),
            give_up_after: Some(Duration::from_secs(1_800)),
            ..RetryPolicy::default()
        };
        let said = problem(|settings| settings.retry = late(6)).unwrap();
        assert!(
            said.contains(
                "max_attempts 6, but attempt 2 would start 1h after the first failure, over give_up_after 30m"
            ),
            "{said}"
        );
        assert_eq!(problem(|settings| settings.retry = late(1)), None);
    }

    #[test]
    fn p12_a_wait_longer_than_the_position_is_kept_is_refused() {
        let retry = RetryPolicy {
            max_attempts: 3,
            backoff: Backoff::List(vec![Duration::from_secs(1), 7 * DAY].into()),
            jitter: 0.5,
            give_up_after: None,
        };
        let said = problem(|settings| {
            settings.retry = retry;
            settings.expire_after = Some(7 * DAY);
        })
        .unwrap();
        assert!(
            said.contains(
                "10d12h after attempt 2 with jitter 0.5 + timeout 30s = 10d12h30s, over expire_after 7d"
            ),
            "{said}"
        );
    }
}
