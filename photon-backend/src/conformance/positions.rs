//! Registering, loading, listing and forgetting subscriptions.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use photon_core::ids::{InstanceId, Seq, Shard, SubscriptionId};
use photon_core::options::{Mode, Start};
use photon_core::store::{Checkpoint, Registration, Select, SubscriptionInfo};

use super::fixture::{DEAD, PARKED, Write, any_dead};
use super::kit::{Kit, registration, seqs, shard_claim, take};
use super::verdict::{Outcome, Violation};

/// What `list` says about a subscription.
async fn info(kit: &Kit<'_>, subscription: &SubscriptionId) -> Outcome<Option<SubscriptionInfo>> {
    let mut found = kit.store.list().await?;
    found.retain(|info| info.subscription == *subscription);
    ensure!(found.len() <= 1, "{subscription} is listed {} times", found.len());
    Ok(found.pop())
}

pub(super) async fn a_start_is_fixed_in_numbers(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    let places = topic.fill(0, 6).await?;
    kit.store.trim(&topic.name, Shard(0), places[1]).await?;
    let events = topic.read_all(0).await?;
    let at = Start::At(events[2].time);
    let since: Vec<Seq> = seqs(events.iter().filter(|event| event.time >= events[2].time));
    let cases = [
        ("earliest", Start::Earliest, places[2..].to_vec()),
        ("latest", Start::Latest, Vec::new()),
        ("at", at, since),
    ];
    let mut subscriptions = Vec::new();
    for (group, start, expected) in cases {
        let (subscription, registered) = topic.register(group, start).await?;
        ensure!(registered.new, "{group} was taken for known");
        ensure_eq!(registered.starts.len(), 2, "starts, one for each shard");
        let first = registered.starts[0];
        ensure!(
            first >= places[1],
            "{group} starts after {first}, in what was trimmed: it would report a loss"
        );
        ensure_eq!(seqs(&topic.read_after(0, first).await?), expected, "records from the start {group} on");
        ensure_eq!(registered.starts[1], Seq::ZERO, "the start {group} in an empty shard");
        subscriptions.push((subscription, start, registered.starts));
    }
    topic.fill(0, 3).await?;
    topic.fill(1, 3).await?;
    for (subscription, start, starts) in subscriptions {
        let again = kit.store.register(&registration(subscription.clone(), start)).await?;
        ensure!(!again.new, "{subscription} is new a second time");
        ensure_eq!(again.starts, starts, "the starts of {subscription} after more events");
        let loaded: Vec<Seq> =
            kit.store.load(&subscription).await?.iter().map(|stored| stored.checkpoint.watermark).collect();
        ensure_eq!(loaded, starts, "the checkpoints of {subscription} before its first commit");
    }
    Ok(())
}

pub(super) async fn registering_again_changes_only_the_expiry(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    topic.fill(0, 3).await?;
    let mut subscription = topic.subscription("group")?;
    subscription.instance = Some(InstanceId::new("pod-1").map_err(Violation::new)?);
    let first = Registration {
        subscription: subscription.clone(),
        start: Start::Latest,
        mode: Mode::Durable,
        expire_after: Some(Duration::from_secs(3_600)),
    };
    let registered = kit.store.register(&first).await?;
    let before = info(&kit, &subscription).await?.ok_or_else(|| Violation::new("it is not listed"))?;
    ensure_eq!(before.mode, Mode::Durable, "the mode");
    ensure_eq!(before.expire_after, first.expire_after, "the expiry");
    ensure!(before.registered <= before.active, "active before it was registered: {before:?}");
    for expire_after in [Some(Duration::from_millis(1_500)), None] {
        let again = Registration { start: Start::Earliest, expire_after, ..first.clone() };
        let again = kit.store.register(&again).await?;
        ensure_eq!((again.new, again.starts), (false, registered.starts.clone()), "the second registration");
        let after = info(&kit, &subscription).await?.ok_or_else(|| Violation::new("it is not listed"))?;
        ensure_eq!(after.expire_after, expire_after, "the new expiry");
        ensure_eq!((after.mode, after.registered), (before.mode, before.registered), "mode and date");
        ensure!(after.active >= before.active, "activity went back: {after:?} after {before:?}");
    }
    Ok(())
}

pub(super) async fn an_unregistered_subscription_is_refused(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let subscription = topic.subscription("nobody")?;
    ensure_refused!(kit.store.load(&subscription).await, Refused, "loading an unregistered subscription");
    ensure_eq!(info(&kit, &subscription).await?, None, "what is listed about it");
    Ok(())
}

