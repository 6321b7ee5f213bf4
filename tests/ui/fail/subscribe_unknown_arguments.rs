#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe(grup = "a", retries = 3, retry(attempts = 3, jiter = 0.1), checkpoint(each = 5))]
async fn charge(_: OrderPlaced) {}

fn main() {}
