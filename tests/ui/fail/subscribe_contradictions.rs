#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe(
    ephemeral, group = "g", start = "latest", on_dead = "block_key", park_after = "1s", expire_after = "1d",
    checkpoint(every = 1),
)]
async fn live(_: OrderPlaced) {}

#[subscribe(group = "g", expire_after = "1d")]
async fn grouped(_: OrderPlaced) {}

fn main() {}
