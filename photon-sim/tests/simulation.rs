//! Many seeds, none of which may break a promise.
//!
//! `PHOTON_SIM_SEED=7` plays one seed and prints its history; `PHOTON_SIM_RUNS=100000` plays so many, from
//! `PHOTON_SIM_FIRST` on.

use photon_sim::{first_violation, run};

/// How many seeds are played unless asked otherwise.
const RUNS: u64 = 200;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}, it must be a number")))
}

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = number("PHOTON_SIM_SEED") {
        let outcome = run(seed);
        println!("{}", outcome.report());
        assert_eq!(outcome.violation, None, "seed {seed}");
        return;
    }
    let first = number("PHOTON_SIM_FIRST").unwrap_or(0);
    let runs = number("PHOTON_SIM_RUNS").unwrap_or(RUNS);
    if let Some(outcome) = first_violation(first..first + runs) {
        panic!("{}", outcome.report());
    }
}

#[test]
fn a_seed_has_one_history() {
    for seed in 0..40 {
        let (first, second) = (run(seed).history, run(seed).history);
        assert!(first.lines().len() > 10, "seed {seed} does nothing");
        if first.hash() != second.hash() {
            let pairs = first.lines().iter().zip(second.lines());
            let mut other = pairs.map(|(a, b)| (a.to_string(), b.to_string())).filter(|(a, b)| a != b);
            panic!("seed {seed} plays differently each time, from here on: {:#?}", other.next());
        }
    }
}
