//! Pausing, breaking, resetting: what people do to subscriptions that run.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use photon_backend::memory::MemoryStore;
use photon_core::descriptor::HandlerDescriptor;
use photon_core::handler::{Delivery, HandlerError, HandlerFuture, Outcome};
use photon_core::ids::{Seq, Shard, TopicName};
use photon_core::machine::retry::Backoff;
use photon_core::options::{BreakerPolicy, Mode, Options};
use photon_core::registry::Registry;
use photon_core::store::{Page, Store};
use photon_core::time::Timestamp;
use photon_core::topic::TopicDescriptor;
use photon_runtime::{BreakerStatus, Clock, Error, Photon, PhotonBuilder, Position};
use tokio::sync::Semaphore;

static JOBS: TopicDescriptor =
    TopicDescriptor { name: "jobs", shards: 2, key: "none", type_name: "Job", file: file!(), line: 1 };

/// What the handler does and has seen.
#[derive(Clone, Default)]
struct World(Arc<Inside>);

#[derive(Default)]
struct Inside {
    seen: Mutex<Vec<String>>,
    failing: AtomicBool,
    running: AtomicUsize,
    held: AtomicBool,
    gate: Option<Semaphore>,
}

impl World {
    fn seen(&self) -> Vec<String> {
        self.0.seen.lock().unwrap().clone()
    }

    fn count(&self) -> usize {
        self.0.seen.lock().unwrap().len()
    }
}

fn work(delivery: Delivery) -> HandlerFuture {
    Box::pin(async move {
        let world = delivery.extension::<World>().expect("given").clone();
        let text = String::from_utf8_lossy(&delivery.event.payload).into_owned();
        world.0.seen.lock().unwrap().push(text);
        if world.0.held.load(Ordering::SeqCst) {
            world.0.running.fetch_add(1, Ordering::SeqCst);
            world.0.gate.as_ref().expect("with a gate").acquire().await.expect("open").forget();
            world.0.running.fetch_sub(1, Ordering::SeqCst);
        }
        if world.0.failing.load(Ordering::SeqCst) {
            return Err(HandlerError::retry("the gateway is down"));
        }
        Ok(Outcome::Done)
    })
}

fn handler(options: Options) -> &'static HandlerDescriptor {
    Box::leak(Box::new(HandlerDescriptor {
        name: "work",
        module: "operating",
        topic: "jobs",
        descriptor: Some(&JOBS),
        group: Some("g"),
        mode: Mode::Group,
        options,
        call: work,
        needs: |_| {},
        file: file!(),
        line: line!(),
    }))
}

fn builder(store: &Arc<dyn Store>, world: &World, options: Options) -> PhotonBuilder {
    Photon::builder()
        .store(store.clone())
        .clock(Clock::starting_at(Timestamp(1_000_000_000_000_000)))
        .registry(Registry::new(vec![handler(options)], vec![&JOBS]))
        .state(world.clone())
}

async fn photon(store: &Arc<dyn Store>, world: &World, options: Options) -> Photon {
    builder(store, world, options).build().await.unwrap()
}

fn memory() -> Arc<dyn Store> {
    let clock = Clock::starting_at(Timestamp(1_000_000_000_000_000));
    Arc::new(MemoryStore::with_clock(Arc::new(move || clock.wall())))
}

async fn publish(photon: &Photon, jobs: std::ops::Range<u32>) {
    for job in jobs {
        photon.publish_raw("jobs", job.to_string()).await.unwrap();
    }
}

fn numbers(jobs: std::ops::Range<u32>) -> BTreeSet<String> {
    jobs.map(|job| job.to_string()).collect()
}

