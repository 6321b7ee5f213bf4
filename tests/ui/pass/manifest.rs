#![deny(warnings, unused_extern_crates)]

photon::manifest![uuid, anyhow,];

fn main() {
    photon::manifest![tempfile];
}
