#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = Self::price)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

impl OrderPlaced {
    fn price(&self) -> f64 {
        1.0
    }
}

#[subscribe(topic = "orders.placed")]
async fn charge(order: OrderPlaced) {
    let _ = (order.customer, order.cents);
}

fn main() {}
