//! The worker: three subscriptions with different ways to fail, and a publisher.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use photon::prelude::*;
use tokio::sync::oneshot;

use crate::journal::{Journal, What};

pub(crate) const WORKERS: u32 = 3;
pub(crate) const GROUPS: [&str; 3] = ["steady", "parking", "blocking"];
pub(crate) const CHECKPOINT_EVERY: u64 = 16;
pub(crate) const CONCURRENCY: u64 = 8;

const ENV: &str = "PHOTON_CRASH_WORKER";

#[topic(name = "crash.events", key = key, shards = 8)]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Happening {
    pub(crate) id: u64,
    pub(crate) key: String,
    /// The blocking subscription cannot handle it before, in milliseconds of the system's clock.
    pub(crate) from: u64,
}

/// Fails now and then, and tries again from memory.
#[subscribe(
    group = "steady",
    concurrency = 8,
    checkpoint(every = 16),
    retry(max_attempts = 50, backoff = "fixed(3ms)", jitter = 0)
)]
async fn steady(event: Happening, cx: Context, State(journal): State<Journal>) -> Result<(), HandlerError> {
    run(&journal, &cx, event.id, || chance(event.id, cx.attempt(), 10, HandlerError::retry)).await
}

/// Its failures are parked; some events are refused for good.
#[subscribe(
    group = "parking",
    concurrency = 8,
    checkpoint(every = 16),
    park_after = "1ms",
    retry(max_attempts = 50, backoff = "fixed(30ms)", jitter = 0)
)]
async fn parking(event: Happening, cx: Context, State(journal): State<Journal>) -> Result<(), HandlerError> {
    run(&journal, &cx, event.id, || {
        chance(event.id, 0, 2, HandlerError::permanent)?;
        chance(event.id, cx.attempt(), 10, HandlerError::retry)
    })
    .await
}

/// A dead letter holds its key up until it is redriven.
#[subscribe(
    group = "blocking",
    concurrency = 8,
    checkpoint(every = 16),
    on_dead = "block_key",
    retry(max_attempts = 50, backoff = "fixed(3ms)", jitter = 0)
)]
async fn blocking(event: Happening, cx: Context, State(journal): State<Journal>) -> Result<(), HandlerError> {
    run(&journal, &cx, event.id, || {
        if event.from > now() {
            return Err(HandlerError::permanent("not yet"));
        }
        chance(event.id, cx.attempt(), 5, HandlerError::retry)
    })
    .await
}

async fn run(
    journal: &Journal,
    cx: &Context,
    event: u64,
    end: impl Fn() -> Result<(), HandlerError>,
) -> Result<(), HandlerError> {
    journal.run(What::Start, cx, event);
    // Some end at once, in the loop's own task; some wait.
    let pause = mix(event ^ u64::from(cx.attempt())) % 4;
    if pause > 0 {
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    let end = end();
    journal.run(if end.is_ok() { What::Done } else { What::Failed }, cx, event);
    end
}

/// Fails for `percent` of all events and attempts, always for the same ones.
fn chance(
    event: u64,
    attempt: u32,
    percent: u64,
    error: impl Fn(&'static str) -> HandlerError,
) -> Result<(), HandlerError> {
    let fails = mix(event.rotate_left(32) ^ u64::from(attempt)) % 100 < percent;
    if fails { Err(error("bad luck")) } else { Ok(()) }
}

/// A number that looks random and follows from another one.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Milliseconds of the system's clock.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(now.as_millis()).expect("a clock before the year 500 million")
}

pub(crate) fn database(dir: &Path) -> PathBuf {
    dir.join("crash.db")
}

pub(crate) fn side_file(dir: &Path) -> PathBuf {
    dir.join("side.txt")
}

/// While this is there, workers that start do not publish.
pub(crate) fn quiet_sign(dir: &Path) -> PathBuf {
    dir.join("quiet")
}

/// The environment of the worker `index` in its process number `life`.
pub(crate) fn environment(dir: &Path, index: u32, life: u32) -> (&'static str, String) {
    (ENV, format!("{index} {life} {}", dir.display()))
}

pub(crate) fn main() {
    let Ok(task) = std::env::var(ENV) else { return };
    let mut words = task.splitn(3, ' ');
    let mut word = || words.next().expect("index, life, directory");
    let index = word().parse().expect("an index");
    let life = word().parse().expect("a life");
    let dir = PathBuf::from(word());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(work(&dir, index, life));
}

async fn work(dir: &Path, index: u32, life: u32) {
    let journal = Journal::open(&side_file(dir), life);
    let photon = Photon::builder()
        .sqlite(database(dir))
        .instance(format!("worker-{index}"))
        .group(index, WORKERS)
        .state(journal.clone())
        .only(GROUPS)
        .build()
        .await
        .expect("the worker builds");
    let executor = photon.start_executor().await.expect("the worker starts");
    let events = if quiet_sign(dir).exists() { 0 } else { 200 };
    let publishing = tokio::spawn(publish(photon.clone(), journal, life, events));
    told_to_end().await;
    publishing.abort();
    executor.shutdown();
    let report = executor.join().await;
    assert!(report.is_clean(), "{report}");
}

/// Publishes one by one, and writes down what returned Ok.
async fn publish(photon: Photon, journal: Journal, life: u32, events: u64) {
    for n in 0..events {
        let id = (u64::from(life + 1) << 32) | n;
        let event = Happening { id, key: format!("worker-{}", mix(id) % 10), from: 0 };
        if photon.publish(&event).await.is_ok() {
            journal.published(id);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ends when the other side of standard input says something, or is gone.
async fn told_to_end() {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = tell.send(());
    });
    let _ = told.await;
}
