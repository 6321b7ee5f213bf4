#![deny(warnings)]

use photon::prelude::*;

#[topic("orders.paid")]
#[derive(Serialize, Deserialize)]
struct OrderPaid;

#[subscribe(on_dead = "block_key")]
async fn paid(_: OrderPaid) {}

fn main() {}
