//! Members and claims.

use photon_core::ids::{Incarnation, Shard};
use photon_core::options::Start;
use photon_core::store::{Claim, ClaimResult, ShardClaim};
use uuid::Uuid;

use super::fixture::Owned;
use super::kit::{Kit, claim, member_info, new_member, shard_claim, take};
use super::verdict::{Outcome, Violation};

/// A registered group of a topic with so many shards.
async fn shards(kit: &Kit<'_>, count: u16) -> Outcome<Vec<ShardClaim>> {
    let topic = kit.topic(count).await?;
    let (subscription, _) = topic.register("group", Start::Earliest).await?;
    Ok((0..count).map(|shard| shard_claim(&subscription, shard)).collect())
}

async fn heartbeat_of(kit: &Kit<'_>, incarnation: Incarnation) -> Outcome<u64> {
    let info = member_info(&*kit.store, incarnation).await?;
    info.map(|info| info.heartbeat).ok_or_else(|| Violation::new("the member is not listed"))
}

pub(super) async fn members_beat_by_one(kit: Kit<'_>) -> Outcome {
    let member = new_member()?;
    let incarnation = member.incarnation;
    ensure_eq!(member_info(&*kit.store, incarnation).await?, None, "a member before it joined");
    kit.store.join(&member).await?;
    let joined =
        member_info(&*kit.store, incarnation).await?.ok_or_else(|| Violation::new("it is not listed"))?;
    ensure_eq!(joined.member, member, "the member");
    let other = kit.member().await?;
    for beat in 1..5 {
        ensure_eq!(heartbeat_of(&kit, incarnation).await?, beat, "the heartbeat");
        kit.store.heartbeat(incarnation).await?;
    }
    ensure_eq!(heartbeat_of(&kit, other).await?, 1, "the heartbeat of another member");
    let info = member_info(&*kit.store, incarnation).await?;
    ensure_eq!(info.map(|info| info.joined), Some(joined.joined), "when it joined");
    Ok(())
}

pub(super) async fn a_stranger_is_fenced(kit: Kit<'_>) -> Outcome {
    let shards = shards(&kit, 1).await?;
    let stranger = Incarnation(Uuid::new_v4());
    let wish = [Claim { shard: shards[0].clone(), replace: None }];
    ensure_refused!(kit.store.heartbeat(stranger).await, Fenced, "the heartbeat of a stranger");
    ensure_refused!(kit.store.claim(stranger, &wish).await, Fenced, "the claim of a stranger");
    ensure_eq!(member_info(&*kit.store, stranger).await?, None, "the stranger among the members");
    kit.store.release(stranger, &shards).await?;
    kit.store.leave(stranger).await?;
    let member = kit.member().await?;
    kit.store.leave(member).await?;
    ensure_refused!(kit.store.heartbeat(member).await, Fenced, "the heartbeat of a member that left");
    ensure_refused!(kit.store.claim(member, &wish).await, Fenced, "the claim of a member that left");
    Ok(())
}

pub(super) async fn a_held_shard_stays_with_its_holder(kit: Kit<'_>) -> Outcome {
    let shards = shards(&kit, 1).await?;
    let (holder, other) = (kit.member().await?, kit.member().await?);
    let fence = take(&*kit.store, holder, &shards[0]).await?;
    ensure_eq!(fence.token, holder, "the token of the fence");
    kit.store.heartbeat(holder).await?;
    let info = member_info(&*kit.store, holder).await?.ok_or_else(|| Violation::new("it is not listed"))?;
    let answer = claim(&*kit.store, other, &shards[0], None).await?;
    ensure_eq!(answer, ClaimResult::Held(info), "the answer to another member");
    for _ in 0..2 {
        let again = take(&*kit.store, holder, &shards[0]).await?;
        ensure_eq!(again, fence, "the fence of a holder that claims again");
    }
    Ok(())
}

pub(super) async fn only_a_still_heartbeat_can_be_replaced(kit: Kit<'_>) -> Outcome {
    let shards = shards(&kit, 1).await?;
    let (holder, other, third) = (kit.member().await?, kit.member().await?, kit.member().await?);
    let fence = take(&*kit.store, holder, &shards[0]).await?;
    let seen = heartbeat_of(&kit, holder).await?;
    kit.store.heartbeat(holder).await?;
    let wrong = [
        (holder, seen, "a heartbeat that has moved on"),
        (holder, seen + 2, "a heartbeat that did not come yet"),
        (third, 1, "another member that does not hold it"),
        (other, 1, "the caller itself"),
        (Incarnation(Uuid::new_v4()), seen + 1, "a stranger"),
    ];
    for (incarnation, beat, what) in wrong {
        let answer = claim(&*kit.store, other, &shards[0], Some((incarnation, beat))).await?;
        ensure!(matches!(answer, ClaimResult::Held(_)), "the holder was replaced by naming {what}");
    }
    ensure_eq!(take(&*kit.store, holder, &shards[0]).await?, fence, "the fence of the holder after all that");
    match claim(&*kit.store, other, &shards[0], Some((holder, seen + 1))).await? {
        ClaimResult::Granted(new) => {
            ensure!(new.epoch > fence.epoch, "epoch {} after {}", new.epoch, fence.epoch);
            ensure_eq!(new.token, other, "the token of the fence");
        }
        ClaimResult::Held(_) => return Err(Violation::new("a holder that stands still was not replaced")),
    }
    let answer = claim(&*kit.store, holder, &shards[0], None).await?;
    ensure!(matches!(answer, ClaimResult::Held(_)), "the replaced holder still gets the shard");
    Ok(())
}

