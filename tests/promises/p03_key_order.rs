//! P3: within a subscription the deliveries of one key run one after another, in order, retries included.

use std::time::Duration;

use photon::Options;
use photon::StoreErrorKind;
use photon_backend::wrap::Op;
use photon_backend::wrap::fault::{Fault, Rule};

use crate::support::instance::{eventually, within};
use crate::support::{Act, What, World, loose, step};

on_every_engine!(
    p03_equal_keys_run_one_after_another_in_order,
    p03_different_keys_run_side_by_side_up_to_the_concurrency,
    p03_retries_hold_their_key_and_no_other,
    p03_a_parked_delivery_holds_its_key,
    p03_a_deferred_delivery_holds_its_key,
    p03_events_without_a_key_hold_nobody_and_an_empty_key_is_a_key,
    p03_a_full_window_keeps_the_order,
    p03_a_drain_in_the_middle_keeps_the_order,
    p03_after_a_crash_a_key_repeats_only_forward,
    p03_two_instances_share_the_keys,
    p03_an_instance_that_was_frozen_is_not_heard_any_more,
);

async fn p03_equal_keys_run_one_after_another_in_order(world: World) {
    let instance =
        world.plan(["main"]).options(Options { concurrency: Some(32), ..Options::NONE }).start().await;
    let acts =
        [Act::Done, Act::Yield(5), Act::Fail(1), Act::PanicLater(2), Act::PanicAtOnce(1), Act::Sleep(1)];
    let steps: Vec<_> = (0..300usize)
        .map(|n| step(&format!("k{}", n % 3), n as u64, acts[(n * 7 + n / 5) % acts.len()].clone()))
        .collect();
    instance.photon.publish_all(steps).await.unwrap();
    let report = instance.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    for k in 0..3 {
        let expected: Vec<u64> = (0..300).filter(|n| n % 3 == k).collect();
        assert_eq!(world.probe.done("main")[&format!("k{k}")], expected);
    }
    world.probe.assert_key_order("main");
}

async fn p03_different_keys_run_side_by_side_up_to_the_concurrency(world: World) {
    let instance =
        world.plan(["main"]).options(Options { concurrency: Some(5), ..Options::NONE }).start().await;
    let gate = || Act::Wait("gate".to_owned());
    instance.photon.publish_all((0..20).map(|n| step(&format!("k{n}"), n, gate()))).await.unwrap();
    world.probe.until("five run", |seen| seen.len() == 5).await;
    // One of them would have to end first.
    instance.photon.publish(&step("late", 99, Act::Done)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.probe.entries().len(), 5);
    world.probe.open("gate");
    instance.drain().await.unwrap();
    assert_eq!(world.probe.most_running("main"), 5);
    assert_eq!(world.probe.done_count("main"), 21);
}

async fn p03_retries_hold_their_key_and_no_other(world: World) {
    let instance = world.start(["main"]).await;
    let photon = &instance.photon;
    photon.publish_all([step("a", 0, Act::FailAfter(1_000)), step("a", 1, Act::Done)]).await.unwrap();
    photon.publish_all((0..20).map(|n| step("b", n, Act::Done))).await.unwrap();
    world
        .probe
        .until("b is done", |seen| seen.iter().filter(|e| e.key == "b" && e.what == What::Done).count() == 20)
        .await;
    assert_eq!(world.probe.of("main", "a", 1), []);
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["a"], [0, 1]);
    world.probe.assert_key_order("main");
}

async fn p03_a_parked_delivery_holds_its_key(world: World) {
    let park = Options { park_after: Some(Duration::ZERO), ..Options::NONE };
    let instance = world.plan(["main"]).options(park).start().await;
    let photon = &instance.photon;
    photon.publish_all([step("a", 0, Act::FailAfter(500)), step("a", 1, Act::Fail(2))]).await.unwrap();
    eventually("it is parked", async || photon.subscription("main").status().await.unwrap().parked == 2)
        .await;
    // What comes later waits behind it, whether it is read before it is due or after.
    photon.publish_all([step("a", 2, Act::Done), step("b", 0, Act::Done)]).await.unwrap();
    world.probe.until("b is done", |seen| seen.iter().any(|e| e.key == "b" && e.what == What::Done)).await;
    for n in 3..8 {
        photon.publish(&step("a", n, Act::Yield(1))).await.unwrap();
    }
    world.probe.until_done("main", 9).await;
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["a"], (0..8).collect::<Vec<_>>());
    world.probe.assert_key_order("main");
}

async fn p03_a_deferred_delivery_holds_its_key(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish_all([step("a", 0, Act::Defer(200)), step("a", 1, Act::Done)]).await.unwrap();
    world.probe.until_done("main", 2).await;
    assert!(instance.drain().await.unwrap().is_clean());
    // It costs no attempt.
    assert_eq!(world.probe.ends_of("main", "a", 0), [(1, What::Deferred), (1, What::Done)]);
    assert_eq!(world.probe.done("main")["a"], [0, 1]);
}

async fn p03_events_without_a_key_hold_nobody_and_an_empty_key_is_a_key(world: World) {
    let instance = world.start(["main", "loose"]).await;
    let photon = &instance.photon;
    photon.publish(&loose(0, Act::FailAfter(700))).await.unwrap();
    photon.publish_all((1..10).map(|n| loose(n, Act::Done))).await.unwrap();
    photon.publish_all([step("", 0, Act::Fail(3)), step("", 1, Act::Done)]).await.unwrap();
    instance.drain().await.unwrap();
    let loose = &world.probe.done("loose")[""];
    assert_eq!((loose.len(), loose.last()), (10, Some(&0)));
    assert_eq!(world.probe.done("main")[""], [0, 1]);
    world.probe.assert_key_order("main");
}

