//! Serde through the user's own crate, through Photon's, with a path, and written by hand.
#![deny(warnings)]

mod facade {
    pub use photon;
}

#[photon::topic("by-path")]
#[derive(photon::prelude::Serialize, photon::prelude::Deserialize)]
#[serde(rename_all = "camelCase")]
struct ByPath {
    #[allow(dead_code)]
    some_field: u8,
}

#[photon::topic(name = "named", crate = facade::photon)]
#[derive(photon::prelude::Serialize, photon::prelude::Deserialize)]
#[serde(crate = "photon::__private::serde", deny_unknown_fields)]
struct Named;

#[facade::photon::topic(name = "by-hand", crate = crate::facade::photon)]
struct ByHand(u8);

impl photon::prelude::Serialize for ByHand {
    fn serialize<S: photon::__private::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(self.0)
    }
}

impl<'de> photon::prelude::Deserialize<'de> for ByHand {
    fn deserialize<D: photon::__private::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        u8::deserialize(from).map(ByHand)
    }
}

#[facade::photon::subscribe(crate = facade::photon)]
async fn handle(_: ByHand) {}

fn main() {}