pub(super) async fn p09_epochs_only_grow(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let owned = Owned::new(topic, 0, "group").await?;
    let shard = shard_claim(&owned.subscription, 0);
    let mut last = owned.fence.epoch;
    let mut grew = |epoch: u64, when: &str| -> Outcome {
        ensure!(epoch > last, "epoch {epoch} after {last}, {when}");
        last = epoch;
        Ok(())
    };
    let store = &*kit.store;
    store.release(owned.owner, std::slice::from_ref(&shard)).await?;
    grew(take(store, owned.owner, &shard).await?.epoch, "after a release, for the same member")?;
    store.release(owned.owner, std::slice::from_ref(&shard)).await?;
    let second = kit.member().await?;
    grew(take(store, second, &shard).await?.epoch, "after a release, for another member")?;
    store.leave(second).await?;
    grew(take(store, owned.owner, &shard).await?.epoch, "after the holder left")?;
    let third = kit.member().await?;
    let beat = heartbeat_of(&kit, owned.owner).await?;
    match claim(store, third, &shard, Some((owned.owner, beat))).await? {
        ClaimResult::Granted(fence) => grew(fence.epoch, "after the holder was replaced")?,
        ClaimResult::Held(_) => return Err(Violation::new("a holder that stands still was not replaced")),
    }
    for member in [third, owned.owner] {
        store.leave(member).await?;
    }
    let fourth = kit.member().await?;
    grew(take(store, fourth, &shard).await?.epoch, "after every earlier member left")
}

pub(super) async fn a_release_gives_back_what_is_held(kit: Kit<'_>) -> Outcome {
    let shards = shards(&kit, 3).await?;
    let (holder, other) = (kit.member().await?, kit.member().await?);
    let store = &*kit.store;
    let first = take(store, holder, &shards[0]).await?;
    take(store, holder, &shards[1]).await?;
    // What another one holds, and what nobody does.
    store.release(other, &shards).await?;
    ensure!(
        matches!(claim(store, other, &shards[0], None).await?, ClaimResult::Held(_)),
        "another's release counted"
    );
    store.release(holder, &shards[1..]).await?;
    ensure_eq!(take(store, holder, &shards[0]).await?, first, "the fence of the shard that was not released");
    take(store, other, &shards[1]).await?;
    take(store, other, &shards[2]).await?;
    store.release(holder, &shards).await?;
    take(store, other, &shards[0]).await?;
    let answer = claim(store, holder, &shards[1], None).await?;
    ensure!(matches!(answer, ClaimResult::Held(_)), "a second release took a shard from its new holder");
    Ok(())
}

pub(super) async fn who_leaves_gives_everything_back(kit: Kit<'_>) -> Outcome {
    let shards = shards(&kit, 2).await?;
    let (holder, other) = (kit.member().await?, kit.member().await?);
    let store = &*kit.store;
    take(store, holder, &shards[0]).await?;
    take(store, holder, &shards[1]).await?;
    for _ in 0..2 {
        store.leave(holder).await?;
        ensure_eq!(member_info(store, holder).await?, None, "the member that left");
    }
    take(store, other, &shards[0]).await?;
    take(store, other, &shards[1]).await?;
    ensure!(member_info(store, other).await?.is_some(), "another member is gone, too");
    Ok(())
}

pub(super) async fn claims_are_answered_one_by_one(kit: Kit<'_>) -> Outcome {
    let shards = shards(&kit, 4).await?;
    let topic_two = kit.topic(1).await?;
    let (elsewhere, _) = topic_two.register("group", Start::Earliest).await?;
    let (holder, other) = (kit.member().await?, kit.member().await?);
    let store = &*kit.store;
    take(store, holder, &shards[2]).await?;
    let wishes: Vec<Claim> = [&shards[3], &shards[2], &shard_claim(&elsewhere, 0), &shards[0]]
        .into_iter()
        .map(|shard| Claim { shard: shard.clone(), replace: None })
        .collect();
    let answers = store.claim(other, &wishes).await?;
    let granted: Vec<bool> = answers.iter().map(|a| matches!(a, ClaimResult::Granted(_))).collect();
    ensure_eq!(granted, [true, false, true, true], "which claims were granted");
    ensure_eq!(store.claim(other, &[]).await?, [], "the answers to no claim");
    ensure_eq!(shards[1].shard, Shard(1), "the shard that is left");
    take(store, holder, &shards[1]).await?;
    Ok(())
}

pub(super) async fn holders_are_shown(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(3).await?;
    let (subscription, _) = topic.register("group", Start::Earliest).await?;
    let (other, _) = topic.register("other", Start::Earliest).await?;
    ensure_eq!(kit.store.holders(&subscription).await?, [], "the holders before any claim");
    let (one, two) = (kit.member().await?, kit.member().await?);
    let second = take(&*kit.store, two, &shard_claim(&subscription, 2)).await?;
    let first = take(&*kit.store, one, &shard_claim(&subscription, 0)).await?;
    take(&*kit.store, one, &shard_claim(&other, 1)).await?;
    ensure_eq!(
        kit.store.holders(&subscription).await?,
        [(Shard(0), first), (Shard(2), second)],
        "the holders by shard"
    );
    kit.store.release(one, &[shard_claim(&subscription, 0)]).await?;
    ensure_eq!(kit.store.holders(&subscription).await?, [(Shard(2), second)], "after a release");
    kit.store.leave(two).await?;
    ensure_eq!(kit.store.holders(&subscription).await?, [], "after the other left");
    Ok(())
}
