//! P2: the watermark is a low-water mark.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use photon::store::{Checkpoint, Commit, CommitOutcome, ShardOutcome, Store};
use photon::{Options, Photon, Seq, Shard, StoreError, StoreErrorKind, SubscriptionId, TopicName};
use photon_backend::wrap::fault::{Fault, Rule};
use photon_backend::wrap::{Intercept, Op, Wrapped};

use crate::support::instance::{eventually, options, within};
use crate::support::{Act, Instance, What, World, single};

on_every_engine!(
    p02_the_watermark_stays_below_what_runs,
    p02_the_watermark_waits_for_retries_in_memory,
    p02_the_watermark_passes_a_parked_delivery_only_when_it_is_stored,
    p02_the_watermark_passes_a_dead_letter_only_when_it_is_stored,
    p02_no_commit_falls_behind_the_one_before_it,
    p02_what_was_trimmed_never_holds_it,
    p02_what_was_refused_or_deduplicated_never_holds_it,
);

/// Publishes one event with a key of its own for each act: `k0`, `k1` and so on. Returns their places.
async fn publish(photon: &Photon, acts: impl IntoIterator<Item = Act>) -> Vec<Seq> {
    let mut places = Vec::new();
    for (n, act) in (0u64..).zip(acts) {
        places.push(photon.publish(&single(&format!("k{n}"), n, act)).await.unwrap().seq);
    }
    places
}

fn gate() -> Act {
    Act::Wait("gate".to_owned())
}

/// Waits until the checkpoint covers these places.
async fn until_covered(world: &World, seqs: &[Seq]) -> Checkpoint {
    eventually("the checkpoint covers it", async || {
        let checkpoint = world.checkpoint().await;
        seqs.iter().all(|seq| checkpoint.covers(*seq))
    })
    .await;
    world.checkpoint().await
}

/// Runs what an instance that came after a crash gets, and gives the numbers that it handled.
async fn handled_after_crash(world: &World, instance: Instance) -> Vec<u64> {
    instance.crash();
    world.probe.open("gate");
    let before = world.probe.entries().len();
    let next = world.start(["single"]).await;
    next.drain().await.unwrap();
    let after = &world.probe.entries()[before..];
    let mut handled: Vec<u64> = after.iter().filter(|e| e.what == What::Done).map(|e| e.n).collect();
    handled.sort_unstable();
    handled
}

async fn p02_the_watermark_stays_below_what_runs(world: World) {
    let instance = world.start(["single"]).await;
    let acts = [Act::Done, gate(), Act::Done, Act::Done, gate(), Act::Done];
    let at = publish(&instance.photon, acts).await;
    let checkpoint = until_covered(&world, &[at[0], at[2], at[3], at[5]]).await;
    assert!((at[0]..at[1]).contains(&checkpoint.watermark), "{checkpoint:?} of {at:?}");
    assert!(!checkpoint.covers(at[1]) && !checkpoint.covers(at[4]));
    assert_eq!(handled_after_crash(&world, instance).await, [1, 4]);
    assert_eq!(world.checkpoint().await.watermark, at[5]);
}

async fn p02_the_watermark_waits_for_retries_in_memory(world: World) {
    let instance = world.start(["single"]).await;
    let at = publish(&instance.photon, [Act::FailAfter(9_000), Act::Done, Act::Done]).await;
    let checkpoint = until_covered(&world, &at[1..]).await;
    assert!(checkpoint.watermark < at[0], "{checkpoint:?} of {at:?}");
    instance.crash();
    let next = world.plan(["single"]).start().await;
    world
        .probe
        .until("it failed again", |seen| seen.iter().filter(|e| e.what == What::Failed).count() == 2)
        .await;
    assert!(world.checkpoint().await.watermark < at[0]);
    next.stop().await;
}

async fn p02_the_watermark_passes_a_parked_delivery_only_when_it_is_stored(world: World) {
    let park = Options { park_after: Some(Duration::ZERO), ..Options::NONE };
    let instance = world.plan(["single"]).options(park.clone()).build().await;
    let outage = instance.faults.add(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).on([Op::Commit]));
    let executor = instance.photon.start_executor().await.unwrap();
    let at = publish(&instance.photon, [Act::FailAfter(1_500), Act::Done]).await;
    world.probe.until_done("single", 1).await;
    world.probe.until("it failed", |seen| seen.iter().any(|e| e.what == What::Failed)).await;
    let status = instance.photon.subscription("single").status().await.unwrap();
    assert_eq!((world.checkpoint().await.watermark, status.parked), (Seq(0), 0));
    instance.faults.remove(outage);
    let checkpoint = until_covered(&world, &at).await;
    assert_eq!(checkpoint.watermark, at[1]);
    assert_eq!(instance.photon.subscription("single").status().await.unwrap().parked, 1);
    instance.probe.kill();
    instance.faults.add(Rule::new(Fault::Hang));
    drop(executor);
    let next = world.plan(["single"]).options(park).start().await;
    world.probe.until_done("single", 2).await;
    next.drain().await.unwrap();
    assert_eq!(world.probe.ends_of("single", "k0", 0), [(1, What::Failed), (2, What::Done)]);
    assert_eq!(world.probe.ends_of("single", "k1", 1), [(1, What::Done)]);
}

