//! The executor on the memory store, with handlers that are described by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use photon_backend::memory::MemoryStore;
use photon_core::codec;
use photon_core::descriptor::HandlerDescriptor;
use photon_core::error::{DecodeError, EncodeError};
use photon_core::event::Event;
use photon_core::handler::{Delivery, HandlerError, HandlerFuture, Needs, Outcome};
use photon_core::ids::{Key, ToKey};
use photon_core::machine::retry::Backoff;
use photon_core::options::{Mode, Options};
use photon_core::registry::Registry;
use photon_core::store::Page;
use photon_core::time::Timestamp;
use photon_core::topic::{EventParam, Topic, TopicDescriptor};
use photon_runtime::{Clock, DynamicTopic, Error, Letter, Photon, Subscription};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Clone, PartialEq)]
struct Step {
    key: String,
    n: u32,
}

static STEPS: TopicDescriptor =
    TopicDescriptor { name: "steps", shards: 4, key: "field:key", type_name: "Step", file: file!(), line: 1 };

impl Topic for Step {
    const DESCRIPTOR: &'static TopicDescriptor = &STEPS;
    const CONTENT_TYPE: &'static str = codec::JSON;

    fn key(&self) -> Option<Key> {
        self.key.to_key()
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        codec::encode_json(self, out)
    }
}

impl EventParam for Step {
    const TOPIC: Option<&'static TopicDescriptor> = Some(&STEPS);

    fn decode(event: &Event) -> Result<Self, DecodeError> {
        codec::decode_json(event)
    }
}

/// What the handlers saw.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(String, u32)>>>);

impl Log {
    fn seen(&self) -> Vec<(String, u32)> {
        self.0.lock().unwrap().clone()
    }
}

fn record(delivery: Delivery) -> HandlerFuture {
    Box::pin(async move {
        let step = Step::decode(&delivery.event).map_err(HandlerError::undecodable)?;
        let log = delivery.extension::<Log>().expect("given").clone();
        if step.n % 3 == 0 {
            tokio::task::yield_now().await;
        }
        log.0.lock().unwrap().push((step.key.clone(), step.n));
        match step.key.as_str() {
            "bad" => Err(HandlerError::permanent("declined")),
            "panic" => panic!("before"),
            "late-panic" => {
                tokio::task::yield_now().await;
                panic!("after")
            }
            "flaky" if delivery.attempt < 3 => Err(HandlerError::retry("again")),
            "slow" => {
                tokio::time::sleep(Duration::from_secs(3_600)).await;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Done),
        }
    })
}

fn no_needs(_: &mut Needs) {}

