//! What can be set for a subscription, and what holds when nothing is.

use std::time::Duration;

use crate::failure::Classify;
use crate::machine::retry::{Backoff, RetryPolicy};
use crate::time::Timestamp;

/// Who gets the events of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The instances of a group share one position; each event goes to one of them.
    #[default]
    Group,
    /// Every instance gets every event; the position is kept for its instance id.
    Durable,
    /// Every instance gets what is published while it runs; no position, no retries after a restart.
    Ephemeral,
}

/// Where a new subscription starts. One that is known already goes on from its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Start {
    /// With the oldest event that is kept.
    #[default]
    Earliest,
    /// With the first event after the subscription became known to the store.
    Latest,
    /// With the first event that the store took in at this time or later.
    At(Timestamp),
}

/// What happens to the later events of a key after one of them became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnDead {
    /// They go on.
    #[default]
    Continue,
    /// They wait behind it, in order, until it is redriven or discarded.
    BlockKey,
}

/// When a subscription stops to try because its attempts fail, see [`breaker`](crate::machine::breaker).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// It stops once so many attempts failed. 1 up to `of`.
    pub failures: u32,
    /// Of so many last ones. Up to 1 024.
    pub of: u32,
    /// How long it stops before it tries one delivery. 1 ms up to a day.
    pub cool_down: Duration,
}

impl BreakerPolicy {
    /// The cool-down of a breaker that does not say.
    pub const COOL_DOWN: Duration = Duration::from_secs(30);

    fn problem(self) -> Option<String> {
        let Self { failures, of, cool_down } = self;
        if !(1..=1_024).contains(&of) {
            Some(format!("breaker looks at the last {of} attempts, allowed are 1 to 1024"))
        } else if !(1..=of).contains(&failures) {
            Some(format!("breaker waits for {failures} failures of {of} attempts, allowed are 1 to {of}"))
        } else if !(Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&cool_down) {
            Some(format!("breaker has a cool_down of {cool_down:?}, allowed are 1ms to a day"))
        } else {
            None
        }
    }
}

/// Settings of a subscription as one layer gives them: the attribute, the builder, or the environment.
/// `None` leaves a setting to the layer below; [`Settings`] has the defaults.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// See [`Settings::start`].
    pub start: Option<Start>,
    /// See [`Settings::concurrency`].
    pub concurrency: Option<u32>,
    /// See [`Settings::prefetch`].
    pub prefetch: Option<u32>,
    /// See [`Settings::window`].
    pub window: Option<u32>,
    /// See [`Settings::timeout`].
    pub timeout: Option<Duration>,
    /// See [`RetryPolicy::max_attempts`].
    pub max_attempts: Option<u32>,
    /// See [`RetryPolicy::backoff`].
    pub backoff: Option<Backoff>,
    /// See [`RetryPolicy::jitter`].
    pub jitter: Option<f64>,
    /// See [`RetryPolicy::give_up_after`].
    pub give_up_after: Option<Duration>,
    /// See [`Settings::park_after`].
    pub park_after: Option<Duration>,
    /// See [`Settings::max_defer_age`].
    pub max_defer_age: Option<Duration>,
    /// See [`Settings::on_dead`].
    pub on_dead: Option<OnDead>,
    /// See [`Settings::max_blocked`].
    pub max_blocked: Option<u32>,
    /// See [`Settings::classify`].
    pub classify: Option<Classify>,
    /// See [`Settings::checkpoint_every`].
    pub checkpoint_every: Option<u32>,
    /// See [`Settings::checkpoint_interval`].
    pub checkpoint_interval: Option<Duration>,
    /// See [`Settings::expire_after`].
    pub expire_after: Option<Duration>,
    /// See [`Settings::breaker`].
    pub breaker: Option<BreakerPolicy>,
}

impl Options {
    /// Nothing set; for `..Options::NONE` in statics.
    pub const NONE: Options = Options {
        start: None,
        concurrency: None,
        prefetch: None,
        window: None,
        timeout: None,
        max_attempts: None,
        backoff: None,
        jitter: None,
        give_up_after: None,
        park_after: None,
        max_defer_age: None,
        on_dead: None,
        max_blocked: None,
        classify: None,
        checkpoint_every: None,
        checkpoint_interval: None,
        expire_after: None,
        breaker: None,
    };

