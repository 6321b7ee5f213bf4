//! What the benchmarks of stores on a server share: the same batches for both sides, and rounds that alternate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use photon_core::event::{Event, NewEvent};
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Generation, Shard, TopicName};
use photon_core::registry::Registry;
use photon_core::store::{Store, TopicSpec};
use photon_runtime::{DynamicTopic, Photon, Subscription};
use uuid::Uuid;

/// Events in a batch. The next is sent when the answer to the last has come.
pub const BATCH: usize = 512;
/// Batches in a round.
pub const BATCHES: usize = 60;
/// Rounds that count; one before them warms both sides up.
pub const ROUNDS: usize = 9;
/// What every event carries.
pub const PAYLOAD: [u8; 200] = [b'x'; 200];

/// A batch, spread evenly over the shards.
pub fn batch(shards: u16) -> Vec<NewEvent> {
    let event = |number: usize| NewEvent {
        id: EventId(Uuid::now_v7()),
        shard: Shard(u16::try_from(number % usize::from(shards)).unwrap_or(0)),
        key: None,
        headers: Headers::new(),
        payload: bytes::Bytes::from_static(&PAYLOAD),
        dedup_id: None,
    };
    (0..BATCH).map(event).collect()
}

/// Makes a topic.
pub async fn topic(store: &impl Store, name: &str, shards: u16) -> Result<TopicName> {
    let name = TopicName::new(name)?;
    let spec = TopicSpec { name: name.clone(), shards, key: None, generation: Generation(Uuid::new_v4()) };
    store.ensure_topic(&spec).await?;
    Ok(name)
}

/// Appends against appends, a batch after the other.
pub async fn appends(
    store: &impl Store,
    engine: &str,
    shards: u16,
    mut bare: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let name = topic(store, &format!("bench-{shards}"), shards).await?;
    let mut times = Times::default();
    for _ in 0..=ROUNDS {
        let began = Instant::now();
        for _ in 0..BATCHES {
            bare().await?;
        }
        let of_bare = began.elapsed();
        let began = Instant::now();
        for _ in 0..BATCHES {
            store.append(&name, batch(shards)).await?;
        }
        times.push(of_bare, began.elapsed());
    }
    times.print(&format!("{engine}: append, {shards} shards"));
    Ok(())
}

/// Appends with a subscription that counts, against a round of the bare client with a reader of its own.
pub async fn handled(
    store: Arc<impl Store + 'static>,
    engine: &str,
    mut bare: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let name = topic(&*store, "bench-handled", 1).await?;
    let builder = Photon::builder().store(store.clone());
    let photon = builder.registry(Registry::default()).allow_no_handlers().build().await?;
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = seen.clone();
    let handler = move |event: Event| {
        counter.fetch_add(usize::from(event.payload.len() == PAYLOAD.len()), Ordering::Relaxed);
        std::future::ready(())
    };
    let spec = Subscription::to(DynamicTopic::new(name.as_str())?).group("bench");
    photon.subscribe(spec, handler).await?;
    let executor = photon.start_executor().await?;
    let mut times = Times::default();
    for _ in 0..=ROUNDS {
        let began = Instant::now();
        bare().await?;
        let of_bare = began.elapsed();
        seen.store(0, Ordering::Relaxed);
        let began = Instant::now();
        for _ in 0..BATCHES {
            store.append(&name, batch(1)).await?;
        }
        while seen.load(Ordering::Relaxed) < BATCH * BATCHES {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        times.push(of_bare, began.elapsed());
    }
    executor.drain().await?;
    times.print(&format!("{engine}: published and handled"));
    Ok(())
}

/// Times of the bare loop and of Photon, in seconds.
#[derive(Default)]
struct Times(Vec<(f64, f64)>);

impl Times {
    fn push(&mut self, bare: Duration, photon: Duration) {
        self.0.push((bare.as_secs_f64(), photon.as_secs_f64()));
    }

    fn print(mut self, what: &str) {
        self.0.remove(0);
        let mut ratios: Vec<f64> = self.0.iter().map(|(bare, photon)| bare / photon * 100.0).collect();
        let mut times: Vec<f64> = self.0.iter().map(|(_, photon)| *photon).collect();
        ratios.sort_by(f64::total_cmp);
        times.sort_by(f64::total_cmp);
        let events = u32::try_from(BATCH * BATCHES).map_or(0.0, f64::from);
        println!(
            "{what}: {:.0} events/s, {:.0} % of the bare loop (median of {ROUNDS}, {:.0} to {:.0} %)",
            events / times[ROUNDS / 2],
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1]
        );
    }
}
