//! What is removed from a log, what stays, and what happens when an engine forgets by itself.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::events;
use photon_backend::memory::MemoryStore;
use photon_backend::wrap::{Intercept, Wrapped};
use photon_core::error::StoreError;
use photon_core::event::{Event, NewEvent};
use photon_core::ids::{Seq, TopicName};
use photon_core::options::{Mode, Options};
use photon_core::registry::Registry;
use photon_core::store::{
    Appended, Bounds, Cursor, EventLog, ReadBatch, ReadLimit, Store, TopicInfo, TopicSpec,
};
use photon_core::time::Timestamp;
use photon_runtime::{
    Clock, DynamicTopic, Error, Photon, PhotonBuilder, Retention, Subscribed, Subscription,
};

const AGE: Duration = Duration::from_secs(600);

type Seen = Arc<Mutex<Vec<String>>>;

fn builder(store: &Arc<dyn Store>) -> PhotonBuilder {
    Photon::builder()
        .store(store.clone())
        .clock(Clock::starting_at(Timestamp(1_000_000_000_000_000)))
        .registry(Registry::default())
        .allow_no_handlers()
}

fn memory() -> Arc<dyn Store> {
    let clock = Clock::starting_at(Timestamp(1_000_000_000_000_000));
    Arc::new(MemoryStore::with_clock(Arc::new(move || clock.wall())))
}

fn jobs() -> DynamicTopic {
    DynamicTopic::new("jobs").unwrap().shards(2)
}

async fn listen(photon: &Photon, spec: Subscription, seen: &Seen) -> Result<Subscribed, Error> {
    let seen = seen.clone();
    let handler = move |event: Event| {
        seen.lock().unwrap().push(String::from_utf8_lossy(&event.payload).into_owned());
        std::future::ready(())
    };
    photon.subscribe(spec, handler).await
}

async fn publish(photon: &Photon, numbers: std::ops::Range<u32>) {
    for number in numbers {
        photon.publish_raw(jobs(), number.to_string()).await.unwrap();
    }
}

