//! The simulation: whole Photon runtimes, each on a paused clock of its own, over one memory store that fails in
//! between. Everything follows from a seed.
//!
//! A run has two parts. In the first one events are published while processes start, drain, crash, freeze and lose
//! the store, people redrive and discard dead letters, and clocks jump. In the second one everything works again
//! and the run waits until all is settled. The judge sees every publish, every run of a handler and every
//! change of the store, and holds them against the promises P1 to P9.
//!
//! [`run`] plays one seed; the program `photon-sim` plays many.

mod event;
mod handler;
mod history;
mod judge;
mod process;
mod scenario;
mod store;
mod world;

pub use self::history::{Commit, End, History, Line, Place, What};
pub use self::scenario::{Group, Scenario, StoreTrouble};
pub use self::world::{Outcome, run};

/// Plays seeds until a promise is broken.
pub fn first_violation(seeds: impl IntoIterator<Item = u64>) -> Option<Outcome> {
    seeds.into_iter().map(run).find(|outcome| outcome.violation.is_some())
}
