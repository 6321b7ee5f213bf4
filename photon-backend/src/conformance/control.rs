//! Pausing, resetting, and announcing a trim.

use photon_core::ids::{Seq, Shard};
use photon_core::options::Start;
use photon_core::store::{Checkpoint, Fence, Paused, ResetOutcome, RowState, ShardOutcome, ShardReset};

use super::fixture::{BLOCKING, DEAD, Owned, PARKED, Write, any_dead};
use super::kit::{Kit, seqs, shard_claim, take};
use super::verdict::{Outcome, Violation};

async fn listed(owned: &Owned) -> Outcome<Option<Paused>> {
    let known = owned.store.list().await?;
    let info = known.into_iter().find(|info| info.subscription == owned.subscription);
    Ok(info.ok_or_else(|| Violation::new("it is not listed"))?.paused)
}

pub(super) async fn a_pause_is_kept_until_it_is_lifted(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(1).await?;
    let (store, id) = (&kit.store, &owned.subscription);
    ensure_eq!(store.paused(id).await?, None, "the pause of a new subscription");
    let mut revision = store.revision(id).await?;
    ensure_eq!(store.pause(id, Some("gateway \"down\"")).await?, None, "what held before");
    let first = store.paused(id).await?.ok_or_else(|| Violation::new("it is not paused"))?;
    ensure_eq!(first.reason, "gateway \"down\"", "the reason");
    ensure_eq!(listed(&owned).await?.as_ref(), Some(&first), "what list shows");
    let known = store.list().await?;
    let registered = known.iter().find(|info| info.subscription == *id).map(|info| info.registered);
    ensure!(Some(first.since) >= registered, "paused at {}, before it was registered", first.since);
    for (reason, expected) in [
        (Some("longer"), Some(Paused { reason: "longer".to_owned(), since: first.since })),
        (Some(""), Some(Paused { reason: String::new(), since: first.since })),
        (None, None),
    ] {
        let before = store.paused(id).await?;
        ensure_eq!(store.pause(id, reason).await?, before, "what held before");
        ensure_eq!(store.paused(id).await?, expected, "the pause after {reason:?}");
        ensure_eq!(listed(&owned).await?, expected, "what list shows");
        let now = store.revision(id).await?;
        ensure!(now > revision, "the revision is {now} after {revision}");
        revision = now;
    }
    ensure_eq!(store.pause(id, None).await?, None, "what held before a second resume");
    ensure_eq!(store.revision(id).await?, revision, "the revision after nothing changed");
    Ok(())
}

pub(super) async fn a_pause_binds_its_subscription_only(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(3).await?;
    let (other, _) = owned.topic.register("other", Start::Earliest).await?;
    kit.store.pause(&owned.subscription, Some("maintenance")).await?;
    ensure_eq!(kit.store.paused(&other).await?, None, "the pause of another group");
    owned.commit(Write::to(owned.seq(1))).await?;
    ensure_eq!(owned.checkpoint().await?.watermark, owned.seq(1), "the watermark of a paused one");
    let again = owned.topic.register("group", Start::Earliest).await?.1;
    ensure!(!again.new, "it is new a second time");
    ensure!(kit.store.paused(&owned.subscription).await?.is_some(), "registering again lifted the pause");
    let nobody = owned.topic.subscription("nobody")?;
    ensure_refused!(kit.store.pause(&nobody, Some("why")).await, Refused, "pausing an unregistered one");
    ensure_eq!(kit.store.paused(&nobody).await?, None, "the pause of an unregistered one");
    kit.store.forget(&owned.subscription).await?;
    owned.topic.register("group", Start::Earliest).await?;
    ensure_eq!(kit.store.paused(&owned.subscription).await?, None, "the pause after it was forgotten");
    Ok(())
}

