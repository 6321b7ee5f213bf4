//! `publish_all` on SQLite against a bare rusqlite loop that inserts the same rows.
//!
//! ```sh
//! cargo run --release -p photon-bench --bin sqlite_append [--normal]
//! ```
//!
//! Both write events with a payload of 200 bytes, 512 a transaction, durable after each (`synchronous = FULL`;
//! with `--normal` NORMAL), through one connection. The bare loop gets rows that are ready, and puts them in the
//! cheapest table there is: in the order they come, no key and no index. Photon also encodes the events, makes
//! their ids, and finds shards and places. Rounds alternate; what counts is the median of the ratios. The files
//! lie in the working directory, because a temporary directory may be in memory.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use photon::prelude::*;
use photon_core::codec;
use photon_core::ids::EventId;
use photon_core::machine::shards::shard_of;
use rusqlite::{Connection, params};
use uuid::Uuid;

const BATCH: usize = 512;
const EVENTS: u64 = 100 * 512;
const ROUNDS: usize = 9;
const PAYLOAD: usize = 200;

/// 200 bytes as JSON, in one shard.
#[topic(name = "bench.one-shard", key = customer, shards = 1)]
#[derive(Serialize, Deserialize)]
struct OneShard {
    id: u64,
    customer: String,
    note: String,
}

/// The same, in the default number of shards.
#[topic(name = "bench.eight-shards", key = customer, shards = 8)]
#[derive(Serialize, Deserialize)]
struct EightShards {
    id: u64,
    customer: String,
    note: String,
}

/// One row of the bare loop.
struct Row {
    shard: u16,
    id: Uuid,
    key: Vec<u8>,
    payload: Vec<u8>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let full = !std::env::args().any(|argument| argument == "--normal");
    println!(
        "SQLite {}, {BATCH} events of {PAYLOAD} bytes a transaction, durability {}, medians of {ROUNDS} rounds",
        rusqlite::version(),
        if full { "full" } else { "normal" }
    );
    println!("shards  bare loop/s  publish_all/s  ratio");
    let one = |id, customer, note| OneShard { id, customer, note };
    let eight = |id, customer, note| EightShards { id, customer, note };
    compare(1, full, one).await?;
    compare(8, full, eight).await
}

async fn compare<E: photon::Topic>(
    shards: u16,
    full: bool,
    event: fn(u64, String, String) -> E,
) -> Result<()> {
    let dir = tempfile::tempdir_in(".")?;
    let (mut bare, mut photon, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let rows = (0..EVENTS).map(|id| row(&make(id, event), shards)).collect::<Result<Vec<Row>>>()?;
        let of_bare = bare_loop(&dir.path().join(format!("bare{round}.db")), full, &rows)?;
        drop(rows);
        let of_photon = publish_all(&dir.path().join(format!("photon{round}.db")), full, event).await?;
        ratios.push(of_photon / of_bare);
        bare.push(of_bare);
        photon.push(of_photon);
    }
    println!("{shards:6}  {:11.0}  {:13.0}  {:5.2}", median(bare), median(photon), median(ratios));
    Ok(())
}

/// An event whose JSON has exactly [`PAYLOAD`] bytes.
fn make<E>(id: u64, event: fn(u64, String, String) -> E) -> E {
    let customer = format!("customer-{}", id % 1_000);
    let rest = r#"{"id":,"customer":"","note":""}"#.len() + id.to_string().len() + customer.len();
    event(id, customer, "x".repeat(PAYLOAD - rest))
}

fn row<E: photon::Topic>(event: &E, shards: u16) -> Result<Row> {
    let mut payload = Vec::new();
    event.encode(&mut payload)?;
    anyhow::ensure!(payload.len() == PAYLOAD, "the payload has {} bytes", payload.len());
    let (key, id) = (event.key(), EventId(Uuid::now_v7()));
    let shard = shard_of(key.as_ref(), id, shards).0;
    Ok(Row { shard, id: id.0, key: key.map_or(Vec::new(), |key| key.as_bytes().to_vec()), payload })
}

fn bare_loop(path: &Path, full: bool, rows: &[Row]) -> Result<f64> {
    let conn = Connection::open(path)?;
    let synchronous = if full { "FULL" } else { "NORMAL" };
    conn.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous};
         CREATE TABLE event (topic INTEGER NOT NULL, shard INTEGER NOT NULL, seq INTEGER NOT NULL,
             id BLOB NOT NULL, time INTEGER NOT NULL, key BLOB, headers BLOB NOT NULL, payload BLOB NOT NULL)"
    ))?;
    // One header, the content type, in the form in which Photon stores it.
    let headers = [b"\x01\x0ccontent-type\x10".as_slice(), codec::JSON.as_bytes()].concat();
    let time = 1_700_000_000_000_000_i64;
    let start = Instant::now();
    let mut seq = 0u64;
    for batch in rows.chunks(BATCH) {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let mut insert = conn.prepare_cached("INSERT INTO event VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
        for row in batch {
            seq += 1;
            let Row { shard, id, key, payload } = row;
            insert.execute(params![shard, seq, id.as_bytes(), time, key, headers, payload])?;
        }
        conn.execute_batch("COMMIT")?;
    }
    Ok(rate(start))
}

async fn publish_all<E: photon::Topic>(
    path: &Path,
    full: bool,
    event: fn(u64, String, String) -> E,
) -> Result<f64> {
    let durability = if full { "full" } else { "normal" };
    let url = format!("sqlite:{}?durability={durability}", path.display());
    let photon = Photon::builder().from_url(&url).build().await?;
    let events: Vec<E> = (0..EVENTS).map(|id| make(id, event)).collect();
    let start = Instant::now();
    let receipts = photon.publish_all(events).await?;
    let rate = rate(start);
    anyhow::ensure!(receipts.len() as u64 == EVENTS, "an event has no receipt");
    photon.close().await;
    Ok(rate)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(start: Instant) -> f64 {
    EVENTS as f64 / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