async fn p02_the_watermark_passes_a_dead_letter_only_when_it_is_stored(world: World) {
    let instance = world.plan(["single"]).build().await;
    let outage = instance.faults.add(Rule::new(Fault::LoseAnswer).on([Op::Read, Op::Lane]).chance(200_000));
    instance.faults.add(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).on([Op::Commit]).times(8));
    let executor = instance.photon.start_executor().await.unwrap();
    let at = publish(&instance.photon, [Act::Refuse, Act::Done, Act::PanicLater(9), Act::Done]).await;
    // At every moment: who is passed by the watermark and did not end well, is a dead letter.
    let letters = instance.photon.dead_letters("single");
    eventually("all is settled", async || {
        let watermark = world.checkpoint().await.watermark;
        // Read after it: a dead letter never goes away by itself.
        let dead = letters.clone().count().await.unwrap();
        assert!(watermark < at[0] || dead >= 1, "watermark {watermark:?} with {dead} dead letters");
        assert!(watermark < at[2] || dead >= 2, "watermark {watermark:?} with {dead} dead letters");
        watermark == at[3]
    })
    .await;
    instance.faults.remove(outage);
    within(executor.drain()).await.unwrap();
    assert_eq!(world.probe.ends_of("single", "k0", 0), [(1, What::Failed)]);
}

/// Looks at every commit on its way to the store.
#[derive(Debug, Clone, Default)]
struct Auditor(Arc<Mutex<BTreeMap<(SubscriptionId, Shard), Checkpoint>>>, Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Intercept for Auditor {
    async fn commit(&self, inner: &dyn Store, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let outcome = inner.commit(commit).await?;
        for (shard, outcome) in commit.shards.iter().zip(&outcome) {
            if matches!(outcome, ShardOutcome::Fenced) {
                continue;
            }
            let mut known = self.0.lock().unwrap();
            let before = known
                .insert((commit.subscription.clone(), shard.shard), shard.checkpoint.clone())
                .unwrap_or_default();
            let after = &shard.checkpoint;
            let lost: Vec<_> =
                before.ranges.iter().filter(|r| !after.covers(r.first) || !after.covers(r.last)).collect();
            if after.watermark < before.watermark || !lost.is_empty() {
                self.1.lock().unwrap().push(format!("{before:?} became {after:?}"));
            }
            let ranges = &after.ranges;
            if !ranges.is_sorted_by(|a, b| a.last < b.first)
                || ranges.iter().any(|r| r.first <= after.watermark)
            {
                self.1.lock().unwrap().push(format!("not in order: {after:?}"));
            }
        }
        Ok(outcome)
    }
}

async fn p02_no_commit_falls_behind_the_one_before_it(world: World) {
    let auditor = Auditor::default();
    for life in 0..3u64 {
        let store = Wrapped::new(world.engine.home.open().await, auditor.clone());
        let photon = Photon::builder()
            .store(Arc::new(store))
            .clock(world.engine.clock)
            .state(world.probe.clone())
            .only(["main"])
            .options(options())
            .options(Options {
                checkpoint_every: Some(3),
                checkpoint_interval: Some(Duration::from_millis(1)),
                park_after: Some(Duration::from_millis(5)),
                ..Options::NONE
            })
            .build()
            .await
            .unwrap();
        let executor = photon.start_executor().await.unwrap();
        for n in life * 200..(life + 1) * 200 {
            let act = match n % 11 {
                0 => Act::Fail(2),
                3 => Act::Sleep(3),
                5 => Act::Refuse,
                7 => Act::FailAfter(8),
                8 => Act::Defer(3),
                _ => Act::Yield(2),
            };
            photon.publish(&crate::support::step(&format!("k{}", n % 23), n, act)).await.unwrap();
        }
        within(executor.drain()).await.unwrap();
    }
    assert_eq!(*auditor.1.lock().unwrap(), [""; 0]);
    assert!(auditor.0.lock().unwrap().len() == 4);
    world.probe.assert_key_order("main");
}

async fn p02_what_was_trimmed_never_holds_it(world: World) {
    let publisher = world.publisher().await;
    let at = publish(&publisher, vec![Act::Done; 30]).await;
    let topic = TopicName::new("single").unwrap();
    world.store.trim(&topic, Shard(0), at[9]).await.unwrap();
    let instance = world.start(["single"]).await;
    world.probe.until_done("single", 20).await;
    instance.quiet().await;
    assert_eq!(world.checkpoint().await, Checkpoint { watermark: at[29], ranges: Vec::new() });
    // And while it runs, up to the very end.
    world.store.trim(&topic, Shard(0), at[29]).await.unwrap();
    let last = publish(&publisher, [Act::Done]).await[0];
    world.probe.until_done("single", 21).await;
    instance.drain().await.unwrap();
    assert_eq!(world.checkpoint().await.watermark, last);
}

async fn p02_what_was_refused_or_deduplicated_never_holds_it(world: World) {
    let instance = world.start(["single"]).await;
    let photon = &instance.photon;
    let topic = TopicName::new("single").unwrap();
    for n in 0..5 {
        photon.publish(&single("k", n, Act::Done)).dedup_id(n).await.unwrap();
        assert!(photon.publish(&single("k", n, Act::Done)).dedup_id(n).await.unwrap().duplicate);
        photon.publish(&single("k", n, Act::Done)).header("photon-x", "").await.unwrap_err();
    }
    world.probe.until_done("single", 5).await;
    let end = photon.store().bounds(&topic).await.unwrap()[0].end;
    instance.drain().await.unwrap();
    assert_eq!(world.checkpoint().await.watermark, end);
    assert_eq!(world.probe.done("single")["k"], [0, 1, 2, 3, 4]);
}
