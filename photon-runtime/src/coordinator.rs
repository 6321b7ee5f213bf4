//! Who works on which shard: membership of this process, and the claims of each subscription.
//!
//! A process is a [`Membership`] with one heartbeat for all of its subscriptions. Each subscription has a
//! [`StaticCoordinator`], which claims the shards that are the instance's own and tells the subscription's loop
//! through an [`Ownership`] what it holds. The decisions are pure machines of `photon-core`:
//! [`lease`](photon_core::machine::lease), [`claims`](photon_core::machine::claims) and
//! [`assignment`](photon_core::machine::assignment).

mod housekeeping;
mod membership;
mod process;
mod static_shards;

#[cfg(test)]
mod tests;

pub(crate) use membership::Membership;
pub(crate) use static_shards::{Assignment, Ownership, StaticCoordinator};
