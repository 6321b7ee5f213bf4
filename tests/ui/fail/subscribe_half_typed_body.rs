//! Case half-typed-body: one syntax error, and the function still exists. That `ev` is taken for the result is
//! the compiler's way to go on, with or without the attribute.
#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe]
async fn charge(ev: OrderPlaced) {
    ev.
}

#[allow(dead_code)]
async fn elsewhere(order: OrderPlaced) {
    // It still exists.
    charge(order).await;
}

fn main() {}
