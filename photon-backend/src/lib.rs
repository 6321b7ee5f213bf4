//! Stores: the engines that hold Photon's logs, positions, stored deliveries and leases.
//!
//! Each engine has a feature of its own. `memory` is for tests and for events that need not outlive the
//! process. `sqlite` keeps everything in one file that several processes may share. `postgres`, `nats` (JetStream) and
//! `redis` are for services on many machines.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
mod columns;

#[cfg(feature = "memory")]
pub mod memory;

#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(feature = "nats")]
pub mod nats;

#[cfg(any(feature = "memory", feature = "nats"))]
mod position;

#[cfg(feature = "postgres")]
pub mod postgres;

#[cfg(feature = "redis")]
pub mod redis;

#[cfg(any(
    feature = "memory",
    feature = "sqlite",
    feature = "postgres",
    feature = "nats",
    feature = "redis"
))]
mod refusal;

pub mod wrap;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "conformance")]
mod rng;
#[cfg(feature = "servers")]
pub mod servers;
