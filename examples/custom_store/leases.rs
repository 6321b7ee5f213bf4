//! Members, and who may work on what.

use async_trait::async_trait;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Incarnation, Shard, SubscriptionId};
use photon_core::store::{Claim, ClaimResult, Fence, Leases, Member, MemberInfo, ShardClaim};
use photon_core::time::Timestamp;

use crate::{Content, Shelf};

/// The last grant of a shard. It outlives its holder: an epoch never starts over.
#[derive(Default)]
pub struct Grant {
    epoch: u64,
    holder: Option<Incarnation>,
    /// Who it was granted to, until the work ended in order.
    owner: Option<Member>,
    /// The owner before, if its work did not.
    unended: Option<Member>,
}

impl Content {
    /// Whether this is the last fence that was granted, and was not given back.
    pub fn may_write(&self, subscription: &SubscriptionId, shard: Shard, fence: Fence) -> bool {
        let grant = self.grants.get(&(subscription.clone(), shard));
        grant.is_some_and(|grant| grant.epoch == fence.epoch && grant.holder == Some(fence.token))
    }

    /// Takes shards back from whoever holds them.
    pub fn take_back(&mut self, meant: impl Fn(&SubscriptionId, Shard, Option<Incarnation>) -> bool) {
        for ((subscription, shard), grant) in &mut self.grants {
            if meant(subscription, *shard, grant.holder) {
                (grant.holder, grant.owner) = (None, None);
            }
        }
    }

    /// The owner before the present one, if its work did not end in order.
    pub fn unended(&self, subscription: &SubscriptionId, shard: Shard) -> Option<Member> {
        let grant = self.grants.get(&(subscription.clone(), shard))?;
        grant.unended.clone().filter(|_| grant.holder.is_some())
    }

    fn claim(&mut self, incarnation: Incarnation, claim: &Claim) -> ClaimResult {
        let ShardClaim { subscription, shard } = claim.shard.clone();
        let grant = self.grants.entry((subscription, shard)).or_default();
        if grant.holder != Some(incarnation) {
            let holder = grant.holder.and_then(|holder| self.members.get(&holder));
            if let Some(holder) = holder
                && claim.replace != Some((holder.member.incarnation, holder.heartbeat))
            {
                return ClaimResult::Held(holder.clone());
            }
            *grant = Grant {
                epoch: grant.epoch + 1,
                holder: Some(incarnation),
                owner: self.members.get(&incarnation).map(|info| info.member.clone()),
                unended: grant.owner.take(),
            };
        }
        ClaimResult::Granted(Fence { epoch: grant.epoch, token: incarnation })
    }
}

fn not_a_member(incarnation: Incarnation) -> StoreError {
    let message = format!("{incarnation} is not a member: stop its work and join as a new incarnation");
    StoreError::new(StoreErrorKind::Fenced, message)
}

#[async_trait]
impl Leases for Shelf {
    async fn join(&self, member: &Member) -> Result<(), StoreError> {
        let joined = Timestamp::from(std::time::SystemTime::now());
        let info = MemberInfo { member: member.clone(), heartbeat: 1, joined };
        // Joining twice is the repetition of a call whose answer got lost.
        self.content().members.entry(member.incarnation).or_insert(info);
        Ok(())
    }

    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let mut content = self.content();
        let member = content.members.get_mut(&incarnation).ok_or_else(|| not_a_member(incarnation))?;
        member.heartbeat += 1;
        Ok(())
    }

    async fn claim(
        &self,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        let mut content = self.content();
        if !content.members.contains_key(&incarnation) {
            return Err(not_a_member(incarnation));
        }
        Ok(claims.iter().map(|claim| content.claim(incarnation, claim)).collect())
    }

    async fn release(&self, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError> {
        self.content().take_back(|subscription, shard, holder| {
            let names = |claim: &ShardClaim| claim.subscription == *subscription && claim.shard == shard;
            holder == Some(incarnation) && shards.iter().any(names)
        });
        Ok(())
    }

    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let mut content = self.content();
        content.members.remove(&incarnation);
        // Free, but nobody said that the work ended in order.
        for grant in content.grants.values_mut().filter(|grant| grant.holder == Some(incarnation)) {
            grant.holder = None;
        }
        Ok(())
    }

    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError> {
        let content = self.content();
        let of = content.grants.iter().filter(|((id, _), _)| id == subscription);
        let fence = |grant: &Grant| Some(Fence { epoch: grant.epoch, token: grant.holder? });
        Ok(of.filter_map(|((_, shard), grant)| Some((*shard, fence(grant)?))).collect())
    }

    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError> {
        Ok(self.content().members.values().cloned().collect())
    }
}
