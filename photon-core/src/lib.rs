//! The words, contracts and pure state machines of Photon.
//!
//! Nothing in here does I/O, reads a clock, an environment variable or a source of randomness: time and
//! random numbers are passed in. That is what lets the tests drive every decision through crashes and
//! outages. Services use the facade crate `photon`; authors of a [`Store`](store::Store) use this crate
//! and the conformance suite of `photon-backend`.

pub mod check;
pub mod codec;
pub mod descriptor;
pub mod envelope;
pub mod error;
pub mod event;
pub mod failure;
pub mod function;
pub mod handler;
pub mod headers;
pub mod identity;
pub mod ids;
pub mod machine;
pub mod options;
#[doc(hidden)]
pub mod planted;
pub mod registry;
pub mod settlement;
pub mod store;
pub mod time;
pub mod timing;
pub mod topic;

pub use inventory;
