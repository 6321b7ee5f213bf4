//! One owner's word counts.

use std::sync::Arc;

use photon_core::ids::{Incarnation, Seq};
use photon_core::store::{ClaimResult, Fence, ShardOutcome};
use uuid::Uuid;

use super::fixture::{DEAD, Owned, PARKED, Write, commit_shard};
use super::kit::{Kit, claim, join, member_info, shard_claim};
use super::verdict::{Outcome, Violation};

/// Takes the shard over from its owner, whose heartbeat stands still.
pub(super) async fn take_over(owned: &Owned) -> Outcome<Owned> {
    let store = &*owned.store;
    let holder = member_info(store, owned.owner).await?.ok_or_else(|| Violation::new("the owner is gone"))?;
    let owner = join(store).await?;
    let shard = shard_claim(&owned.subscription, owned.shard);
    match claim(store, owner, &shard, Some((owned.owner, holder.heartbeat))).await? {
        ClaimResult::Granted(fence) => Ok(Owned {
            store: Arc::clone(&owned.store),
            topic: owned.topic.clone(),
            subscription: owned.subscription.clone(),
            shard: owned.shard,
            owner,
            fence,
            events: owned.events.clone(),
        }),
        ClaimResult::Held(by) => Err(Violation::new(format!("a takeover was refused, it is held by {by:?}"))),
    }
}

pub(super) async fn p09_a_late_owner_writes_nothing(kit: Kit<'_>) -> Outcome {
    let old = kit.owned(6).await?;
    old.commit(Write::to(old.seq(1)).put(old.row(0, PARKED)).put(old.row(1, DEAD))).await?;
    let (refs, row) = (old.refs().await?, old.stored(0).await?);
    let new = take_over(&old).await?;
    ensure!(new.fence.epoch > old.fence.epoch, "epoch {} after {}", new.fence.epoch, old.fence.epoch);
    let late = Write::to(old.seq(4)).range(old.seq(5), old.seq(5)).put(old.row(3, PARKED)).end(&row);
    ensure_eq!(old.commit_any(late).await?, ShardOutcome::Fenced, "a commit of the old owner");
    ensure_eq!(new.checkpoint().await?.watermark, old.seq(1), "the watermark after a late commit");
    ensure_eq!(new.refs().await?, refs, "rows after a late commit");
    ensure_eq!(new.stored(0).await?, row, "a row that the late commit meant to end");
    new.commit(Write::to(new.seq(3)).end(&row)).await?;
    let late = old.commit_any(Write::to(old.seq(5))).await?;
    ensure_eq!(late, ShardOutcome::Fenced, "a commit of the old owner after one of the new");
    ensure_eq!(new.checkpoint().await?.watermark, new.seq(3), "the watermark");
    Ok(())
}

pub(super) async fn p09_epoch_and_token_both_count(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(3).await?;
    let stranger = kit.member().await?;
    let Fence { epoch, token } = owned.fence;
    ensure_eq!(token, owned.owner, "the token of the fence");
    let wrong = [
        Fence { epoch, token: stranger },
        Fence { epoch, token: Incarnation(Uuid::new_v4()) },
        Fence { epoch: epoch + 1, token },
        Fence { epoch: epoch.wrapping_sub(1), token },
        Fence { epoch: i64::MAX.unsigned_abs(), token: stranger },
    ];
    for fence in wrong {
        let shard = Write::to(owned.last_seq()).put(owned.row(0, DEAD)).shard(0, fence);
        let outcome = commit_shard(&*kit.store, &owned.subscription, shard).await?;
        ensure_eq!(outcome, ShardOutcome::Fenced, "a commit under {fence:?}, granted is {:?}", owned.fence);
    }
    ensure_eq!(owned.checkpoint().await?.watermark, Seq::ZERO, "the watermark");
    ensure_eq!(owned.refs().await?, [], "rows");
    owned.commit(Write::to(owned.last_seq())).await
}

pub(super) async fn p09_a_shard_that_nobody_claimed_is_not_written(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    topic.fill(0, 2).await?;
    topic.fill(1, 2).await?;
    let owned = Owned::new(topic, 0, "group").await?;
    // The fence of shard 0 says nothing about shard 1.
    let shard = Write::to(Seq(1)).shard(1, owned.fence);
    let outcome = commit_shard(&*kit.store, &owned.subscription, shard).await?;
    ensure_eq!(outcome, ShardOutcome::Fenced, "a commit for a shard that was never claimed");
    ensure_eq!(
        kit.store.load(&owned.subscription).await?[1].checkpoint.watermark,
        Seq::ZERO,
        "its watermark"
    );
    Ok(())
}

pub(super) async fn p09_who_left_writes_nothing(kit: Kit<'_>) -> Outcome {
    let old = kit.owned(3).await?;
    kit.store.leave(old.owner).await?;
    let new = Owned::new(old.topic.clone(), 0, "group").await?;
    ensure_eq!(old.commit_any(Write::to(old.seq(2))).await?, ShardOutcome::Fenced, "a commit after leaving");
    ensure_eq!(new.checkpoint().await?.watermark, Seq::ZERO, "the watermark");
    Ok(())
}

pub(super) async fn p09_a_takeover_sees_every_commit_before(kit: Kit<'_>) -> Outcome {
    let mut owned = kit.owned(12).await?;
    for index in 0..12 {
        owned.commit(Write::to(owned.seq(index)).put(owned.row(index, PARKED))).await?;
        owned = take_over(&owned).await?;
        ensure_eq!(owned.checkpoint().await?.watermark, owned.seq(index), "the watermark for a new owner");
        ensure_eq!(owned.stored(index).await?.state, PARKED, "the row for a new owner");
    }
    Ok(())
}
