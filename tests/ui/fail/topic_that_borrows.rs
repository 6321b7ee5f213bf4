#![deny(warnings)]

use photon::prelude::*;

#[topic("borrowed")]
#[derive(Serialize, Deserialize)]
struct Borrowed<'a> {
    text: &'a str,
}

fn main() {}