async fn reset(owned: &Owned, after: Seq, fence: Option<Fence>) -> Outcome<ResetOutcome> {
    let reset = ShardReset { shard: Shard(owned.shard), after, fence };
    let outcomes = owned.store.reset(&owned.subscription, &[reset]).await?;
    let [outcome] = <[ResetOutcome; 1]>::try_from(outcomes)
        .map_err(|all| Violation::new(format!("one reset must have one outcome, it has {}", all.len())))?;
    Ok(outcome)
}

pub(super) async fn a_reset_goes_on_elsewhere(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "a", "b", "c", "a", "b"]).await?;
    let write = Write::to(owned.seq(2)).range(owned.seq(4), owned.seq(4));
    let rows = [(1, PARKED), (2, DEAD), (4, RowState::Waiting)];
    owned.commit(rows.iter().fold(write, |w, (i, state)| w.put(owned.row(*i, *state)))).await?;
    let place = photon_core::store::DeadLetterFilter { place: Some((Shard(0), owned.seq(2))), ..any_dead() };
    let outcome = reset(&owned, owned.seq(0), None).await?;
    ensure_eq!(outcome, ResetOutcome::Reset { after: owned.seq(0), removed: 3 }, "the outcome");
    let expected = Checkpoint { watermark: owned.seq(0), ranges: Vec::new() };
    ensure_eq!(owned.checkpoint().await?, expected, "the checkpoint");
    ensure_eq!(owned.refs().await?, [], "rows and marks behind the place");
    ensure_eq!(owned.heads().await?, [], "heads behind the place");
    ensure_eq!(owned.redrive(&place).await?, 0, "dead rows behind the place");
    let nobody = owned.topic.subscription("nobody")?;
    let at = ShardReset { shard: Shard(0), after: Seq::ZERO, fence: None };
    ensure_refused!(kit.store.reset(&nobody, &[at]).await, Refused, "resetting an unregistered one");
    let at = ShardReset { shard: Shard(9), ..at };
    ensure_refused!(kit.store.reset(&owned.subscription, &[at]).await, Refused, "resetting a strange shard");
    Ok(())
}

pub(super) async fn a_reset_keeps_what_cannot_be_read_again(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "b", "c", "a", "b", "a"]).await?;
    let rows = [(0, PARKED), (1, BLOCKING), (2, DEAD), (3, RowState::Waiting), (5, RowState::Waiting)];
    owned.store_rows(&rows).await?;
    let kept =
        [owned.stored(0).await?, owned.stored(1).await?, owned.stored(2).await?, owned.stored(3).await?];
    let outcome = reset(&owned, owned.seq(4), None).await?;
    ensure_eq!(outcome, ResetOutcome::Reset { after: owned.seq(4), removed: 1 }, "the outcome");
    for (index, row) in kept.iter().enumerate() {
        ensure_eq!(owned.stored(index).await?, *row, "a row before the place");
    }
    let heads = owned.heads().await?;
    let seen: Vec<_> = heads.iter().map(|head| (head.seq, head.rows)).collect();
    ensure_eq!(seen, [(owned.seq(0), 2), (owned.seq(1), 1)], "heads and how many rows their lanes have");
    // What is read again can be stored again.
    let member = kit.member().await?;
    let fence = take(&*kit.store, member, &shard_claim(&owned.subscription, 0)).await?;
    let again = Owned { fence, owner: member, ..owned };
    again.commit(Write::to(again.seq(5)).put(again.row(5, DEAD))).await?;
    ensure_eq!(again.stored(5).await?.state, DEAD, "a row that was stored again");
    Ok(())
}

