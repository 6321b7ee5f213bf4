//! Instances over one memory store, on paused clocks.

mod support;

use std::sync::Arc;
use std::time::Duration;

use photon_backend::memory::MemoryStore;
use photon_core::ids::Shard;
use photon_core::store::{
    Checkpoint, Checkpoints, Commit, EventLog, Leases, Registration, ShardCommit, ShardOutcome, TopicSpec,
};
use support::{Instance, Link, Warnings, frozen_runtime, run, subscription};
use tokio::time::{Instant, timeout};

use super::Assignment;

const TTL: Duration = Duration::from_secs(5);
/// How long after a release somebody who stands by asks again at the latest.
const LOOK: Duration = Duration::from_millis(500 + ROUNDING);
/// Timers of tokio fire at whole milliseconds.
const ROUNDING: u64 = 2;

fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new())
}

#[tokio::test(start_paused = true)]
async fn a_lone_instance_gets_its_shards_at_once_and_keeps_them() {
    let store = store();
    let begin = Instant::now();
    let mut only = Instance::start(store.clone(), "a").await;
    assert_eq!(only.assigned().await, [1, 1]);
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert!(only.is_quiet_for(TTL * 100).await);
    assert!(only.may_work());
}

#[tokio::test(start_paused = true)]
async fn same_index_twice_the_late_one_stands_by_and_says_so_once() {
    let warnings = Warnings::capture();
    let store = store();
    let mut first = Instance::start(store.clone(), "a").await;
    assert_eq!(first.assigned().await, [1, 1]);
    let mut late = Instance::start(store.clone(), "a").await;
    assert!(late.is_quiet_for(TTL * 20).await);
    assert!(first.is_quiet_for(Duration::ZERO).await, "the first is left alone");
    let said = warnings.take();
    assert_eq!(said.len(), 1, "{said:?}");
    for part in
        ["standing by", "instance=a", &format!("pid={}", std::process::id()), "since=", "shards=[0, 1]"]
    {
        assert!(said[0].contains(part), "{part} is not in {said:?}");
    }

    // It goes on watching.
    let begin = Instant::now();
    first.ownership.release(vec![Shard(1)]).await.unwrap();
    assert_eq!(late.next().await, Assignment::Assigned(vec![(Shard(1), late.fence(2))]));
    assert!(begin.elapsed() <= LOOK);
}

#[test]
fn same_index_twice_the_frozen_one_is_fenced() {
    let store = store();
    let (theirs, ours) = (frozen_runtime(), frozen_runtime());
    let mut frozen = theirs.block_on(Instance::start(store.clone(), "a"));
    let fences = theirs.block_on(frozen.fences());
    run(&theirs, TTL * 3);
    assert!(frozen.may_work_in(&theirs));

    // From here on the first one stands still, as after SIGSTOP.
    let mut other = ours.block_on(Instance::start(store.clone(), "a"));
    ours.block_on(async {
        let begin = Instant::now();
        assert_eq!(other.assigned().await, [2, 2]);
        assert_eq!(begin.elapsed(), TTL, "a silent owner costs one ttl");
        make_topic(&store).await;
        assert_eq!(commit(&store, fences[0]).await, ShardOutcome::Fenced);
    });

    // It wakes, and knows before anything of it has run.
    theirs.block_on(tokio::time::advance(TTL));
    assert!(!frozen.may_work_in(&theirs));
    theirs.block_on(async {
        assert_eq!(frozen.next().await, Assignment::Lost(vec![Shard(0), Shard(1)]));
        assert!(frozen.is_quiet_for(LOOK).await);
    });
    // Both run on, in turn: the one that has the shards keeps them.
    for _ in 0..100 {
        run(&theirs, Duration::from_secs(1));
        run(&ours, Duration::from_secs(1));
    }
    assert!(theirs.block_on(frozen.is_quiet_for(Duration::ZERO)));
    assert!(ours.block_on(other.is_quiet_for(Duration::ZERO)));
    assert!(other.may_work_in(&ours) && frozen.may_work_in(&theirs), "both are members");
}

async fn make_topic(store: &MemoryStore) {
    let generation = photon_core::ids::Generation(uuid::Uuid::nil());
    let name = subscription().topic;
    store.ensure_topic(&TopicSpec { name, shards: 2, key: None, generation }).await.unwrap();
    let registration = Registration {
        subscription: subscription(),
        start: photon_core::options::Start::Earliest,
        mode: photon_core::options::Mode::Group,
        expire_after: None,
    };
    store.register(&registration).await.unwrap();
}

