#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = self::key_of)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe(topic = "orders.placed")]
async fn charge(order: OrderPlaced) {
    let _ = (order.customer, order.cents);
}

fn main() {}
