//! What came out of a check.

use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;

use photon_core::error::{StoreError, chain};

/// What a check returns.
pub(super) type Outcome<T = ()> = Result<T, Violation>;

/// What a check found wrong with the store.
#[derive(Debug)]
pub struct Violation {
    text: String,
    skipped: bool,
}

impl Violation {
    #[track_caller]
    pub(super) fn new(text: impl fmt::Display) -> Self {
        let place = Location::caller();
        Self { text: format!("{text} ({}:{})", place.file(), place.line()), skipped: false }
    }

    /// Not a violation: the store cannot be asked.
    pub(super) fn skip(reason: &str) -> Self {
        Self { text: reason.to_owned(), skipped: true }
    }

    /// Says more about when it happened.
    pub(super) fn context(mut self, context: impl fmt::Display) -> Self {
        self.text = format!("{context}: {}", self.text);
        self
    }

    pub(super) fn into_verdict(self) -> Verdict {
        if self.skipped { Verdict::Skipped(self.text) } else { Verdict::Failed(self.text) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Violation {}

impl From<StoreError> for Violation {
    #[track_caller]
    fn from(error: StoreError) -> Self {
        Self::new(format!("unexpected error of kind {:?}: {}", error.kind(), chain(&error)))
    }
}

/// What became of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The store keeps the rule.
    Passed,
    /// The harness cannot do what the check needs; the reason.
    Skipped(String),
    /// The store breaks the rule; how it shows.
    Failed(String),
}

/// One check with its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    /// The name of the check.
    pub name: String,
    /// The rule that it is about.
    pub proves: &'static str,
    /// What came out.
    pub verdict: Verdict,
}

/// What came out of a run of the suite. Its `Display` lists what failed and what was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The checks in the order they ran.
    pub results: Vec<CheckResult>,
}

impl Report {
    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CheckResult> {
        self.results.iter().filter(|result| matches!(result.verdict, Verdict::Failed(_)))
    }

    /// Whether nothing failed.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Checks that nothing failed.
    ///
    /// # Panics
    /// If a check failed, with the list of all that did.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.passed(), "the store does not keep the contract\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures().count();
        let skipped = self.results.iter().filter(|r| matches!(r.verdict, Verdict::Skipped(_))).count();
        let passed = self.results.len() - failed - skipped;
        write!(f, "{passed} checks passed, {failed} failed, {skipped} skipped")?;
        for result in &self.results {
            match &result.verdict {
                Verdict::Passed => {}
                Verdict::Skipped(reason) => write!(f, "\n  skipped {}: {reason}", result.name)?,
                Verdict::Failed(how) => {
                    write!(f, "\n  FAILED {}\n    rule: {}\n    seen: {how}", result.name, result.proves)?;
                }
            }
        }
        Ok(())
    }
}

/// Fails the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::verdict::Violation::new(format!($($text)+)));
        }
    };
}

/// Fails the check unless both are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($text:tt)+) => {
        match (&$left, &$right) {
            (left, right) => ensure!(
                *left == *right,
                "{}: found {left:?}, expected {right:?}",
                format_args!($($text)+)
            ),
        }
    };
}

/// Fails the check unless the call is refused with an error of this kind; gives the error.
macro_rules! ensure_refused {
    ($call:expr, $kind:ident, $($text:tt)+) => {
        match $call {
            Ok(_) => {
                return Err($crate::conformance::verdict::Violation::new(format!(
                    "{} was accepted",
                    format_args!($($text)+)
                )));
            }
            Err(error) => {
                ensure!(
                    error.kind() == photon_core::error::StoreErrorKind::$kind,
                    "{} must be refused as {}, but the error is {error:?}",
                    format_args!($($text)+),
                    stringify!($kind)
                );
                error
            }
        }
    };
}
