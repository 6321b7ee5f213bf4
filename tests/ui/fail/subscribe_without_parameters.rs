#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe]
async fn charge() {}

fn main() {}
