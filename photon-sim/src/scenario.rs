//! What a seed stands for: who takes part, with which settings, and how much goes wrong.

use std::time::Duration;

use fastrand::Rng;
use photon_core::machine::retry::Backoff;
use photon_core::options::{OnDead, Options};

/// The settings of one run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Where everything comes from.
    pub seed: u64,
    /// The groups that take part.
    pub groups: Vec<Group>,
    /// How many instances share the shards of a group.
    pub instances: u32,
    /// Options of all subscriptions, apart from what happens to the dead.
    pub options: Options,
    /// See [`Settings::concurrency`](photon_core::options::Settings::concurrency).
    pub concurrency: u32,
    /// See [`Settings::window`](photon_core::options::Settings::window).
    pub window: u32,
    /// See [`Settings::checkpoint_every`](photon_core::options::Settings::checkpoint_every).
    pub checkpoint_every: u32,
    /// See [`RetryPolicy::max_attempts`](photon_core::machine::retry::RetryPolicy::max_attempts).
    pub max_attempts: u32,
    /// How many keys the events have; some have none.
    pub keys: u8,
    /// At most so many events.
    pub events: u32,
    /// How long a drain waits for running handlers, in milliseconds; with 0 it breaks them off at once.
    pub drain_timeout: u64,
    /// How long things go wrong, in milliseconds.
    pub trouble: u64,
    /// How many of a million calls of the store go wrong in each way.
    pub store: StoreTrouble,
    /// How often processes get into trouble, from 0.
    pub processes: u32,
    /// How often people redrive and discard, from 0.
    pub people: u32,
    /// The largest jump of a wall clock, in milliseconds.
    pub clock_jumps: i64,
    /// Of a hundred events, how many make trouble in the handlers.
    pub unruly: u32,
    /// Of a thousand events, how many end the process of their handler.
    pub killers: u32,
    /// How many of a million reads of the log are slower than anything else.
    pub slow_reads: u32,
}

/// One subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    /// What happens to the later events of a key after a dead letter.
    pub on_dead: OnDead,
}

/// How many of a million calls go wrong.
#[derive(Debug, Clone, Copy)]
pub struct StoreTrouble {
    /// They fail and are not made.
    pub fail: u32,
    /// They are made, and the answer gets lost.
    pub lose: u32,
    /// They are made in part.
    pub part: u32,
    /// They are said to be fenced.
    pub fenced: u32,
    /// They are slow.
    pub slow: u32,
}

/// The two groups, and what becomes of the dead in them.
pub(crate) const GROUPS: [Group; 2] = [
    Group { name: "lenient", on_dead: OnDead::Continue },
    Group { name: "strict", on_dead: OnDead::BlockKey },
];

/// How long an attempt may take.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(TIMEOUT_MS);
/// The same in milliseconds.
pub(crate) const TIMEOUT_MS: u64 = 300;
/// The lease of every process.
pub(crate) const LEASE: Duration = Duration::from_millis(600);

impl Scenario {
    /// The scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5ce0_a210);
        let rng = &mut rng;
        let groups = match rng.u8(0..4) {
            0 => GROUPS.to_vec(),
            1 => vec![GROUPS[0]],
            _ => vec![GROUPS[1]],
        };
        let concurrency = rng.u32(1..=4);
        let window = concurrency + rng.u32(0..=8);
        let checkpoint_every = rng.u32(1..=6);
        let max_attempts = rng.u32(2..=4);
        let delays = [20, 60, 200, 800].map(|ms| Duration::from_millis(rng.u64(ms / 2..=ms)));
        let options = Options {
            concurrency: Some(concurrency),
            prefetch: Some(rng.u32(2..=10)),
            window: Some(window),
            timeout: Some(TIMEOUT),
            max_attempts: Some(max_attempts),
            backoff: Some(Backoff::List(delays.to_vec().into())),
            jitter: Some(0.0),
            park_after: Some(Duration::from_millis(rng.u64(20..=400))),
            checkpoint_every: Some(checkpoint_every),
            checkpoint_interval: Some(Duration::from_millis(rng.u64(5..=150))),
            ..Options::NONE
        };
        let heavy = rng.u8(0..3);
        let mut some = |light: u32, much: u32| match heavy {
            0 => 0,
            1 => rng.u32(0..=light),
            _ => rng.u32(0..=much),
        };
        let store = StoreTrouble {
            fail: some(20_000, 100_000),
            lose: some(20_000, 100_000),
            part: some(20_000, 100_000),
            fenced: some(2_000, 10_000),
            slow: some(200_000, 500_000),
        };
        Self {
            seed,
            groups,
            instances: rng.u32(1..=2),
            options,
            concurrency,
            window,
            checkpoint_every,
            max_attempts,
            keys: [1, 1, 2, 3, 4][rng.usize(0..5)],
            events: rng.u32(10..=60),
            drain_timeout: [0, 300, 320, 800][rng.usize(0..4)],
            trouble: rng.u64(1_000..=6_000),
            store,
            processes: rng.u32(0..=4),
            people: rng.u32(0..=2),
            clock_jumps: [0, 0, 500, 3_000][rng.usize(0..4)],
            unruly: rng.u32(10..=60),
            killers: [0, 0, 0, 60][rng.usize(0..4)],
            slow_reads: [0, 0, 300_000][rng.usize(0..3)],
        }
    }
}
