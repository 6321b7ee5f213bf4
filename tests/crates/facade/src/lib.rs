//! A company's facade that hands Photon on.

pub use photon;

/// What its services use.
pub mod prelude {
    pub use photon::prelude::*;
}
