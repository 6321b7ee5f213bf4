//! P8: cancellation is not failure.

use std::time::Duration;

use photon::{Options, StoreErrorKind};
use photon_backend::wrap::fault::{Fault, Rule};

use crate::support::instance::within;
use crate::support::{Act, Entry, Plan, What, World, step};

on_every_engine!(
    p08_a_handler_that_the_drain_breaks_off_loses_no_attempt,
    p08_attempts_before_a_break_off_still_count,
    p08_a_lost_lease_costs_no_attempt,
    p08_a_panic_while_it_is_broken_off_costs_no_attempt,
    p08_a_drain_starts_nothing_new_and_lets_running_handlers_end,
    p08_dropping_the_executor_is_a_shutdown,
);

/// An instance with little time for its handlers, and none for its drain.
fn impatient(world: &World) -> Plan<'_> {
    let quick = Options { timeout: Some(Duration::from_millis(40)), ..Options::NONE };
    world.plan(["main"]).options(quick).with(|b| b.drain_timeout(Duration::ZERO))
}

/// A delivery that fails once is dead.
fn one_attempt() -> Options {
    Options { max_attempts: Some(1), ..Options::NONE }
}

async fn p08_a_handler_that_the_drain_breaks_off_loses_no_attempt(world: World) {
    for life in 1..4 {
        let plan = world.plan(["main"]).options(one_attempt());
        let instance = plan.with(|b| b.drain_timeout(Duration::from_millis(20))).start().await;
        if life == 1 {
            instance.photon.publish(&step("k", 0, Act::Wait("gate".to_owned()))).await.unwrap();
            instance.photon.publish(&step("k", 1, Act::Done)).await.unwrap();
        }
        let begun = |seen: &[Entry]| seen.iter().filter(|e| e.what == What::Begun).count();
        world.probe.until("it runs", |seen| begun(seen) == life).await;
        let photon = instance.photon.clone();
        let report = instance.stop().await;
        assert_eq!((report.subscriptions[0].cancelled, report.subscriptions[0].failed), (1, 0), "{report}");
        assert_eq!(photon.dead_letters("main").count().await.unwrap(), 0);
    }
    world.probe.open("gate");
    world.plan(["main"]).options(one_attempt()).start().await.drain().await.unwrap();
    let broken = (1, What::BrokenOff);
    assert_eq!(world.probe.ends_of("main", "k", 0), [broken, broken, broken, (1, What::Done)]);
    assert_eq!(world.probe.done("main")["k"], [0, 1]);
}

async fn p08_attempts_before_a_break_off_still_count(world: World) {
    let instance = impatient(&world).start().await;
    instance.photon.publish(&step("k", 0, Act::Hang)).await.unwrap();
    let begun = |seen: &[Entry], attempt| seen.iter().any(|e| e.what == What::Begun && e.attempt == attempt);
    world.probe.until("the third attempt", |seen| begun(seen, 3)).await;
    let report = instance.stop().await;
    assert!(report.subscriptions[0].cancelled <= 1, "{report}");
    let next = impatient(&world).start().await;
    world.probe.until("the fourth attempt", |seen| begun(seen, 4)).await;
    next.drain().await.unwrap();
    let attempts: Vec<u32> =
        world.probe.ends_of("main", "k", 0).iter().map(|(attempt, _)| *attempt).collect();
    // The third one ran twice if it was broken off, and once if its time was over just then.
    assert!([&[1, 2, 3, 3, 4][..], &[1, 2, 3, 4]].contains(&&*attempts), "{attempts:?}");
    let publisher = world.publisher().await;
    assert_eq!(publisher.dead_letters("steps/main").count().await.unwrap(), 1);
}

async fn p08_a_lost_lease_costs_no_attempt(world: World) {
    let instance = world.plan(["main"]).options(one_attempt()).start().await;
    instance.photon.publish(&step("k", 0, Act::Wait("gate".to_owned()))).await.unwrap();
    world.probe.until("it runs", |seen| !seen.is_empty()).await;
    // No renewal reaches the store until the lease is over.
    instance.faults.add(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)));
    world.probe.until("it is broken off", |seen| seen.iter().any(|e| e.what == What::BrokenOff)).await;
    instance.faults.clear();
    world.probe.open("gate");
    world.probe.until_done("main", 1).await;
    let report = instance.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(world.probe.ends_of("main", "k", 0), [(1, What::BrokenOff), (1, What::Done)]);
}

async fn p08_a_panic_while_it_is_broken_off_costs_no_attempt(world: World) {
    for life in 1..3 {
        let plan = world.plan(["main"]).options(one_attempt());
        let instance = plan.with(|b| b.drain_timeout(Duration::from_millis(20))).start().await;
        if life == 1 {
            instance.photon.publish(&step("k", 0, Act::Bomb { hang: true })).await.unwrap();
        }
        let begun = |seen: &[Entry]| seen.iter().filter(|e| e.what == What::Begun).count();
        world.probe.until("it runs", |seen| begun(seen) == life).await;
        let photon = instance.photon.clone();
        let report = instance.stop().await;
        assert_eq!((report.subscriptions[0].cancelled, report.subscriptions[0].failed), (1, 0), "{report}");
        assert_eq!(photon.dead_letters("main").count().await.unwrap(), 0);
    }
    let seen = world.probe.entries();
    assert!(seen.iter().all(|e| e.attempt == 1), "{seen:#?}");
}

async fn p08_a_drain_starts_nothing_new_and_lets_running_handlers_end(world: World) {
    let instance =
        world.plan(["chain"]).options(Options { concurrency: Some(3), ..Options::NONE }).start().await;
    instance
        .photon
        .publish_all((0..30).map(|n| step(&format!("k{n}"), n, Act::Wait("gate".into()))))
        .await
        .unwrap();
    world.probe.until("three run", |seen| seen.len() == 3).await;
    let executor = instance.executor.unwrap();
    executor.shutdown();
    let mut join = Box::pin(executor.join());
    // The drain is on; then they end, and can still publish.
    assert!(tokio::time::timeout(Duration::from_millis(30), &mut join).await.is_err());
    world.probe.open("gate");
    let report = within(join).await;
    assert!(report.is_clean() && report.handled() == 3, "{report}");
    assert_eq!(world.probe.done_count("chain"), 3);
    let error = instance.photon.publish(&step("k", 0, Act::Done)).await.unwrap_err();
    assert!(error.to_string().contains("was shut down"), "{error}");
    world.start(["chain", "loose"]).await.drain().await.unwrap();
    assert_eq!((world.probe.done_count("chain"), world.probe.done_count("loose")), (30, 30));
}

async fn p08_dropping_the_executor_is_a_shutdown(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish_all((0..20).map(|n| step("k", n, Act::Done))).await.unwrap();
    world.probe.until_done("main", 20).await;
    drop(instance.executor);
    // It gives its shards back by itself, so that the next one need not wait for the lease.
    world.start(["main"]).await.drain().await.unwrap();
    assert!(world.probe.done("main")["k"].starts_with(&(0..20).collect::<Vec<_>>()));
    world.probe.assert_key_order("main");
}
