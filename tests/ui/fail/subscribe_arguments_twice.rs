#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe(group = "a", group = "b", retry(jitter = 0, jitter = 1), durable, ephemeral)]
async fn charge(_: OrderPlaced) {}

fn main() {}
