//! Cases of checkpoints and of what is read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use photon::prelude::*;
use photon::store::{Cursor, ReadBatch, ReadLimit, Store};
use photon::{DynamicTopic, Options, Seq, Shard, StoreError, TopicName};
use photon_backend::wrap::fault::{Fault, Rule};
use photon_backend::wrap::{Intercept, Op, Wrapped};
use tokio::sync::watch;

use crate::journal::{Journal, bare};
use crate::log;
use crate::support::instance::{eventually, options, subscription};
use crate::support::{Act, World, single};

on_every_engine!(
    case_flush_mid_handler,
    case_trimmed_under_cursor,
    case_trimmed_under_cursor_to_the_end,
    case_flood_before_ready,
    case_stable_hash,
);

async fn case_flush_mid_handler(world: World) {
    let instance = world.start(["single"]).await;
    let mut seqs = vec![Seq::ZERO];
    for n in 1..=9 {
        let act = if n == 7 { Act::Wait("gate".to_owned()) } else { Act::Done };
        seqs.push(instance.photon.publish(&single(&format!("k{n}"), n, act)).await.unwrap().seq);
    }
    // The checkpoint is written by its timer, beyond 7.
    eventually("8 and 9 are written down", async || {
        let checkpoint = world.checkpoint().await;
        checkpoint.covers(seqs[8]) && checkpoint.covers(seqs[9])
    })
    .await;
    let checkpoint = world.checkpoint().await;
    assert!(
        (seqs[6]..seqs[7]).contains(&checkpoint.watermark) && !checkpoint.covers(seqs[7]),
        "{checkpoint:?}"
    );
    instance.crash();
    world.probe.open("gate");
    world.start(["single"]).await.drain().await.unwrap();
    let twice: Vec<u64> =
        (1..=9).filter(|n| world.probe.of("single", &format!("k{n}"), *n).len() > 2).collect();
    assert_eq!((twice, world.probe.done_count("single")), (vec![7], 9));
}

/// Handles ten events, publishes fifty more, and trims those before the one of this number (from 1), if there is one.
/// Gives what a subscription then handled, after one more event was published.
async fn trimmed(world: &World, name: &str, oldest: Option<usize>) -> Vec<String> {
    let topic = DynamicTopic::new(name).unwrap().shards(1);
    let (journal, mut seqs) = (Journal::default(), Vec::new());
    let first = bare(world).await;
    journal.subscribe(&first.photon, name, "g").await;
    for n in 1..=10 {
        seqs.push(first.photon.publish_raw(&topic, n.to_string()).key("k").await.unwrap().seq);
    }
    first.drain().await.unwrap();
    let publisher = world.publisher().await;
    for n in 11..=60 {
        seqs.push(publisher.publish_raw(&topic, n.to_string()).key("k").await.unwrap().seq);
    }
    let through = oldest.map_or(seqs[59], |oldest| seqs[oldest - 2]);
    let name = TopicName::new(name).unwrap();
    world.store.trim(&name, Shard(0), through).await.unwrap();

    let instance = bare(world).await;
    journal.subscribe(&instance.photon, name.as_str(), "g").await;
    instance.quiet().await;
    instance.faults.add(Rule::new(Fault::Delay(Duration::ZERO)).on([Op::Read]));
    instance.photon.publish_raw(&topic, "61").key("k").await.unwrap();
    eventually("it goes on", async || journal.seen().last().is_some_and(|last| last == "61")).await;
    instance.quiet().await;
    // A few reads, and no more.
    let reads = instance.faults.take_struck().len();
    assert!(reads < 20, "{reads} reads");
    let end = world.store.bounds(&name).await.unwrap()[0].end;
    instance.drain().await.unwrap();
    let stored = world.store.load(&subscription(name.as_str(), "g")).await.unwrap();
    assert_eq!(stored[0].checkpoint.watermark, end);
    let lines = log().lines_with(&format!("subscription={name}/g"));
    assert_eq!(lines.len(), 1, "{lines:#?}");
    for part in [
        "trimmed before this subscription read them",
        &format!("after={}", seqs[9]),
        &format!("floor={through}"),
    ] {
        assert!(lines[0].contains(part), "{part} is missing in {lines:?}");
    }
    journal.seen()
}

