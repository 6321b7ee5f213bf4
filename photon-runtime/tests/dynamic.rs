//! Subscriptions that come and go while the program runs.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Order, order};
use photon_backend::memory::MemoryStore;
use photon_core::codec;
use photon_core::error::DecodeError;
use photon_core::event::Event;
use photon_core::handler::{Context, HandlerError, State};
use photon_core::options::{Mode, Options, Start};
use photon_core::registry::Registry;
use photon_core::store::Store;
use photon_core::time::Timestamp;
use photon_core::topic::{EventParam, Topic, TopicDescriptor};
use photon_runtime::{Clock, DynamicTopic, Error, Photon, PhotonBuilder, Subscribed, Subscription};

impl EventParam for Order {
    const TOPIC: Option<&'static TopicDescriptor> = Some(Order::DESCRIPTOR);

    fn decode(event: &Event) -> Result<Self, DecodeError> {
        codec::decode_json(event)
    }
}

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

/// The subscription of the tour: raw events of a topic that no type declares.
async fn launch(photon: &Photon, group: &str, seen: &Seen) -> Result<Subscribed, Error> {
    let spec = Subscription::to(DynamicTopic::new("wf.acme.events")?).group(group).concurrency(1);
    let seen = seen.clone();
    photon
        .subscribe(spec, move |event: Event, cx: Context| {
            let seen = seen.clone();
            async move {
                assert_eq!(cx.event_id(), event.id);
                seen.lock().unwrap().push(String::from_utf8_lossy(&event.payload).into_owned());
            }
        })
        .await
}

async fn publish(photon: &Photon, texts: &[&str]) {
    for text in texts {
        photon.publish_raw("wf.acme.events", text.to_string()).await.unwrap();
    }
}

async fn charge(order: Order, State(seen): State<Seen>, cx: Context) -> Result<(), HandlerError> {
    seen.lock().unwrap().push(format!("{} {} {}", order.customer, order.n, cx.attempt()));
    if order.n == 2 { Err(HandlerError::permanent("declined")) } else { Ok(()) }
}

async fn nothing(_: Event) {}
async fn needs(_: Event, _: State<u64>) {}
async fn typed(_: Order) {}

fn sorted(seen: &Seen) -> Vec<String> {
    let mut all = seen.lock().unwrap().clone();
    all.sort();
    all
}

