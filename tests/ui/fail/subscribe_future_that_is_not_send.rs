#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe]
async fn charge(order: OrderPlaced) {
    let shared = std::rc::Rc::new(order);
    std::future::ready(()).await;
    drop(shared);
}

fn main() {}
