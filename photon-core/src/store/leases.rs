//! Who may work on what.

use async_trait::async_trait;

use crate::error::StoreError;
use crate::ids::{Incarnation, InstanceId, Shard, SubscriptionId};
use crate::time::Timestamp;

/// The right to write about one shard of one subscription.
///
/// Every grant has a greater epoch than the one before. The token tells two owners apart that were given
/// the same epoch by an engine that forgot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// Grows with every grant.
    pub epoch: u64,
    /// Who it was granted to.
    pub token: Incarnation,
}

/// One run of one process, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// This run.
    pub incarnation: Incarnation,
    /// The instance that it is a run of.
    pub instance: InstanceId,
    /// What tells the machine and its set of process numbers from others; empty if unknown.
    pub host: String,
    /// The process number on that host.
    pub pid: u32,
    /// What tells this process from another with the same number: its start time; empty if unknown.
    pub process_start: String,
}

/// A member and how alive it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// The member.
    pub member: Member,
    /// Its heartbeat: it grows while the member lives. Whether it stands still is judged by the observer,
    /// on its own monotonic clock.
    pub heartbeat: u64,
    /// When it joined, for people.
    pub joined: Timestamp,
}

/// One shard of one subscription.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardClaim {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// The shard.
    pub shard: Shard,
}

/// The wish to work on a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// What is wanted.
    pub shard: ShardClaim,
    /// The holder that may be replaced, with the heartbeat at which it was seen to stand still. `None`: only
    /// take it if nobody holds it.
    pub replace: Option<(Incarnation, u64)>,
}

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimResult {
    /// It is the caller's, under this fence. Claiming what one holds already gives the same fence again.
    Granted(Fence),
    /// Somebody else holds it.
    Held(MemberInfo),
}

/// Membership and the right to work on shards. Wall clocks decide nothing here.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Makes a member known, with heartbeat 1.
    async fn join(&self, member: &Member) -> Result<(), StoreError>;

    /// Raises the member's heartbeat by one.
    ///
    /// # Errors
    /// `Fenced` if the member is not known (any more): it must stop working and join as a new incarnation.
    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError>;

    /// Tries to get each shard. A shard is granted if nobody holds it, if the caller does, if its holder is no
    /// longer a member, or if its holder is the one in `replace` and its heartbeat is still the same. A grant to
    /// a new owner raises the epoch, which survives release, forgetting of members and restarts.
    ///
    /// # Errors
    /// `Fenced` if the caller is not a member.
    async fn claim(&self, incarnation: Incarnation, claims: &[Claim])
    -> Result<Vec<ClaimResult>, StoreError>;

    /// Gives shards back, and says that the work on them ended in order: their next owner is told of nobody
    /// [unended](super::StoredCheckpoint::unended). What the caller does not hold is left alone.
    async fn release(&self, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError>;

    /// Makes the member unknown; what it still holds is free, but was not ended in order. Unknown already: a no-op.
    /// Anybody may call it about a member that is gone.
    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError>;

    /// The shards of a subscription that are held, by number, each with the fence of its holder.
    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError>;

    /// Every known member.
    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError>;
}
