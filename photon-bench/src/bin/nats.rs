//! Publishing to NATS JetStream, and publish → handled, against the bare client's best loops.
//!
//! ```sh
//! cargo run --release -p photon-bench --bin nats
//! ```
//!
//! Starts a private server. Both sides write and read the same events of about 200 bytes of JSON, in file storage,
//! over one connection. The bare loop publishes an event a message with 256 acknowledgements outstanding, counted
//! on one inbox, which is faster than a future for each; its reader is a consumer without acknowledgements whose
//! messages are asked for 256 at a time, and decodes each. Photon packs batches into messages. Rounds alternate; what
//! counts is the median of the ratios.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use async_nats::Client;
use futures::StreamExt;
use photon::prelude::*;
use photon_backend::nats::{NatsOptions, NatsStore};
use photon_backend::servers::Nats;

const ROUNDS: usize = 7;
const EVENTS: u64 = 100_000;
const IN_FLIGHT: u64 = 256;

/// About 200 bytes as JSON.
#[topic(name = "bench.keyed", key = customer, shards = 8)]
#[derive(Clone, Serialize, Deserialize)]
struct Keyed {
    id: u64,
    customer: String,
    note: String,
}

#[subscribe(group = "bench-keyed")]
async fn keyed(event: Keyed, State(sum): State<Sum>) {
    sum.0.fetch_add(event.id, Ordering::Relaxed);
}

/// What the handlers saw.
#[derive(Clone, Default)]
struct Sum(Arc<AtomicU64>);

fn event(id: u64) -> Keyed {
    Keyed { id, customer: format!("customer-{}", id % 1_000), note: "x".repeat(145) }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let server = Nats::start_new(&[]);
    let client = async_nats::connect(server.url()).await?;
    let (mut publish, mut handled) = (Vec::new(), Vec::new());
    // The first round warms both up.
    for round in 0..=ROUNDS {
        let rates = [
            bare_publish(&client, round).await?,
            photon_publish(&server, round).await?,
            bare_handled(&client, round).await?,
            photon_handled(&server, round).await?,
        ];
        if round > 0 {
            publish.push([rates[0], rates[1]]);
            handled.push([rates[2], rates[3]]);
        }
    }
    report("publish", &publish);
    report("publish -> handled", &handled);
    Ok(())
}

fn report(what: &str, rates: &[[f64; 2]]) {
    let median = |of: &dyn Fn(&[f64; 2]) -> f64| {
        let mut values: Vec<f64> = rates.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "{what}: bare {:.0} events/s, Photon {:.0} events/s, ratio {:.2}",
        median(&|rates| rates[0]),
        median(&|rates| rates[1]),
        median(&|rates| rates[1] / rates[0])
    );
}

async fn make_stream(client: &Client, name: &str) -> anyhow::Result<()> {
    let config = format!(r#"{{"name":"{name}","subjects":["{name}.*"],"storage":"file","num_replicas":1}}"#);
    let answer = client.request(format!("$JS.API.STREAM.CREATE.{name}"), config.into()).await?;
    ensure!(!String::from_utf8_lossy(&answer.payload).contains("\"error\""), "{answer:?}");
    Ok(())
}

/// Publishes all events with a bounded number of acknowledgements outstanding.
async fn publish_all(client: &Client, name: &str) -> anyhow::Result<()> {
    let inbox = client.new_inbox();
    let mut acks = client.subscribe(inbox.clone()).await?;
    let mut outstanding = 0;
    for id in 0..EVENTS {
        if outstanding == IN_FLIGHT {
            acks.next().await.context("the connection is closed")?;
            outstanding -= 1;
        }
        let payload = serde_json::to_vec(&event(id))?;
        client.publish_with_reply(format!("{name}.{}", id % 8), inbox.clone(), payload.into()).await?;
        outstanding += 1;
    }
    for _ in 0..outstanding {
        acks.next().await.context("the connection is closed")?;
    }
    Ok(())
}

async fn bare_publish(client: &Client, round: usize) -> anyhow::Result<f64> {
    let name = format!("bare-publish-{round}");
    make_stream(client, &name).await?;
    let start = Instant::now();
    publish_all(client, &name).await?;
    let rate = rate(start);
    client.request(format!("$JS.API.STREAM.DELETE.{name}"), "".into()).await?;
    Ok(rate)
}

async fn bare_handled(client: &Client, round: usize) -> anyhow::Result<f64> {
    let name = format!("bare-handled-{round}");
    make_stream(client, &name).await?;
    let config = format!(
        r#"{{"stream_name":"{name}","config":{{"durable_name":"c","ack_policy":"none","deliver_policy":"all"}}}}"#
    );
    client.request(format!("$JS.API.CONSUMER.DURABLE.CREATE.{name}.c"), config.into()).await?;
    let start = Instant::now();
    let reading = tokio::spawn(read_all(client.clone(), name.clone()));
    publish_all(client, &name).await?;
    let sum = reading.await??;
    let rate = rate(start);
    ensure!(sum == EVENTS * (EVENTS - 1) / 2, "an event is missing");
    client.request(format!("$JS.API.STREAM.DELETE.{name}"), "".into()).await?;
    Ok(rate)
}

async fn read_all(client: Client, name: String) -> anyhow::Result<u64> {
    let inbox = client.new_inbox();
    let mut messages = client.subscribe(inbox.clone()).await?;
    let (mut asked, mut sum) = (0, 0);
    for _ in 0..EVENTS {
        if asked <= IN_FLIGHT / 2 {
            let more = format!(r#"{{"batch":{IN_FLIGHT}}}"#);
            client
                .publish_with_reply(format!("$JS.API.CONSUMER.MSG.NEXT.{name}.c"), inbox.clone(), more.into())
                .await?;
            asked += IN_FLIGHT;
        }
        let message = messages.next().await.context("the connection is closed")?;
        asked -= 1;
        let event: Keyed = serde_json::from_slice(&message.payload)?;
        sum += event.id;
    }
    Ok(sum)
}

/// A Photon in a namespace of its own.
async fn photon(server: &Nats, namespace: String, sum: Sum) -> anyhow::Result<Photon> {
    let options = NatsOptions::from_url(&server.url())?.namespace(&namespace);
    let store = NatsStore::open(options).await?;
    Ok(Photon::builder().store(Arc::new(store)).state(sum).build().await?)
}

async fn photon_publish(server: &Nats, round: usize) -> anyhow::Result<f64> {
    let photon = photon(server, format!("publish_{round}"), Sum::default()).await?;
    photon.publish(&event(0)).await?;
    let events: Vec<Keyed> = (0..EVENTS).map(event).collect();
    let start = Instant::now();
    photon.publish_all(events).await?;
    Ok(rate(start))
}

async fn photon_handled(server: &Nats, round: usize) -> anyhow::Result<f64> {
    let sum = Sum::default();
    let photon = photon(server, format!("handled_{round}"), sum.clone()).await?;
    let executor = photon.start_executor().await?;
    let events: Vec<Keyed> = (0..EVENTS).map(event).collect();
    let start = Instant::now();
    photon.publish_all(events).await?;
    executor.quiet().await?;
    let rate = rate(start);
    ensure!(sum.0.load(Ordering::Relaxed) == EVENTS * (EVENTS - 1) / 2, "an event is missing");
    executor.drain().await?;
    Ok(rate)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(start: Instant) -> f64 {
    EVENTS as f64 / start.elapsed().as_secs_f64()
}
