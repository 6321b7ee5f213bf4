#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[topic("orders.paid")]
#[derive(Serialize, Deserialize)]
struct OrderPaid;

#[subscribe(topic = "orders.paid")]
async fn charge(_: OrderPlaced) {}

#[subscribe(topic = OrderPaid)]
async fn charge_paid(_: OrderPlaced) {}

fn main() {}
