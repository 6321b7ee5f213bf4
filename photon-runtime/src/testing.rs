//! Tests of handlers: a Photon in memory on a clock that stands still, and deliveries made by hand. Described in the
//! crate `photon`.

mod assertions;
mod calls;
mod delivery;
mod diff;
mod photon;
mod recorder;
mod run;
mod selection;

pub use assertions::TestSubscription;
pub use calls::{TestDeadLetters, TestPublish};
pub use delivery::{TestDelivery, delivery};
pub use photon::TestPhoton;
#[doc(hidden)]
pub use run::{TestParam, run};
