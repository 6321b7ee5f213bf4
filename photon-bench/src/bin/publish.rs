//! How fast events of about 200 bytes get into the stores: one by one, from many tasks at once, and with
//! `publish_all`. Prints the median of several rounds each.

use std::time::Instant;

use photon_core::codec;
use photon_core::error::EncodeError;
use photon_core::ids::{Key, ToKey};
use photon_core::topic::{Topic, TopicDescriptor};
use photon_runtime::{Photon, Result};
use serde::Serialize;

const ROUNDS: usize = 7;
const ONE_BY_ONE: usize = 200_000;
const TASKS: usize = 64;
const ALL: usize = 1_000_000;

#[derive(Clone, Serialize)]
struct Order {
    id: u64,
    customer: String,
    note: String,
}

impl Topic for Order {
    const DESCRIPTOR: &'static TopicDescriptor = &TopicDescriptor {
        name: "bench.orders",
        shards: 16,
        key: "field:customer",
        type_name: "Order",
        file: file!(),
        line: line!(),
    };
    const CONTENT_TYPE: &'static str = codec::JSON;

    fn key(&self) -> Option<Key> {
        self.customer.to_key()
    }

    fn encode(&self, out: &mut Vec<u8>) -> std::result::Result<(), EncodeError> {
        codec::encode_json(self, out)
    }
}

fn order(id: u64) -> Order {
    Order { id, customer: format!("customer-{}", id % 1_000), note: "x".repeat(145) }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory for the databases");
    measure("memory", ONE_BY_ONE, ALL, |_| "memory:".to_owned()).await?;
    let file = |mode: &str, n: usize| {
        format!("sqlite://{}?durability={mode}", dir.path().join(format!("{mode}-{n}.db")).display())
    };
    measure("sqlite, full", ONE_BY_ONE / 100, ALL / 5, |n| file("full", n)).await?;
    measure("sqlite, normal", ONE_BY_ONE / 20, ALL / 5, |n| file("normal", n)).await
}

async fn measure(engine: &str, few: usize, many: usize, url: impl Fn(usize) -> String) -> Result<()> {
    let (mut single, mut tasks, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let open = |n| Photon::builder().from_url(&url(3 * round + n)).build();
        single.push(one_by_one(open(0).await?, few).await?);
        tasks.push(many_tasks(open(1).await?, few).await?);
        all.push(publish_all(open(2).await?, many).await?);
    }
    println!("{engine}");
    println!("  publish, one by one:   {:>10.0} events/s", median(&mut single));
    println!("  publish, {TASKS} tasks:     {:>10.0} events/s", median(&mut tasks));
    println!("  publish_all:           {:>10.0} events/s", median(&mut all));
    Ok(())
}

async fn one_by_one(photon: Photon, events: usize) -> Result<f64> {
    let order = order(7);
    let start = Instant::now();
    for _ in 0..events {
        photon.publish(&order).await?;
    }
    Ok(rate(events, start))
}

async fn many_tasks(photon: Photon, events: usize) -> Result<f64> {
    let start = Instant::now();
    let mut running = Vec::new();
    for task in 0..TASKS as u64 {
        let photon = photon.clone();
        running.push(tokio::spawn(async move {
            let order = order(task);
            for _ in 0..events / TASKS {
                photon.publish(&order).await?;
            }
            Ok::<_, photon_runtime::Error>(())
        }));
    }
    for task in running {
        task.await.expect("a publishing task does not panic")?;
    }
    Ok(rate(events, start))
}

async fn publish_all(photon: Photon, events: usize) -> Result<f64> {
    let orders: Vec<_> = (0..events as u64).map(order).collect();
    let start = Instant::now();
    photon.publish_all(orders).await?;
    Ok(rate(events, start))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(events: usize, start: Instant) -> f64 {
    events as f64 / start.elapsed().as_secs_f64()
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
