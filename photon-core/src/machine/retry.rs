//! When a failed delivery is tried again.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::time::parse_duration;

/// How long to wait after the n-th failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backoff {
    /// Always the same: `fixed(1s)`.
    Fixed(Duration),
    /// `first`, twice `first`, three times `first`, up to `max`: `linear(1s..30s)`.
    Linear {
        /// The first delay and the step.
        first: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// `first`, doubled each time, up to `max`: `exponential(200ms..30s)`.
    Exponential {
        /// The first delay.
        first: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// One after another; the last one repeats: `list(1s, 10s, 5m)`. Never empty.
    List(Cow<'static, [Duration]>),
}

impl Backoff {
    /// The delay after `attempts` failed attempts, at least 1, without jitter.
    pub fn delay(&self, attempts: u32) -> Duration {
        let n = attempts.max(1);
        match self {
            Backoff::Fixed(delay) => *delay,
            Backoff::Linear { first, max } => first.saturating_mul(n).min(*max),
            Backoff::Exponential { first, max } => {
                // Reaches any end within a hundred rounds.
                let mut delay = *first;
                for _ in 1..n {
                    if delay >= *max || delay.is_zero() {
                        break;
                    }
                    delay = delay.saturating_mul(2);
                }
                delay.min(*max)
            }
            Backoff::List(delays) => {
                let index = (n as usize - 1).min(delays.len().saturating_sub(1));
                delays.get(index).copied().unwrap_or_default()
            }
        }
    }
}

impl FromStr for Backoff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "{text:?} is not a backoff: write \"fixed(1s)\", \"linear(1s..30s)\", \
                 \"exponential(200ms..30s)\" or \"list(1s, 10s, 5m)\""
            )
        };
        let (kind, inner) =
            text.trim().strip_suffix(')').and_then(|t| t.split_once('(')).ok_or_else(refuse)?;
        let span = || -> Result<(Duration, Duration), String> {
            let (first, max) = inner.split_once("..").ok_or_else(refuse)?;
            let (first, max) = (parse_duration(first)?, parse_duration(max)?);
            if first > max {
                return Err(format!("{text:?} starts above its end: swap the two durations"));
            }
            Ok((first, max))
        };
        match kind.trim() {
            "fixed" => parse_duration(inner).map(Backoff::Fixed),
            "linear" => span().map(|(first, max)| Backoff::Linear { first, max }),
            "exponential" => span().map(|(first, max)| Backoff::Exponential { first, max }),
            "list" => {
                let delays = inner.split(',').map(parse_duration).collect::<Result<Vec<_>, _>>()?;
                Ok(Backoff::List(delays.into()))
            }
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backoff::Fixed(delay) => write!(f, "fixed({delay:?})"),
            Backoff::Linear { first, max } => write!(f, "linear({first:?}..{max:?})"),
            Backoff::Exponential { first, max } => write!(f, "exponential({first:?}..{max:?})"),
            Backoff::List(delays) => {
                f.write_str("list(")?;
                for (i, delay) in delays.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{delay:?}")?;
                }
                f.write_str(")")
            }
        }
    }
}

/// When a failed delivery is tried again, and when no more.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// How many attempts a delivery has, the first included. 1 to 1 000; default 5.
    pub max_attempts: u32,
    /// How long to wait in between. Default: exponential, 200 ms to 30 s.
    pub backoff: Backoff,
    /// How much longer a delay may become at random, as a share of it: 0.2 adds up to a fifth. It never
    /// shortens a delay. 0 to 1; default 0.2.
    pub jitter: f64,
    /// Give up when the next attempt would start later than this after the first failure. Default: never.
    pub give_up_after: Option<Duration>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            backoff: Backoff::Exponential { first: Duration::from_millis(200), max: Duration::from_secs(30) },
            jitter: 0.2,
            give_up_after: None,
        }
    }
}

impl RetryPolicy {
    /// What is wrong with the policy, or `None`.
    pub fn problem(&self) -> Option<String> {
        if !(1..=MAX_ATTEMPTS).contains(&self.max_attempts) {
            return Some(format!("max_attempts is {}, allowed are 1 to {MAX_ATTEMPTS}", self.max_attempts));
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Some(format!("jitter is {}, allowed are 0 to 1", self.jitter));
        }
        if matches!(&self.backoff, Backoff::List(delays) if delays.is_empty()) {
            return Some("the backoff list is empty: give it at least one duration".to_owned());
        }
        None
    }

