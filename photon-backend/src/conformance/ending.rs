//! How the work of an owner ended, and what it leaves to the next one in case it did not.

use photon_core::store::{Member, ShardOutcome, Stage, Trial};

use super::fencing::take_over;
use super::fixture::{Owned, Write};
use super::kit::{Kit, member_info, shard_claim, take};
use super::verdict::{Outcome, Violation};

async fn unended(owned: &Owned) -> Outcome<Option<Member>> {
    Ok(owned.load().await?.unended)
}

async fn member(owned: &Owned) -> Outcome<Member> {
    let info = member_info(&*owned.store, owned.owner).await?;
    info.map(|info| info.member).ok_or_else(|| Violation::new("the owner is gone"))
}

pub(super) async fn trials_are_those_of_the_last_commit(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(4).await?;
    ensure_eq!(owned.load().await?.trials, [], "trials before the first commit");
    let trial = |index, crashes, stage| Trial { seq: owned.seq(index), crashes, stage };
    let all = [trial(1, 0, Stage::Among), trial(2, u32::MAX, Stage::Alone), trial(3, 7, Stage::Waits)];
    let write = |watermark, trials: &[Trial]| {
        trials.iter().fold(Write::to(owned.seq(watermark)), |write, t| write.trial(t.seq, t.crashes, t.stage))
    };
    owned.commit(write(0, &all)).await?;
    ensure_eq!(owned.load().await?.trials, all, "the trials");
    owned.commit(write(0, &all[1..])).await?;
    ensure_eq!(owned.load().await?.trials, all[1..], "the trials of a commit over the same watermark");
    owned.commit(write(2, &all[..1])).await?;
    owned.commit(write(1, &all[2..])).await?;
    ensure_eq!(owned.load().await?.trials, all[2..], "the trials of a commit with a lower watermark");
    owned.commit(write(3, &[])).await?;
    ensure_eq!(owned.load().await?.trials, [], "the trials of a commit without");
    Ok(())
}

pub(super) async fn p09_trials_of_a_late_owner_are_not_written(kit: Kit<'_>) -> Outcome {
    let old = kit.owned(3).await?;
    let mark = |owned: &Owned, index| Write::to(owned.seq(0)).trial(owned.seq(index), 1, Stage::Alone);
    old.commit(mark(&old, 1)).await?;
    let new = take_over(&old).await?;
    let before = new.load().await?.trials;
    ensure_eq!(before, [Trial { seq: old.seq(1), crashes: 1, stage: Stage::Alone }], "what was left");
    ensure_eq!(old.commit_any(mark(&old, 2)).await?, ShardOutcome::Fenced, "a commit of the old owner");
    ensure_eq!(new.load().await?.trials, before, "the trials after a late commit");
    Ok(())
}

pub(super) async fn who_released_a_shard_ended_in_order(kit: Kit<'_>) -> Outcome {
    let first = kit.owned(2).await?;
    ensure_eq!(unended(&first).await?, None, "the owner before the first one");
    first.store.release(first.owner, &[shard_claim(&first.subscription, 0)]).await?;
    ensure_eq!(unended(&first).await?, None, "the owner before nobody");
    let second = Owned::new(first.topic.clone(), 0, "group").await?;
    ensure_eq!(unended(&second).await?, None, "the owner before, which released");
    // What others release of it counts for nothing.
    let stranger = kit.member().await?;
    second.store.release(stranger, &[shard_claim(&second.subscription, 0)]).await?;
    let third = take_over(&second).await?;
    ensure!(unended(&third).await?.is_some(), "a release by somebody else counted");
    Ok(())
}

pub(super) async fn who_did_not_release_is_told_to_the_next_owner(kit: Kit<'_>) -> Outcome {
    let first = kit.owned(2).await?;
    let was = member(&first).await?;
    let second = take_over(&first).await?;
    ensure_eq!(unended(&second).await?, Some(was.clone()), "the owner that was replaced");
    let claim = shard_claim(&second.subscription, 0);
    let fence = take(&*second.store, second.owner, &claim).await?;
    ensure_eq!(fence, second.fence, "the fence of a claim that is repeated");
    ensure_eq!(unended(&second).await?, Some(was), "the owner before, after the claim was repeated");
    let was = member(&second).await?;
    second.store.leave(second.owner).await?;
    ensure_eq!(unended(&second).await?, None, "the owner before nobody");
    let third = Owned::new(second.topic.clone(), 0, "group").await?;
    ensure_eq!(unended(&third).await?, Some(was), "the owner that left without a release");
    Ok(())
}

pub(super) async fn an_end_in_order_is_of_one_owner(kit: Kit<'_>) -> Outcome {
    let first = kit.owned(2).await?;
    let second = take_over(&first).await?;
    second.store.release(second.owner, &[shard_claim(&second.subscription, 0)]).await?;
    let third = Owned::new(second.topic.clone(), 0, "group").await?;
    ensure_eq!(unended(&third).await?, None, "the owner before, which released");
    let was = member(&third).await?;
    let fourth = take_over(&third).await?;
    ensure_eq!(unended(&fourth).await?, Some(was), "the owner before the fourth");
    fourth.store.forget(&fourth.subscription).await?;
    let fifth = Owned::new(fourth.topic.clone(), 0, "group").await?;
    ensure_eq!(unended(&fifth).await?, None, "the owner of a subscription that was forgotten");
    ensure_eq!(fifth.load().await?.trials, [], "the trials of one that was forgotten");
    Ok(())
}
