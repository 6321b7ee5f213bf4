#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed")]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    cents: u64,
}

#[subscribe(group = "a", breaker(failures = 5))]
async fn half(_: OrderPlaced) {}

#[subscribe(group = "b", breaker(failures = 5, of = 3))]
async fn more_than_all(_: OrderPlaced) {}

#[subscribe(group = "c", breaker = 5)]
async fn no_arguments(_: OrderPlaced) {}

fn main() {}
