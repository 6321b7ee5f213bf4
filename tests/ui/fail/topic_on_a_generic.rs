#![deny(warnings)]

use photon::prelude::*;

#[topic("wrapped")]
#[derive(Serialize, Deserialize)]
struct Wrapped<T> {
    inner: T,
}

#[subscribe]
async fn wrapped(event: Wrapped<u8>) {
    let _ = event.inner;
}

fn main() {}
