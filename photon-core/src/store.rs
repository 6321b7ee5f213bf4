//! The contract between Photon and an engine.
//!
//! A [`Store`] is four traits: [`EventLog`], [`Checkpoints`], [`Sideline`] and [`Leases`]. They are object
//! safe and have no default methods, so that a wrapper cannot forget one. Every implementation, also yours,
//! is held to the contract by the conformance suite of `photon-backend`.
//!
//! Rules that hold for all methods:
//!
//! - A method that returned `Ok` is durable, as far as the engine is.
//! - A future that is dropped may have had its effect or not; the store stays consistent.
//! - Methods never block the async executor.
//! - Text from users (topics, groups, keys, header names) never becomes part of a name or a statement of the
//!   engine unescaped.

mod checkpoints;
mod leases;
mod log;
mod outbox;
mod sideline;

use crate::handler::Extensions;

pub use checkpoints::{
    Checkpoint, Checkpoints, Commit, CommitOutcome, Paused, Registered, Registration, ResetOutcome, RowEnd,
    SeqRange, ShardCommit, ShardOutcome, ShardReset, Stage, StoredCheckpoint, SubscriptionInfo, Trial,
};
pub use leases::{Claim, ClaimResult, Fence, Leases, Member, MemberInfo, ShardClaim};
pub use log::{
    Appended, Bounds, Cursor, EventLog, ReadBatch, ReadLimit, ShardRead, TopicInfo, TopicSpec, Wake,
};
pub use outbox::{Outbox, Staged};
pub use sideline::{
    DeadLetterFilter, Failure, Head, Lane, Page, RowRef, RowState, Select, Sideline, StoredDelivery,
};

/// A whole engine.
pub trait Store: EventLog + Checkpoints + Sideline + Leases + std::fmt::Debug {
    /// The name of the engine for people: `memory`, `sqlite`, `postgres`.
    fn engine(&self) -> &'static str;

    /// The ability to take events in with a transaction of the user, where the engine has it. Wrappers hand it on.
    fn as_outbox(&self) -> Option<&dyn Outbox> {
        None
    }

    /// Adds what handlers can take that only this engine has: its transactions, which settle a delivery together
    /// with the handler's own writes. Wrappers hand it on.
    fn extend(&self, extensions: &mut Extensions) {
        let _ = extensions;
    }
}