    /// How long to wait after `attempts` failed attempts, or `None` to give up.
    ///
    /// `asked` is the delay that the error asked for: it replaces the backoff and gets no jitter. `failing_for`
    /// is the time since the first failure. `random` is uniform in 0..1.
    pub fn next_delay(
        &self,
        attempts: u32,
        asked: Option<Duration>,
        failing_for: Duration,
        random: f64,
    ) -> Option<Duration> {
        if attempts >= self.max_attempts {
            return None;
        }
        let delay = asked.unwrap_or_else(|| {
            let base = self.backoff.delay(attempts);
            base.saturating_add(share(base, self.jitter * random))
        });
        match self.give_up_after {
            Some(limit) if failing_for.saturating_add(delay) > limit => None,
            _ => Some(delay),
        }
    }

    /// The longest delay after `attempts` failed attempts, jitter included.
    pub fn longest_delay(&self, attempts: u32) -> Duration {
        let base = self.backoff.delay(attempts);
        base.saturating_add(share(base, self.jitter))
    }

    /// The longest time from the first failure to the last attempt, jitter included: the sum of all delays.
    pub fn longest_wait(&self) -> Duration {
        let sum = (1..self.max_attempts.min(MAX_ATTEMPTS))
            .map(|n| self.backoff.delay(n))
            .fold(Duration::ZERO, Duration::saturating_add);
        let sum = sum.saturating_add(share(sum, self.jitter));
        self.give_up_after.map_or(sum, |limit| sum.min(limit))
    }
}

/// The most attempts that a policy can ask for.
const MAX_ATTEMPTS: u32 = 1_000;

