//! The promises of the delivery contract, each proved on every engine, through the public interface.
//!
//! Functions become tests by [`on_every_engine!`] and [`on_engine!`] alone: this binary has its own harness, where
//! `#[test]` and `#[tokio::test]` do nothing. `scripts/test clippy` refuses them here.

use std::process::ExitCode;

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod p01_no_loss;
mod p02_watermark;
mod p03_key_order;
mod p04_bounded_duplicates;
mod p05_bounded_memory;
mod p06_contained_failures;
mod p07_giving_up;
mod p07_sequenced_letters;
mod p08_cancellation;
mod p09_one_owner;
mod p10_outages;
mod p11_same_verdict;
mod p12_early_mistakes;
mod parking;

/// Most of them wait most of the time.
const SIDE_BY_SIDE: usize = 8;

fn main() -> ExitCode {
    support::script::keep_planned_panics_quiet();
    photon_backend::servers::suite::run_side_by_side(SIDE_BY_SIDE, support::engines::promises())
}