pub(super) async fn p09_a_reset_fences_the_owner(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(4).await?;
    owned.commit(Write::to(owned.seq(1))).await?;
    let before = kit.store.load(&owned.subscription).await?[0].resets;
    let revision = kit.store.revision(&owned.subscription).await?;
    reset(&owned, owned.seq(0), None).await?;
    let late = owned.commit_any(Write::to(owned.seq(3)).put(owned.row(3, DEAD))).await?;
    ensure_eq!(late, ShardOutcome::Fenced, "a commit of the former owner");
    ensure_eq!(owned.checkpoint().await?.watermark, owned.seq(0), "the watermark");
    ensure_eq!(owned.refs().await?, [], "rows of the former owner");
    ensure_eq!(kit.store.load(&owned.subscription).await?[0].resets, before + 1, "resets of the shard");
    let now = kit.store.revision(&owned.subscription).await?;
    ensure!(now > revision, "the revision is {now} after {revision}");
    let fence = take(&*kit.store, owned.owner, &shard_claim(&owned.subscription, 0)).await?;
    ensure!(fence.epoch > owned.fence.epoch, "epoch {} after {}", fence.epoch, owned.fence.epoch);
    let next = Owned { fence, ..owned };
    next.commit(Write::to(next.seq(2))).await?;
    Ok(())
}

pub(super) async fn a_reset_under_another_fence_does_nothing(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(3).await?;
    owned.commit(Write::to(owned.seq(1))).await?;
    let stale = Fence { epoch: owned.fence.epoch + 1, ..owned.fence };
    ensure_eq!(reset(&owned, Seq::ZERO, Some(stale)).await?, ResetOutcome::Fenced, "under another epoch");
    ensure_eq!(owned.checkpoint().await?.watermark, owned.seq(1), "the watermark");
    owned.commit(Write::to(owned.seq(2))).await?;
    let outcome = reset(&owned, owned.seq(0), Some(owned.fence)).await?;
    ensure_eq!(outcome, ResetOutcome::Reset { after: owned.seq(0), removed: 0 }, "under its own");
    Ok(())
}

pub(super) async fn a_reset_stays_within_the_log(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(5).await?;
    kit.store.trim(&owned.topic.name, Shard(0), owned.seq(1)).await?;
    for (wanted, expected) in
        [(Seq::ZERO, owned.seq(1)), (Seq::MAX, owned.seq(4)), (owned.seq(2), owned.seq(2))]
    {
        let outcome = reset(&owned, wanted, None).await?;
        ensure_eq!(outcome, ResetOutcome::Reset { after: expected, removed: 0 }, "a reset to {wanted}");
        ensure_eq!(owned.checkpoint().await?.watermark, expected, "the watermark after {wanted}");
    }
    Ok(())
}

pub(super) async fn an_announced_trim_binds_new_positions(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(6).await?;
    let (store, topic) = (&kit.store, &owned.topic);
    store.announce_trim(&topic.name, Shard(0), owned.seq(2)).await?;
    store.announce_trim(&topic.name, Shard(0), owned.seq(1)).await?;
    ensure_eq!(seqs(&topic.read_all(0).await?).len(), 6, "records after the announcement");
    ensure_eq!(store.bounds(&topic.name).await?[0].floor, Seq::ZERO, "the floor after the announcement");
    ensure_eq!(owned.checkpoint().await?.watermark, Seq::ZERO, "a position that was there before");
    let at = Start::At(owned.events[0].time);
    for (group, start) in [("earliest", Start::Earliest), ("at", at)] {
        let starts = topic.register(group, start).await?.1.starts;
        ensure_eq!(starts, [owned.seq(2)], "the start {group}");
    }
    let outcome = reset(&owned, Seq::ZERO, None).await?;
    ensure_eq!(outcome, ResetOutcome::Reset { after: owned.seq(2), removed: 0 }, "a reset to the beginning");
    // No place is promised that there is not.
    store.announce_trim(&topic.name, Shard(0), Seq::MAX).await?;
    let new = topic.fill(0, 1).await?[0];
    let starts = topic.register("late", Start::Earliest).await?.1.starts;
    ensure_eq!(starts, [owned.last_seq()], "the start behind the end");
    ensure_eq!(seqs(&topic.read_after(0, starts[0]).await?), [new], "records from there on");
    Ok(())
}
