//! What the tests of all servers have in common.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use photon_backend::servers::Server;
use photon_core::error::StoreErrorKind;
use photon_core::event::{Event, NewEvent};
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Generation, Seq, Shard, TopicName};
use photon_core::store::{Cursor, EventLog, ReadLimit, TopicSpec};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

/// As much as a read gives.
pub(crate) const NO_LIMIT: ReadLimit = ReadLimit { records: 10_000, bytes: 64 << 20 };

/// What a topic of this name should look like.
pub(crate) fn spec(name: &str, shards: u16) -> TopicSpec {
    let name = TopicName::new(name).expect("the name is good");
    TopicSpec { name, shards, key: None, generation: Generation(Uuid::new_v4()) }
}

/// A topic of this name, made where it is missing.
pub(crate) async fn topic(store: &impl EventLog, name: &str, shards: u16) -> TopicName {
    let spec = spec(name, shards);
    store.ensure_topic(&spec).await.expect("the topic can be made");
    spec.name
}

/// An event whose payload is a number.
pub(crate) fn event(shard: u16, number: u64) -> NewEvent {
    NewEvent {
        id: EventId(Uuid::new_v4()),
        shard: Shard(shard),
        key: None,
        headers: Headers::new(),
        payload: number.to_string().into_bytes().into(),
        dedup_id: None,
    }
}

/// The numbers that [`event`] wrote.
pub(crate) fn numbers(events: &[Event]) -> Vec<u64> {
    let number = |event: &Event| String::from_utf8_lossy(&event.payload).parse().expect("a number");
    events.iter().map(number).collect()
}

/// Everything in a shard. A server that was just away may still be busy with itself: that is waited out.
pub(crate) async fn read_all(store: &impl EventLog, topic: &TopicName, shard: u16) -> Vec<Event> {
    let mut cursor = Cursor { shard: Shard(shard), after: Seq::ZERO };
    let mut all = Vec::new();
    loop {
        let mut read = None;
        let reads = async || match store.read(topic, &[cursor], NO_LIMIT).await {
            Ok(batch) => {
                read = Some(batch);
                true
            }
            Err(error) if error.kind() == StoreErrorKind::Unavailable => false,
            Err(error) => panic!("the shard cannot be read: {error}"),
        };
        wait_for("the shard can be read", reads).await;
        let read = read.expect("it was waited for");
        cursor.after = read.shards[0].through.max(read.shards[0].floor);
        if read.records.is_empty() {
            return all;
        }
        all.extend(read.records);
    }
}

/// Waits until a condition holds, for a minute at most.
pub(crate) async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_ok(), "waited in vain: {what}");
}

/// What one publisher heard.
#[derive(Default)]
struct Heard {
    acknowledged: Vec<u64>,
    /// They may be stored, or not.
    unknown: Vec<u64>,
}

/// One publisher for each shard, who waits for each answer, until they are told to stop.
pub(crate) struct Publishers<S> {
    store: S,
    topic: TopicName,
    tasks: Vec<JoinHandle<Heard>>,
    acknowledged: Arc<[AtomicUsize]>,
    stop: watch::Sender<bool>,
}

impl<S: EventLog + Clone + 'static> Publishers<S> {
    pub(crate) fn start(store: &S, topic: &TopicName, shards: u16) -> Self {
        let (stop, stopped) = watch::channel(false);
        let acknowledged: Arc<[AtomicUsize]> = (0..shards).map(|_| AtomicUsize::new(0)).collect();
        let start = |shard| {
            let (store, topic) = (store.clone(), topic.clone());
            tokio::spawn(publish(store, topic, shard, acknowledged.clone(), stopped.clone()))
        };
        let tasks = (0..shards).map(start).collect();
        Self { store: store.clone(), topic: topic.clone(), tasks, acknowledged, stop }
    }

    /// Waits until each of them has got 20 more events into the log.
    pub(crate) async fn go_on(&self) {
        let before: Vec<usize> =
            self.acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let grown = async || {
            let mut counts = self.acknowledged.iter().zip(&before);
            counts.all(|(count, before)| count.load(Ordering::Relaxed) >= before + 20)
        };
        wait_for("events of every publisher", grown).await;
    }

    /// Stops them. Everything acknowledged is there, once and in order; what else is there was said to be unknown.
    pub(crate) async fn stop_and_check(self) {
        self.stop.send_replace(true);
        for (shard, task) in (0..).zip(self.tasks) {
            let Heard { acknowledged, unknown } = task.await.expect("a publisher does not fail");
            let stored = numbers(&read_all(&self.store, &self.topic, shard).await);
            assert!(stored.windows(2).all(|w| w[0] < w[1]), "each once and in order: {stored:?}");
            let lost: Vec<_> = acknowledged.iter().filter(|number| !stored.contains(number)).collect();
            assert!(lost.is_empty(), "acknowledged, and lost: {lost:?}");
            let known = |number: &u64| acknowledged.contains(number) || unknown.contains(number);
            assert!(stored.iter().all(known), "stored, though the store had said that it is not");
        }
    }
}

/// Publishes numbers one by one.
async fn publish(
    store: impl EventLog,
    topic: TopicName,
    shard: u16,
    acknowledged: Arc<[AtomicUsize]>,
    stop: watch::Receiver<bool>,
) -> Heard {
    let mut heard = Heard::default();
    let mut number = 0;
    while !*stop.borrow() {
        match store.append(&topic, vec![event(shard, number)]).await {
            Ok(_) => {
                heard.acknowledged.push(number);
                acknowledged[usize::from(shard)].fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => match error.kind() {
                StoreErrorKind::Unknown => heard.unknown.push(number),
                // Nothing was written, says the store: then the number may be used again.
                StoreErrorKind::Unavailable => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                other => panic!("{other:?}: {error}"),
            },
        }
        number += 1;
    }
    heard
}

/// P1: a server is killed with -9 under load and started again, several times.
pub(crate) async fn nothing_is_lost_when_it_is_killed<S: EventLog + Clone + 'static>(
    server: impl Deref<Target = Server> + Send + Sync + 'static,
    store: &S,
) {
    let server = Arc::new(server);
    let name = topic(store, "orders", 4).await;
    let publishers = Publishers::start(store, &name, 4);
    for _ in 0..5 {
        publishers.go_on().await;
        let server = server.clone();
        spawn_blocking(move || server.crash()).await.expect("it starts again");
    }
    publishers.go_on().await;
    publishers.stop_and_check().await;
}