/// Waits, on a clock that goes on by itself, until something is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..2_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came to this: {what}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_on_all_instances_and_across_restarts() {
    let (store, world) = (memory(), World::default());
    let here = photon(&store, &world, Options::NONE).await;
    let executor = here.start_executor().await.unwrap();
    publish(&here, 0..10).await;
    executor.quiet().await.unwrap();
    assert_eq!(world.count(), 10);

    // Another process, which has no executor.
    let elsewhere = photon(&store, &world, Options::NONE).await;
    elsewhere.subscription("g").pause("maintenance").await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    publish(&here, 10..20).await;
    executor.quiet().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.count(), 10, "nothing new is handed out");
    let status = here.subscription("g").status().await.unwrap();
    assert_eq!(status.paused.as_ref().map(|paused| paused.reason.as_str()), Some("maintenance"));
    assert_eq!(status.lag(), 10);
    assert!(status.shards.iter().all(|shard| shard.owner.is_some()), "it keeps its shards: {status:?}");
    assert!(executor.drain().await.unwrap().is_clean());

    let again = photon(&store, &world, Options::NONE).await;
    let executor = again.start_executor().await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.count(), 10, "a restart does not lift it");
    again.subscription("g").resume().await.unwrap();
    executor.quiet().await.unwrap();
    assert_eq!(world.seen().into_iter().collect::<BTreeSet<_>>(), numbers(0..20));
    assert_eq!(world.count(), 20, "p04");
    assert_eq!(again.subscription("g").status().await.unwrap().paused, None);
    executor.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn p08_what_runs_when_a_pause_comes_ends_and_is_written_down() {
    let world = World(Arc::new(Inside { gate: Some(Semaphore::new(0)), ..Inside::default() }));
    world.0.held.store(true, Ordering::SeqCst);
    let store = memory();
    let options = Options { concurrency: Some(3), ..Options::NONE };
    let photon = photon(&store, &world, options).await;
    let executor = photon.start_executor().await.unwrap();
    publish(&photon, 0..50).await;
    until("three run", async || world.0.running.load(Ordering::SeqCst) == 3).await;
    photon.subscription("g").pause("stop").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.0.gate.as_ref().unwrap().add_permits(50);
    executor.quiet().await.unwrap();
    assert_eq!(world.count(), 3);
    let status = photon.subscription("g").status().await.unwrap();
    assert_eq!(status.lag(), 47, "what ended is in the checkpoint");
    photon.subscription("g").resume().await.unwrap();
    executor.quiet().await.unwrap();
    assert_eq!(world.count(), 50);
    executor.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn p05_a_paused_subscription_reads_no_further() {
    let (store, world) = (memory(), World::default());
    let photon = photon(&store, &world, Options::NONE).await;
    let executor = photon.start_executor().await.unwrap();
    executor.quiet().await.unwrap();
    photon.subscription("g").pause("stop").await.unwrap();
    executor.quiet().await.unwrap();
    let payload = vec![b'x'; 100_000];
    for _ in 0..200 {
        photon.publish_raw("jobs", payload.clone()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.count(), 0);
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_never_started_cannot_be_paused() {
    let (store, world) = (memory(), World::default());
    let photon = photon(&store, &world, Options::NONE).await;
    assert!(matches!(photon.subscription("nobody").pause("x").await, Err(Error::NotFound(_))));
    assert!(matches!(photon.subscription("g").pause("x").await, Err(Error::Conflict(_))));
    assert!(matches!(photon.subscription("g").reset_to(Position::Latest).await, Err(Error::Conflict(_))));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_opens_tries_one_and_closes() {
    let (store, world) = (memory(), World::default());
    let options = Options {
        concurrency: Some(4),
        max_attempts: Some(1_000),
        backoff: Some(Backoff::Fixed(Duration::from_secs(1))),
        jitter: Some(0.0),
        breaker: Some(BreakerPolicy { failures: 5, of: 10, cool_down: Duration::from_secs(30) }),
        ..Options::NONE
    };
    let photon = photon(&store, &world, options).await;
    let executor = photon.start_executor().await.unwrap();
    let breaker = async || photon.subscription("g").status().await.unwrap().breaker;
    executor.quiet().await.unwrap();
    assert_eq!(breaker().await, Some(BreakerStatus::Closed));

    world.0.failing.store(true, Ordering::SeqCst);
    publish(&photon, 0..100).await;
    until("it opens", async || matches!(breaker().await, Some(BreakerStatus::Open { .. }))).await;
    let Some(BreakerStatus::Open { since, until: at }) = breaker().await else { panic!() };
    assert_eq!(at.since(since), Duration::from_secs(30));
    let tried = world.count();
    assert!((5..=9).contains(&tried), "{tried} attempts");
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert_eq!(world.count(), tried, "nothing runs while it is open");
    // One attempt every 30 s and a little: each probe fails.
    tokio::time::sleep(Duration::from_secs(301)).await;
    let probes = world.count() - tried;
    assert!((9..=11).contains(&probes), "{probes} probes in 330 s");

    world.0.failing.store(false, Ordering::SeqCst);
    executor.quiet().await.unwrap();
    assert_eq!(breaker().await, Some(BreakerStatus::Closed));
    assert_eq!(world.seen().into_iter().collect::<BTreeSet<_>>(), numbers(0..100));
    assert_eq!(photon.dead_letters("g").count().await.unwrap(), 0);
    executor.drain().await.unwrap();
    assert_eq!(breaker().await, None, "its loop has ended");
}

#[tokio::test(start_paused = true)]
async fn a_reset_repeats_or_leaves_out_and_the_running_owner_follows() {
    let (store, world) = (memory(), World::default());
    let here = photon(&store, &world, Options::NONE).await;
    let executor = here.start_executor().await.unwrap();
    publish(&here, 0..20).await;
    executor.quiet().await.unwrap();
    assert_eq!(world.count(), 20);

    let elsewhere = photon(&store, &world, Options::NONE).await;
    let done = elsewhere.subscription("g").reset_to(Position::Earliest).await.unwrap();
    assert_eq!(done.len(), 2);
    until("all again", async || world.count() == 40).await;
    executor.quiet().await.unwrap();
    assert_eq!(world.count(), 40, "each once more");
    assert_eq!(world.seen()[20..].iter().cloned().collect::<BTreeSet<_>>(), numbers(0..20));

    // One shard, from its third event on.
    let end = here.subscription("g").status().await.unwrap().shards[0].end;
    here.subscription("g").reset_to(Position::Seq(Shard(0), Seq(end.0 - 2))).await.unwrap();
    until("three of one shard", async || world.count() == 43).await;
    executor.quiet().await.unwrap();
    assert_eq!(world.count(), 43);
    for strange in [Position::Seq(Shard(7), Seq(1)), Position::Seq(Shard(0), Seq(end.0 + 2))] {
        assert!(matches!(here.subscription("g").reset_to(strange).await, Err(Error::Refused { .. })));
    }

    here.subscription("g").pause("to skip").await.unwrap();
    executor.quiet().await.unwrap();
    publish(&here, 100..110).await;
    here.subscription("g").reset_to(Position::Latest).await.unwrap();
    here.subscription("g").resume().await.unwrap();
    publish(&here, 200..205).await;
    until("only the last", async || world.count() == 48).await;
    assert!(executor.drain().await.unwrap().is_clean());
    assert_eq!(world.count(), 48);
    assert_eq!(world.seen()[43..].iter().cloned().collect::<BTreeSet<_>>(), numbers(200..205));
}

#[tokio::test(start_paused = true)]
async fn p08_a_reset_breaks_off_what_runs_and_costs_no_attempt() {
    let world = World(Arc::new(Inside { gate: Some(Semaphore::new(0)), ..Inside::default() }));
    world.0.held.store(true, Ordering::SeqCst);
    let store = memory();
    let options = Options { max_attempts: Some(1), ..Options::NONE };
    let photon = photon(&store, &world, options).await;
    let executor = photon.start_executor().await.unwrap();
    publish(&photon, 0..4).await;
    until("all run", async || world.0.running.load(Ordering::SeqCst) == 4).await;
    world.0.held.store(false, Ordering::SeqCst);
    photon.subscription("g").reset_to(Position::Earliest).await.unwrap();
    until("all ran again", async || world.count() == 8).await;
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(photon.dead_letters("g").count().await.unwrap(), 0);
    assert_eq!(world.count(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_reset_removes_the_dead_letters_that_are_read_again() {
    let (store, world) = (memory(), World::default());
    world.0.failing.store(true, Ordering::SeqCst);
    let photon = photon(&store, &world, Options { max_attempts: Some(1), ..Options::NONE }).await;
    let executor = photon.start_executor().await.unwrap();
    publish(&photon, 0..6).await;
    executor.quiet().await.unwrap();
    assert_eq!(photon.dead_letters("g").count().await.unwrap(), 6);
    world.0.failing.store(false, Ordering::SeqCst);
    let done = photon.subscription("g").reset_to(Position::Earliest).await.unwrap();
    assert_eq!(done.iter().map(|shard| shard.removed).sum::<u64>(), 6);
    until("all again", async || world.count() == 12).await;
    executor.drain().await.unwrap();
    assert_eq!(photon.dead_letters("g").list(Page::first(10)).await.unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn trimmed_under_cursor() {
    let (store, world) = (memory(), World::default());
    let topic = TopicName::new("jobs").unwrap();
    let first = photon(&store, &world, Options::NONE).await;
    let executor = first.start_executor().await.unwrap();
    publish(&first, 0..10).await;
    executor.drain().await.unwrap();
    // Somebody else publishes, and trims what was not read.
    let elsewhere = photon(&store, &world, Options::NONE).await;
    publish(&elsewhere, 10..110).await;
    let bounds = store.bounds(&topic).await.unwrap();
    for bounds in &bounds {
        store.trim(&topic, bounds.shard, Seq(bounds.end.0 - 5)).await.unwrap();
    }
    let executor = elsewhere.start_executor().await.unwrap();
    let report = executor.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(world.count(), 20, "ten from before, and what is kept");
    let status = elsewhere.subscription("g").status().await.unwrap();
    assert!(status.shards.iter().zip(&bounds).all(|(shard, bounds)| shard.watermark == bounds.end));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_who_works_on_what_and_what_waits() {
    let (store, world) = (memory(), World::default());
    let options = Options { concurrency: Some(1), ..Options::NONE };
    let photon = photon(&store, &world, options).await;
    let executor = photon.start_executor().await.unwrap();
    executor.quiet().await.unwrap();
    photon.subscription("g").pause("look").await.unwrap();
    executor.quiet().await.unwrap();
    publish(&photon, 0..3).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    publish(&photon, 3..6).await;
    let snapshot = photon.snapshot().await.unwrap();
    assert_eq!(snapshot.topics.len(), 1);
    assert_eq!(snapshot.members.len(), 1);
    let status = &snapshot.subscriptions[0];
    assert!(status.runs_here && status.has_handler);
    assert_eq!(status.lag(), 6);
    let me = snapshot.members[0].member.incarnation;
    assert!(status.shards.iter().all(|shard| shard.owner == Some(me)));
    let waits = snapshot.taken.since(status.oldest_unsettled().unwrap());
    assert_eq!(waits, Duration::from_secs(7));
    assert_eq!(status.paused.as_ref().unwrap().reason, "look");
    executor.drain().await.unwrap();
    let status = photon.subscription("g").status().await.unwrap();
    assert!(status.shards.iter().all(|shard| shard.owner.is_none()), "given back");
    assert!(!status.runs_here);
}

#[tokio::test(start_paused = true)]
async fn an_instance_works_on_the_shards_that_are_listed_for_it() {
    let (store, world) = (memory(), World::default());
    let one = builder(&store, &world, Options::NONE).group_shards([1]).build().await.unwrap();
    let executor = one.start_executor().await.unwrap();
    publish(&one, 0..20).await;
    until("one shard is done", async || {
        let status = one.subscription("g").status().await.unwrap();
        status.shards[1].lag == 0 && world.count() > 0
    })
    .await;
    let status = one.subscription("g").status().await.unwrap();
    assert!(status.shards[0].owner.is_none() && status.shards[1].owner.is_some());
    assert_eq!(world.count() as u64 + status.lag(), 20);
    executor.drain().await.unwrap();

    let strange = builder(&store, &world, Options::NONE).group_shards([1, 2]).build().await.unwrap();
    let error = strange.start_executor().await.unwrap_err().to_string();
    assert!(error.contains("shard 2 was listed") && error.contains("operating.rs"), "{error}");
}
