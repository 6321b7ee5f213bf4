#![deny(warnings)]

use photon::prelude::*;

#[topic("orders.placed")]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe(topic = "orders.placed")]
async fn charge(order: OrderPlaced) {
    let _ = (order.customer, order.cents);
}

fn main() {}
