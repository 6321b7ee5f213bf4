//! Dead letters: what a handler gave up on is kept whole, can be looked at, and run again or thrown away.
//!
//!     cargo run --example dead_letters
//!
//! A parcel service refuses parcels without an address, and panics on a bug. Then the bug is fixed, the parcels
//! that it hit are redriven, and the ones that nobody can deliver are discarded.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use photon::prelude::*;
use photon::{DeadReason, Filter, Page};

#[topic(name = "parcels", key = customer)]
#[derive(Debug, Serialize, Deserialize)]
struct Parcel {
    customer: String,
    address: String,
    grams: u32,
}

#[derive(Debug, thiserror::Error, Failure)]
enum ParcelError {
    #[error("{customer} gave no address")]
    #[failure(permanent)]
    NoAddress { customer: String },
    #[error("the van is full")]
    #[failure(retry)]
    VanIsFull,
}

/// Whether the program that is deployed is the one with the bug.
#[derive(Clone, Default)]
struct Fixed(Arc<AtomicBool>);

#[subscribe(group = "delivery", retry(max_attempts = 3, backoff = "fixed(10ms)"))]
async fn deliver(parcel: Parcel, cx: Context, State(fixed): State<Fixed>) -> Result<(), ParcelError> {
    if parcel.address.is_empty() {
        return Err(ParcelError::NoAddress { customer: parcel.customer });
    }
    if parcel.customer == "ann" && cx.attempt() == 1 {
        return Err(ParcelError::VanIsFull);
    }
    let heavy = parcel.grams > 1_000;
    assert!(fixed.0.load(Ordering::Relaxed) || !heavy, "more than a kilo: not yet implemented");
    println!("  delivered to {} at attempt {}", parcel.address, cx.attempt());
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The panics are part of the show: one line each is enough.
    std::panic::set_hook(Box::new(|panic| {
        println!("  a panic: {}", panic.payload_as_str().unwrap_or_default());
    }));
    let fixed = Fixed::default();
    let photon =
        Photon::builder().from_url(&common::engine_or("memory:")).state(fixed.clone()).build().await?;
    let executor = photon.start_executor().await?;
    let letters = || photon.dead_letters("delivery");
    // On an engine that remembers an earlier run.
    letters().discard_all().await?;

    println!("publishing five parcels");
    for (customer, address, grams) in [
        ("ann", "1 Main Street", 200),
        ("bob", "", 300),
        ("cat", "3 Main Street", 5_000),
        ("dan", "4 Main Street", 400),
        ("cat", "3 Main Street", 6_000),
    ] {
        let parcel = Parcel { customer: customer.into(), address: address.into(), grams };
        photon.publish(&parcel).header("counter", "7").await?;
    }
    executor.quiet().await?;

    println!("\nthe dead letters:");
    let dead = letters().list(Page::first(50)).await?;
    for letter in &dead {
        println!(
            "  {} after {} attempts: {} ({})",
            letter.event_id, letter.attempts, letter.error, letter.reason
        );
    }
    assert_eq!(dead.len(), 3);
    assert_eq!(letters().filter(Filter::reason(DeadReason::Permanent)).count().await?, 1);
    assert_eq!(letters().key("cat").count().await?, 2);

    println!("\none of them, whole:");
    let letter = letters().show(dead[0].event_id).await?;
    println!("  {:?}", letter.decode::<Parcel>()?);
    println!("  key {:?}, published {}", letter.key.as_ref().map(ToString::to_string), letter.published);
    assert_eq!(letter.headers.get("counter"), Some("7"));

    println!("\nthe bug is fixed: what panicked runs again, in the order of its key");
    fixed.0.store(true, Ordering::Relaxed);
    assert_eq!(letters().filter(Filter::reason(DeadReason::Panic)).redrive().await?, 2);
    executor.quiet().await?;

    println!("\nwhat nobody can deliver is discarded");
    let rest = letters().list(Page::first(50)).await?;
    assert_eq!(rest.len(), 1, "only the parcel without an address is left");
    assert_eq!(letters().letter(&rest[0]).discard().await?, 1);

    let report = executor.drain().await?;
    assert_eq!(letters().count().await?, 0);
    println!("  {report}");
    Ok(())
}