/// A share of a duration, from nothing to all of it.
fn share(whole: Duration, share: f64) -> Duration {
    // Near the longest duration the product rounds to one too long to be written.
    Duration::try_from_secs_f64(whole.as_secs_f64() * share.clamp(0.0, 1.0))
        .unwrap_or(Duration::MAX)
        .min(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_delay() -> impl Strategy<Value = Duration> {
        prop_oneof![
            8 => (0u64..100_000_000_000).prop_map(Duration::from_micros),
            1 => Just(Duration::ZERO),
            1 => Just(Duration::MAX),
        ]
    }

    fn any_backoff() -> impl Strategy<Value = Backoff> {
        prop_oneof![
            any_delay().prop_map(Backoff::Fixed),
            (any_delay(), any_delay()).prop_map(|(a, b)| Backoff::Linear { first: a.min(b), max: a.max(b) }),
            (any_delay(), any_delay())
                .prop_map(|(a, b)| Backoff::Exponential { first: a.min(b), max: a.max(b) }),
            proptest::collection::vec(any_delay(), 1..6).prop_map(|list| Backoff::List(list.into())),
        ]
    }

    /// The delay after `attempts` failures, one failure after the other.
    fn naive(backoff: &Backoff, attempts: u32) -> Duration {
        match backoff {
            Backoff::Fixed(delay) => *delay,
            Backoff::Linear { first, max } => {
                (1..attempts).fold(*first, |delay, _| delay.saturating_add(*first).min(*max))
            }
            Backoff::Exponential { first, max } => {
                (1..attempts).fold(*first, |delay, _| delay.saturating_add(delay).min(*max))
            }
            Backoff::List(list) => {
                let mut left = list.iter();
                let mut delay = left.next().unwrap();
                for _ in 1..attempts {
                    delay = left.next().unwrap_or(delay);
                }
                *delay
            }
        }
    }

    proptest! {
        #[test]
        fn backoffs_grow_step_by_step_to_their_end(backoff in any_backoff(), attempts in 1u32..80) {
            prop_assert_eq!(backoff.delay(attempts), naive(&backoff, attempts));
            if !matches!(backoff, Backoff::List(_)) {
                prop_assert!(backoff.delay(attempts) <= backoff.delay(attempts + 1));
            }
        }

        #[test]
        fn no_number_of_attempts_overflows(backoff in any_backoff(), attempts: u32) {
            prop_assert!(backoff.delay(attempts) <= backoff.delay(u32::MAX) || matches!(backoff, Backoff::List(_)));
        }

        #[test]
        fn jitter_only_adds_and_only_its_share(
            backoff in any_backoff(),
            attempts in 1u32..1_000,
            jitter in 0.0..=1.0f64,
            random in 0.0..1.0f64,
        ) {
            let policy =
                RetryPolicy { max_attempts: 1_000, backoff, jitter, give_up_after: None };
            prop_assert_eq!(policy.problem(), None);
            let floor = policy.backoff.delay(attempts);
            let delay = policy.next_delay(attempts, None, Duration::ZERO, random).unwrap();
            prop_assert!(delay >= floor);
            // A floating-point number holds 15 digits of the delay.
            let most = floor.as_secs_f64() * (1.0 + jitter * random) * (1.0 + 1e-12) + 1e-9;
            prop_assert!(delay.as_secs_f64() <= most, "{delay:?} over {most} s");
        }

        #[test]
        fn poison_ends_after_exactly_max_attempts(
            backoff in any_backoff(),
            max_attempts in 1u32..50,
            jitter in 0.0..=1.0f64,
            asked in proptest::option::of(any_delay()),
        ) {
            let policy = RetryPolicy { max_attempts, backoff, jitter, give_up_after: None };
            let mut attempts = 1;
            while policy.next_delay(attempts, asked, Duration::MAX, 0.9).is_some() {
                attempts += 1;
            }
            prop_assert_eq!(attempts, max_attempts);
        }

        #[test]
        fn what_the_error_asks_for_wins_over_the_backoff(
            backoff in any_backoff(),
            asked in any_delay(),
            random in 0.0..1.0f64,
        ) {
            let policy = RetryPolicy { backoff, ..RetryPolicy::default() };
            prop_assert_eq!(policy.next_delay(1, Some(asked), Duration::ZERO, random), Some(asked));
        }

        #[test]
        fn an_attempt_after_the_deadline_is_not_made(
            limit in any_delay(),
            failing_for in any_delay(),
            asked in any_delay(),
        ) {
            let policy = RetryPolicy { give_up_after: Some(limit), ..RetryPolicy::default() };
            let too_late = failing_for.as_nanos() + asked.as_nanos() > limit.as_nanos();
            // The sum of two longest durations is cut to the longest one, which a longest limit allows.
            let too_late = too_late && limit < Duration::MAX;
            prop_assert_eq!(policy.next_delay(1, Some(asked), failing_for, 0.0).is_none(), too_late);
        }

        #[test]
        fn no_run_of_retries_outlasts_the_longest_wait(
            backoff in any_backoff(),
            max_attempts in 1u32..20,
            jitter in 0.0..=1.0f64,
            give_up_after in proptest::option::of(any_delay()),
            random in 0.0..1.0f64,
        ) {
            let policy = RetryPolicy { max_attempts, backoff, jitter, give_up_after };
            let mut waited = Duration::ZERO;
            for attempts in 1.. {
                match policy.next_delay(attempts, None, waited, random) {
                    Some(delay) => waited = waited.saturating_add(delay),
                    None => break,
                }
            }
            // Each of the delays was rounded on its own.
            prop_assert!(waited <= policy.longest_wait().saturating_add(Duration::from_millis(1)));
        }

        #[test]
        fn a_backoff_reads_back_what_it_shows(backoff in any_backoff()) {
            let text = backoff.to_string();
            // Text allows up to a century.
            if !text.contains(&format!("{:?}", Duration::MAX)) {
                prop_assert_eq!(text.parse(), Ok(backoff));
            }
        }
    }

    #[test]
    fn backoffs_parse_as_they_are_written() {
        let ms = Duration::from_millis;
        assert_eq!("fixed(1s)".parse(), Ok(Backoff::Fixed(ms(1_000))));
        assert_eq!("linear(1s..30s)".parse(), Ok(Backoff::Linear { first: ms(1_000), max: ms(30_000) }));
        assert_eq!(
            " exponential( 200ms .. 30s ) ".parse(),
            Ok(Backoff::Exponential { first: ms(200), max: ms(30_000) })
        );
        assert_eq!("list(1s, 10s)".parse(), Ok(Backoff::List(vec![ms(1_000), ms(10_000)].into())));
        for bad in [
            "",
            "1s",
            "fixed",
            "fixed()",
            "fixed(1)",
            "linear(1s)",
            "exponential(2s..1s)",
            "list()",
            "list(1s,)",
            "once(1s)",
            "fixed(1s",
        ] {
            let error = bad.parse::<Backoff>().unwrap_err();
            assert!(!error.is_empty(), "{bad}");
        }
        assert_eq!(
            "exponential(2s..1s)".parse::<Backoff>().unwrap_err(),
            "\"exponential(2s..1s)\" starts above its end: swap the two durations"
        );
    }

    #[test]
    fn p12_policies_that_cannot_work_are_refused() {
        let policy = |change: fn(&mut RetryPolicy)| {
            let mut policy = RetryPolicy::default();
            change(&mut policy);
            policy.problem()
        };
        assert_eq!(policy(|_| {}), None);
        assert_eq!(policy(|p| p.max_attempts = 0).unwrap(), "max_attempts is 0, allowed are 1 to 1000");
        assert!(policy(|p| p.max_attempts = 1_001).is_some());
        for jitter in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let policy = RetryPolicy { jitter, ..RetryPolicy::default() };
            assert!(policy.problem().is_some(), "{jitter}");
        }
        assert!(policy(|p| p.backoff = Backoff::List(Vec::new().into())).is_some());
    }
}
