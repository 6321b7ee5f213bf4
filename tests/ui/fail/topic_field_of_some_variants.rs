#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.changed", key = id)]
#[derive(Serialize, Deserialize)]
enum OrderChanged {
    Paid { id: u64 },
    Sent(u64),
}

#[subscribe]
async fn changed(_: OrderChanged) {}

fn main() {}
