//! P4: a clean end repeats nothing, a crash a bounded number of deliveries.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use photon::{Options, StoreErrorKind};
use photon_backend::wrap::Op;
use photon_backend::wrap::fault::{Fault, Rule};

use crate::support::instance::eventually;
use crate::support::{Act, Entry, What, World, step};

on_every_engine!(
    p04_a_clean_restart_repeats_nothing,
    p04_a_clean_end_keeps_the_attempts_of_waiting_retries,
    p04_a_crash_repeats_only_what_no_checkpoint_covers,
    p04_what_a_crash_repeats_is_bounded_while_the_store_is_away,
    p04_a_drain_waits_for_the_checkpoint_through_an_outage,
    p04_a_drain_that_took_too_long_says_what_will_be_repeated,
    p04_the_same_dedup_id_is_one_event,
);

async fn p04_a_clean_restart_repeats_nothing(world: World) {
    let publisher = world.publisher().await;
    let acts = [Act::Done, Act::Fail(1), Act::Refuse, Act::Defer(2), Act::PanicLater(1), Act::FailAfter(15)];
    let acts = |n: u64| acts[usize::try_from(n).unwrap() % acts.len()].clone();
    publisher.publish_all((0..200).map(|n| step(&format!("k{}", n % 17), n, acts(n)))).await.unwrap();
    let settled_in = |entries: &[Entry]| {
        let ends = |e: &&Entry| e.what == What::Done || e.what == What::Failed && e.n % 6 == 2;
        entries.iter().filter(ends).map(|e| e.n).collect::<Vec<_>>()
    };
    let settled = || settled_in(&world.probe.entries());
    while settled().len() < 200 {
        let goal = (settled().len() + 40).min(200);
        let instance = world.start(["main"]).await;
        world.probe.until("some more", |seen| settled_in(seen).len() >= goal).await;
        let report = instance.stop().await;
        assert!(report.is_clean(), "{report}");
    }
    let mut settled = settled();
    settled.sort_unstable();
    assert_eq!(settled, (0..200).collect::<Vec<_>>());
    // And the last start finds nothing to do.
    let before = world.probe.entries().len();
    world.start(["main"]).await.drain().await.unwrap();
    assert_eq!(world.probe.entries().len(), before);
    assert_eq!(publisher.dead_letters("main").count().await.unwrap(), 33);
}

async fn p04_a_clean_end_keeps_the_attempts_of_waiting_retries(world: World) {
    let patient =
        Options { backoff: Some(photon::Backoff::Fixed(Duration::from_millis(300))), ..Options::NONE };
    // Stopped in each of the waits.
    let instance = world.plan(["main"]).options(patient.clone()).start().await;
    instance.photon.publish(&step("a", 0, Act::Fail(3))).await.unwrap();
    world.probe.until("it failed", |seen| seen.iter().any(|e| e.what == What::Failed)).await;
    assert!(instance.stop().await.is_clean());
    for _ in 0..2 {
        let failures = |seen: &[Entry]| seen.iter().filter(|e| e.what == What::Failed).count();
        let before = failures(&world.probe.entries());
        let instance = world.plan(["main"]).options(patient.clone()).start().await;
        world.probe.until("one more attempt", |seen| failures(seen) > before).await;
        assert!(instance.stop().await.is_clean());
    }
    let last = world.plan(["main"]).options(patient).start().await;
    world.probe.until_done("main", 1).await;
    last.drain().await.unwrap();
    let failed = |attempt| (attempt, What::Failed);
    assert_eq!(world.probe.ends_of("main", "a", 0), [failed(1), failed(2), failed(3), (4, What::Done)]);
}

