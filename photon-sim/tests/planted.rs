//! Proof that the simulation finds bugs: each of these is planted, and found within a bounded number of seeds.

use photon_core::planted::{Bug, plant};
use photon_sim::first_violation;

/// After so many seeds a bug must be found.
const BOUND: u64 = 3_000;

#[test]
fn every_planted_bug_is_found() {
    let only = std::env::var("PHOTON_SIM_BUG").ok();
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let name = format!("{bug:?}");
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        plant(Some(bug));
        let found = first_violation(0..BOUND);
        plant(None);
        match found {
            Some(outcome) => {
                let violation = outcome.violation.as_deref().unwrap_or_default();
                println!("| {name} | {} | {violation} |", outcome.scenario.seed + 1);
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found within {BOUND} seeds: {missed:?}");
}