async fn p03_a_full_window_keeps_the_order(world: World) {
    let small = Options {
        concurrency: Some(2),
        prefetch: Some(4),
        window: Some(8),
        checkpoint_every: Some(3),
        ..Options::NONE
    };
    let instance = world.plan(["main"]).options(small).start().await;
    // Keys that fail for a while stand in the way of everything behind them.
    let steps: Vec<_> = (0..200u64)
        .map(|n| {
            let act = if n % 10 < 4 { Act::FailAfter(20 + n % 7) } else { Act::Yield(1) };
            step(&format!("k{}", n % 13), n, act)
        })
        .collect();
    instance.photon.publish_all(steps).await.unwrap();
    world.probe.until_done("main", 200).await;
    instance.drain().await.unwrap();
    for (key, done) in world.probe.done("main") {
        assert!(done.is_sorted_by(|a, b| a < b), "{key}: {done:?}");
    }
    world.probe.assert_key_order("main");
}

async fn p03_a_drain_in_the_middle_keeps_the_order(world: World) {
    let publisher = world.publisher().await;
    let mut first = true;
    let mut lives = 0;
    while first || world.probe.done_count("main") < 240 {
        if std::mem::take(&mut first) {
            let steps = (0..240u64).map(|n| {
                let act = match n % 6 {
                    0 => Act::Fail(1),
                    3 => Act::PanicLater(1),
                    4 => Act::Sleep(1),
                    _ => Act::Done,
                };
                step(&format!("k{}", n % 4), n, act)
            });
            publisher.publish_all(steps).await.unwrap();
        }
        let instance = world.start(["main"]).await;
        let goal = (world.probe.done_count("main") + 30).min(240);
        world.probe.until_done("main", goal).await;
        assert!(instance.stop().await.is_clean());
        lives += 1;
    }
    assert!(lives > 1);
    for (key, done) in world.probe.done("main") {
        assert!(done.is_sorted_by(|a, b| a < b) && done.len() == 60, "{key}: {done:?}");
    }
    // No attempt was lost or made twice over the restarts.
    let failed =
        world.probe.entries().iter().filter(|e| matches!(e.what, What::Failed | What::Panicked)).count();
    assert_eq!(failed, 80);
}

async fn p03_after_a_crash_a_key_repeats_only_forward(world: World) {
    let publisher = world.publisher().await;
    publisher.publish_all((0..120u64).map(|n| step(&format!("k{}", n % 3), n, Act::Yield(1)))).await.unwrap();
    for goal in [20, 50, 90] {
        let instance = world
            .plan(["main"])
            .options(Options { checkpoint_every: Some(5), ..Options::NONE })
            .fault(Rule::new(Fault::LoseAnswer).on([Op::Commit]).chance(300_000))
            .fault(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).on([Op::Commit]).chance(300_000))
            .start()
            .await;
        world.probe.until_done("main", goal).await;
        instance.crash();
    }
    let last = world.start(["main"]).await;
    last.drain().await.unwrap();
    world.probe.assert_key_order("main");
    for (key, done) in world.probe.done("main") {
        // Wherever it goes back, from there it goes forward step by step.
        for pair in done.windows(2) {
            assert!(pair[1] <= pair[0] + 3, "{key}: {done:?}");
        }
        let last: u64 = key[1..].parse::<u64>().unwrap() + 117;
        assert_eq!(done.last(), Some(&last), "{key}: {done:?}");
    }
}

async fn p03_two_instances_share_the_keys(world: World) {
    let publisher = world.publisher().await;
    let one = world.plan(["main"]).member(0, 2).start().await;
    let two = world.plan(["main"]).member(1, 2).start().await;
    publisher
        .publish_all((0..400u64).map(|n| step(&format!("k{}", n % 40), n, Act::Yield(2))))
        .await
        .unwrap();
    world.probe.until_done("main", 400).await;
    one.drain().await.unwrap();
    two.drain().await.unwrap();
    world.probe.assert_key_order("main");
    let mut owners = std::collections::BTreeMap::new();
    for entry in world.probe.entries() {
        assert_eq!(*owners.entry(entry.key.clone()).or_insert(entry.by), entry.by, "{}", entry.key);
    }
    let owners: std::collections::BTreeSet<u32> = owners.into_values().collect();
    assert_eq!(owners.len(), 2, "both work");
    assert_eq!(world.probe.done_count("main"), 400);
}

async fn p03_an_instance_that_was_frozen_is_not_heard_any_more(world: World) {
    let publisher = world.publisher().await;
    let frozen = world.start(["main"]).await;
    let gate = || Act::Wait("gate".to_owned());
    publisher
        .publish_all([step("a", 0, gate()), step("a", 1, Act::Done), step("b", 0, Act::Done)])
        .await
        .unwrap();
    world.probe.until("it runs", |seen| seen.iter().any(|e| e.key == "a")).await;
    // It is cut off for longer than its lease lasts; another one takes over.
    frozen.faults.add(Rule::new(Fault::Hang));
    let next = world.start(["main"]).await;
    world
        .probe
        .until("the other one runs it", |seen| seen.iter().filter(|e| e.key == "a").count() >= 2)
        .await;
    // The first one was told by its own clock to break off before that.
    assert_eq!(world.probe.of("main", "a", 0)[1].what, What::BrokenOff);
    world.probe.open("gate");
    world
        .probe
        .until("a is done", |seen| seen.iter().any(|e| e.key == "a" && e.n == 1 && e.what == What::Done))
        .await;
    next.quiet().await;
    frozen.faults.clear();
    next.drain().await.unwrap();
    within(frozen.stop()).await;
    assert_eq!(world.probe.done("main")["a"], [0, 1]);
    world.probe.assert_key_order("main");
}
