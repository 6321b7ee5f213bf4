#![deny(warnings)]

use photon::prelude::*;

#[derive(Debug, Failure)]
#[failure(retry)]
pub enum ChargeError {
    #[failure(permanant)]
    Declined,
    #[failure(retry, permanent)]
    Both,
    #[failure]
    Nothing,
    #[failure(retry = 3)]
    Value,
    #[failure(retry_after = "soon")]
    Soon,
    #[failure(retry_after = wait)]
    Busy { delay: u8 },
    #[failure(defer)]
    Later,
    #[failure(transparent)]
    Two(u8, u8),
    #[failure(crate = photon, retry)]
    Crate,
}

impl std::fmt::Display for ChargeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("charge")
    }
}

impl std::error::Error for ChargeError {}

fn main() {}
