//! Members and what they hold.

use std::collections::HashMap;

use async_trait::async_trait;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Incarnation, Shard, SubscriptionId};
use photon_core::planted::{Bug, is_planted};
use photon_core::store::{Claim, ClaimResult, Fence, Leases, Member, MemberInfo, ShardClaim};

use super::MemoryStore;

/// All members and grants.
#[derive(Default)]
pub(super) struct LeaseBook {
    members: HashMap<Incarnation, MemberInfo>,
    /// By subscription and shard. An entry is never removed: its epoch must not start over.
    grants: HashMap<SubscriptionId, HashMap<Shard, Grant>>,
}

/// The last grant of a shard.
#[derive(Default)]
struct Grant {
    epoch: u64,
    holder: Option<Incarnation>,
    /// Who it was granted to, kept until the work ended in order.
    owner: Option<Member>,
    /// The owner before, if its work did not.
    unended: Option<Member>,
}

impl LeaseBook {
    /// Whether the fence is the one that was granted last, and was not given back.
    pub(super) fn is_current(&self, subscription: &SubscriptionId, shard: Shard, fence: Fence) -> bool {
        let grant = self.grants.get(subscription).and_then(|shards| shards.get(&shard));
        let is_current = |grant: &Grant| grant.epoch == fence.epoch && grant.holder == Some(fence.token);
        grant.is_some_and(is_current) || is_planted(Bug::UnfencedCommit)
    }

    /// Takes every grant of a subscription back.
    pub(super) fn forget(&mut self, subscription: &SubscriptionId) {
        for grant in self.grants.get_mut(subscription).into_iter().flat_map(HashMap::values_mut) {
            grant.holder = None;
            grant.owner = None;
        }
    }

    /// The owner before the present one, if its work did not end in order.
    pub(super) fn unended(&self, subscription: &SubscriptionId, shard: Shard) -> Option<Member> {
        let grant = self.grants.get(subscription)?.get(&shard)?;
        grant.unended.clone().filter(|_| grant.holder.is_some())
    }

    /// Takes the grant of one shard back, also from nobody: a claim after it has a greater epoch.
    pub(super) fn take_back(&mut self, subscription: &SubscriptionId, shard: Shard) {
        let grant = self.grants.get_mut(subscription).and_then(|shards| shards.get_mut(&shard));
        if let Some(grant) = grant {
            grant.holder = None;
            grant.owner = None;
        }
    }

    fn holders(&self, subscription: &SubscriptionId) -> Vec<(Shard, Fence)> {
        let grants = self.grants.get(subscription).into_iter().flatten();
        let mut held: Vec<(Shard, Fence)> = grants
            .filter_map(|(shard, grant)| Some((*shard, Fence { epoch: grant.epoch, token: grant.holder? })))
            .collect();
        held.sort_unstable_by_key(|(shard, _)| *shard);
        held
    }

    fn claim(&mut self, incarnation: Incarnation, claim: &Claim) -> ClaimResult {
        let shards = self.grants.entry(claim.shard.subscription.clone()).or_default();
        let grant = shards.entry(claim.shard.shard).or_default();
        if grant.holder != Some(incarnation) {
            let holder = grant.holder.and_then(|holder| self.members.get(&holder));
            let replaced =
                |holder: &MemberInfo| claim.replace == Some((holder.member.incarnation, holder.heartbeat));
            match holder {
                Some(holder) if !replaced(holder) => return ClaimResult::Held(holder.clone()),
                _ => {
                    *grant = Grant {
                        epoch: grant.epoch + 1,
                        holder: Some(incarnation),
                        owner: self.members.get(&incarnation).map(|info| info.member.clone()),
                        unended: grant.owner.take(),
                    }
                }
            }
        }
        ClaimResult::Granted(Fence { epoch: grant.epoch, token: incarnation })
    }

    fn release(&mut self, incarnation: Incarnation, claim: &ShardClaim) {
        let shards = self.grants.get_mut(&claim.subscription);
        if let Some(grant) = shards.and_then(|shards| shards.get_mut(&claim.shard))
            && grant.holder == Some(incarnation)
        {
            grant.holder = None;
            grant.owner = None;
        }
    }

    fn leave(&mut self, incarnation: Incarnation) {
        self.members.remove(&incarnation);
        for grant in self.grants.values_mut().flat_map(HashMap::values_mut) {
            if grant.holder == Some(incarnation) {
                grant.holder = None;
            }
        }
    }
}

fn not_a_member(incarnation: Incarnation) -> StoreError {
    let message =
        format!("incarnation {incarnation} is not a member: stop its work and join as a new incarnation");
    StoreError::new(StoreErrorKind::Fenced, message)
}

#[async_trait]
impl Leases for MemoryStore {
    async fn join(&self, member: &Member) -> Result<(), StoreError> {
        let joined = self.now();
        // Joining again is the repetition of a call whose answer got lost: the heartbeat never goes back.
        self.book().leases.members.entry(member.incarnation).or_insert_with(|| MemberInfo {
            member: member.clone(),
            heartbeat: 1,
            joined,
        });
        Ok(())
    }

    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let mut book = self.book();
        let member = book.leases.members.get_mut(&incarnation).ok_or_else(|| not_a_member(incarnation))?;
        member.heartbeat += 1;
        Ok(())
    }

    async fn claim(
        &self,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        let mut book = self.book();
        if !book.leases.members.contains_key(&incarnation) {
            return Err(not_a_member(incarnation));
        }
        Ok(claims.iter().map(|claim| book.leases.claim(incarnation, claim)).collect())
    }

    async fn release(&self, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError> {
        let mut book = self.book();
        for shard in shards {
            book.leases.release(incarnation, shard);
        }
        Ok(())
    }

    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.book().leases.leave(incarnation);
        Ok(())
    }

    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError> {
        Ok(self.book().leases.holders(subscription))
    }

    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError> {
        let book = self.book();
        let mut members: Vec<MemberInfo> = book.leases.members.values().cloned().collect();
        members.sort_unstable_by_key(|member| member.member.incarnation);
        Ok(members)
    }
}
