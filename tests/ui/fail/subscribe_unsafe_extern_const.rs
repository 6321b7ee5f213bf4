#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe]
async unsafe fn first(_: OrderPlaced) {}

#[subscribe]
async extern "C" fn second(_: OrderPlaced) {}

fn main() {}
