#![no_implicit_prelude]
#![deny(warnings)]

use ::photon::{Context, Failure, State, subscribe, topic};
use ::photon::prelude::{Deserialize, Serialize};

#[topic(name = "orders.placed", key = customer, shards = 2)]
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: ::std::string::String,
}

#[topic(name = "orders.changed", key = id)]
#[derive(Serialize, Deserialize)]
enum OrderChanged {
    Paid { id: u64 },
    Sent { id: ::std::string::String },
}

#[derive(Debug, Failure)]
enum ChargeError {
    #[failure(retry)]
    Away,
    #[failure(retry_after = "5s")]
    Busy,
    #[failure(defer = 0)]
    Limit(::std::time::Duration),
    #[failure(transparent)]
    Other(::std::io::Error),
}

impl ::std::fmt::Display for ChargeError {
    fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
        f.write_str("charge")
    }
}

impl ::std::error::Error for ChargeError {}

#[subscribe(
    topic = "orders.placed", start = "latest", concurrency = 2, timeout = "1s",
    retry(max_attempts = 2, backoff = "list(1s, 2s)", jitter = 0), on_dead = "block_key",
)]
async fn charge(_order: OrderPlaced, _cx: Context, State(_db): State<u8>) -> ::std::result::Result<(), ChargeError> {
    ::std::result::Result::Err(ChargeError::Away)
}

#[subscribe(durable, expire_after = "7d")]
async fn change(_order: OrderChanged) {}

fn main() {
    _ = [ChargeError::Busy, ChargeError::Limit(::std::time::Duration::ZERO)];
    _ = ChargeError::Other(::std::io::Error::other(""));
    _ = [OrderChanged::Paid { id: 1 }, OrderChanged::Sent { id: ::std::string::String::new() }];
}