    /// This layer over `below`: what is set here wins.
    #[must_use]
    pub fn over(self, below: Options) -> Options {
        Options {
            start: self.start.or(below.start),
            concurrency: self.concurrency.or(below.concurrency),
            prefetch: self.prefetch.or(below.prefetch),
            window: self.window.or(below.window),
            timeout: self.timeout.or(below.timeout),
            max_attempts: self.max_attempts.or(below.max_attempts),
            backoff: self.backoff.or(below.backoff),
            jitter: self.jitter.or(below.jitter),
            give_up_after: self.give_up_after.or(below.give_up_after),
            park_after: self.park_after.or(below.park_after),
            max_defer_age: self.max_defer_age.or(below.max_defer_age),
            on_dead: self.on_dead.or(below.on_dead),
            max_blocked: self.max_blocked.or(below.max_blocked),
            classify: self.classify.or(below.classify),
            checkpoint_every: self.checkpoint_every.or(below.checkpoint_every),
            checkpoint_interval: self.checkpoint_interval.or(below.checkpoint_interval),
            expire_after: self.expire_after.or(below.expire_after),
            breaker: self.breaker.or(below.breaker),
        }
    }
}

/// The settings that a subscription runs with.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where a new subscription starts. Default: earliest.
    pub start: Start,
    /// How many deliveries run at a time, of different keys. 1 to 65 536; default 16.
    pub concurrency: u32,
    /// How many deliveries wait in memory for their turn at most; a quarter of the places, at least one, is kept
    /// for those that come back from the store. Their payloads together are bounded, too, by
    /// [`PREFETCH_BYTES`](crate::machine::subscription::PREFETCH_BYTES) (8 MiB). 2 to 1 048 576; default 1 024.
    pub prefetch: u32,
    /// How many deliveries may be unsettled in memory at a time, running and waiting for a retry included. At
    /// least `concurrency`, up to 1 048 576; default 4 096.
    pub window: u32,
    /// How long one attempt may take; over it the attempt failed. Up to a day; default 30 s.
    pub timeout: Duration,
    /// When a failed delivery is tried again, and when no more.
    pub retry: RetryPolicy,
    /// A delivery whose next attempt is further away than this is stored and leaves the memory. So does, where memory
    /// is full, what waits behind a delivery of its key that has run for longer than this. Default 10 s.
    pub park_after: Duration,
    /// How long handlers may defer a delivery in all before it becomes a dead letter. Default 7 days.
    pub max_defer_age: Duration,
    /// What happens to the later events of a key after a dead letter. Default: they go on.
    pub on_dead: OnDead,
    /// How many deliveries of one key may be stored behind one that holds the key up: a dead letter under
    /// `block_key`, a retry that is parked, or one that has run for longer than `park_after`. With so many, the
    /// subscription reads nothing more, of any key, until that one is out of the way; nothing is dropped. What was in
    /// memory already may be stored beyond it. 1 to 1 048 576; default 10 000.
    pub max_blocked: u32,
    /// What errors ask for that do not say so themselves. Default: all of them are retried.
    pub classify: Option<Classify>,
    /// After how many settled deliveries the checkpoint is written. 1 to 1 048 576; default 512.
    pub checkpoint_every: u32,
    /// How long a settled delivery waits for the checkpoint at most. Default 200 ms.
    pub checkpoint_interval: Duration,
    /// After how long without its instance the position of a `durable` subscription may be forgotten, so
    /// that it no longer holds back trimming. Default: never.
    pub expire_after: Option<Duration>,
    /// When this instance stops to hand out deliveries because its attempts fail. Attempts that end as a dead
    /// letter count as failures, too; deferred and broken-off ones do not count. Default: never.
    pub breaker: Option<BreakerPolicy>,
    /// Whether handlers settle deliveries in transactions of their own, as they
    /// [say](crate::handler::Needs::settlement): the next delivery of a key then waits until the end of the one
    /// before is stored. No option; default: no.
    pub settles: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            start: Start::Earliest,
            concurrency: 16,
            prefetch: 1_024,
            window: 4_096,
            timeout: Duration::from_secs(30),
            retry: RetryPolicy::default(),
            park_after: Duration::from_secs(10),
            max_defer_age: Duration::from_secs(7 * 86_400),
            on_dead: OnDead::Continue,
            max_blocked: 10_000,
            classify: None,
            checkpoint_every: 512,
            checkpoint_interval: Duration::from_millis(200),
            expire_after: None,
            breaker: None,
            settles: false,
        }
    }
}

