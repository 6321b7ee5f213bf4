#![deny(warnings)]

use photon::prelude::*;

#[derive(Debug, Failure)]
#[failure(retry)]
pub struct ChargeError;

fn main() {}
