//! Parking: retries that are far away leave the memory, and come back.

use std::time::Duration;

use photon::store::{
    Checkpoint, Claim, ClaimResult, Commit, Failure, Member, Registration, RowState, Select, ShardClaim,
    ShardCommit, StoredDelivery,
};
use photon::{Backoff, Incarnation, InstanceId, Mode, Options, Seq, Shard, Start, Timestamp};

use crate::support::instance::{eventually, subscription};
use crate::support::{Act, What, World, single, step};

on_every_engine!(
    p03_a_parked_delivery_comes_back_before_what_waits_behind_it,
    p04_parked_attempts_survive_a_restart,
    p05_what_overruns_the_window_is_parked_and_others_go_on,
);

on_engine!("sqlite", p05_a_hundred_thousand_parked_deliveries_do_not_keep_a_start);

fn parking() -> Options {
    Options { park_after: Some(Duration::from_millis(50)), ..Options::NONE }
}

async fn p03_a_parked_delivery_comes_back_before_what_waits_behind_it(world: World) {
    let instance = world.plan(["main"]).options(parking()).start().await;
    instance.photon.publish(&step("a", 0, Act::FailAfter(400))).await.unwrap();
    instance.photon.publish_all((1..20).map(|n| step("a", n, Act::Done))).await.unwrap();
    instance.photon.publish_all((0..5).map(|n| step("b", n, Act::Done))).await.unwrap();
    world.probe.until_done("main", 5).await;
    eventually("a waits in the store", async || {
        instance.photon.subscription("main").status().await.unwrap().parked == 20
    })
    .await;
    assert_eq!(world.probe.done("main").get("a"), None);
    world.probe.until_done("main", 25).await;
    assert_eq!(world.probe.done("main")["a"], (0..20).collect::<Vec<_>>());
    assert!(instance.stop().await.is_clean());
    assert_eq!(world.publisher().await.subscription("main").status().await.unwrap().parked, 0);
}

async fn p04_parked_attempts_survive_a_restart(world: World) {
    let slow = Options { backoff: Some(Backoff::Fixed(Duration::from_millis(200))), ..parking() };
    let instance = world.plan(["main"]).options(slow.clone()).start().await;
    instance.photon.publish(&step("a", 0, Act::Fail(99))).await.unwrap();
    world.probe.until("it failed", |entries| entries.iter().any(|e| e.what == What::Failed)).await;
    assert!(instance.stop().await.is_clean());
    let instance = world.plan(["main"]).options(slow).start().await;
    eventually("it is given up on", async || {
        instance.photon.dead_letters("main").count().await.unwrap() == 1
    })
    .await;
    let attempts: Vec<u32> =
        world.probe.ends_of("main", "a", 0).iter().map(|(attempt, _)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4], "each attempt once, over two instances");
    assert!(instance.stop().await.is_clean());
}

async fn p05_what_overruns_the_window_is_parked_and_others_go_on(world: World) {
    let tight = Options {
        concurrency: Some(2),
        prefetch: Some(8),
        window: Some(8),
        backoff: Some(Backoff::Fixed(Duration::from_millis(1_500))),
        park_after: Some(Duration::from_secs(3_600)),
        ..Options::NONE
    };
    let instance = world.plan(["single"]).options(tight).start().await;
    // Far more that wait for a retry than the window holds, all before one that does not.
    let failing = (0..50).map(|n| single(&format!("f{n}"), n, Act::Fail(1)));
    instance.photon.publish_all(failing).await.unwrap();
    instance.photon.publish(&single("good", 0, Act::Done)).await.unwrap();
    world
        .probe
        .until("the good one is done", |entries| {
            entries.iter().any(|entry| entry.key == "good" && entry.what == What::Done)
        })
        .await;
    assert!(world.probe.done_count("single") < 51, "it did not wait for all of them");
    world.probe.until_done("single", 51).await;
    assert!(instance.stop().await.is_clean());
}

const PARKED: u64 = 100_000;
/// Every so many one is due at once.
const DUE: u64 = 100;

/// Parks deliveries the way an owner does.
async fn park(world: &World) {
    let (store, id) = (&world.store, subscription("single", "single"));
    let publisher = world.publisher().await;
    publisher.publish_all((0..PARKED).map(|n| single(&format!("k{n}"), n, Act::Done))).await.unwrap();
    let registration = Registration {
        subscription: id.clone(),
        start: Start::Earliest,
        mode: Mode::Group,
        expire_after: None,
    };
    store.register(&registration).await.unwrap();
    let token = Incarnation(uuid::Uuid::new_v4());
    let member = Member {
        incarnation: token,
        instance: InstanceId::new("before").unwrap(),
        host: String::new(),
        pid: 1,
        process_start: String::new(),
    };
    store.join(&member).await.unwrap();
    let shard = ShardClaim { subscription: id.clone(), shard: Shard(0) };
    let claim = Claim { shard: shard.clone(), replace: None };
    let ClaimResult::Granted(fence) = store.claim(token, &[claim]).await.unwrap()[0] else {
        panic!("it is free")
    };
    let mut after = Seq::ZERO;
    loop {
        let cursor = photon::store::Cursor { shard: Shard(0), after };
        let limit = photon::store::ReadLimit { records: 5_000, bytes: usize::MAX };
        let events = store.read(&id.topic, &[cursor], limit).await.unwrap().records;
        let Some(last) = events.last() else { break };
        after = last.seq;
        let rows = events.into_iter().map(|event| StoredDelivery {
            state: RowState::Parked {
                due: if event.seq.0 % DUE == 0 { Timestamp(0) } else { Timestamp(i64::MAX) },
            },
            event,
            attempts: 1,
            failure: Failure::default(),
            version: 0,
        });
        let commit = ShardCommit {
            shard: Shard(0),
            fence,
            puts: rows.collect(),
            checkpoint: Checkpoint { watermark: after, ranges: Vec::new() },
            ends: Vec::new(),
            trials: Vec::new(),
        };
        store.commit(&Commit { subscription: id.clone(), shards: vec![commit] }).await.unwrap();
    }
    store.release(token, &[shard]).await.unwrap();
    store.leave(token).await.unwrap();
}

async fn p05_a_hundred_thousand_parked_deliveries_do_not_keep_a_start(world: World) {
    park(&world).await;
    let id = subscription("single", "single");
    assert_eq!(world.store.count(&id, &Select::Parked).await.unwrap(), PARKED);
    let few = Options { prefetch: Some(64), concurrency: Some(4), ..Options::NONE };
    let began = std::time::Instant::now();
    let instance = world.plan(["single"]).options(few).start().await;
    instance.photon.publish(&single("new", PARKED, Act::Done)).await.unwrap();
    let is_new = |entry: &crate::support::Entry| entry.key == "new" && entry.what == What::Done;
    world.probe.until("the new one is done", |entries| entries.iter().any(is_new)).await;
    println!("the first delivery ended {:?} after the start", began.elapsed());
    let due = usize::try_from(PARKED / DUE).unwrap();
    world.probe.until_done("single", due + 1).await;
    println!("all {due} that were due ended {:?} after the start", began.elapsed());
    assert!(world.probe.most_running("single") <= 4);
    assert!(instance.stop().await.is_clean());
    assert_eq!(world.store.count(&id, &Select::Parked).await.unwrap(), PARKED - PARKED / DUE);
}
