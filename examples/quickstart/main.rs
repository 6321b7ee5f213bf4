//! The history of a git repository as events: a projection, a flaky receiver, and dead letters.
//!
//!     cargo run --example quickstart                  # the repository around here
//!     cargo run --example quickstart -- ~/src/linux   # another one
//!
//! Every commit becomes an event, with its author as the key, and three subscriptions handle it: one keeps a
//! table of authors, one posts to a chat room that is often busy, and one refuses malformed commits, which become
//! dead letters.
//!
//! Run it again: it handles what is new. Kill it with -9 in the middle and run it again: the table at the end is
//! the one that it would have been.

// A program of several files: nobody else sees its items.
#![allow(unreachable_pub)]

mod chat;
mod command_line;
mod commit;
mod git;
mod handlers;
mod report;
mod tables;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use photon::{Executor, Photon};

use crate::chat::ChatRoom;
use crate::command_line::CommandLine;
use crate::git::Repository;
use crate::handlers::Settled;
use crate::report::Run;
use crate::tables::Tables;

/// How many commits are looked up and published together.
const CHUNK: usize = 500;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("quickstart: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode> {
    let wanted = CommandLine::read()?;
    let repository = Repository::find(wanted.repository.as_deref()).await?;
    let engine = wanted.engine(&repository);
    println!("the history of {} in {}", repository.path().display(), engine.url);

    let _alone = engine.lock()?;
    let total = repository.count().await?;
    let bars = Bars::new(total);
    let tables = Tables::open(engine.tables.as_deref())?;
    let photon = Photon::builder()
        .from_url(&engine.url)
        .state(tables.clone())
        .state(ChatRoom::new(tables.clone()))
        .state(Settled(bars.settled.clone()))
        .build()
        .await?;
    tables.create().await?;
    check_owner(&tables, &repository).await?;

    let began = Instant::now();
    let executor = photon.start_executor().await?;
    let published = tokio::select! {
        published = work(&photon, &executor, &repository, &tables, &bars) => Some(published),
        _ = tokio::signal::ctrl_c() => None,
    };
    // Also after an error: what runs may end, and the checkpoints are written.
    executor.shutdown();
    let drain = executor.join().await;
    bars.clear();
    let Some(published) = published else {
        println!("stopped: {drain}. Run it again to go on.");
        return Ok(ExitCode::from(130));
    };
    let run = Run { published: published?, took: began.elapsed(), drain };
    ensure!(run.drain.is_clean(), "the end was not clean: {}", run.drain);
    report::print(&photon, &tables, &run, wanted.all).await?;
    Ok(ExitCode::SUCCESS)
}

/// Publishes the commits that are not in the log yet, and waits until everything is handled. Returns how many
/// were new.
async fn work(
    photon: &Photon,
    executor: &Executor,
    repository: &Repository,
    tables: &Tables,
    bars: &Bars,
) -> Result<u64> {
    // First what an earlier run left in the log: after that the projection knows every commit that is in it.
    executor.quiet().await?;
    let mut commits = repository.commits()?;
    let mut published = 0;
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        while chunk.len() < CHUNK
            && let Some(commit) = commits.next().await?
        {
            chunk.push(commit);
        }
        if chunk.is_empty() {
            break;
        }
        bars.published.inc(chunk.len() as u64);
        let new = tables.without_counted(chunk).await?;
        bars.expect(new.len() as u64);
        published += photon.publish_all(new).await?.len() as u64;
    }
    executor.quiet().await?;
    Ok(published)
}

/// One file holds one history.
async fn check_owner(tables: &Tables, repository: &Repository) -> Result<()> {
    let path = repository.path().as_os_str().as_encoded_bytes();
    let owner = tables.owner(path.to_vec()).await?;
    ensure!(
        owner == path,
        "this file holds the history of {}: name another one for {}, with --engine sqlite:FILE",
        String::from_utf8_lossy(&owner),
        repository.path().display()
    );
    Ok(())
}

/// How far the work is. Nothing is drawn where nobody looks: into a pipe or a file.
struct Bars {
    published: ProgressBar,
    settled: ProgressBar,
}

impl Bars {
    fn new(commits: u64) -> Self {
        let both = MultiProgress::new();
        let bar = |name: &'static str, length| {
            let style = "{prefix:>10} {bar:40} {pos}/{len} {per_sec} {eta}";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            both.add(ProgressBar::new(length).with_style(style).with_prefix(name))
        };
        Self { published: bar("published", commits), settled: bar("handled", 0) }
    }

    /// This many commits will be handled by each of the three subscriptions.
    fn expect(&self, commits: u64) {
        self.settled.inc_length(3 * commits);
    }

    fn clear(&self) {
        self.published.finish_and_clear();
        self.settled.finish_and_clear();
    }
}
