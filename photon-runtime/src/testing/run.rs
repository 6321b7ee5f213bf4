//! What `#[photon::test]` calls.

use std::future::Future;

use super::TestPhoton;

/// What a test under `#[photon::test]` takes.
#[diagnostic::on_unimplemented(
    message = "a test cannot take `{Self}`",
    label = "not a `TestPhoton`",
    note = "write `async fn name(mut t: photon::testing::TestPhoton)`"
)]
pub trait TestParam {
    /// Makes it, within the runtime of the test.
    fn make() -> Self;
}

impl TestParam for TestPhoton {
    fn make() -> Self {
        Self::new()
    }
}

/// Runs a test on a runtime of its own whose time is paused.
///
/// # Panics
/// If the test does, or if the operating system refuses the runtime.
pub fn run<P, F: Future>(make: fn() -> P, test: impl FnOnce(P) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a test needs a tokio runtime");
    runtime.block_on(async { test(make()).await })
}
