#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe(
    topic = "orders/placed", group = "", mode = "grup", start = "at(yesterday)", timeout = "30",
    retry(backoff = "exponential(30s..1s)", give_up_after = "1 hour"), on_dead = "stop",
    checkpoint(interval = "200 ms"), max_defer_age = "", park_after = "-1s",
)]
async fn charge(_: OrderPlaced) {}

#[subscribe(start = "first", retry(backoff = "often"), concurrency = 99999999999)]
async fn charge_again(_: OrderPlaced) {}

fn main() {}
