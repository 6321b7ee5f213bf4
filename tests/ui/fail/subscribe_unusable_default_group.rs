#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe]
async fn zahlung_für(_: OrderPlaced) {}

#[subscribe]
async fn charge_(_: OrderPlaced) {}

fn main() {}