pub(super) async fn many_register_at_once(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    let tasks = (0..16).map(|_| {
        let topic = topic.clone();
        tokio::spawn(async move {
            topic.fill(0, 2).await?;
            topic.register("group", Start::Latest).await
        })
    });
    let mut all = Vec::new();
    for registered in join_all(tasks).await {
        all.push(registered.map_err(Violation::new)??.1);
    }
    ensure_eq!(all.iter().filter(|registered| registered.new).count(), 1, "calls that found it new");
    ensure!(all.windows(2).all(|w| w[0].starts == w[1].starts), "processes got different starts: {all:?}");
    Ok(())
}

pub(super) async fn subscriptions_are_apart(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(4).await?;
    let (other, _) = owned.topic.register("other", Start::Earliest).await?;
    let mut instance = owned.subscription.clone();
    instance.instance = Some(InstanceId::new("pod-1").map_err(Violation::new)?);
    kit.store.register(&registration(instance.clone(), Start::Earliest)).await?;
    owned.commit(Write::to(owned.seq(3)).put(owned.row(1, DEAD))).await?;
    for subscription in [&other, &instance] {
        let stored = kit.store.load(subscription).await?;
        ensure_eq!(stored[0].checkpoint, Checkpoint::default(), "the checkpoint of {subscription}");
        let dead = Select::Dead(any_dead());
        ensure_eq!(kit.store.count(subscription, &dead).await?, 0, "dead rows of {subscription}");
        ensure_eq!(
            kit.store.redrive(subscription, &any_dead(), 10).await?,
            0,
            "rows redriven in {subscription}"
        );
        ensure_eq!(
            kit.store.discard(subscription, &any_dead(), 10).await?,
            0,
            "rows discarded in {subscription}"
        );
        let member = kit.member().await?;
        take(&*kit.store, member, &shard_claim(subscription, 0)).await?;
    }
    ensure_eq!(owned.stored(1).await?.state, DEAD, "the row of the first subscription");
    Ok(())
}

pub(super) async fn a_commit_renews_the_activity(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(1).await?;
    let before = info(&kit, &owned.subscription).await?.ok_or_else(|| Violation::new("it is not listed"))?;
    // The store's clock moves by itself; appends show by how much.
    for _ in 0..10_000 {
        owned.topic.fill(0, 1).await?;
        let newest = owned.topic.read_all(0).await?.pop().map(|event| event.time);
        if newest > Some(before.active) {
            break;
        }
        owned
            .store
            .trim(&owned.topic.name, Shard(0), owned.store.bounds(&owned.topic.name).await?[0].end)
            .await?;
        tokio::task::yield_now().await;
    }
    owned.commit(Write::to(owned.seq(0))).await?;
    let after = info(&kit, &owned.subscription).await?.ok_or_else(|| Violation::new("it is not listed"))?;
    ensure!(after.active > before.active, "a commit left the activity at {}", before.active);
    ensure_eq!(after.registered, before.registered, "the date of registration");
    Ok(())
}

pub(super) async fn a_forgotten_subscription_leaves_nothing(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(5).await?;
    let keeper = super::fixture::Owned::new(owned.topic.clone(), 0, "keeper").await?;
    keeper.commit(Write::to(keeper.seq(2)).put(keeper.row(0, DEAD))).await?;
    let write = Write::to(owned.seq(2)).put(owned.row(0, DEAD)).put(owned.row(1, PARKED));
    owned.commit(write).await?;
    for _ in 0..2 {
        kit.store.forget(&owned.subscription).await?;
        ensure_eq!(info(&kit, &owned.subscription).await?, None, "what is listed about it");
        ensure_refused!(kit.store.load(&owned.subscription).await, Refused, "loading what was forgotten");
    }
    ensure_eq!(owned.topic.read_all(0).await?.len(), 5, "records of the topic");
    let (_, again) = owned.topic.register("group", Start::Earliest).await?;
    ensure!(again.new, "it is still known");
    ensure_eq!(owned.checkpoint().await?, Checkpoint::default(), "the checkpoint of the new registration");
    ensure_eq!(owned.refs().await?, [], "rows and marks of the new registration");
    ensure_eq!(owned.heads().await?, [], "heads of the new registration");
    // The claims are gone, and the last owner stays fenced.
    let member = kit.member().await?;
    let fence = take(&*kit.store, member, &shard_claim(&owned.subscription, 0)).await?;
    ensure!(
        fence.epoch > owned.fence.epoch,
        "epoch {} after {}, which was granted before the subscription was forgotten",
        fence.epoch,
        owned.fence.epoch
    );
    let late = owned.commit_any(Write::to(owned.seq(4))).await?;
    ensure_eq!(late, photon_core::store::ShardOutcome::Fenced, "a commit of the last owner");
    ensure_eq!(keeper.checkpoint().await?.watermark, keeper.seq(2), "the watermark of another group");
    ensure_eq!(keeper.stored(0).await?.state, DEAD, "the row of another group");
    let known = Arc::clone(&kit.store).list().await?;
    ensure!(known.iter().any(|info| info.subscription == keeper.subscription), "another group is gone");
    Ok(())
}
