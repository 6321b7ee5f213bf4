#![deny(warnings)]

use photon::prelude::*;

#[topic("union")]
union Union {
    a: u8,
    b: i8,
}

fn main() {}
