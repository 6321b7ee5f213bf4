//! Tests in every accepted form. What they do is seen in `tests/testing.rs`.
#![no_implicit_prelude]
#![deny(warnings, missing_docs)]

use ::photon::testing::TestPhoton;

mod bus {
    pub use ::photon::*;
}

#[::photon::test]
async fn plain(_: TestPhoton) {}

/// With everything that a test may have.
#[::photon::test(crate = bus)]
#[should_panic(expected = "it waits")]
#[ignore]
pub(crate) async fn with_attributes(#[allow(unused_mut)] mut t: bus::testing::TestPhoton) {
    t.run_until_quiet().await;
    ::std::panic!("it waits");
}

#[::photon::test()]
async fn r#match(mut t: TestPhoton) -> ::std::result::Result<(), ::photon::Error> {
    t.photon().check()
}

#[::photon::test]
#[cfg(not(all()))]
async fn switched_off(_: Missing) {}

fn main() {}
