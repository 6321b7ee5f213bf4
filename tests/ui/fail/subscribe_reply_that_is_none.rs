#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe]
async fn charge(order: OrderPlaced) -> u64 {
    order.cents
}

struct NotAnError;

#[subscribe]
async fn charge_again(_: OrderPlaced) -> Result<(), NotAnError> {
    Err(NotAnError)
}

fn main() {}