impl Settings {
    /// The defaults with `options` over them, and every problem found.
    pub fn resolve(options: &Options) -> Result<Settings, Vec<String>> {
        let default = Settings::default();
        let concurrency = options.concurrency.unwrap_or(default.concurrency);
        let settings = Settings {
            start: options.start.unwrap_or(default.start),
            concurrency,
            prefetch: options.prefetch.unwrap_or(default.prefetch),
            window: options.window.unwrap_or_else(|| default.window.max(concurrency.min(LIMIT))),
            timeout: options.timeout.unwrap_or(default.timeout),
            retry: RetryPolicy {
                max_attempts: options.max_attempts.unwrap_or(default.retry.max_attempts),
                backoff: options.backoff.clone().unwrap_or(default.retry.backoff),
                jitter: options.jitter.unwrap_or(default.retry.jitter),
                give_up_after: options.give_up_after.or(default.retry.give_up_after),
            },
            park_after: options.park_after.unwrap_or(default.park_after),
            max_defer_age: options.max_defer_age.unwrap_or(default.max_defer_age),
            on_dead: options.on_dead.unwrap_or(default.on_dead),
            max_blocked: options.max_blocked.unwrap_or(default.max_blocked),
            classify: options.classify.or(default.classify),
            checkpoint_every: options.checkpoint_every.unwrap_or(default.checkpoint_every),
            checkpoint_interval: options.checkpoint_interval.unwrap_or(default.checkpoint_interval),
            expire_after: options.expire_after.or(default.expire_after),
            breaker: options.breaker.or(default.breaker),
            settles: default.settles,
        };
        let problems = settings.problems();
        if problems.is_empty() { Ok(settings) } else { Err(problems) }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut range = |name: &str, value: u32, low: u32, high: u32| {
            if !(low..=high).contains(&value) {
                problems.push(format!("{name} is {value}, allowed are {low} to {high}"));
            }
        };
        range("concurrency", self.concurrency, 1, 65_536);
        range("prefetch", self.prefetch, 2, LIMIT);
        range("window", self.window, 1, LIMIT);
        range("checkpoint_every", self.checkpoint_every, 1, LIMIT);
        range("max_blocked", self.max_blocked, 1, LIMIT);
        if self.window < self.concurrency {
            problems.push(format!(
                "window is {}, less than concurrency {}: raise window",
                self.window, self.concurrency
            ));
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(86_400) {
            problems.push(format!("timeout is {:?}, allowed is up to a day", self.timeout));
        }
        problems.extend(self.retry.problem());
        problems.extend(self.breaker.and_then(BreakerPolicy::problem));
        problems
    }
}

const LIMIT: u32 = 1_048_576;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::FailureClass;
    use proptest::prelude::*;

    const SEVEN: Classify = Classify(|_| Some(FailureClass::Permanent));
    const OTHER: Classify = Classify(|_| None);

    /// A layer with some of its settings; each value tells the layer.
    fn layer(set: u32, n: u32) -> Options {
        let on = |bit: u32| set & (1 << bit) != 0;
        let long = Duration::from_millis(u64::from(n));
        Options {
            start: on(0).then_some(Start::At(Timestamp(i64::from(n)))),
            concurrency: on(1).then_some(n),
            prefetch: on(2).then_some(n),
            window: on(3).then_some(n),
            timeout: on(4).then_some(long),
            max_attempts: on(5).then_some(n),
            backoff: on(6).then_some(Backoff::Fixed(long)),
            jitter: on(7).then_some(1.0 / f64::from(n)),
            give_up_after: on(8).then_some(long),
            park_after: on(9).then_some(long),
            max_defer_age: on(10).then_some(long),
            on_dead: on(11).then_some(OnDead::BlockKey),
            checkpoint_every: on(12).then_some(n),
            checkpoint_interval: on(13).then_some(long),
            expire_after: on(14).then_some(long),
            max_blocked: on(15).then_some(n),
            classify: on(16).then_some(if n == 7 { SEVEN } else { OTHER }),
            breaker: on(17).then_some(BreakerPolicy { failures: 1, of: n, cool_down: long }),
        }
    }

