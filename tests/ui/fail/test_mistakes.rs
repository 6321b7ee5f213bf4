#![deny(warnings)]

use photon::testing::TestPhoton;

#[photon::test]
fn not_async(t: TestPhoton) {
    drop(t);
}

#[photon::test]
async fn without_a_photon() {}

#[photon::test]
async fn with_more(_: TestPhoton, _: u32) {}

#[photon::test]
async fn by_reference(_: &mut TestPhoton) {}

#[photon::test]
async fn generic<T>(_: TestPhoton) {}

#[photon::test]
#[test]
async fn twice(_: TestPhoton) {}

#[photon::test(paused, crate = "photon")]
async fn unknown_arguments(_: TestPhoton) {}

#[photon::test]
unsafe extern "C" fn for_c(self) {}

fn main() {}