#[tokio::test(start_paused = true)]
async fn p01_a_subscription_comes_before_the_executor_and_another_while_it_runs() {
    let (store, early, late) = (memory(), Seen::default(), Seen::default());
    let photon = builder(&store).build().await.unwrap();
    launch(&photon, "early", &early).await.unwrap();
    publish(&photon, &["a", "b"]).await;
    let executor = photon.start_executor().await.unwrap();
    executor.quiet().await.unwrap();
    assert_eq!(sorted(&early), ["a", "b"]);

    let handle = launch(&photon, "late", &late).await.unwrap();
    publish(&photon, &["c"]).await;
    executor.quiet().await.unwrap();
    assert_eq!(sorted(&late), ["a", "b", "c"], "it starts with what is kept");
    assert_eq!(sorted(&early), ["a", "b", "c"]);
    let status = handle.status().await.unwrap();
    assert!(status.runs_here && status.has_handler && status.lag() == 0);
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.handled(), 6);
    assert!(matches!(launch(&photon, "too-late", &late).await, Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn p04_a_removed_subscription_goes_on_where_it_stopped_unless_it_is_forgotten() {
    let (store, seen) = (memory(), Seen::default());
    let photon = builder(&store).build().await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    let handle = launch(&photon, "workflow-17", &seen).await.unwrap();
    publish(&photon, &["a"]).await;
    executor.quiet().await.unwrap();
    handle.remove().await.unwrap();
    handle.remove().await.unwrap();
    let status = photon.subscription("workflow-17").status().await.unwrap();
    assert!(!status.runs_here && !status.has_handler);
    assert!(status.shards.iter().all(|shard| shard.owner.is_none()), "its shards are given back");
    publish(&photon, &["b"]).await;
    executor.quiet().await.unwrap();
    assert_eq!(sorted(&seen), ["a"]);

    let handle = launch(&photon, "workflow-17", &seen).await.unwrap();
    executor.quiet().await.unwrap();
    assert_eq!(sorted(&seen), ["a", "b"], "nothing is lost, nothing comes twice");
    handle.remove().forget().await.unwrap();
    assert!(matches!(photon.subscription("workflow-17").status().await, Err(Error::NotFound(_))));
    launch(&photon, "workflow-17", &seen).await.unwrap();
    executor.quiet().await.unwrap();
    assert_eq!(sorted(&seen), ["a", "a", "b", "b"], "it is new");
    executor.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn p08_a_removal_waits_for_what_runs() {
    let store = memory();
    let photon = builder(&store).drain_timeout(Duration::from_secs(20)).build().await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (begun.clone(), ended.clone());
    let slow = move |event: Event| {
        let (begun, ended) = counts.clone();
        async move {
            let seconds: u64 = std::str::from_utf8(&event.payload).unwrap().parse().unwrap();
            begun.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            ended.fetch_add(1, Ordering::SeqCst);
        }
    };
    let spec = || Subscription::to(DynamicTopic::new("jobs").unwrap()).group("g").max_attempts(1);
    let handle = photon.subscribe(spec(), slow.clone()).await.unwrap();
    photon.publish_raw("jobs", "10").await.unwrap();
    while begun.load(Ordering::SeqCst) < 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    handle.remove().await.unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), 1);

    let handle = photon.subscribe(spec(), slow).await.unwrap();
    photon.publish_raw("jobs", "300").await.unwrap();
    while begun.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = tokio::time::Instant::now();
    handle.remove().await.unwrap();
    assert!((20..23).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    assert_eq!(ended.load(Ordering::SeqCst), 1, "broken off after the drain timeout");
    let status = photon.subscription("g").status().await.unwrap();
    assert_eq!((status.lag(), status.dead), (1, 0), "it costs no attempt");
    executor.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn typed_handlers_with_extractors_and_errors_work() {
    let store = memory();
    let photon = builder(&store).state(Seen::default()).build().await.unwrap();
    let seen = Seen::default();
    let other = seen.clone();
    photon.subscribe(Subscription::of::<Order>().group("typed"), charge).await.unwrap();
    let closure = move |order: Order| {
        other.lock().unwrap().push(order.customer);
        std::future::ready(())
    };
    let spec = Subscription::to(DynamicTopic::new("orders.placed").unwrap()).group("named");
    photon.subscribe(spec, closure).await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    for n in 1..4 {
        photon.publish(&order("anna", n)).await.unwrap();
    }
    executor.quiet().await.unwrap();
    assert_eq!(sorted(&seen), ["anna", "anna", "anna"]);
    assert_eq!(photon.dead_letters("typed").count().await.unwrap(), 1);
    assert!(executor.drain().await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn p12_a_bad_subscription_is_refused_with_its_place() {
    let store = memory();
    let photon = builder(&store).build().await.unwrap();
    let seen = Seen::default();
    launch(&photon, "taken", &seen).await.unwrap();
    let topic = || Subscription::to(DynamicTopic::new("wf.acme.events").unwrap());
    let said = |result: Result<Subscribed, Error>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Start(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("tests/dynamic.rs:"), "{text}");
        text
    };
    assert!(said(photon.subscribe(topic(), nothing).await).contains("no group"));
    assert!(said(photon.subscribe(topic().group("a b"), nothing).await).contains("a b"));
    assert!(said(photon.subscribe(topic().group("taken"), nothing).await).contains("same subscription"));
    assert!(said(photon.subscribe(topic().group("n"), needs).await).contains("State<u64>"));
    assert!(said(photon.subscribe(topic().group("t"), typed).await).contains("orders.placed"));
    assert!(said(photon.subscribe(topic().group("c").concurrency(0), nothing).await).contains("concurrency"));
    let durable = topic().group("d").mode(Mode::Durable);
    assert!(said(photon.subscribe(durable, nothing).await).contains("instance"));
    let shards = Subscription::to(DynamicTopic::new("wf.acme.events").unwrap().shards(3)).group("s");
    assert!(said(photon.subscribe(shards, nothing).await).contains("8 shards, not 3"));
    let both = topic().group("taken").options(Options { timeout: Some(Duration::ZERO), ..Options::NONE });
    let text = said(photon.subscribe(both, needs).await);
    assert!(text.contains("3 problems"), "all at once: {text}");
    assert_eq!(photon.snapshot().await.unwrap().subscriptions.len(), 1, "none of them is known");
}

#[tokio::test(start_paused = true)]
async fn live_subscriptions_hold_no_position() {
    let (store, seen) = (memory(), Seen::default());
    let photon = builder(&store).build().await.unwrap();
    publish(&photon, &["before"]).await;
    let executor = photon.start_executor().await.unwrap();
    let sink = seen.clone();
    let spec = Subscription::to(DynamicTopic::new("wf.acme.events").unwrap()).group("live");
    let handle = photon
        .subscribe(spec.mode(Mode::Ephemeral).start(Start::Latest), move |event: Event| {
            sink.lock().unwrap().push(String::from_utf8_lossy(&event.payload).into_owned());
            std::future::ready(())
        })
        .await
        .unwrap();
    publish(&photon, &["a", "b"]).await;
    executor.quiet().await.unwrap();
    handle.remove().await.unwrap();
    publish(&photon, &["c"]).await;
    executor.drain().await.unwrap();
    assert_eq!(sorted(&seen), ["a", "b"]);
    assert_eq!(store.list().await.unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_come_and_go_while_events_flow() {
    let (store, seen) = (memory(), Seen::default());
    let photon = builder(&store).build().await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    let mut handles = Vec::new();
    for round in 0..30 {
        publish(&photon, &[&round.to_string()]).await;
        handles.push(launch(&photon, &format!("g{round}"), &seen).await.unwrap());
        if round % 3 == 2 {
            handles.swap_remove(round % handles.len()).remove().await.unwrap();
        }
    }
    executor.quiet().await.unwrap();
    for handle in &handles {
        assert_eq!(handle.status().await.unwrap().lag(), 0);
    }
    let snapshot = photon.snapshot().await.unwrap();
    assert_eq!(snapshot.subscriptions.iter().filter(|status| status.runs_here).count(), 20);
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.subscriptions.len(), 20);
}
