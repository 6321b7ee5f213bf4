//! Worker processes on one SQLite file, killed with -9 at random moments, and what their handlers did.
//!
//! ```sh
//! cargo test --test crashes                                        # 20 kills
//! cargo test --test crashes -- --ignored --nocapture long          # 200 kills
//! PHOTON_CRASH_SEED=7 PHOTON_CRASH_KILLS=1000 cargo test --test crashes -- --ignored --nocapture long
//! ```
//!
//! Three workers share the shards of a topic. Each writes a line into one side file when a handler starts and when
//! it ends, and one for each event that it published with success. The test publishes, too, kills workers while
//! they work and while they drain, ends some of them cleanly, and starts them again. At the end all must be settled;
//! then the lines are judged:
//!
//! - P1: every event whose publish returned Ok ended well, or is a dead letter, in every subscription.
//! - P3: of a key, the first good ends come in the order of the log, and so do the last ones; two runs never overlap.
//! - P4: what a killed process had ended well and is run to a good end again is at most
//!   `4 * checkpoint_every + concurrency` a subscription: the machine lets no more be settled without a
//!   confirmed checkpoint. After a clean end it is nothing.

#[path = "crashes/harness.rs"]
mod harness;
#[path = "crashes/journal.rs"]
mod journal;
#[path = "crashes/verdict.rs"]
mod verdict;
#[path = "crashes/worker.rs"]
mod worker;

#[test]
fn p01_p03_p04_killed_workers_lose_nothing_and_keep_the_order() {
    harness::run(harness::kills(20));
}

#[test]
#[ignore = "the long mode: minutes"]
fn long() {
    harness::run(harness::kills(200));
}

/// What a worker process runs; in the test process it does nothing.
#[test]
fn worker_process() {
    worker::main();
}
