//! What the memory store promises beside the store contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use photon_backend::memory::{MemoryOptions, MemoryStore};
use photon_core::event::NewEvent;
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Generation, Seq, Shard, TopicName};
use photon_core::store::{Cursor, EventLog, ReadLimit, TopicSpec};
use photon_core::time::Timestamp;
use uuid::Uuid;

const ALL: ReadLimit = ReadLimit { records: usize::MAX, bytes: usize::MAX };
const START: Cursor = Cursor { shard: Shard(0), after: Seq::ZERO };

struct TestClock(Arc<AtomicI64>);

impl TestClock {
    fn at(seconds: i64) -> (Self, MemoryOptions) {
        let micros = Arc::new(AtomicI64::new(seconds * 1_000_000));
        let read = Arc::clone(&micros);
        let clock = Arc::new(move || Timestamp(read.load(Ordering::SeqCst)));
        (Self(micros), MemoryOptions { clock, ..MemoryOptions::default() })
    }

    fn set(&self, seconds: i64) {
        self.0.store(seconds * 1_000_000, Ordering::SeqCst);
    }
}

fn event(dedup_id: Option<&str>) -> NewEvent {
    NewEvent {
        id: EventId(Uuid::now_v7()),
        shard: Shard(0),
        key: None,
        headers: Headers::new(),
        payload: Bytes::from_static(b"payload"),
        dedup_id: dedup_id.map(str::to_owned),
    }
}

async fn topic(store: &MemoryStore) -> TopicName {
    let name = TopicName::new("orders").unwrap();
    let generation = Generation(Uuid::new_v4());
    store.ensure_topic(&TopicSpec { name: name.clone(), shards: 1, key: None, generation }).await.unwrap();
    name
}

#[tokio::test]
async fn a_dedup_id_counts_for_the_window_only() {
    let (clock, options) = TestClock::at(1_000);
    let store = MemoryStore::with_options(MemoryOptions { dedup_window: Duration::from_secs(60), ..options });
    let topic = topic(&store).await;
    let append = async |id| store.append(&topic, vec![event(Some(id))]).await.unwrap()[0];

    let first = append("a").await;
    clock.set(1_059);
    let again = append("a").await;
    assert!(again.duplicate && again.seq == first.seq);
    clock.set(1_060);
    let later = append("a").await;
    assert!(!later.duplicate && later.seq > first.seq);
}

#[tokio::test]
async fn append_times_never_go_back() {
    let (clock, options) = TestClock::at(1_000);
    let store = MemoryStore::with_options(options);
    let topic = topic(&store).await;
    for seconds in [1_000, 900, 1_001, 10, 2_000] {
        clock.set(seconds);
        store.append(&topic, vec![event(None)]).await.unwrap();
    }
    let read = store.read(&topic, &[START], ALL).await.unwrap();
    let times: Vec<i64> = read.records.iter().map(|record| record.time.0 / 1_000_000).collect();
    assert_eq!(times, [1_000, 1_000, 1_001, 1_001, 2_000]);
}

#[tokio::test]
async fn a_clone_is_the_same_store() {
    let store = MemoryStore::new();
    let topic = topic(&store).await;
    let other = store.clone();
    drop(store.append(&topic, vec![event(None)]).await.unwrap());
    drop(store);
    assert_eq!(other.read(&topic, &[START], ALL).await.unwrap().records.len(), 1);
}

#[tokio::test]
async fn payloads_are_shared_not_copied() {
    let store = MemoryStore::new();
    let topic = topic(&store).await;
    let payload = Bytes::from(vec![7; 1_000]);
    let stored = NewEvent { payload: payload.clone(), ..event(None) };
    store.append(&topic, vec![stored]).await.unwrap();
    let read = store.read(&topic, &[START], ALL).await.unwrap();
    assert_eq!(read.records[0].payload.as_ptr(), payload.as_ptr());
}
