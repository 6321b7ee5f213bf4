use bus::prelude::*;

#[subscribe(topic = "orders.placed")]
async fn charge(_: Event) {}

#[derive(Debug, Failure)]
#[failure(retry)]
struct Declined;

impl std::fmt::Display for Declined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("declined")
    }
}

impl std::error::Error for Declined {}

fn main() {}
