//! A store that panics now and then: what waits for it goes on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use photon_backend::memory::MemoryStore;
use photon_backend::wrap::{Call, Intercept, Op, Pending, Wrapped};
use photon_core::error::StoreError;
use photon_core::event::Event;
use photon_core::handler::{Context, HandlerError};
use photon_core::ids::ToKey;
use photon_core::machine::retry::Backoff;
use photon_core::time::Timestamp;
use photon_runtime::{Clock, DynamicTopic, Photon, Subscription};

const SECOND: Duration = Duration::from_secs(1);
const EVENTS: u32 = 60;

/// The first calls of each kind panic, once it is armed.
#[derive(Debug, Default)]
struct Panics {
    armed: AtomicBool,
    calls: Mutex<HashMap<Op, u32>>,
}

#[derive(Debug, Clone, Default)]
struct Shared(Arc<Panics>);

#[async_trait]
impl Intercept for Shared {
    async fn around<T: Send>(&self, call: Call<'_>, run: Pending<'_, T>) -> Result<T, StoreError> {
        if self.0.armed.load(Ordering::SeqCst) {
            let calls = {
                let mut calls = self.0.calls.lock().unwrap();
                let calls = calls.entry(call.op).or_default();
                *calls += 1;
                *calls
            };
            assert!(calls > 2, "on purpose, in {}", call.op);
        }
        run.await
    }
}

#[tokio::test(start_paused = true)]
async fn p06_a_store_that_panics_ends_no_loop() {
    let clock = Clock::starting_at(Timestamp(1_000_000_000_000_000));
    let memory = MemoryStore::with_clock(Arc::new(move || clock.wall()));
    let panics = Shared::default();
    let store = Arc::new(Wrapped::new(Arc::new(memory), panics.clone()));
    let photon = Photon::builder().store(store).clock(clock).allow_no_handlers().build().await.unwrap();
    let topic = || DynamicTopic::new("orders").unwrap().shards(2);
    let handled = Arc::new(AtomicU32::new(0));
    let done = handled.clone();
    // Some are parked, so that what is stored is looked for, too.
    let spec = Subscription::to(topic()).group("billing").backoff(Backoff::Fixed(15 * SECOND));
    let handler = move |event: Event, cx: Context| {
        let done = done.clone();
        async move {
            if event.payload[0].is_multiple_of(10) && cx.attempt() == 1 {
                return Err(HandlerError::retry("not yet"));
            }
            done.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    };
    photon.subscribe(spec, handler).await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    for n in 0..EVENTS {
        let payload = vec![u8::try_from(n).unwrap()];
        photon.publish_raw(topic(), payload).key((n % 7).to_string().to_key()).await.unwrap();
    }
    panics.0.armed.store(true, Ordering::SeqCst);
    let all = async {
        while handled.load(Ordering::SeqCst) < EVENTS {
            tokio::time::sleep(SECOND).await;
        }
        // Long enough for every kind of round.
        tokio::time::sleep(600 * SECOND).await;
    };
    tokio::time::timeout(3_600 * SECOND, all).await.expect("everything is handled");
    executor.shutdown();
    let report = executor.join().await;
    assert!(report.is_clean(), "{report}");
    let panicked = panics.0.calls.lock().unwrap().clone();
    for op in [Op::Read, Op::Commit, Op::Lane, Op::Heartbeat, Op::Revision, Op::List] {
        assert!(panicked.get(&op).is_some_and(|calls| *calls > 2), "{op}: {panicked:?}");
    }
}
