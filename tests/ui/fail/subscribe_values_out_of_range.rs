#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe(
    concurrency = 0, prefetch = 0, window = 2000000, timeout = "0", checkpoint(every = 0),
    retry(max_attempts = 0, jitter = 1.5),
)]
async fn charge(_: OrderPlaced) {}

#[subscribe(concurrency = 64, window = 32, timeout = "25h")]
async fn charge_again(_: OrderPlaced) {}

fn main() {}
