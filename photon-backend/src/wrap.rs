//! Stores around a store: to watch its calls, or to make them fail.
//!
//! [`Wrapped`] is a whole [`Store`](photon_core::store::Store) that hands every call to an [`Intercept`]. An
//! intercept says only what it does differently; a method that is added to the contract stops [`Wrapped`]
//! from compiling until it is handed on, too.

mod call;
#[cfg(feature = "conformance")]
pub mod fault;
mod intercept;
pub mod observe;

pub use self::call::{Call, Op};
pub use self::intercept::{Intercept, Pending, Wrapped};
