//! Members and what they hold.

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Incarnation, InstanceId, Shard, SubscriptionId};
use photon_core::store::{Claim, ClaimResult, Fence, Leases, Member, MemberInfo, ShardClaim};
use photon_core::time::Timestamp;

use super::cell::Cell;
use super::cells::Step;
use super::error::error;
use super::records::{Change, MemberRecord, contended};
use super::{Inner, NatsStore, now};

const AT_ONCE: usize = 64;
const TRIES: u32 = 50;

impl Inner {
    async fn member(&self, incarnation: Incarnation) -> Result<Option<MemberInfo>, StoreError> {
        let subject = self.names.member(incarnation);
        let Some(record) = self.record::<MemberRecord>(&subject).await? else { return Ok(None) };
        let instance = InstanceId::new(&record.instance).map_err(|source| {
            error(StoreErrorKind::Corrupt, format!("the message on {subject:?} is not one of Photon"))
                .with_source(source)
        })?;
        let MemberRecord { host, pid, process_start, heartbeat, joined, .. } = record;
        let member = Member { incarnation, instance, host, pid, process_start };
        Ok(Some(MemberInfo { member, heartbeat, joined: Timestamp(joined) }))
    }

    async fn claim_one(&self, member: &Member, claim: &Claim) -> Result<ClaimResult, StoreError> {
        let incarnation = member.incarnation;
        let ShardClaim { subscription: id, shard } = &claim.shard;
        let what = format!("shard {shard} of subscription {id} cannot be claimed");
        for _ in 0..TRIES {
            let holder = self.look(id, *shard, Cell::fence).await?;
            if let Some(holder) = holder
                && holder.token != incarnation
                && let Some(holder) = self.member(holder.token).await?
                && claim.replace != Some((holder.member.incarnation, holder.heartbeat))
            {
                return Ok(ClaimResult::Held(holder));
            }
            let granted = self.change_cell(id, *shard, &what, |cell, _| {
                if cell.fence() != holder {
                    return Step::Keep(None);
                }
                if cell.holder == Some(incarnation) {
                    return Step::Keep(cell.fence());
                }
                Step::Write(Some(cell.grant(member)))
            });
            if let Some(fence) = granted.await? {
                return Ok(ClaimResult::Granted(fence));
            }
        }
        Err(contended(&what))
    }

    /// Frees a shard that the incarnation holds; `ended`: the work on it ended in order.
    async fn free(
        &self,
        incarnation: Incarnation,
        id: &SubscriptionId,
        shard: Shard,
        ended: bool,
    ) -> Result<(), StoreError> {
        let what = format!("shard {shard} of subscription {id} cannot be given back");
        self.change_cell(id, shard, &what, |cell, _| {
            if cell.holder != Some(incarnation) {
                return Step::Keep(());
            }
            if ended {
                cell.release();
            } else {
                cell.holder = None;
            }
            Step::Write(())
        })
        .await
    }
}

fn not_a_member(incarnation: Incarnation) -> StoreError {
    let message =
        format!("incarnation {incarnation} is not a member: stop its work and join as a new incarnation");
    error(StoreErrorKind::Fenced, message)
}

#[async_trait]
impl Leases for NatsStore {
    async fn join(&self, member: &Member) -> Result<(), StoreError> {
        let what = format!("incarnation {} cannot join", member.incarnation);
        self.inner
            .change(&what, &self.inner.names.member(member.incarnation), |known: Option<MemberRecord>| {
                // Joining again is the repetition of a call whose answer got lost: the heartbeat never goes back.
                if known.is_some() {
                    return Ok(Change::Keep(()));
                }
                let record = MemberRecord {
                    instance: member.instance.to_string(),
                    host: member.host.clone(),
                    pid: member.pid,
                    process_start: member.process_start.clone(),
                    heartbeat: 1,
                    joined: now().0,
                };
                Ok(Change::Write(record, ()))
            })
            .await
    }

    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let what = format!("the heartbeat of incarnation {incarnation} cannot be written");
        self.inner
            .change(&what, &self.inner.names.member(incarnation), |known: Option<MemberRecord>| {
                let known = known.ok_or_else(|| not_a_member(incarnation))?;
                Ok(Change::Write(MemberRecord { heartbeat: known.heartbeat + 1, ..known }, ()))
            })
            .await
    }

    async fn claim(
        &self,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        let member = self.inner.member(incarnation).await?.ok_or_else(|| not_a_member(incarnation))?.member;
        let claim = async |claim: &Claim| self.inner.claim_one(&member, claim).await;
        stream::iter(claims).map(claim).buffered(AT_ONCE).try_collect().await
    }

    async fn release(&self, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError> {
        let release = async |claim: &ShardClaim| {
            self.inner.free(incarnation, &claim.subscription, claim.shard, true).await
        };
        stream::iter(shards).map(release).buffered(AT_ONCE).try_collect().await
    }

    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let inner = &self.inner;
        let cells = inner.js.subjects(&inner.state, &inner.names.cells()).await?;
        let release = async |subject: String| {
            let Some((id, shard)) = inner.names.read_cell(&subject) else { return Ok(()) };
            let head = inner.peek(&subject).await?;
            // What cannot be read is not this member's.
            if head.is_none_or(|head| head.holder != Some(incarnation)) {
                return Ok(());
            }
            inner.free(incarnation, &id, shard, false).await
        };
        let _: Vec<()> = stream::iter(cells).map(release).buffered(AT_ONCE).try_collect().await?;
        let subject = inner.names.member(incarnation);
        inner.js.remove_before(&inner.state, inner.replicated, &subject, u64::MAX).await
    }

    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError> {
        let inner = &self.inner;
        let filter = inner.names.cell_of(subscription);
        let mut shards: Vec<Shard> = inner
            .js
            .subjects(&inner.state, &filter)
            .await?
            .iter()
            .filter_map(|subject| Some(inner.names.read_cell(subject)?.1))
            .collect();
        shards.sort_unstable();
        let fence = async |shard: Shard| {
            let fence = inner.look(subscription, shard, Cell::fence).await?;
            Ok::<_, StoreError>(fence.map(|fence| (shard, fence)))
        };
        let held: Vec<_> = stream::iter(shards).map(fence).buffered(AT_ONCE).try_collect().await?;
        Ok(held.into_iter().flatten().collect())
    }

    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError> {
        let inner = &self.inner;
        let subjects = inner.js.subjects(&inner.state, &inner.names.members()).await?;
        let known: Vec<Incarnation> =
            subjects.iter().filter_map(|subject| inner.names.read_member(subject)).collect();
        let member = async |incarnation| inner.member(incarnation).await;
        let members: Vec<_> = stream::iter(known).map(member).buffered(AT_ONCE).try_collect().await?;
        let mut members: Vec<MemberInfo> = members.into_iter().flatten().collect();
        members.sort_unstable_by_key(|member| member.member.incarnation);
        Ok(members)
    }
}
