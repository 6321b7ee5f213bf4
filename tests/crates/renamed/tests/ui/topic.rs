use bus::prelude::*;

#[topic("orders.placed")]
#[derive(Serialize, Deserialize)]
struct OrderPlaced;

fn main() {}
