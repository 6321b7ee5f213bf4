//! The conformance suite: what every [`Store`] must do, as checks that anybody can run.
//!
//! Photon's promises rest on the store contract of [`photon_core::store`]. The suite holds a store to every
//! sentence of it. Run it in a test of your own:
//!
//! ```
//! use std::sync::Arc;
//!
//! use photon_backend::conformance::{self, Harness};
//! use photon_backend::memory::MemoryStore;
//! use photon_core::store::Store;
//!
//! struct Memory;
//!
//! #[async_trait::async_trait]
//! impl Harness for Memory {
//!     async fn fresh(&self) -> Arc<dyn Store> {
//!         Arc::new(MemoryStore::new())
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() {
//! conformance::assert_conforms(&Memory).await;
//! # }
//! ```
//!
//! Checks use topics, groups and incarnations with names of their own, so [`Harness::fresh`] may return the
//! same database each time, and other programs may use it meanwhile. Run the suite on a multi-threaded
//! runtime: some checks race many tasks against each other. They wait for conditions under time limits, so a
//! paused clock is of use only for stores that do no I/O.

#[macro_use]
mod verdict;

mod appending;
mod committing;
mod control;
mod dead_letters;
mod dedup;
mod ending;
mod fencing;
mod fixture;
mod kit;
mod leasing;
mod model;
mod positions;
mod races;
mod random;
mod reading;
mod restarting;
mod rows;
mod table;
mod topics;
mod trimming;
mod values;
mod waking;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use photon_core::store::Store;

pub use self::verdict::{CheckResult, Report, Verdict, Violation};

/// How the suite gets at the store under test.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A store to run one check on: new and empty, or one that was used before.
    async fn fresh(&self) -> Arc<dyn Store>;

    /// Closes the store and opens it again as a restarted process would find it. The suite has given up all
    /// other handles. `None`, also the default, for a store that keeps nothing: the checks that need it are
    /// reported as skipped.
    async fn reopen(&self, store: Arc<dyn Store>) -> Option<Arc<dyn Store>> {
        drop(store);
        None
    }
}

/// One check of the suite.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    proves: &'static str,
    run: for<'a> fn(kit::Kit<'a>) -> BoxFuture<'a, verdict::Outcome>,
}

impl Check {
    /// Its name, unique in the suite.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The rule of the contract that it proves.
    pub fn proves(&self) -> &'static str {
        self.proves
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("name", &self.name)
            .field("proves", &self.proves)
            .finish_non_exhaustive()
    }
}

/// Every check of the suite, simple ones first.
pub fn checks() -> &'static [Check] {
    table::CHECKS
}

/// Which checks run, and how.
#[derive(Debug, Clone)]
pub struct Suite {
    seed: u64,
    rounds: u32,
    time_limit: Duration,
    only: Option<Vec<String>>,
}

impl Suite {
    /// All checks, with a seed made at random for the randomised ones.
    pub fn new() -> Self {
        Self {
            seed: uuid::Uuid::new_v4().as_u64_pair().0,
            rounds: 20,
            time_limit: Duration::from_secs(120),
            only: None,
        }
    }

    /// The seed of the randomised checks. A failure of theirs names the seed that repeats it.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many histories the randomised check plays. Default: 20.
    #[must_use]
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }

    /// How long one check may take before it counts as failed. Default: 2 minutes.
    #[must_use]
    pub fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Only the checks of these names.
    #[must_use]
    pub fn only<I: IntoIterator<Item = N>, N: Into<String>>(mut self, names: I) -> Self {
        self.only = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Runs the checks one after another. A check that fails, panics or hangs does not stop the others.
    pub async fn run(&self, harness: &dyn Harness) -> Report {
        let mut report = Report::default();
        if let Some(names) = &self.only {
            for unknown in names.iter().filter(|name| checks().iter().all(|check| check.name != **name)) {
                report.results.push(CheckResult {
                    name: unknown.clone(),
                    proves: "",
                    verdict: Verdict::Failed("there is no check of this name, see checks()".to_owned()),
                });
            }
        }
        for check in checks() {
            if self.only.as_ref().is_none_or(|names| names.iter().any(|name| name == check.name)) {
                let verdict = self.run_one(check, harness).await;
                report.results.push(CheckResult {
                    name: check.name.to_owned(),
                    proves: check.proves,
                    verdict,
                });
            }
        }
        report
    }

    async fn run_one(&self, check: &Check, harness: &dyn Harness) -> Verdict {
        let run = async {
            let store = harness.fresh().await;
            (check.run)(kit::Kit { store, harness, seed: self.seed, rounds: self.rounds }).await
        };
        match tokio::time::timeout(self.time_limit, AssertUnwindSafe(run).catch_unwind()).await {
            Ok(Ok(Ok(()))) => Verdict::Passed,
            Ok(Ok(Err(violation))) => violation.into_verdict(),
            Ok(Err(panic)) => Verdict::Failed(format!("it panicked: {}", panic_text(panic.as_ref()))),
            Err(_) => Verdict::Failed(format!("it did not end within {:?}", self.time_limit)),
        }
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

/// Runs every check.
pub async fn run(harness: &dyn Harness) -> Report {
    Suite::new().run(harness).await
}

/// Runs every check.
///
/// # Panics
/// If one fails, with the list of all that did.
pub async fn assert_conforms(harness: &dyn Harness) {
    run(harness).await.assert_passed();
}
