#![deny(warnings)]

use photon::prelude::*;

#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

struct Service;

impl Service {
    #[subscribe]
    async fn charge(&self, _: OrderPlaced) {}
}

fn main() {}
