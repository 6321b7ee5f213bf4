//! The Redis store against the bare client's best loop.
//!
//! ```sh
//! cargo run --release -p photon-bench --bin redis_append
//! ```
//!
//! Starts a private server with `appendonly yes` and `appendfsync always`; `everysec` as the argument sets the latter
//! to that. All write payloads of 200 bytes, 512 at a time, and wait for the answer before the next. The bare loop
//! sends 512 `XADD` in one pipeline. Handled: a second connection reads with `XREAD BLOCK`, 512 at a time, and writes
//! its position after each, against `publish_all` and a subscription that counts. Rounds alternate; what counts is the
//! median of the ratios. The temporary directory should lie on a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use photon_backend::redis::{Durability, RedisOptions, RedisStore};
use photon_backend::servers::Redis;
use photon_core::event::{Event, NewEvent};
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Generation, Shard, TopicName};
use photon_core::registry::Registry;
use photon_core::store::{EventLog, TopicSpec};
use photon_runtime::{DynamicTopic, Photon, Subscription};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use uuid::Uuid;

const BATCH: usize = 512;
const BATCHES: usize = 60;
const ROUNDS: usize = 7;
const PAYLOAD: [u8; 200] = [b'x'; 200];

async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

async fn bare_append(connection: &mut MultiplexedConnection) -> Result<()> {
    let mut pipeline = redis::pipe();
    for _ in 0..BATCH {
        pipeline.cmd("XADD").arg("bare").arg("*").arg("e").arg(&PAYLOAD[..]).ignore();
    }
    Ok(pipeline.query_async(connection).await?)
}

/// Appends on one connection and reads on another, until everything is read.
async fn bare_handled(writer: &mut MultiplexedConnection, reader: &mut MultiplexedConnection) -> Result<()> {
    redis::cmd("DEL").arg("bare").query_async::<()>(writer).await?;
    let writing = async {
        for _ in 0..BATCHES {
            bare_append(writer).await?;
        }
        anyhow::Ok(())
    };
    let reading = async {
        let (mut last, mut seen) = ("0".to_owned(), 0);
        while seen < BATCH * BATCHES {
            let mut command = redis::cmd("XREAD");
            command.arg("COUNT").arg(BATCH).arg("BLOCK").arg(0).arg("STREAMS").arg("bare").arg(&last);
            let found: StreamReadReply = command.query_async(reader).await?;
            for entry in found.keys.into_iter().flat_map(|stream| stream.ids) {
                let payload: Vec<u8> = entry.get("e").unwrap_or_default();
                seen += usize::from(std::hint::black_box(payload).len() == PAYLOAD.len());
                last = entry.id;
            }
            redis::cmd("SET").arg("position").arg(&last).query_async::<()>(reader).await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(writing, reading)?;
    Ok(())
}

fn batch(shards: u16) -> Vec<NewEvent> {
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

async fn topic(store: &RedisStore, name: &str, shards: u16) -> Result<TopicName> {
    let name = TopicName::new(name)?;
    let spec = TopicSpec { name: name.clone(), shards, key: None, generation: Generation(Uuid::new_v4()) };
    store.ensure_topic(&spec).await?;
    Ok(name)
}

/// Times of the bare loop and of Photon, in seconds.
#[derive(Default)]
struct Times(Vec<(f64, f64)>);

impl Times {
    fn print(mut self, what: &str) {
        // The first round warms both up.
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

async fn appends(store: &RedisStore, writer: &mut MultiplexedConnection, shards: u16) -> Result<()> {
    let name = topic(store, &format!("bench-{shards}"), shards).await?;
    let mut times = Times::default();
    for _ in 0..=ROUNDS {
        let began = Instant::now();
        for _ in 0..BATCHES {
            bare_append(writer).await?;
        }
        let bare = began.elapsed().as_secs_f64();
        let began = Instant::now();
        for _ in 0..BATCHES {
            store.append(&name, batch(shards)).await?;
        }
        times.0.push((bare, began.elapsed().as_secs_f64()));
    }
    times.print(&format!("append, {shards} shards"));
    Ok(())
}

async fn handled(store: &RedisStore, url: &str) -> Result<()> {
    let (mut writer, mut reader) = (connect(url).await?, connect(url).await?);
    let name = topic(store, "bench-handled", 1).await?;
    let builder = Photon::builder().store(Arc::new(store.clone()));
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
        bare_handled(&mut writer, &mut reader).await?;
        let bare = began.elapsed().as_secs_f64();
        seen.store(0, Ordering::Relaxed);
        let began = Instant::now();
        for _ in 0..BATCHES {
            store.append(&name, batch(1)).await?;
        }
        while seen.load(Ordering::Relaxed) < BATCH * BATCHES {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        times.0.push((bare, began.elapsed().as_secs_f64()));
    }
    executor.drain().await?;
    times.print("published and handled");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let fsync = std::env::args().nth(1).unwrap_or_else(|| "always".to_owned());
    let server = Redis::start_new(&["--appendfsync", &fsync]);
    let url = server.url();
    let options = RedisOptions::from_url(&url)?.durability(Durability::EverySecond);
    let store = RedisStore::open(options).await?;
    let mut writer = connect(&url).await?;
    println!("appendfsync {fsync}");
    for shards in [1, 8] {
        appends(&store, &mut writer, shards).await?;
    }
    handled(&store, &url).await
}
