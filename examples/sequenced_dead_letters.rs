//! Dead letters that keep the order of their key: what comes after one waits for it, through restarts, and goes on
//! strictly in order once it is redriven.
//!
//! `cargo run --example sequenced_dead_letters [-- --engine URL]`, with an engine that outlives a process

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use photon::prelude::*;
use photon::{Error, Page};

/// Money moved on an account. The amounts only make sense in order.
#[topic(name = "example.account.moved", key = account, shards = 4)]
#[derive(Serialize, Deserialize)]
struct Moved {
    account: String,
    cents: i64,
}

/// The bank, which knows an account or not, and what it booked so far.
#[derive(Clone, Default)]
struct Bank {
    knows_bob: Arc<AtomicBool>,
    booked: Arc<Mutex<BTreeMap<String, Vec<i64>>>>,
}

#[derive(Debug, thiserror::Error, Failure)]
enum BookingError {
    /// Trying again is of no use until somebody looks.
    #[error("the bank does not know the account {0}")]
    #[failure(permanent)]
    UnknownAccount(String),
}

/// `block_key`: a booking that failed holds back the later ones of its account, and of no other.
#[subscribe(group = "example.ledger", on_dead = "block_key", max_blocked = 1000)]
async fn book(moved: Moved, State(bank): State<Bank>) -> Result<(), BookingError> {
    if moved.account == "bob" && !bank.knows_bob.load(Ordering::Acquire) {
        return Err(BookingError::UnknownAccount(moved.account));
    }
    bank.booked.lock().unwrap().entry(moved.account).or_default().push(moved.cents);
    Ok(())
}

async fn open(bank: &Bank) -> photon::Result<Photon> {
    Photon::builder()
        .from_url(&common::engine_or("sqlite:sequenced_dead_letters.db"))
        .state(bank.clone())
        .only(["example.ledger"])
        .build()
        .await
}

#[tokio::main]
async fn main() -> photon::Result<()> {
    // What an earlier run may have left behind does not belong to the story.
    clear().await?;
    let bank = Bank::default();
    let photon = open(&bank).await?;

    let moved = |account: &str, cents| Moved { account: account.into(), cents };
    photon.publish_all([100, -30, 5].map(|cents| moved("bob", cents))).await?;
    photon.publish_all([7, 8].map(|cents| moved("ann", cents))).await?;
    photon.start_executor().await?.drain().await?;
    println!("booked: {:?}", bank.booked.lock().unwrap());
    assert_eq!(bank.booked.lock().unwrap().get("bob"), None, "the later ones wait behind the first");
    assert_eq!(bank.booked.lock().unwrap()["ann"], [7, 8], "another account goes on");

    // The next process finds it the same way.
    let photon = open(&bank).await?;
    photon.publish(&moved("bob", 1)).await?;
    let executor = photon.start_executor().await?;
    executor.quiet().await?;
    let ledger = || photon.dead_letters("example.ledger");
    for letter in ledger().list(Page::first(10)).await? {
        println!(
            "dead: {} of {:?}, {}, after {} attempt(s)",
            letter.event_id, letter.key, letter.error, letter.attempts
        );
        assert!(letter.blocks_key);
    }
    let waiting = photon.subscription("example.ledger").status().await?.parked;
    println!("{waiting} wait behind it");
    assert_eq!((ledger().count().await?, waiting), (1, 3));

    // Somebody looked: the bank knows the account now.
    bank.knows_bob.store(true, Ordering::Release);
    ledger().key("bob").redrive().await?;
    executor.quiet().await?;
    println!("booked: {:?}", bank.booked.lock().unwrap());
    assert_eq!(bank.booked.lock().unwrap()["bob"], [100, -30, 5, 1], "strictly in order, each once");

    // A letter can be redriven once.
    let again = ledger().key("bob").redrive().await;
    assert!(matches!(again, Err(Error::NotFound(_))), "{again:?}");
    executor.drain().await?;
    Ok(())
}

async fn clear() -> photon::Result<()> {
    let bank = Bank::default();
    bank.knows_bob.store(true, Ordering::Release);
    let photon = open(&bank).await?;
    let executor = photon.start_executor().await?;
    photon.dead_letters("example.ledger").redrive_all().await?;
    executor.drain().await?;
    Ok(())
}
