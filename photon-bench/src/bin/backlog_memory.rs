//! The memory that a subscription takes with a long backlog behind it.
//!
//! ```sh
//! cargo run --release -p photon-bench --bin backlog_memory
//! ```
//!
//! For each case a process of its own fills a topic, and another one opens it. Its resident memory once Photon is
//! built, before the executor starts, is the idle process; then the subscription works on the backlog for some
//! seconds, or through all of it. What counts is the peak (`VmHWM`) over the idle process: the limit is
//! 64 MiB, over it this program ends with an error. Linux only: it reads `/proc/self/status`.
//!
//! Servers are private ones, started for the case. On the memory engine the log itself is in memory. There one process does both, and "idle" is measured when the
//! log is full, so that the rest is the subscription's own part. Large blocks are given back to the system at once
//! (`MALLOC_MMAP_THRESHOLD_`), so that what filling left behind does not hide what working takes.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use photon::prelude::*;
use photon_backend::servers::{Nats, Postgres, PostgresOptions, Redis};

const LIMIT_KIB: u64 = 64 * 1024;
const WORK_FOR: Duration = Duration::from_secs(6);

/// The payload is filled up to the size of the case.
#[topic(name = "bench.backlog", key = key, shards = 8)]
#[derive(Serialize, Deserialize)]
struct Backlog {
    id: u64,
    key: u64,
    filling: String,
}

/// Waits a while for each event.
#[subscribe(group = "slow", concurrency = 64)]
async fn slow(event: Backlog, State(done): State<Done>) {
    tokio::time::sleep(Duration::from_millis(20)).await;
    done.note(&event);
}

/// Never ends the first event; the others go on, so that their settlements pile up above it.
#[subscribe(group = "stuck", concurrency = 64, timeout = "1h")]
async fn stuck(event: Backlog, State(done): State<Done>) {
    if event.id == 0 {
        std::future::pending::<()>().await;
    }
    done.note(&event);
}

#[derive(Clone, Default)]
struct Done(Arc<AtomicU64>);