fn count(seen: &Seen) -> usize {
    seen.lock().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn p01_what_is_old_and_settled_by_all_is_removed_and_nothing_else() {
    let (store, seen) = (memory(), Seen::default());
    let photon = builder(&store).retention(Retention::after(AGE)).build().await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    listen(&photon, Subscription::to(jobs()).group("fast"), &seen).await.unwrap();
    let slow = listen(&photon, Subscription::to(jobs()).group("slow"), &Seen::default()).await.unwrap();
    publish(&photon, 0..20).await;
    executor.quiet().await.unwrap();
    slow.remove().await.unwrap();
    publish(&photon, 20..30).await;
    executor.quiet().await.unwrap();
    tokio::time::sleep(AGE * 4 / 5).await;
    assert_eq!(events(&*store, "jobs").await.len(), 30, "nothing is old enough");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(events(&*store, "jobs").await.len(), 10, "the subscription without a handler needs them");
    publish(&photon, 30..35).await;
    executor.quiet().await.unwrap();
    slow.remove().forget().await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(events(&*store, "jobs").await.len(), 5, "only the young ones");
    assert_eq!(count(&seen), 35);

    let late = Seen::default();
    listen(&photon, Subscription::to(jobs()).group("late"), &late).await.unwrap();
    executor.quiet().await.unwrap();
    assert_eq!(count(&late), 5, "it starts with what is kept");
    assert!(executor.drain().await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn everything_is_kept_unless_a_retention_is_set() {
    let (store, seen) = (memory(), Seen::default());
    let photon = builder(&store)
        .retention(Retention::after(Duration::ZERO))
        .topic_retention("jobs", Retention::FOREVER)
        .build()
        .await
        .unwrap();
    let executor = photon.start_executor().await.unwrap();
    listen(&photon, Subscription::to(jobs()).group("g"), &seen).await.unwrap();
    let other = Subscription::to(DynamicTopic::new("other").unwrap()).group("g");
    listen(&photon, other, &seen).await.unwrap();
    publish(&photon, 0..10).await;
    photon.publish_raw("other", "x").await.unwrap();
    executor.quiet().await.unwrap();
    tokio::time::sleep(4 * AGE).await;
    assert_eq!(events(&*store, "jobs").await.len(), 10);
    assert_eq!(events(&*store, "other").await.len(), 0, "settled, and no age is asked for");
    executor.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_limit_removes_what_is_not_settled_and_readers_go_on_behind_the_gap() {
    let (store, seen) = (memory(), Seen::default());
    let retention = Retention::after(AGE).limit(2 * AGE);
    let photon = builder(&store).retention(retention).build().await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    let handle = listen(&photon, Subscription::to(jobs()).group("g"), &seen).await.unwrap();
    handle.pause("away").await.unwrap();
    executor.quiet().await.unwrap();
    publish(&photon, 0..10).await;
    tokio::time::sleep(AGE + AGE / 2).await;
    publish(&photon, 10..15).await;
    assert_eq!(events(&*store, "jobs").await.len(), 15);
    tokio::time::sleep(AGE).await;
    assert_eq!(events(&*store, "jobs").await.len(), 5);
    handle.resume().await.unwrap();
    executor.quiet().await.unwrap();
    assert_eq!(count(&seen), 5);
    assert_eq!(handle.status().await.unwrap().lag(), 0);
    executor.drain().await.unwrap();

    let wrong = Retention::after(2 * AGE).limit(AGE);
    let error = builder(&store).topic_retention("jobs", wrong).build().await.unwrap_err();
    assert!(error.to_string().contains("raise the limit"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_durable_position_expires_without_its_instance_and_lives_with_it() {
    let (store, seen) = (memory(), Seen::default());
    let durable = || {
        let options = Options { expire_after: Some(2 * AGE), ..Options::NONE };
        Subscription::to(jobs()).group("screen").mode(Mode::Durable).options(options)
    };
    let one = builder(&store).instance("pod-1").build().await.unwrap();
    let two = builder(&store).instance("pod-2").build().await.unwrap();
    let (first, second) = (one.start_executor().await.unwrap(), two.start_executor().await.unwrap());
    listen(&one, durable(), &seen).await.unwrap();
    listen(&two, durable(), &seen).await.unwrap();
    publish(&one, 0..5).await;
    first.quiet().await.unwrap();
    second.quiet().await.unwrap();
    assert_eq!(count(&seen), 10, "each instance gets every event");
    // Nothing is published for longer than a position may be without its instance.
    tokio::time::sleep(5 * AGE).await;
    assert_eq!(store.list().await.unwrap().len(), 2);
    second.drain().await.unwrap();
    tokio::time::sleep(AGE).await;
    assert_eq!(store.list().await.unwrap().len(), 2, "it may come back");
    tokio::time::sleep(AGE + Duration::from_secs(120)).await;
    let left: Vec<_> = store.list().await.unwrap().into_iter().map(|info| info.subscription).collect();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].instance.as_ref().unwrap().as_str(), "pod-1");
    first.drain().await.unwrap();
}

/// A store whose log can be exchanged for an older copy of it.
#[derive(Debug)]
struct Restored {
    copy: MemoryStore,
    restored: AtomicBool,
}

impl Restored {
    fn log<'a>(&'a self, inner: &'a dyn Store) -> &'a dyn EventLog {
        if self.restored.load(Ordering::SeqCst) { &self.copy } else { inner }
    }
}

#[async_trait]
impl Intercept for Restored {
    async fn ensure_topic(&self, inner: &dyn Store, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        self.copy.ensure_topic(spec).await?;
        inner.ensure_topic(spec).await
    }

    async fn append(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Appended>, StoreError> {
        self.log(inner).append(topic, events).await
    }

    async fn read(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        self.log(inner).read(topic, cursors, limit).await
    }

    async fn bounds(&self, inner: &dyn Store, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        self.log(inner).bounds(topic).await
    }
}

#[tokio::test(start_paused = true)]
async fn engine_forgot() {
    let clock = Clock::starting_at(Timestamp(1_000_000_000_000_000));
    let copy = MemoryStore::with_clock(Arc::new(move || clock.wall()));
    let inside = Arc::new(Wrapped::new(memory(), Restored { copy, restored: AtomicBool::new(false) }));
    let store: Arc<dyn Store> = inside.clone();
    let seen = Seen::default();
    let photon = builder(&store).build().await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    let topic = DynamicTopic::new("jobs").unwrap().shards(1);
    let handle = listen(&photon, Subscription::to(topic.clone()).group("g"), &seen).await.unwrap();
    let live = listen(&photon, Subscription::to(topic.clone()).group("live").mode(Mode::Ephemeral), &seen);
    live.await.unwrap();
    for number in 0..50 {
        photon.publish_raw(topic.clone(), number.to_string()).await.unwrap();
    }
    executor.quiet().await.unwrap();
    assert_eq!(count(&seen), 100);

    // The engine comes back with a copy that ends at 0.
    inside.intercept().restored.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let status = handle.status().await.unwrap();
    assert_eq!((status.shards[0].watermark, status.shards[0].end), (Seq(0), Seq(0)), "set back");
    for number in 100..120 {
        photon.publish_raw(topic.clone(), number.to_string()).await.unwrap();
    }
    executor.quiet().await.unwrap();
    assert_eq!(count(&seen), 140, "what comes next is not taken for read");
    assert_eq!(handle.status().await.unwrap().lag(), 0);
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
}
