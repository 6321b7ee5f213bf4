//! A store of your own: the whole contract in one small program, held to it by the conformance suite.
//!
//!     cargo run --example custom_store
//!
//! The shelf keeps everything in ordered maps behind one lock: nothing is fast, everything can be read. It stands
//! for an engine that Photon does not know. First the suite checks that it keeps the contract, then a service runs
//! on it.

// A program of several files: nobody else sees its items.
#![allow(unreachable_pub)]

mod leases;
mod log;
mod positions;
mod rows;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use photon::prelude::*;
use photon_backend::conformance::{Harness, Suite};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Incarnation, Shard, SubscriptionId, TopicName};
use photon_core::store::{MemberInfo, Store};
use tokio::sync::watch;

/// The store. Clones share what is in it.
#[derive(Clone, Default)]
pub struct Shelf {
    content: Arc<Mutex<Content>>,
    /// Tells readers that something was appended, to whatever topic.
    news: watch::Sender<()>,
}

#[derive(Default)]
struct Content {
    topics: BTreeMap<TopicName, log::Topic>,
    positions: BTreeMap<SubscriptionId, positions::Position>,
    members: BTreeMap<Incarnation, MemberInfo>,
    grants: BTreeMap<(SubscriptionId, Shard), leases::Grant>,
}

impl Shelf {
    /// Held for one step and never across an await: the contract forbids to block the executor.
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").field("topics", &self.content().topics.len()).finish_non_exhaustive()
    }
}

impl Store for Shelf {
    fn engine(&self) -> &'static str {
        "shelf"
    }
}

/// The caller asks for what cannot be: the message says what to change.
fn refused(message: String) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, message)
}

/// How the suite gets at the store.
struct Shelves;

#[async_trait]
impl Harness for Shelves {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(Shelf::default())
    }
}

#[topic(name = "books.returned", key = reader)]
#[derive(Serialize, Deserialize)]
struct Returned {
    reader: String,
    book: String,
}

#[subscribe(group = "librarian", retry(max_attempts = 3, backoff = "fixed(5ms)"))]
async fn shelve(returned: Returned, cx: Context) -> Result<(), &'static str> {
    if cx.attempt() == 1 {
        return Err("the ladder is in use");
    }
    println!("{} is back from {}", returned.book, returned.reader);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let report = Suite::new().run(&Shelves).await;
    println!("{report}\n");
    anyhow::ensure!(report.passed(), "the shelf breaks the contract");

    let photon = Photon::builder().store(Arc::new(Shelf::default())).build().await?;
    let executor = photon.start_executor().await?;
    for book in ["Middlemarch", "Moby-Dick", "Emma"] {
        photon.publish(&Returned { reader: "ann".into(), book: book.into() }).await?;
    }
    let drained = executor.drain().await?;
    anyhow::ensure!(drained.is_clean() && drained.handled() == 3, "not every book is back: {drained}");
    Ok(())
}
