//! Pausing and resetting through another handle on the same file, as another process would.
#![cfg(feature = "sqlite")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use photon_core::event::Event;
use photon_core::registry::Registry;
use photon_runtime::{DynamicTopic, Photon, Position, Subscription};

async fn open(path: &Path) -> Photon {
    let builder = Photon::builder().sqlite(path).registry(Registry::default());
    builder.allow_no_handlers().build().await.unwrap()
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect(what);
}

#[tokio::test]
async fn a_pause_and_a_reset_reach_other_processes_on_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let (here, elsewhere) = (open(&path).await, open(&path).await);
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = seen.clone();
    let handler = move |_: Event| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::ready(())
    };
    let spec = Subscription::to(DynamicTopic::new("jobs").unwrap()).group("g");
    here.subscribe(spec, handler.clone()).await.unwrap();
    let executor = here.start_executor().await.unwrap();
    for _ in 0..10 {
        elsewhere.publish_raw("jobs", "x").await.unwrap();
    }
    until("all are handled", async || seen.load(Ordering::SeqCst) == 10).await;
    until("all are settled", async || elsewhere.subscription("g").status().await.unwrap().lag() == 0).await;

    // Waiting for quiet lets the loop look at once.
    elsewhere.subscription("g").pause("maintenance").await.unwrap();
    executor.quiet().await.unwrap();
    for _ in 0..5 {
        elsewhere.publish_raw("jobs", "x").await.unwrap();
    }
    executor.quiet().await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 10, "nothing new is handed out");
    assert!(executor.drain().await.unwrap().is_clean());

    // The pause is in the file.
    let again = open(&path).await;
    let spec = Subscription::to(DynamicTopic::new("jobs").unwrap()).group("g");
    again.subscribe(spec, handler).await.unwrap();
    let executor = again.start_executor().await.unwrap();
    executor.quiet().await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 10);
    elsewhere.subscription("g").resume().await.unwrap();
    until("it goes on", async || seen.load(Ordering::SeqCst) == 15).await;
    until("all are settled", async || elsewhere.subscription("g").status().await.unwrap().lag() == 0).await;

    elsewhere.subscription("g").reset_to(Position::Earliest).await.unwrap();
    until("all again", async || seen.load(Ordering::SeqCst) == 30).await;
    assert!(executor.drain().await.unwrap().is_clean());
}