async fn p04_a_crash_repeats_only_what_no_checkpoint_covers(world: World) {
    let every = Options {
        checkpoint_every: Some(10),
        checkpoint_interval: Some(Duration::from_millis(1)),
        concurrency: Some(4),
        ..Options::NONE
    };
    let instance = world.plan(["main"]).options(every).start().await;
    instance.photon.publish_all((0..100).map(|n| step(&format!("k{n}"), n, Act::Done))).await.unwrap();
    instance.quiet().await;
    let gate = || Act::Wait("gate".to_owned());
    instance.photon.publish_all((100..103).map(|n| step(&format!("k{n}"), n, gate()))).await.unwrap();
    world.probe.until("they run", |seen| seen.iter().filter(|e| e.n >= 100).count() == 3).await;
    instance.crash();
    world.probe.open("gate");
    world.start(["main"]).await.drain().await.unwrap();
    // Exactly what was running.
    for n in 0..103 {
        let begun =
            world.probe.of("main", &format!("k{n}"), n).iter().filter(|e| e.what == What::Begun).count();
        assert_eq!(begun, if n < 100 { 1 } else { 2 }, "{n}");
    }
}

async fn p04_what_a_crash_repeats_is_bounded_while_the_store_is_away(world: World) {
    let every = Options { checkpoint_every: Some(8), concurrency: Some(4), ..Options::NONE };
    let publisher = world.publisher().await;
    publisher.publish_all((0..500).map(|n| step(&format!("k{}", n % 50), n, Act::Done))).await.unwrap();
    let instance = world
        .plan(["main"])
        .options(every)
        .fault(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).on([Op::Commit]))
        .start()
        .await;
    let refused = AtomicUsize::new(0);
    eventually("the store refused many commits", async || {
        let struck = instance.faults.take_struck().iter().filter(|(op, _)| *op == Op::Commit).count();
        refused.fetch_add(struck, Ordering::SeqCst) + struck >= 5
    })
    .await;
    let handled = world.probe.done_count("main");
    assert!((32..=36).contains(&handled), "four checkpoints and the concurrency, but handled were {handled}");
    // It goes on by itself once the store is back, and has forgotten nothing.
    instance.faults.clear();
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done_count("main"), 500);
    assert!(world.probe.done("main").values().all(|done| done.is_sorted_by(|a, b| a < b)));
}

async fn p04_a_drain_waits_for_the_checkpoint_through_an_outage(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish_all((0..20).map(|n| step("k", n, Act::Done))).await.unwrap();
    instance.faults.add(Rule::new(Fault::LoseAnswer).on([Op::Commit]).times(2));
    instance.faults.add(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).on([Op::Commit]).times(3));
    world.probe.until_done("main", 20).await;
    let report = instance.stop().await;
    assert!(report.is_clean(), "{report}");
    world.start(["main"]).await.drain().await.unwrap();
    assert_eq!(world.probe.done_count("main"), 20);
}

async fn p04_a_drain_that_took_too_long_says_what_will_be_repeated(world: World) {
    let instance = world
        .plan(["main"])
        .with(|builder| builder.drain_timeout(Duration::from_millis(200)))
        .fault(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).on([Op::Commit]))
        .start()
        .await;
    instance.photon.publish_all((0..20).map(|n| step("k", n, Act::Done))).await.unwrap();
    instance.photon.publish(&step("hangs", 0, Act::Hang)).await.unwrap();
    world.probe.until_done("main", 20).await;
    world.probe.until("it hangs", |seen| seen.iter().any(|e| e.key == "hangs")).await;
    let report = instance.stop().await;
    assert!(!report.is_clean());
    let of_main = &report.subscriptions[0];
    assert_eq!((of_main.uncommitted, of_main.cancelled), (20, 1), "{report}");
    let text = report.to_string();
    assert!(text.contains("1 handlers broken off") && text.contains("20 settled deliveries"), "{text}");
    let next = world.start(["main"]).await;
    world.probe.until_done("main", 40).await;
    next.crash();
}

async fn p04_the_same_dedup_id_is_one_event(world: World) {
    let instance = world.start(["main"]).await;
    let photon = &instance.photon;
    let first = photon.publish(&step("k", 0, Act::Done)).dedup_id("one").await.unwrap();
    let again = photon.publish(&step("k", 1, Act::Done)).dedup_id("one").await.unwrap();
    assert_eq!((again.seq, again.shard, again.duplicate), (first.seq, first.shard, true));
    photon.publish(&step("k", 2, Act::Done)).dedup_id("two").await.unwrap();
    // Without an id, what is sent twice is two events.
    photon.publish(&step("k", 3, Act::Done)).await.unwrap();
    photon.publish(&step("k", 3, Act::Done)).await.unwrap();
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [0, 2, 3, 3]);
}