async fn commit(store: &MemoryStore, fence: photon_core::store::Fence) -> ShardOutcome {
    let shard = ShardCommit {
        shard: Shard(0),
        fence,
        puts: Vec::new(),
        checkpoint: Checkpoint::default(),
        ends: Vec::new(),
        trials: Vec::new(),
    };
    store.commit(&Commit { subscription: subscription(), shards: vec![shard] }).await.unwrap().remove(0)
}

#[tokio::test(start_paused = true)]
async fn what_was_dropped_without_leaving_is_taken_over_at_once() {
    let store = store();
    let mut first = Instance::start(store.clone(), "a").await;
    assert_eq!(first.assigned().await, [1, 1]);
    let mut second = Instance::start(store.clone(), "a").await;
    assert!(second.is_quiet_for(TTL).await);
    first.crash().await;
    let begin = Instant::now();
    assert_eq!(second.assigned().await, [2, 2]);
    assert!(begin.elapsed() <= LOOK, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn leaving_gives_everything_back() {
    let store = store();
    let mut first = Instance::start(store.clone(), "a").await;
    assert_eq!(first.assigned().await, [1, 1]);
    first.membership.leave().await.unwrap();
    assert_eq!(first.next().await, Assignment::Lost(vec![Shard(0), Shard(1)]));
    assert!(store.members().await.unwrap().is_empty());
    first.membership.leave().await.unwrap();
    let begin = Instant::now();
    let mut second = Instance::start(store.clone(), "a").await;
    assert_eq!(second.assigned().await, [2, 2]);
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert!(first.is_quiet_for(TTL * 10).await, "who left stays away");
}

#[tokio::test(start_paused = true)]
async fn p09_a_rolling_restart_never_fences_in_turn() {
    let store = store();
    let mut old = Instance::start(store.clone(), "a").await;
    assert_eq!(old.assigned().await, [1, 1]);
    for round in 2..10 {
        let mut new = Instance::start(store.clone(), "a").await;
        assert!(new.is_quiet_for(TTL * 3).await);
        assert!(old.is_quiet_for(Duration::ZERO).await && old.may_work());
        let begin = Instant::now();
        old.ownership.release(vec![Shard(0), Shard(1)]).await.unwrap();
        old.membership.leave().await.unwrap();
        assert_eq!(new.assigned().await, [round, round]);
        assert!(begin.elapsed() <= LOOK);
        old = new;
    }
}

#[tokio::test(start_paused = true)]
async fn p10_an_outage_stops_the_work_in_time_and_ends_by_itself() {
    for hang in [false, true] {
        let warnings = Warnings::capture();
        let link = Link::to(store());
        let mut only = Instance::start(link.clone(), "a").await;
        let before = only.fences().await[0];
        // A renewal has just been sent when the store goes.
        link.wait_for_heartbeat().await;
        let begin = Instant::now();
        link.cut(hang);
        assert_eq!(only.next().await, Assignment::Lost(vec![Shard(0), Shard(1)]));
        assert_eq!(begin.elapsed(), TTL / 5 * 4, "hanging: {hang}");
        assert!(!only.may_work());
        let calls = link.calls();
        assert!(only.is_quiet_for(Duration::from_secs(600)).await);
        assert!(link.calls() - calls <= 150, "{} calls in ten minutes", link.calls() - calls);
        assert!(warnings.take().len() <= 20, "the log stays readable");

        let back = Instant::now();
        link.mend();
        let after = only.fences().await[0];
        assert!(back.elapsed() <= Duration::from_secs(7), "{:?}", back.elapsed());
        assert!(after.epoch > before.epoch && after.token != before.token);
        assert_eq!(link.members().await.unwrap().len(), 1, "the old incarnation is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn p10_an_outage_shorter_than_the_lease_costs_nothing() {
    for hang in [false, true] {
        let link = Link::to(store());
        let mut only = Instance::start(link.clone(), "a").await;
        assert_eq!(only.assigned().await, [1, 1]);
        for _ in 0..10 {
            link.wait_for_heartbeat().await;
            link.cut(hang);
            assert!(only.is_quiet_for(Duration::from_secs(3)).await);
            link.mend();
        }
        assert!(only.may_work());
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_the_store_forgot_joins_again() {
    let store = store();
    let mut only = Instance::start(store.clone(), "a").await;
    let forgotten = only.fences().await[0].token;
    store.leave(forgotten).await.unwrap();
    let begin = Instant::now();
    assert_eq!(only.next().await, Assignment::Lost(vec![Shard(0), Shard(1)]));
    assert!(begin.elapsed() <= TTL / 3 + Duration::from_millis(ROUNDING));
    assert!(only.fences().await.iter().all(|fence| fence.token != forgotten && fence.epoch == 2));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_refused_finds_out_at_once() {
    let store = store();
    let mut only = Instance::start(store.clone(), "a").await;
    let fence = only.fences().await[0];
    store.leave(fence.token).await.unwrap();
    let begin = Instant::now();
    only.ownership.fenced(Shard(0), fence);
    assert_eq!(only.next().await, Assignment::Lost(vec![Shard(0)]));
    assert_eq!(only.next().await, Assignment::Lost(vec![Shard(1)]));
    assert_eq!(only.assigned().await, [2, 2]);
    assert!(begin.elapsed() <= Duration::from_millis(100 + ROUNDING), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_incarnation_that_stopped_in_time_is_dead_for_its_process() {
    let store = store();
    let link = Link::to(store.clone());
    let mut first = Instance::start(link.clone(), "a").await;
    assert_eq!(first.assigned().await, [1, 1]);
    link.wait_for_heartbeat().await;
    link.cut(true);
    let mut second = Instance::start(store, "a").await;
    let begin = Instant::now();
    assert_eq!(first.next().await, Assignment::Lost(vec![Shard(0), Shard(1)]));
    assert!(second.is_quiet_for(Duration::ZERO).await);
    assert_eq!(second.assigned().await, [2, 2]);
    assert!(begin.elapsed() < TTL, "before its ttl has passed for others");
}

#[tokio::test(start_paused = true)]
async fn a_fenced_shard_is_told_as_lost_and_watched() {
    let store = store();
    let mut only = Instance::start(store.clone(), "a").await;
    let fence = only.fences().await[0];
    store.forget(&subscription()).await.unwrap();
    only.ownership.fenced(Shard(0), fence);
    assert_eq!(only.next().await, Assignment::Lost(vec![Shard(0)]));
    assert_eq!(only.next().await, Assignment::Assigned(vec![(Shard(0), only.fence(2))]));
    // The other shard had nothing to commit: the comparison with the store finds it.
    assert_eq!(only.next().await, Assignment::Lost(vec![Shard(1)]));
    assert_eq!(only.next().await, Assignment::Assigned(vec![(Shard(1), only.fence(2))]));
    // A report about a fence of the past changes nothing.
    only.ownership.fenced(Shard(0), fence);
    assert!(only.is_quiet_for(TTL * 10).await);
}

#[tokio::test(start_paused = true)]
async fn members_that_are_gone_are_forgotten() {
    let store = store();
    let mut crashed = Vec::new();
    for _ in 0..5 {
        crashed.push(Instance::start(store.clone(), "b").await);
    }
    for instance in crashed {
        instance.crash().await;
    }
    assert_eq!(store.members().await.unwrap().len(), 5);
    let silent = photon_core::store::Member {
        incarnation: photon_core::ids::Incarnation(uuid::Uuid::nil()),
        instance: photon_core::ids::InstanceId::new("far").unwrap(),
        host: "elsewhere".to_owned(),
        pid: 1,
        process_start: "1".to_owned(),
    };
    store.join(&silent).await.unwrap();
    let mut other = Instance::start(store.clone(), "other").await;
    assert_eq!(other.assigned().await, [2, 2]);
    let mut only = Instance::start(store.clone(), "a").await;
    assert!(only.is_quiet_for(LOOK).await, "the other one has the shards");
    assert_eq!(store.members().await.unwrap().len(), 3, "the dead ones go at once");
    tokio::time::sleep(Duration::from_secs(3 * 3_600)).await;
    assert_eq!(store.members().await.unwrap().len(), 2, "the silent one after hours");
    assert!(other.may_work() && only.may_work());
}

#[tokio::test(start_paused = true)]
async fn the_first_join_tells_what_is_wrong() {
    for (hang, said) in [(false, "the engine is away"), (true, "did not answer to `join`")] {
        let link = Link::to(store());
        link.cut(hang);
        let error = Instance::try_start(link, "a").await.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_coordinator_ends_with_the_loop() {
    let store = store();
    let only = Instance::start(store.clone(), "a").await;
    drop(only.ownership);
    timeout(LOOK, only.running).await.expect("it ends").unwrap();
}

#[test]
fn runtime_dropped_means_dead() {
    let store = store();
    let (theirs, ours) = (frozen_runtime(), frozen_runtime());
    let mut first = theirs.block_on(Instance::start(store.clone(), "a"));
    assert_eq!(theirs.block_on(first.assigned()), [1, 1]);
    drop(theirs);
    let mut second = ours.block_on(Instance::start(store.clone(), "a"));
    ours.block_on(async {
        let begin = Instant::now();
        assert_eq!(second.assigned().await, [2, 2]);
        assert_eq!(begin.elapsed(), Duration::ZERO);
    });
    drop(first);
}
