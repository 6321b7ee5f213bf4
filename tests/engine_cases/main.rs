//! Faults that were met in practice, each with its right outcome under its own name, on every engine.

use std::process::ExitCode;
use std::sync::OnceLock;

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod handling;
mod journal;
mod owners;
mod payloads;
mod positions;
mod servers;

use support::log::Log;

/// Most of them wait most of the time.
const SIDE_BY_SIDE: usize = 4;

/// The warnings of all tests: each looks for a name that only it uses.
fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(Log::default)
}

fn main() -> ExitCode {
    tracing::subscriber::set_global_default(log().clone()).expect("nothing else writes a log");
    support::script::keep_planned_panics_quiet();
    photon_backend::servers::suite::run_side_by_side(SIDE_BY_SIDE, support::engines::promises())
}
