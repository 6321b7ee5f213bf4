#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe]
fn charge(_: OrderPlaced) {}

fn main() {}
