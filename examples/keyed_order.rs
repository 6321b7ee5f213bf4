//! Order: events of one key are handled one after another, retries included, and different keys side by side.
//!
//!     cargo run --example keyed_order
//!
//! Twenty accounts get fifty transfers each. Handling takes a while, and now and then it fails. Still every
//! account sees its transfers in order, each once, while others overtake it.

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use photon::prelude::*;
use uuid::Uuid;

const ACCOUNTS: u32 = 20;
const TRANSFERS: u32 = 50;

#[topic(name = "bank.transfers", key = account)]
#[derive(Serialize, Deserialize)]
struct Transfer {
    account: String,
    n: u32,
}

/// What the handler saw.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Pages>>);

#[derive(Default)]
struct Pages {
    booked: BTreeMap<String, Vec<u32>>,
    running: usize,
    most_running: usize,
    retries: u32,
}

impl Ledger {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[subscribe(group = "ledger", concurrency = 8, retry(max_attempts = 5, backoff = "fixed(3ms)", jitter = 0))]
async fn book(transfer: Transfer, cx: Context, State(ledger): State<Ledger>) -> Result<(), String> {
    {
        let mut pages = ledger.pages();
        pages.running += 1;
        pages.most_running = pages.most_running.max(pages.running);
    }
    // A call to somewhere else, which takes its time.
    tokio::time::sleep(Duration::from_millis(u64::from(transfer.n % 4))).await;
    let mut pages = ledger.pages();
    pages.running -= 1;
    if transfer.n % 10 == 3 && cx.attempt() == 1 {
        pages.retries += 1;
        return Err("the ledger is locked".to_owned());
    }
    pages.booked.entry(transfer.account).or_default().push(transfer.n);
    Ok(())
}

#[tokio::main]
async fn main() -> photon::Result<()> {
    let ledger = Ledger::default();
    let photon =
        Photon::builder().from_url(&common::engine_or("memory:")).state(ledger.clone()).build().await?;
    let executor = photon.start_executor().await?;

    // Accounts of this run, also on an engine that remembers an earlier one.
    let run = Uuid::new_v4().simple().to_string();
    let transfers = (0..TRANSFERS).flat_map(|n| (0..ACCOUNTS).map(move |account| (account, n)));
    let transfers = transfers.map(|(account, n)| Transfer { account: format!("{run}-{account:02}"), n });
    photon.publish_all(transfers).await?;
    executor.drain().await?;

    let pages = ledger.pages();
    for account in 0..ACCOUNTS {
        let booked = &pages.booked[&format!("{run}-{account:02}")];
        assert!(booked.iter().copied().eq(0..TRANSFERS), "account {account} is out of order: {booked:?}");
    }
    assert!(pages.most_running > 1, "nothing ran side by side");
    assert_eq!(pages.retries, ACCOUNTS * TRANSFERS / 10);
    println!("{ACCOUNTS} accounts, {TRANSFERS} transfers each: every account in order, each transfer once");
    println!("up to {} accounts side by side, {} retries on the way", pages.most_running, pages.retries);
    Ok(())
}
