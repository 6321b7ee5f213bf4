//! Tests that need a server, reported as ignored where it is not installed.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

/// One test, made by [`server_tests!`](crate::server_tests) or by hand.
pub struct Test {
    name: String,
    missing: Option<String>,
    time: Time,
    run: Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>,
}

/// The runtime of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Time {
    /// Several threads on the real clock.
    Threads,
    /// One thread on the real clock.
    Real,
    /// One thread on a clock that moves only when everything waits.
    Paused,
}

impl Test {
    /// A test of this name, in which spaces do not count. It runs on a runtime of several threads.
    pub fn new<F: Future<Output = ()> + 'static>(
        name: &str,
        test: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        Self {
            // The macro puts spaces around the colons of a path.
            name: name.replace(' ', ""),
            missing: None,
            time: Time::Threads,
            run: Box::new(|| Box::pin(test())),
        }
    }

    /// What is not installed and is needed by this test alone, as [`run`] takes it for all.
    #[must_use]
    pub fn lacking(mut self, missing: Option<String>) -> Self {
        self.missing = missing;
        self
    }

    /// Runs it on one thread, as `#[tokio::test]` does, if asked on a paused clock.
    #[must_use]
    pub fn on_one_thread(mut self, paused: bool) -> Self {
        self.time = if paused { Time::Paused } else { Time::Real };
        self
    }
}

/// The tests of the named async functions without parameters.
///
/// ```
/// async fn one_and_one_is_two() {
///     assert_eq!(1 + 1, 2);
/// }
///
/// let tests = photon_backend::server_tests![one_and_one_is_two];
/// assert_eq!(tests.len(), 1);
/// ```
#[macro_export]
macro_rules! server_tests {
    ($($($name:ident)::+),* $(,)?) => {
        ::std::vec![$($crate::servers::suite::Test::new(::core::stringify!($($name)::+), $($name)::+)),*]
    };
}

/// Whether a missing server is a failure: `PHOTON_REQUIRE_ENGINES=1`.
pub fn engines_are_required() -> bool {
    std::env::var_os("PHOTON_REQUIRE_ENGINES").is_some_and(|value| value == "1")
}

/// The `main` of a test binary without the standard harness; it takes the usual arguments. Every test runs on a
/// runtime of its own. `missing` says what is not installed, such as
/// [`Postgres::missing`](super::Postgres::missing): then all tests are reported as ignored, with a line that
/// starts with "skipped:", or fail if [`engines_are_required`].
pub fn run(missing: Option<String>, tests: Vec<Test>) -> ExitCode {
    let tests =
        tests.into_iter().map(move |test| Test { missing: test.missing.or_else(|| missing.clone()), ..test });
    run_with(&Arguments::from_args(), tests.collect())
}

/// The same for tests that mostly wait: so many run at a time, unless the arguments say otherwise.
pub fn run_side_by_side(threads: usize, tests: Vec<Test>) -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(threads);
    run_with(&args, tests)
}

fn run_with(args: &Arguments, tests: Vec<Test>) -> ExitCode {
    let mut skipped = BTreeMap::<String, usize>::new();
    let trials = tests.into_iter().map(|test| {
        let ignored = test.missing.is_some() && !engines_are_required();
        if let Some(missing) = &test.missing {
            *skipped.entry(missing.clone()).or_default() += 1;
        }
        Trial::test(test.name.clone(), move || run_one(test)).with_ignored_flag(ignored)
    });
    let trials: Vec<Trial> = trials.collect();
    if !args.list {
        for (missing, tests) in skipped {
            eprintln!("skipped: {tests} tests: {missing}");
        }
    }
    libtest_mimic::run(args, trials).exit_code()
}

fn run_one(test: Test) -> Result<(), Failed> {
    if let Some(missing) = test.missing {
        return Err(missing.into());
    }
    let mut runtime = match test.time {
        Time::Threads => Builder::new_multi_thread(),
        Time::Real | Time::Paused => Builder::new_current_thread(),
    };
    let runtime = runtime.worker_threads(4).enable_all().build()?;
    runtime.block_on(async {
        if test.time == Time::Paused {
            tokio::time::pause();
        }
        (test.run)().await;
    });
    Ok(())
}
