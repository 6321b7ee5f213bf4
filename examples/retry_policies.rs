//! When a failed delivery is tried again, and when no more: by the subscription's policy, by the error, by a function
//! for errors of other crates.
//!
//! `cargo run --example retry_policies [-- --engine URL]`

mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use photon::prelude::*;
use photon::{DeadReason, FailureClass, Page};

/// Something to deliver somewhere. `fault` says what goes wrong there.
#[topic(name = "example.parcel", key = to)]
#[derive(Serialize, Deserialize)]
struct Parcel {
    to: String,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Fault {
    /// Fails so many times.
    Flaky(u32),
    /// Asks for a pause of so many milliseconds.
    Busy(u64),
    Closed,
    NoSuchPlace,
    /// A library's error, about a thing that is not there.
    Missing,
}

/// What each handler did, and when.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<BTreeMap<String, Vec<Instant>>>>);

impl Journal {
    fn write(&self, group: &str, to: &str) -> usize {
        let mut lines = self.0.lock().unwrap();
        let line = lines.entry(format!("{group}/{to}")).or_default();
        line.push(Instant::now());
        line.len()
    }

    /// The pauses between the attempts.
    fn pauses(&self, line: &str) -> Vec<Duration> {
        let lines = self.0.lock().unwrap();
        lines
            .get(line)
            .map(|times| times.windows(2).map(|pair| pair[1] - pair[0]).collect())
            .unwrap_or_default()
    }

    fn attempts(&self, line: &str) -> usize {
        self.0.lock().unwrap().get(line).map_or(0, Vec::len)
    }
}

#[derive(Debug, thiserror::Error, Failure)]
enum CourierError {
    #[error("nobody answers")]
    #[failure(retry)]
    NoAnswer,
    #[error("come back later")]
    #[failure(retry_after = wait)]
    Busy { wait: Duration },
    #[error("closed today")]
    #[failure(defer = "50ms")]
    Closed,
    #[error("there is no such place")]
    #[failure(permanent)]
    NoSuchPlace,
}

/// The delays double; a tenth more at random, never less.
#[subscribe(
    group = "example.courier",
    retry(max_attempts = 4, backoff = "exponential(40ms..1s)", jitter = 0.1),
    max_defer_age = "120ms"
)]
async fn courier(parcel: Parcel, State(journal): State<Journal>) -> Result<(), CourierError> {
    let attempt = journal.write("courier", &parcel.to);
    match parcel.fault {
        Fault::Flaky(times) if attempt <= times as usize => Err(CourierError::NoAnswer),
        Fault::Busy(ms) if attempt == 1 => Err(CourierError::Busy { wait: Duration::from_millis(ms) }),
        Fault::Closed => Err(CourierError::Closed),
        Fault::NoSuchPlace => Err(CourierError::NoSuchPlace),
        _ => Ok(()),
    }
}

/// Says what an error of the standard library asks for; it cannot say so itself.
fn classify(error: &(dyn Error + 'static)) -> Option<FailureClass> {
    let io = error.downcast_ref::<io::Error>()?;
    (io.kind() == io::ErrorKind::NotFound).then_some(FailureClass::Permanent)
}

/// Gives up by the clock, long before the attempts are used up.
#[subscribe(
    group = "example.archive",
    retry(max_attempts = 1000, backoff = "list(20ms, 40ms)", jitter = 0, give_up_after = "200ms"),
    classify = classify
)]
async fn archive(parcel: Parcel, State(journal): State<Journal>) -> anyhow::Result<()> {
    journal.write("archive", &parcel.to);
    match parcel.fault {
        Fault::Missing => {
            Err(anyhow::Error::from(io::Error::from(io::ErrorKind::NotFound)).context("the shelf"))
        }
        Fault::Flaky(_) => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        _ => Ok(()),
    }
}

#[tokio::main]
async fn main() -> photon::Result<()> {
    let journal = Journal::default();
    let photon = Photon::builder()
        .from_url(&common::engine_or("memory:"))
        .state(journal.clone())
        .only(["example.courier", "example.archive"])
        .build()
        .await?;
    // A name of its own for each run: an engine may hold what an earlier run left.
    let run = std::process::id();
    let to = |name: &str| format!("{name}-{run}");
    let executor = photon.start_executor().await?;
    for (name, fault) in [
        ("flaky", Fault::Flaky(2)),
        ("hopeless", Fault::Flaky(99)),
        ("busy", Fault::Busy(300)),
        ("closed", Fault::Closed),
        ("nowhere", Fault::NoSuchPlace),
        ("missing", Fault::Missing),
    ] {
        photon.publish(&Parcel { to: to(name), fault }).await?;
    }
    executor.quiet().await?;

    let mut reasons = BTreeMap::new();
    for group in ["example.courier", "example.archive"] {
        for letter in photon.dead_letters(group).list(Page::first(1_000)).await? {
            let key = letter.key.as_ref().map(ToString::to_string).unwrap_or_default();
            if key.ends_with(&format!("-{run}")) {
                println!(
                    "{group} gave up on {key} after {} attempts, {}: {}",
                    letter.attempts, letter.reason, letter.error
                );
                reasons.insert((group, key), letter.reason);
            }
        }
    }
    let courier = |name: &str| reasons.get(&("example.courier", to(name))).copied();
    let archive = |name: &str| reasons.get(&("example.archive", to(name))).copied();

    // Exponential: at least 40 ms, then at least 80 ms.
    let pauses = journal.pauses(&format!("courier/{}", to("flaky")));
    assert!(
        pauses.len() == 2 && pauses[0] >= Duration::from_millis(40) && pauses[1] >= Duration::from_millis(80)
    );
    assert_eq!(courier("flaky"), None);
    assert_eq!(journal.attempts(&format!("courier/{}", to("hopeless"))), 4);
    assert_eq!(courier("hopeless"), Some(DeadReason::Exhausted));
    // What the error asks for wins over the policy.
    assert!(journal.pauses(&format!("courier/{}", to("busy")))[0] >= Duration::from_millis(300));
    // A deferral costs no attempt, but not for ever.
    assert_eq!(courier("closed"), Some(DeadReason::Deferred));
    assert_eq!(
        (courier("nowhere"), journal.attempts(&format!("courier/{}", to("nowhere")))),
        (Some(DeadReason::Permanent), 1)
    );
    // Errors of others: one is permanent, the rest are retried, until the time is over.
    assert_eq!(
        (archive("missing"), journal.attempts(&format!("archive/{}", to("missing")))),
        (Some(DeadReason::Permanent), 1)
    );
    assert_eq!(archive("hopeless"), Some(DeadReason::Exhausted));
    let attempts = journal.attempts(&format!("archive/{}", to("hopeless")));
    assert!((2..=6).contains(&attempts), "{attempts} attempts in 200 ms");
    println!("all as the policies say");
    executor.drain().await?;
    Ok(())
}
