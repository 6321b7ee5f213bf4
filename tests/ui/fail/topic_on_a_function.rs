#![deny(warnings)]

use photon::prelude::*;

#[topic("function")]
fn function() {}

fn main() {}
