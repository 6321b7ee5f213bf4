//! A group of two processes that share the work, and one of them is stopped and started again.
//!
//!     cargo run --example consumer_group
//!
//! The program starts itself twice. Both work on one SQLite file, in one group: each shard of the topic, and so
//! each key, belongs to one of them. The second one is then told to end (SIGTERM), and more is published. What
//! falls into its shards waits, until another process starts in its place and goes on where it stopped. At the end
//! everything was handled, and nothing twice.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use photon::prelude::*;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use uuid::Uuid;

/// What makes the program a worker: its number in the group.
const WORKER: &str = "CONSUMER_GROUP_WORKER";
const WORKERS: u32 = 2;
const SHARDS: u16 = 8;
/// How long to wait for something that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

#[topic(name = "letters.posted", key = town, shards = 8)]
#[derive(Serialize, Deserialize)]
struct Letter {
    town: String,
    n: u32,
    /// Letters of an earlier run, on an engine that remembers it, do not count.
    run: String,
}

#[subscribe(group = "post-office")]
async fn sort(letter: Letter, cx: Context) {
    // The parent reads this.
    println!("sorted {} {} {}", letter.run, letter.n, cx.shard());
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("post.db");
    let engine = common::engine_or(&format!("sqlite:{}", file.display()));
    ensure!(
        !engine.starts_with("memory:"),
        "two processes cannot share the memory of one: name another engine"
    );
    match std::env::var(WORKER) {
        Ok(index) => work(&engine, index.parse()?).await,
        Err(_) => direct(&engine).await,
    }
}

/// A worker: its share of the shards, until it is told to end.
async fn work(engine: &str, index: u32) -> Result<()> {
    let photon = Photon::builder().from_url(engine).group(index, WORKERS).build().await?;
    let report = photon.start_executor().await?.run_until_signal().await?;
    ensure!(report.is_clean(), "worker {index} did not end well: {report}");
    Ok(())
}

/// A line that a worker wrote.
struct Sorted {
    worker: usize,
    n: u32,
    shard: u16,
}

/// The one who publishes, and starts and stops the workers.
async fn direct(engine: &str) -> Result<()> {
    let run = Uuid::new_v4().simple().to_string();
    // It handles nothing itself.
    let photon = Photon::builder().from_url(engine).build().await?;
    let post = async |numbers: std::ops::Range<u32>| {
        let letters = numbers.map(|n| Letter { town: format!("town {}", n % 40), n, run: run.clone() });
        photon.publish_all(letters).await
    };
    let (lines, mut sorted) = mpsc::unbounded_channel();
    let start = |worker| start_worker(engine, worker, &run, lines.clone());
    let mut seen = BTreeMap::new();

    let first = start(0)?;
    let second = start(1)?;
    post(0..200).await?;
    wait_for(&mut sorted, &mut seen, |seen| seen.len() == 200).await?;
    let owners: BTreeMap<u16, usize> = seen.values().map(|sorted| (sorted.shard, sorted.worker)).collect();
    show("200 letters", &seen);

    stop(second).await?;
    println!("worker 1 is stopped");
    post(200..400).await?;
    let of_first = |n: &u32| owners[&seen[&(n % 40)].shard] == 0;
    let waits: BTreeSet<u32> = (200..400).filter(|n| !of_first(n)).collect();
    wait_for(&mut sorted, &mut seen, |seen| seen.len() == 400 - waits.len()).await?;
    show("200 more", &seen);
    println!("{} letters wait for worker 1", waits.len());
    ensure!(waits.iter().all(|n| !seen.contains_key(n)), "a letter was sorted in a shard of worker 1");

    let second = start(1)?;
    println!("worker 1 is started again");
    wait_for(&mut sorted, &mut seen, |seen| seen.len() == 400).await?;
    show("400 letters", &seen);
    stop(first).await?;
    stop(second).await?;

    for sorted in seen.values() {
        ensure!(owners[&sorted.shard] == sorted.worker, "shard {} had two owners", sorted.shard);
    }
    ensure!(owners.len() == usize::from(SHARDS), "not every shard was in use: {owners:?}");
    // Whatever was sorted twice would still be in the channel, or was found when it came.
    drop(lines);
    ensure!(sorted.recv().await.is_none(), "something was sorted twice");
    println!("every letter was sorted, and none twice");
    Ok(())
}

fn start_worker(
    engine: &str,
    worker: usize,
    run: &str,
    lines: mpsc::UnboundedSender<Sorted>,
) -> Result<Child> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--engine", engine])
        .env(WORKER, worker.to_string())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut output = BufReader::new(child.stdout.take().context("the worker has no output")?).lines();
    let run = run.to_owned();
    tokio::spawn(async move {
        while let Ok(Some(line)) = output.next_line().await {
            let ["sorted", of, n, shard] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
            if let (true, Ok(n), Ok(shard)) = (of == run, n.parse(), shard.parse()) {
                let _ = lines.send(Sorted { worker, n, shard });
            }
        }
    });
    Ok(child)
}

/// Asks a worker to end, as an operator would, and waits until it did.
async fn stop(mut worker: Child) -> Result<()> {
    let id = worker.id().context("the worker has ended by itself")?;
    let asked = Command::new("kill").args(["-TERM", &id.to_string()]).status().await?;
    ensure!(asked.success(), "the worker could not be stopped");
    let status = tokio::time::timeout(PATIENCE, worker.wait()).await.context("the worker does not end")??;
    ensure!(status.success(), "the worker ended with {status}");
    Ok(())
}

async fn wait_for(
    sorted: &mut mpsc::UnboundedReceiver<Sorted>,
    seen: &mut BTreeMap<u32, Sorted>,
    enough: impl Fn(&BTreeMap<u32, Sorted>) -> bool,
) -> Result<()> {
    while !enough(seen) {
        let next = tokio::time::timeout(PATIENCE, sorted.recv()).await;
        let Some(next) = next.with_context(|| format!("only {} letters were sorted", seen.len()))? else {
            bail!("all workers have ended");
        };
        if let Some(before) = seen.insert(next.n, next) {
            bail!("letter {} was sorted twice", before.n);
        }
    }
    Ok(())
}

fn show(what: &str, seen: &BTreeMap<u32, Sorted>) {
    for worker in 0..2 {
        let of: Vec<_> = seen.values().filter(|sorted| sorted.worker == worker).collect();
        let shards: BTreeSet<u16> = of.iter().map(|sorted| sorted.shard).collect();
        println!("{what}: worker {worker} sorted {} in shards {shards:?}", of.len());
    }
}
