#![deny(warnings)]

use photon::prelude::*;

#[photon::test]
async fn takes_a_photon(photon: Photon) {
    photon.check().unwrap();
}

fn main() {}
