//! P5: a subscription holds at most `prefetch` undelivered and `window` unsettled deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use photon::store::{Cursor, ReadBatch, ReadLimit, Store};
use photon::{Executor, Options, Photon, StoreError, TopicName};
use photon_backend::wrap::{Intercept, Wrapped};

use crate::support::instance::{options, within};
use crate::support::{Act, Probe, What, World, step};

on_every_engine!(
    p05_what_waits_in_memory_is_bounded_by_prefetch,
    p05_what_is_unsettled_is_bounded_by_window,
    p05_large_payloads_are_bounded_by_their_bytes,
    p05_deliveries_that_wait_for_a_retry_do_not_lock_out_the_others,
    p05_a_large_sideline_does_not_come_back_at_once,
);

/// Counts what is read, and how far that ever was ahead of what the handlers began and ended.
#[derive(Debug, Clone, Default)]
struct Meter {
    probe: Probe,
    read: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
    most_ahead: Arc<AtomicUsize>,
    most_unsettled: Arc<AtomicUsize>,
}

#[async_trait]
impl Intercept for Meter {
    async fn read(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        let batch = inner.read(topic, cursors, limit).await?;
        let read = self.read.fetch_add(batch.records.len(), Ordering::SeqCst) + batch.records.len();
        self.bytes.fetch_add(batch.records.iter().map(|e| e.payload.len()).sum(), Ordering::SeqCst);
        self.most_ahead.fetch_max(read.saturating_sub(self.probe.count(What::Begun)), Ordering::SeqCst);
        self.most_unsettled.fetch_max(read.saturating_sub(self.probe.count(What::Done)), Ordering::SeqCst);
        Ok(batch)
    }
}

async fn start(world: &World, layer: Options) -> (Photon, Executor, Meter) {
    let meter = Meter { probe: world.probe.clone(), ..Meter::default() };
    let photon = Photon::builder()
        .store(Arc::new(Wrapped::new(world.engine.home.open().await, meter.clone())))
        .clock(world.engine.clock)
        .state(world.probe.clone())
        .only(["main"])
        .options(options())
        .options(layer)
        .build()
        .await
        .unwrap();
    let executor = photon.start_executor().await.unwrap();
    (photon, executor, meter)
}

async fn p05_what_waits_in_memory_is_bounded_by_prefetch(world: World) {
    let publisher = world.publisher().await;
    publisher
        .publish_all((0..3_000).map(|n| step(&format!("k{}", n % 300), n, Act::Yield(1))))
        .await
        .unwrap();
    let layer = Options { concurrency: Some(8), prefetch: Some(50), ..Options::NONE };
    let (_photon, executor, meter) = start(&world, layer).await;
    within(executor.drain()).await.unwrap();
    let ahead = meter.most_ahead.load(Ordering::SeqCst);
    // A delivery that was handed over and did not begin yet is one of those that run.
    assert!((25..=58).contains(&ahead), "{ahead}");
    assert_eq!(world.probe.done_count("main"), 3_000);
}

async fn p05_what_is_unsettled_is_bounded_by_window(world: World) {
    let publisher = world.publisher().await;
    publisher.publish_all((0..600).map(|n| step(&format!("k{}", n % 70), n, Act::Yield(2)))).await.unwrap();
    let layer = Options { concurrency: Some(4), prefetch: Some(200), window: Some(20), ..Options::NONE };
    let (_photon, executor, meter) = start(&world, layer).await;
    within(executor.drain()).await.unwrap();
    let unsettled = meter.most_unsettled.load(Ordering::SeqCst);
    assert!((10..=20).contains(&unsettled), "{unsettled}");
    assert_eq!(world.probe.done_count("main"), 600);
}

async fn p05_large_payloads_are_bounded_by_their_bytes(world: World) {
    let publisher = world.publisher().await;
    let large = |n: u64| {
        let mut step = step(&format!("k{n}"), n, Act::Wait("gate".to_owned()));
        step.padding = "x".repeat(512 * 1024);
        step
    };
    publisher.publish_all((0..60).map(large)).await.unwrap();
    let layer = Options { concurrency: Some(2), ..Options::NONE };
    let (_photon, executor, meter) = start(&world, layer).await;
    world.probe.until("two run", |seen| seen.len() == 2).await;
    // The backlog has 30 MiB; 8 MiB wait in memory, beside those that run, and one read may go over by one event.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let bytes = meter.bytes.load(Ordering::SeqCst);
    assert!((2 << 20..=(8 << 20) + 4 * 600 * 1024).contains(&bytes), "{bytes}");
    world.probe.open("gate");
    within(executor.drain()).await.unwrap();
    assert_eq!(world.probe.done_count("main"), 60);
}

async fn p05_deliveries_that_wait_for_a_retry_do_not_lock_out_the_others(world: World) {
    let publisher = world.publisher().await;
    let act = |n| if n < 100 { Act::FailAfter(5_000) } else { Act::Done };
    publisher.publish_all((0..200).map(|n| step(&format!("k{n}"), n, act(n)))).await.unwrap();
    let layer = Options { concurrency: Some(2), prefetch: Some(4), window: Some(8), ..Options::NONE };
    let (photon, executor, _meter) = start(&world, layer).await;
    world.probe.until_done("main", 100).await;
    let last_good = world.probe.entries().last().unwrap().at;
    let first_bad = world.probe.entries()[0].at;
    assert!(last_good - first_bad < Duration::from_secs(5), "they waited for the others");
    assert!(photon.subscription("main").status().await.unwrap().parked > 90);
    executor.shutdown();
    assert!(within(executor.join()).await.is_clean());
}

async fn p05_a_large_sideline_does_not_come_back_at_once(world: World) {
    let layer = Options {
        park_after: Some(Duration::ZERO),
        concurrency: Some(4),
        prefetch: Some(16),
        window: Some(64),
        ..Options::NONE
    };
    let (photon, executor, _) = start(&world, layer.clone()).await;
    photon
        .publish_all((0..400).map(|n| step(&format!("k{}", n % 100), n, Act::FailAfter(400))))
        .await
        .unwrap();
    world
        .probe
        .until("they failed", |seen| seen.iter().filter(|e| e.what == What::Failed).count() >= 100)
        .await;
    executor.shutdown();
    within(executor.join()).await;
    let (photon, executor, _) = start(&world, layer).await;
    world.probe.until_done("main", 400).await;
    within(executor.drain()).await.unwrap();
    assert_eq!(photon.subscription("main").status().await.unwrap().parked, 0);
    world.probe.assert_key_order("main");
    assert!(world.probe.most_running("main") <= 4);
}
