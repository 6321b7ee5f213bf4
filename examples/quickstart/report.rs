//! What the program says at its end.

use std::time::Duration;

use anyhow::{Result, ensure};
use photon::{DrainReport, Page, Photon};

use crate::commit::Commit;
use crate::tables::Tables;

/// What this run did.
pub struct Run {
    pub published: u64,
    pub took: Duration,
    pub drain: DrainReport,
}

/// Prints the table: everything that is in the log, whichever run brought it there, and then this run.
pub async fn print(photon: &Photon, tables: &Tables, run: &Run, all: bool) -> Result<()> {
    let totals = tables.totals().await?;
    let dead = photon.dead_letters("review").count().await?;
    let settled: u64 = run.drain.subscriptions.iter().map(|of| of.handled + of.dead).sum();
    let line = |name: &str, value: String| println!("  {name:<22}{value:>12}");
    println!();
    line("commits", grouped(totals.commits));
    line("authors", grouped(totals.authors));
    line("posts in the chat", grouped(totals.posts));
    line("retries", grouped(totals.retries));
    line("dead letters", grouped(dead));
    line("events per second", rate(settled, run.took));
    list(photon, tables, all).await?;
    println!();
    println!(
        "this run: {} new commits published, {} events handled in {:.1} s",
        grouped(run.published),
        grouped(settled),
        run.took.as_secs_f64()
    );

    // What must hold, whatever the history looks like and whatever happened on the way.
    ensure!(totals.posts == totals.commits, "not every commit is in the chat: {totals:?}");
    for group in ["authors", "chat"] {
        let dead = photon.dead_letters(group).count().await?;
        ensure!(dead == 0, "{group} gave up on {dead} commits");
    }
    Ok(())
}

/// The busiest authors and the first dead letters, or all of them.
async fn list(photon: &Photon, tables: &Tables, all: bool) -> Result<()> {
    let few = if all { u32::MAX } else { 5 };
    println!("\n  the busiest authors:");
    for author in tables.authors(few).await? {
        let name = String::from_utf8_lossy(&author.name);
        let trail = if all { format!("{:016x}  ", author.trail) } else { String::new() };
        println!("  {:>8}  {trail}{}", grouped(author.commits), name.escape_debug());
    }
    let mut page = Page::first(if all { 1_000 } else { 5 });
    let mut letters = photon.dead_letters("review").list(page).await?;
    if !letters.is_empty() {
        println!("\n  refused commits:");
    }
    while let Some(last) = letters.last() {
        page = Page::after(last.place(), 1_000);
        for letter in &letters {
            let commit: Commit = letter.decode()?;
            let hash = commit.hash.get(..12).unwrap_or(&commit.hash);
            println!("  {hash}  {} ({})", letter.error, commit.author.to_string().escape_debug());
        }
        letters = if all { photon.dead_letters("review").list(page).await? } else { Vec::new() };
    }
    Ok(())
}

/// Of the three subscriptions together.
fn rate(settled: u64, took: Duration) -> String {
    let nanos = took.as_nanos().max(1);
    match u128::from(settled) * 1_000_000_000 / nanos {
        0 => "-".to_owned(),
        rate => grouped(u64::try_from(rate).unwrap_or(u64::MAX)),
    }
}

/// A number that can be read at a glance: 12 345 678.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}