fn handler(group: &'static str, options: Options) -> &'static HandlerDescriptor {
    Box::leak(Box::new(HandlerDescriptor {
        name: "record",
        module: "executor",
        topic: "steps",
        descriptor: Some(&STEPS),
        group: Some(group),
        mode: Mode::Group,
        options,
        call: record,
        needs: no_needs,
        file: file!(),
        line: line!(),
    }))
}

fn options() -> Options {
    Options {
        max_attempts: Some(3),
        backoff: Some(Backoff::Fixed(Duration::from_secs(1))),
        jitter: Some(0.0),
        timeout: Some(Duration::from_secs(5)),
        ..Options::NONE
    }
}

async fn photon(store: &MemoryStore, log: &Log, options: Options) -> Photon {
    Photon::builder()
        .store(Arc::new(store.clone()))
        .clock(Clock::starting_at(Timestamp(1_000_000_000_000_000)))
        .registry(Registry::new(vec![handler("g", options)], vec![&STEPS]))
        .state(log.clone())
        .build()
        .await
        .unwrap()
}

fn store() -> MemoryStore {
    let clock = Clock::starting_at(Timestamp(1_000_000_000_000_000));
    MemoryStore::with_clock(Arc::new(move || clock.wall()))
}

fn step(key: &str, n: u32) -> Step {
    Step { key: key.to_owned(), n }
}

#[tokio::test(start_paused = true)]
async fn p01_everything_published_is_handled_once_and_in_key_order() {
    let (store, log) = (store(), Log::default());
    let photon = photon(&store, &log, options()).await;
    let executor = photon.start_executor().await.unwrap();
    let steps: Vec<Step> = (0..2_000).map(|n| step(&format!("k{}", n % 7), n)).collect();
    photon.publish_all(steps.clone()).await.unwrap();
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.handled(), 2_000);
    let seen = log.seen();
    assert_eq!(seen.len(), 2_000);
    for k in 0..7 {
        let name = format!("k{k}");
        let of_key: Vec<u32> = seen.iter().filter(|(key, _)| *key == name).map(|(_, n)| *n).collect();
        assert!(of_key.is_sorted(), "p03: {of_key:?}");
    }
    assert!(matches!(photon.publish(&step("k", 1)).await, Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn p04_a_clean_restart_repeats_nothing() {
    let (store, log) = (store(), Log::default());
    for round in 0..3u32 {
        let photon = photon(&store, &log, options()).await;
        let executor = photon.start_executor().await.unwrap();
        photon.publish_all((0..100).map(|n| step("k", round * 100 + n))).await.unwrap();
        let report = executor.drain().await.unwrap();
        assert_eq!(report.handled(), 100);
    }
    assert_eq!(log.seen().len(), 300);
}

#[tokio::test(start_paused = true)]
async fn p06_failures_are_contained_and_poison_ends_as_dead_letters() {
    let (store, log) = (store(), Log::default());
    let photon = photon(&store, &log, options()).await;
    let executor = photon.start_executor().await.unwrap();
    for key in ["bad", "panic", "late-panic", "flaky", "slow", "good"] {
        photon.publish(&step(key, 1)).await.unwrap();
        photon.publish(&step(key, 2)).await.unwrap();
    }
    photon.publish_raw("steps", &b"{\"key\":"[..]).await.unwrap();
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    let runs = |key: &str| log.seen().iter().filter(|(k, _)| k == key).count();
    assert_eq!(runs("bad"), 2, "a permanent error is not retried");
    assert_eq!(runs("panic"), 6);
    assert_eq!(runs("late-panic"), 6);
    assert_eq!(runs("flaky"), 6);
    assert_eq!(runs("slow"), 6);
    assert_eq!(runs("good"), 2);
    let letters = photon.dead_letters("g").list(Page::first(100)).await.unwrap();
    assert_eq!(letters.len(), 9);
    let poison = letters.iter().find(|letter| letter.key.is_none()).unwrap();
    assert_eq!(&poison.payload[..], b"{\"key\":");
}

#[tokio::test(start_paused = true)]
async fn p07_a_redriven_letter_runs_again_in_the_running_executor() {
    let (store, log) = (store(), Log::default());
    let photon = photon(&store, &log, options()).await;
    let executor = photon.start_executor().await.unwrap();
    photon.publish(&step("bad", 1)).await.unwrap();
    executor.quiet().await.unwrap();
    let letters = photon.dead_letters("g").list(Page::first(10)).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(photon.dead_letters("g").letter(Letter::from(&letters[0])).redrive().await.unwrap(), 1);
    executor.quiet().await.unwrap();
    assert_eq!(log.seen().len(), 2);
    assert_eq!(photon.dead_letters("g").discard_all().await.unwrap(), 1);
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean());
    assert_eq!((report.dead(), report.handled()), (2, 0));
    assert!(report.to_string().ends_with("0 handled, 2 given up on"), "{report}");
    assert_eq!(photon.dead_letters("g").count().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn p08_shutdown_in_backoff_costs_no_attempt_and_no_time() {
    let (store, log) = (store(), Log::default());
    let slow = Options { backoff: Some(Backoff::Fixed(Duration::from_secs(600))), ..options() };
    let photon1 = photon(&store, &log, slow.clone()).await;
    let executor = photon1.start_executor().await.unwrap();
    photon1.publish(&step("flaky", 1)).await.unwrap();
    executor.quiet().await.unwrap();
    let before = tokio::time::Instant::now();
    executor.shutdown();
    let report = executor.join().await;
    assert!(report.is_clean(), "{report}");
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!(photon1.dead_letters("g").count().await.unwrap(), 0);
    let photon2 = photon(&store, &log, slow).await;
    let executor = photon2.start_executor().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1_300)).await;
    executor.quiet().await.unwrap();
    assert_eq!(log.seen().len(), 3, "two failures and the success, over two processes");
    executor.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_executor_and_a_start_without_handlers_are_refused() {
    let (store, log) = (store(), Log::default());
    let photon = photon(&store, &log, options()).await;
    let executor = photon.start_executor().await.unwrap();
    assert!(matches!(photon.start_executor().await, Err(Error::Conflict(_))));
    executor.drain().await.unwrap();
    let none = Photon::builder().memory().registry(Registry::default()).build().await.unwrap();
    let error = none.start_executor().await.unwrap_err();
    assert!(matches!(error, Error::Start(_)), "{error}");
}

#[test]
fn runtime_dropped_without_shutdown_neither_panics_nor_hangs() {
    let (store, log) = (MemoryStore::new(), Log::default());
    for n in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let photon = runtime.block_on(async {
            let photon = Photon::builder()
                .store(Arc::new(store.clone()))
                .registry(Registry::new(vec![handler("g", options())], vec![&STEPS]))
                .state(log.clone())
                .build()
                .await
                .unwrap();
            let executor = photon.start_executor().await.unwrap();
            photon.publish(&step("k", n)).await.unwrap();
            executor.quiet().await.unwrap();
            std::mem::forget(executor);
            photon
        });
        drop(runtime);
        drop(photon);
    }
    assert!(log.seen().len() >= 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p06_a_handler_that_blocks_its_thread_for_ever_holds_up_no_end() {
    let photon = Photon::builder()
        .memory()
        .allow_no_handlers()
        .registry(Registry::default())
        .drain_timeout(Duration::from_millis(100))
        .lease_ttl(Duration::from_millis(500))
        .build()
        .await
        .unwrap();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let (began, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let blocked = Arc::new(Mutex::new(blocked));
    let topic = || DynamicTopic::new("t").unwrap().shards(1);
    let handler = move |_: Event| {
        let (blocked, began) = (blocked.clone(), began.clone());
        async move {
            let _ = began.send(());
            let _ = blocked.lock().unwrap().recv();
        }
    };
    photon.subscribe(Subscription::to(topic()).group("blocked"), handler).await.unwrap();
    photon.subscribe(Subscription::to(topic()).group("free"), |_: Event| async {}).await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    photon.publish_raw(topic(), "x").await.unwrap();
    let patience = Duration::from_secs(60);
    tokio::time::timeout(patience, begins.recv()).await.expect("it runs");
    executor.shutdown();
    let report = tokio::time::timeout(patience, executor.join()).await.expect("an end");
    let ended: Vec<_> =
        report.subscriptions.iter().map(|of| (of.subscription.group.as_str(), of.ended, of.clean)).collect();
    assert_eq!(ended, [("blocked", false, false), ("free", true, true)], "{report}");
    assert!(!report.is_clean());
    assert!(report.to_string().contains("t/blocked: did not end: a handler blocks its thread"), "{report}");
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_loop_is_in_the_report_however_soon_it_ends() {
    for round in 0..400 {
        let builder = Photon::builder().memory().allow_no_handlers().registry(Registry::default());
        let photon = builder.build().await.unwrap();
        for group in ["a", "b"] {
            let topic = DynamicTopic::new("t").unwrap().shards(1);
            photon.subscribe(Subscription::to(topic).group(group), |_: Event| async {}).await.unwrap();
        }
        let executor = photon.start_executor().await.unwrap();
        photon.publish_raw(DynamicTopic::new("t").unwrap().shards(1), "x").await.unwrap();
        let report = executor.drain().await.unwrap();
        assert_eq!((report.subscriptions.len(), report.handled()), (2, 2), "round {round}: {report}");
        assert!(report.is_clean(), "round {round}: {report}");
    }
}
