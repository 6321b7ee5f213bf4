//! Plays many seeds: `photon-sim [FIRST [COUNT]]`, or the one of `PHOTON_SIM_SEED` with its history.

use std::time::Instant;

fn main() -> std::process::ExitCode {
    if let Some(seed) = std::env::var("PHOTON_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let outcome = photon_sim::run(seed);
        println!("{}\nhistory {:016x}", outcome.report(), outcome.history.hash());
        return u8::from(outcome.violation.is_some()).into();
    }
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Some(Ok(first)), Some(Ok(count))) =
        (arguments.next().or(Some(Ok(0))), arguments.next().or(Some(Ok(1_000))))
    else {
        eprintln!("usage: photon-sim [FIRST [COUNT]], or PHOTON_SIM_SEED=SEED photon-sim");
        return 2.into();
    };
    let begin = Instant::now();
    let mut broken = 0u32;
    for seed in first..first + count {
        let outcome = photon_sim::run(seed);
        if let Some(violation) = &outcome.violation {
            println!("seed {seed}: {violation}");
            broken += 1;
        }
    }
    println!("{count} seeds from {first}: {broken} broken, {:?}", begin.elapsed());
    u8::from(broken > 0).into()
}