    proptest! {
        #[test]
        fn the_upper_layer_wins_setting_by_setting(upper in 0u32..1 << 18, lower in 0u32..1 << 18) {
            let stacked = layer(upper, 7).over(layer(lower, 9));
            // Where the upper layer is set it is seen alone; what is left is the lower one's.
            let only_lower = layer(lower & !upper, 9);
            prop_assert_eq!(&layer(upper, 7).over(only_lower.clone()), &stacked);
            prop_assert_eq!(&only_lower.over(layer(upper, 7)), &stacked);
            prop_assert_eq!(&stacked.clone().over(Options::NONE), &stacked);
            prop_assert_eq!(&Options::NONE.over(stacked.clone()), &stacked);
        }
    }

    #[test]
    fn every_setting_that_is_given_arrives() {
        let long = Duration::from_millis(7);
        let settings = Settings::resolve(&layer(u32::MAX, 7)).unwrap();
        let expected = Settings {
            start: Start::At(Timestamp(7)),
            concurrency: 7,
            prefetch: 7,
            window: 7,
            timeout: long,
            retry: RetryPolicy {
                max_attempts: 7,
                backoff: Backoff::Fixed(long),
                jitter: 1.0 / 7.0,
                give_up_after: Some(long),
            },
            park_after: long,
            max_defer_age: long,
            on_dead: OnDead::BlockKey,
            max_blocked: 7,
            classify: Some(SEVEN),
            checkpoint_every: 7,
            checkpoint_interval: long,
            expire_after: Some(long),
            breaker: Some(BreakerPolicy { failures: 1, of: 7, cool_down: long }),
            settles: false,
        };
        assert_eq!(settings, expected);
        assert_eq!(Settings::resolve(&Options::NONE).unwrap(), Settings::default());
        assert_eq!(Options::NONE, Options::default());
    }

    #[test]
    fn the_window_grows_with_the_concurrency_unless_it_is_given() {
        let options = Options { concurrency: Some(10_000), ..Options::NONE };
        assert_eq!(Settings::resolve(&options).unwrap().window, 10_000);
        let options = Options { window: Some(9_999), ..options };
        assert_eq!(
            Settings::resolve(&options).unwrap_err(),
            ["window is 9999, less than concurrency 10000: raise window"]
        );
    }

    #[test]
    fn p12_all_problems_are_told_at_once() {
        let options = Options {
            concurrency: Some(0),
            prefetch: Some(0),
            window: Some(u32::MAX),
            timeout: Some(Duration::ZERO),
            max_attempts: Some(0),
            checkpoint_every: Some(0),
            max_blocked: Some(0),
            ..Options::NONE
        };
        assert_eq!(
            Settings::resolve(&options).unwrap_err(),
            [
                "concurrency is 0, allowed are 1 to 65536",
                "prefetch is 0, allowed are 2 to 1048576",
                "window is 4294967295, allowed are 1 to 1048576",
                "checkpoint_every is 0, allowed are 1 to 1048576",
                "max_blocked is 0, allowed are 1 to 1048576",
                "timeout is 0ns, allowed is up to a day",
                "max_attempts is 0, allowed are 1 to 1000",
            ]
        );
        let too_long = Options { timeout: Some(Duration::from_secs(86_401)), ..Options::NONE };
        assert!(Settings::resolve(&too_long).is_err());
        let breaker = |failures, of, cool_down| {
            let policy = BreakerPolicy { failures, of, cool_down: Duration::from_micros(cool_down) };
            Settings::resolve(&Options { breaker: Some(policy), ..Options::NONE })
        };
        assert!(breaker(1, 1, 1_000).is_ok());
        for (failures, of, cool_down, said) in [
            (2, 1, 1_000, "2 failures of 1"),
            (0, 1, 1_000, "0 failures of 1"),
            (1, 1_025, 1_000, "1025"),
            (1, 1, 9, "9"),
        ] {
            assert!(breaker(failures, of, cool_down).unwrap_err()[0].contains(said));
        }
        let huge = Options { concurrency: Some(u32::MAX), ..Options::NONE };
        assert!(Settings::resolve(&huge).unwrap_err()[0].starts_with("concurrency is 4294967295"));
    }
}
