//! P1: once `publish` returned Ok, every subscription that starts at or before that event settles it.

use std::time::Duration;

use photon::StoreErrorKind;
use photon::{Filter, Options, Page};
use photon_backend::wrap::Op;
use photon_backend::wrap::fault::{Fault, Rule};

use crate::support::instance::{eventually, within};
use crate::support::{Act, What, World, step};

on_every_engine!(
    p01_what_is_acknowledged_is_settled_whatever_crashes_in_between,
    p01_a_crash_before_the_checkpoint_repeats_what_was_handled,
    p01_an_answer_that_got_lost_is_no_loss,
    p01_a_retry_that_waits_survives_a_crash,
    p01_a_parked_delivery_survives_a_crash,
    p01_a_dead_letter_whose_commit_fails_survives_a_crash,
    p01_lost_wakes_lose_nothing,
    p01_a_subscription_that_comes_later_gets_everything,
    p01_what_a_handler_publishes_is_settled_too,
    p01_each_subscription_keeps_its_own_position,
);

/// A small generator, so that a run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What an event does, by chance.
fn any_act(random: &mut Random) -> Act {
    match random.below(10) {
        0 => Act::Fail(1),
        1 => Act::PanicAtOnce(1),
        2 => Act::PanicLater(1),
        3 => Act::Yield(3),
        4 => Act::Sleep(1),
        5 => Act::FailAfter(5),
        _ => Act::Done,
    }
}

async fn p01_what_is_acknowledged_is_settled_whatever_crashes_in_between(world: World) {
    let seed = std::env::var("PHOTON_SIM_SEED").map_or(20, |seed| seed.parse().unwrap());
    println!("PHOTON_SIM_SEED={seed}");
    let mut random = Random(seed);
    let publisher = world.publisher().await;
    let mut published = 0;
    for round in 0..6 {
        let instance = world
            .plan(["main", "other"])
            .options(Options {
                checkpoint_every: Some(7),
                park_after: Some(Duration::from_millis(3)),
                ..Options::NONE
            })
            .start()
            .await;
        let faults = [Fault::LoseAnswer, Fault::Fail(StoreErrorKind::Unavailable)];
        for fault in faults {
            instance.faults.add(Rule::new(fault).on([Op::Commit, Op::Read, Op::Lane]).chance(100_000));
        }
        let steps: Vec<_> = (published..published + 60)
            .map(|n| step(&format!("k{}", n % 5), n, any_act(&mut random)))
            .collect();
        published += 60;
        publisher.publish_all(steps).await.unwrap();
        // Somewhere in the middle.
        let seen = world.probe.done_count("main") + usize::try_from(random.below(50)).unwrap();
        world
            .probe
            .until("a part is done", |entries| {
                entries.iter().filter(|e| e.group == "main" && e.what == What::Done).count() >= seen
            })
            .await;
        if round % 3 == 2 {
            instance.faults.clear();
            instance.stop().await;
        } else {
            instance.crash();
        }
    }
    let last = world.start(["main", "other"]).await;
    let all = |group| {
        let mut all: Vec<u64> = world.probe.done(group).into_values().flatten().collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let every: Vec<u64> = (0..published).collect();
    eventually("everything is done", async || all("main") == every && all("other") == every).await;
    last.drain().await.unwrap();
    world.probe.assert_key_order("main");
    world.probe.assert_key_order("other");
    assert_eq!(publisher.dead_letters("steps/main").count().await.unwrap(), 0);
}

async fn p01_a_crash_before_the_checkpoint_repeats_what_was_handled(world: World) {
    let publisher = world.publisher().await;
    let instance = world
        .plan(["main"])
        .fault(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).on([Op::Commit]))
        .start()
        .await;
    publisher.publish_all((0..10).map(|n| step("k", n, Act::Done))).await.unwrap();
    world.probe.until_done("main", 10).await;
    instance.crash();
    let next = world.start(["main"]).await;
    world.probe.until_done("main", 20).await;
    next.drain().await.unwrap();
    let twice: Vec<u64> = (0..10).chain(0..10).collect();
    assert_eq!(world.probe.done("main")["k"], twice);
}

async fn p01_an_answer_that_got_lost_is_no_loss(world: World) {
    let instance = world.plan(["main"]).start().await;
    for op in [Op::Read, Op::Commit] {
        instance.faults.add(Rule::new(Fault::LoseAnswer).on([op]).times(3));
    }
    instance.faults.add(Rule::new(Fault::LoseAnswer).on([Op::Append]).times(1));
    let lost = instance.photon.publish(&step("k", 0, Act::Done)).await.unwrap_err();
    assert!(matches!(lost, photon::Error::Unknown(_)), "{lost:?}");
    for n in 1..20 {
        instance.photon.publish(&step("k", n, Act::Done)).await.unwrap();
    }
    world.probe.until_done("main", 20).await;
    assert!(instance.drain().await.unwrap().is_clean());
    assert_eq!(world.probe.done("main")["k"], (0..20).collect::<Vec<_>>());
}