fn numbers(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|n| n.to_string()).collect()
}

async fn case_trimmed_under_cursor(world: World) {
    let seen = trimmed(&world, &format!("trimmed-{}", world.engine.name), Some(50)).await;
    assert_eq!(seen, numbers((1..=10).chain(50..=61)));
}

async fn case_trimmed_under_cursor_to_the_end(world: World) {
    let seen = trimmed(&world, &format!("emptied-{}", world.engine.name), None).await;
    assert_eq!(seen, numbers((1..=10).chain([61])));
}

#[topic(name = "flood", key = key, shards = 4)]
#[derive(Serialize, Deserialize)]
struct Drop {
    key: u32,
    n: u32,
}

/// What a service does that gets more than it can take while it starts.
#[derive(Debug, Clone)]
struct Flood {
    ready: watch::Receiver<bool>,
    begun: Arc<AtomicUsize>,
    read: Arc<AtomicUsize>,
    most_ahead: Arc<AtomicUsize>,
    handled: Arc<Mutex<BTreeMap<u32, Vec<u32>>>>,
}

#[subscribe(group = "flood")]
async fn flooded(drop: Drop, State(mut flood): State<Flood>) {
    flood.begun.fetch_add(1, Ordering::SeqCst);
    flood.ready.wait_for(|ready| *ready).await.unwrap();
    flood.handled.lock().unwrap().entry(drop.key).or_default().push(drop.n);
}

#[async_trait]
impl Intercept for Flood {
    async fn read(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        let batch = inner.read(topic, cursors, limit).await?;
        let read = self.read.fetch_add(batch.records.len(), Ordering::SeqCst) + batch.records.len();
        let ahead = read.saturating_sub(self.begun.load(Ordering::SeqCst));
        self.most_ahead.fetch_max(ahead, Ordering::SeqCst);
        Ok(batch)
    }
}

async fn case_flood_before_ready(world: World) {
    const EVENTS: u32 = 100_000;
    const KEYS: u32 = 100;
    let (open, ready) = watch::channel(false);
    let flood = Flood {
        ready,
        begun: Arc::default(),
        read: Arc::default(),
        most_ahead: Arc::default(),
        handled: Arc::default(),
    };
    let store = Wrapped::new(world.engine.home.open().await, flood.clone());
    let limits = Options { concurrency: Some(16), prefetch: Some(200), ..Options::NONE };
    let photon = Photon::builder()
        .store(Arc::new(store))
        .clock(world.engine.clock)
        .state(flood.clone())
        .only(["flood"])
        .options(options())
        .options(limits)
        .build()
        .await
        .unwrap();
    let executor = photon.start_executor().await.unwrap();
    world.publisher().await.publish_all((0..EVENTS).map(|n| Drop { key: n % KEYS, n })).await.unwrap();
    eventually("the first ones wait", async || flood.begun.load(Ordering::SeqCst) == 16).await;
    open.send_replace(true);
    assert!(executor.drain().await.unwrap().is_clean());
    let handled = flood.handled.lock().unwrap();
    for key in 0..KEYS {
        let expected = (0..EVENTS / KEYS).map(|round| round * KEYS + key);
        assert!(handled[&key].iter().copied().eq(expected), "key {key}: {:?}", handled[&key]);
    }
    let most = flood.most_ahead.load(Ordering::SeqCst);
    assert!((100..=216).contains(&most), "{most} deliveries were in memory");
}

/// The whole table of 1 003 keys is in `photon-core`; these are the shards that users get, of 1 024. Never change a
/// number: stored events would change their order.
async fn case_stable_hash(world: World) {
    let long: Vec<u8> = (0..10 * 1_024u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let table: [(&[u8], u16); 4] = [(b"", 180), ("é".as_bytes(), 990), (&long, 755), (b"7", 27)];
    let photon = world.publisher().await;
    let topic = DynamicTopic::new("hashed").unwrap().shards(1_024);
    for (key, shard) in table {
        let receipt = photon.publish_raw(&topic, "").key(key).await.unwrap();
        assert_eq!(receipt.shard, Shard(shard), "{:?}", String::from_utf8_lossy(key));
    }
    let number = photon.publish_raw(&topic, "").key(7u64).await.unwrap();
    assert_eq!(number.shard, Shard(27));
}
