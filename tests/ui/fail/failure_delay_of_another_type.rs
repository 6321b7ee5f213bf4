#![deny(warnings)]

use photon::prelude::*;

#[derive(Debug, Failure)]
pub enum ChargeError {
    #[failure(retry_after = wait)]
    Busy { wait: u64 },
}

impl std::fmt::Display for ChargeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("charge")
    }
}

impl std::error::Error for ChargeError {}

fn main() {}
