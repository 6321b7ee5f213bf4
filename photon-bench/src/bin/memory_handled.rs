//! Publish → handled on the memory engine against a tokio channel that carries the same events as JSON, encoded
//! on one side and decoded on the other. Rounds alternate; prints the median of each and of the ratios.
//!
//! What it does not show: latency, other payloads, durable engines, handlers that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use photon::prelude::*;

const ROUNDS: usize = 9;
const EVENTS: u64 = 500_000;

/// About 200 bytes as JSON.
#[topic(name = "bench.keyed", key = customer, shards = 8)]
#[derive(Clone, Serialize, Deserialize)]
struct Keyed {
    id: u64,
    customer: String,
    note: String,
}

/// The same, without a key.
#[topic(name = "bench.keyless", shards = 8)]
#[derive(Clone, Serialize, Deserialize)]
struct Keyless {
    id: u64,
    customer: String,
    note: String,
}

#[subscribe(group = "bench-keyed")]
async fn keyed(event: Keyed, State(sum): State<Sum>) {
    sum.0.fetch_add(event.id, Ordering::Relaxed);
}

#[subscribe(group = "bench-keyless")]
async fn keyless(event: Keyless, State(sum): State<Sum>) {
    sum.0.fetch_add(event.id, Ordering::Relaxed);
}

/// What the handlers saw.
#[derive(Clone, Default)]
struct Sum(Arc<AtomicU64>);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let (mut channel, mut keyed, mut keyless) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        channel.push(over_a_channel().await?);
        keyed.push(over_photon("bench-keyed", keyed_event).await?);
        keyless.push(over_photon("bench-keyless", keyless_event).await?);
    }
    let ratios = |rates: &[f64]| rates.iter().zip(&channel).map(|(a, b)| a / b).collect::<Vec<_>>();
    let (keyed_ratios, keyless_ratios) = (ratios(&keyed), ratios(&keyless));
    println!("tokio channel:       {:>9.0} events/s", median(channel.clone()));
    println!("photon, 1 000 keys:  {:>9.0} events/s, ratio {:.2}", median(keyed), median(keyed_ratios));
    println!("photon, no key:      {:>9.0} events/s, ratio {:.2}", median(keyless), median(keyless_ratios));
    Ok(())
}

fn keyed_event(id: u64) -> Keyed {
    Keyed { id, customer: format!("customer-{}", id % 1_000), note: "x".repeat(145) }
}

fn keyless_event(id: u64) -> Keyless {
    Keyless { id, customer: format!("customer-{}", id % 1_000), note: "x".repeat(145) }
}

async fn over_a_channel() -> anyhow::Result<f64> {
    let events: Vec<Keyed> = (0..EVENTS).map(keyed_event).collect();
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<Vec<u8>>(1_024);
    let start = Instant::now();
    let sums = tokio::spawn(async move {
        let mut sum = 0;
        while let Some(payload) = receiver.recv().await {
            let event: Keyed = serde_json::from_slice(&payload)?;
            sum += event.id;
        }
        Ok::<u64, serde_json::Error>(sum)
    });
    // Each event is given away, as Photon takes it.
    for event in events {
        sender.send(serde_json::to_vec(&event)?).await?;
    }
    drop(sender);
    anyhow::ensure!(sums.await?? == EVENTS * (EVENTS - 1) / 2, "an event is missing");
    Ok(rate(start))
}

async fn over_photon<E: photon::Topic>(group: &str, event: fn(u64) -> E) -> anyhow::Result<f64> {
    let sum = Sum::default();
    let photon = Photon::builder().memory().only([group]).state(sum.clone()).build().await?;
    let executor = photon.start_executor().await?;
    let events: Vec<E> = (0..EVENTS).map(event).collect();
    let start = Instant::now();
    photon.publish_all(events).await?;
    executor.quiet().await?;
    let rate = rate(start);
    anyhow::ensure!(sum.0.load(Ordering::Relaxed) == EVENTS * (EVENTS - 1) / 2, "an event is missing");
    executor.drain().await?;
    Ok(rate)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(start: Instant) -> f64 {
    EVENTS as f64 / start.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