async fn p01_a_retry_that_waits_survives_a_crash(world: World) {
    let instance = world.start(["main"]).await;
    instance
        .photon
        .publish_all([step("a", 0, Act::FailAfter(5_000)), step("a", 1, Act::Done)])
        .await
        .unwrap();
    instance.photon.publish_all((0..50).map(|n| step("b", n, Act::Done))).await.unwrap();
    world.probe.until_done("main", 50).await;
    world.probe.until("it failed", |seen| seen.iter().any(|e| e.what == What::Failed)).await;
    instance.crash();
    let next = world.plan(["main"]).start().await;
    // It begins anew: what was counted in memory died with it. The second life fails it again, and shuts down.
    world
        .probe
        .until("it failed again", |seen| seen.iter().filter(|e| e.what == What::Failed).count() == 2)
        .await;
    next.stop().await;
    let last = world.start(["main"]).await;
    world
        .probe
        .until("both are done", |seen| {
            seen.iter().filter(|e| e.key == "a" && e.what == What::Done).count() == 2
        })
        .await;
    last.drain().await.unwrap();
    assert_eq!(world.probe.ends_of("main", "a", 0), [(1, What::Failed), (1, What::Failed), (2, What::Done)]);
    world.probe.assert_key_order("main");
}

async fn p01_a_parked_delivery_survives_a_crash(world: World) {
    let park = Options { park_after: Some(Duration::ZERO), ..Options::NONE };
    let instance = world.plan(["main"]).options(park.clone()).start().await;
    instance
        .photon
        .publish_all([step("a", 0, Act::FailAfter(2_000)), step("a", 1, Act::Done)])
        .await
        .unwrap();
    eventually("it is parked", async || {
        instance.photon.subscription("main").status().await.unwrap().parked == 2
    })
    .await;
    instance.crash();
    let next = world.plan(["main"]).options(park).start().await;
    world.probe.until_done("main", 2).await;
    next.drain().await.unwrap();
    // Its attempts survived, too.
    assert_eq!(world.probe.ends_of("main", "a", 0), [(1, What::Failed), (2, What::Done)]);
    assert_eq!(world.probe.done("main")["a"], [0, 1]);
}

async fn p01_a_dead_letter_whose_commit_fails_survives_a_crash(world: World) {
    let instance = world
        .plan(["main"])
        .fault(Rule::new(Fault::Fail(StoreErrorKind::Full)).on([Op::Commit]))
        .start()
        .await;
    instance.photon.publish(&step("a", 0, Act::Refuse)).await.unwrap();
    instance.photon.publish(&step("a", 1, Act::Done)).await.unwrap();
    world.probe.until_done("main", 1).await;
    let publisher = world.publisher().await;
    assert_eq!(publisher.dead_letters("main").count().await.unwrap(), 0);
    instance.crash();
    let next = world.start(["main"]).await;
    world.probe.until_done("main", 2).await;
    next.drain().await.unwrap();
    let letters = publisher.dead_letters("main").list(Page::first(10)).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(world.probe.ends_of("main", "a", 0), [(1, What::Failed), (1, What::Failed)]);
    assert_eq!(
        publisher.dead_letters("main").filter(Filter::reason(letters[0].reason)).count().await.unwrap(),
        1
    );
}

async fn p01_lost_wakes_lose_nothing(world: World) {
    let instance = world.plan(["main"]).build().await;
    instance.faults.mute_wakes(true);
    let executor = instance.photon.start_executor().await.unwrap();
    for n in 0..3 {
        instance.photon.publish(&step("k", n, Act::Done)).await.unwrap();
        world.probe.until_done("main", usize::try_from(n).unwrap() + 1).await;
    }
    within(executor.drain()).await.unwrap();
}

async fn p01_a_subscription_that_comes_later_gets_everything(world: World) {
    let first = world.start(["main"]).await;
    first.photon.publish_all((0..30).map(|n| step("k", n, Act::Done))).await.unwrap();
    first.drain().await.unwrap();
    let second = world.start(["other"]).await;
    second.photon.publish_all((30..40).map(|n| step("k", n, Act::Done))).await.unwrap();
    second.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], (0..30).collect::<Vec<_>>());
    assert_eq!(world.probe.done("other")["k"], (0..40).collect::<Vec<_>>());
}

async fn p01_what_a_handler_publishes_is_settled_too(world: World) {
    let instance = world.plan(["chain", "loose"]).start().await;
    instance.photon.publish_all((0..20).map(|n| step("k", n, Act::Done))).await.unwrap();
    let report = instance.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    let mut loose = world.probe.done("loose").remove("").unwrap();
    loose.sort_unstable();
    assert_eq!(loose, (0..20).collect::<Vec<_>>());
}

async fn p01_each_subscription_keeps_its_own_position(world: World) {
    let instance = world.start(["main", "other"]).await;
    instance.photon.publish_all((0..20).map(|n| step("k", n, Act::Done))).await.unwrap();
    instance.drain().await.unwrap();
    let only_one = world.start(["main"]).await;
    only_one.photon.publish_all((20..40).map(|n| step("k", n, Act::Done))).await.unwrap();
    only_one.drain().await.unwrap();
    world.start(["main", "other"]).await.drain().await.unwrap();
    for group in ["main", "other"] {
        assert_eq!(world.probe.done(group)["k"], (0..40).collect::<Vec<_>>(), "{group}");
    }
}
