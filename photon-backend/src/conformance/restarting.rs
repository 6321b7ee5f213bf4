//! What a restarted process finds.

use std::sync::Arc;

use photon_core::ids::Shard;
use photon_core::options::Start;
use photon_core::store::{Appended, RowRef, Stage, StoredCheckpoint};

use super::fixture::{BLOCKING, DEAD, Owned, PARKED, Write, any_dead};
use super::kit::{Kit, Topic, keyed, registration, shard_claim, spec, take, with_dedup};
use super::verdict::{Outcome, Violation};

pub(super) async fn p01_everything_survives_a_restart(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    let made = kit.store.ensure_topic(&spec(&topic.name, 2)).await?;
    topic.append((0..8).map(|number| keyed(0, number, "key")).collect()).await?;
    let dedup = topic.append(vec![with_dedup(1, "id")]).await?[0];
    let owned = Owned::new(topic, 0, "group").await?;
    let write =
        Write::to(owned.seq(3)).range(owned.seq(5), owned.seq(5)).trial(owned.seq(4), 2, Stage::Alone);
    let rows = [(0, PARKED), (1, DEAD), (2, BLOCKING), (6, DEAD)];
    owned.commit(rows.iter().fold(write, |w, (i, state)| w.put(owned.row(*i, *state)))).await?;
    let place = photon_core::store::DeadLetterFilter { place: Some((Shard(0), owned.seq(6))), ..any_dead() };
    ensure_eq!(owned.discard(&place).await?, 1, "rows discarded");
    kit.store.trim(&owned.topic.name, Shard(0), owned.seq(1)).await?;
    let before = snapshot(&owned).await?;
    ensure!(before.refs.contains(&RowRef { seq: owned.seq(6), state: None }), "the mark is missing");

    let Owned { store, topic, subscription, shard, owner, fence, events } = owned;
    let name = topic.name.clone();
    drop((topic, store));
    let Some(store) = kit.harness.reopen(kit.store).await else {
        return Err(Violation::skip("the harness reopens no store"));
    };
    let topic = Topic { store: Arc::clone(&store), name };
    let owned = Owned { store: Arc::clone(&store), topic, subscription, shard, owner, fence, events };

    ensure_eq!(store.ensure_topic(&spec(&owned.topic.name, 2)).await?, made, "the topic");
    ensure_refused!(store.ensure_topic(&spec(&owned.topic.name, 3)).await, Refused, "another shard count");
    let after = snapshot(&owned).await?;
    ensure!(after == before, "after the restart: {after:?}, before: {before:?}");
    let again = owned.topic.append_any(vec![with_dedup(1, "id")]).await?;
    ensure_eq!(again, [Appended { seq: dedup, duplicate: true }], "a repetition after the restart");
    let new = owned.topic.fill(0, 1).await?[0];
    ensure!(new > owned.last_seq(), "place {new} was given out after {}", owned.last_seq());
    let again = store.register(&registration(owned.subscription.clone(), Start::Latest)).await?;
    ensure!(!again.new, "the subscription was forgotten");
    let member = super::kit::join(&*store).await?;
    store.leave(owned.owner).await?;
    let fence = take(&*store, member, &shard_claim(&owned.subscription, 0)).await?;
    ensure!(fence.epoch > owned.fence.epoch, "epoch {} after {}", fence.epoch, owned.fence.epoch);
    let unended = owned.load().await?.unended.map(|member| member.incarnation);
    ensure_eq!(unended, Some(owned.owner), "the owner from before the restart");
    Ok(())
}

/// What is the same before and after.
#[derive(Debug, PartialEq)]
struct Snapshot {
    events: Vec<photon_core::event::Event>,
    bounds: Vec<photon_core::store::Bounds>,
    checkpoints: Vec<StoredCheckpoint>,
    refs: Vec<RowRef>,
    rows: Vec<photon_core::store::StoredDelivery>,
    heads: Vec<photon_core::store::Head>,
    revision: u64,
    known: Option<photon_core::store::SubscriptionInfo>,
}

async fn snapshot(owned: &Owned) -> Outcome<Snapshot> {
    let places: Vec<_> = owned.events.iter().map(|event| event.seq).collect();
    let known = owned.store.list().await?;
    Ok(Snapshot {
        events: owned.topic.read_all(0).await?,
        bounds: owned.store.bounds(&owned.topic.name).await?,
        checkpoints: owned.store.load(&owned.subscription).await?,
        refs: owned.refs().await?,
        rows: owned.store.get(&owned.subscription, Shard(0), &places).await?,
        heads: owned.heads().await?,
        revision: owned.store.revision(&owned.subscription).await?,
        known: known.into_iter().find(|info| info.subscription == owned.subscription),
    })
}
