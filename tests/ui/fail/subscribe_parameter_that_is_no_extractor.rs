#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

#[subscribe]
async fn charge(_: OrderPlaced, cx: Context, limit: u32, State(db): State<std::cell::Cell<u8>>) {
    let _ = (cx, limit, db);
}

fn main() {}