impl Done {
    fn note(&self, event: &Backlog) {
        std::hint::black_box(event);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Case {
    name: &'static str,
    engine: &'static str,
    group: &'static str,
    events: u64,
    payload: usize,
    /// Work until so many are handled, however long it takes; 0: for [`WORK_FOR`].
    until: u64,
}

const fn case(
    name: &'static str,
    engine: &'static str,
    group: &'static str,
    events: u64,
    payload: usize,
    until: u64,
) -> Case {
    Case { name, engine, group, events, payload, until }
}

const MILLION: u64 = 1_000_000;
const CASES: [Case; 12] = [
    case("sqlite-slow", "sqlite", "slow", MILLION, 200, 0),
    case("sqlite-slow-10k", "sqlite", "slow", 50_000, 10 * 1024, 0),
    case("sqlite-stuck", "sqlite", "stuck", MILLION, 200, MILLION - 1),
    case("postgres-slow", "postgres", "slow", MILLION, 200, 0),
    case("postgres-stuck", "postgres", "stuck", MILLION, 200, MILLION - 1),
    case("nats-slow", "nats", "slow", MILLION, 200, 0),
    case("nats-stuck", "nats", "stuck", MILLION, 200, MILLION - 1),
    case("redis-slow", "redis", "slow", MILLION, 200, 0),
    case("redis-stuck", "redis", "stuck", MILLION, 200, MILLION - 1),
    case("memory-slow", "memory", "slow", MILLION, 200, 0),
    case("memory-slow-10k", "memory", "slow", 50_000, 10 * 1024, 0),
    case("memory-stuck", "memory", "stuck", MILLION, 200, MILLION - 1),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => all(),
        [step, name, url] => one(step, name, url),
        _ => bail!("no arguments are needed"),
    }
}

fn all() -> Result<()> {
    println!(
        "{:16}  {:>9}  {:>7}  {:>9}  {:>9}  {:>9}",
        "case", "backlog", "payload", "handled", "idle", "peak over"
    );
    let mut over = Vec::new();
    for case in &CASES {
        let log = Log::start(case.engine)?;
        if case.engine != "memory" {
            run_self("fill", case, &log)?;
        }
        let answer = run_self("work", case, &log)?;
        let figures: Vec<u64> = answer.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [idle, peak, handled] = figures[..] else { bail!("{}: no figures: {answer}", case.name) };
        let grown = peak.saturating_sub(idle);
        println!(
            "{:16}  {:>9}  {:>7}  {handled:>9}  {:>5} MiB  {:>5.1} MiB",
            case.name,
            case.events,
            case.payload,
            idle / 1024,
            f64::from(u32::try_from(grown)?) / 1024.0
        );
        if grown > LIMIT_KIB {
            over.push(case.name);
        }
    }
    ensure!(over.is_empty(), "over {} MiB: {}", LIMIT_KIB / 1024, over.join(", "));
    Ok(())
}

/// Where the events of a case are; what is kept there goes with it.
struct Log {
    url: String,
    _kept: Box<dyn std::any::Any>,
}

impl Log {
    fn start(engine: &str) -> Result<Self> {
        Ok(match engine {
            "postgres" => {
                let server = Postgres::start_new(&PostgresOptions::new());
                Self { url: server.url("postgres"), _kept: Box::new(server) }
            }
            "nats" => {
                let server = Nats::start_new(&[]);
                Self { url: server.url(), _kept: Box::new(server) }
            }
            "redis" => {
                let server = Redis::start_new(&[]);
                Self { url: server.url(), _kept: Box::new(server) }
            }
            "sqlite" => {
                let dir = tempfile::tempdir_in(".")?;
                let file = dir.path().join("backlog.db");
                Self { url: format!("sqlite:{}", file.display()), _kept: Box::new(dir) }
            }
            _ => Self { url: "memory:".to_owned(), _kept: Box::new(()) },
        })
    }
}

fn run_self(step: &str, case: &Case, log: &Log) -> Result<String> {
    let output = Command::new(std::env::current_exe()?)
        .args([step, case.name, &log.url])
        .env("MALLOC_MMAP_THRESHOLD_", "131072")
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{step} {}: {errors}", case.name);
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn one(step: &str, name: &str, url: &str) -> Result<()> {
    let case = CASES.iter().find(|case| case.name == name).context("no such case")?;
    let done = Done::default();
    let builder = Photon::builder().only([case.group]).state(done.clone()).drain_timeout(Duration::ZERO);
    let photon = builder.from_url(url).build().await?;
    if step == "fill" || case.engine == "memory" {
        fill(&photon, case).await?;
    }
    if step == "work" {
        work(&photon, case, &done).await?;
    }
    photon.close().await;
    Ok(())
}

async fn fill(photon: &Photon, case: &Case) -> Result<()> {
    const AT_ONCE: u64 = 2_000;
    for first in (0..case.events).step_by(usize::try_from(AT_ONCE)?) {
        let event = |id: u64| {
            let room = case.payload.saturating_sub(50);
            // The event that gets stuck has a key of its own: what has its key would rightly wait with it.
            let key = if id == 0 { u64::MAX } else { id % 1_000 };
            Backlog { id, key, filling: "x".repeat(room) }
        };
        photon.publish_all((first..case.events.min(first + AT_ONCE)).map(event)).await?;
    }
    Ok(())
}

async fn work(photon: &Photon, case: &Case, done: &Done) -> Result<()> {
    let idle = memory("VmRSS:")?;
    // Forgets the peak so far: that of filling.
    std::fs::write("/proc/self/clear_refs", "5").context("the peak cannot be reset")?;
    let executor = photon.start_executor().await?;
    let handled = || done.0.load(Ordering::Relaxed);
    if case.until == 0 {
        tokio::time::sleep(WORK_FOR).await;
        ensure!(handled() > 0, "nothing was handled");
    }
    while handled() < case.until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("{idle} {} {}", memory("VmHWM:")?, handled());
    executor.shutdown();
    executor.join().await;
    Ok(())
}

/// A line of `/proc/self/status`, in KiB.
fn memory(line: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let value = status.lines().find_map(|found| found.strip_prefix(line)).context("the line is missing")?;
    Ok(value.trim().trim_end_matches("kB").trim().parse()?)
}
