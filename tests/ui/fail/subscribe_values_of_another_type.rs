#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe(
    topic = 5, group = billing, start = latest, concurrency = "64", prefetch = 1.5, window = -1,
    timeout = 30, retry = 6, on_dead, durable = true, checkpoint(every = "1", interval = 200),
    "text", = 5, park_after =, expire_after("7d"), max_defer_age = 1 2, crate = "photon",
)]
async fn charge(_: OrderPlaced) {}

fn main() {}
