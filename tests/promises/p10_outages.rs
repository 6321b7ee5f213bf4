//! P10: outages are waited out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use photon::{Error, Options, StoreErrorKind};
use photon_backend::wrap::Op;
use photon_backend::wrap::fault::{Fault, Rule};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::instance::{eventually, within};
use crate::support::{Act, Instance, World, step};

on_every_engine!(
    p10_everything_goes_on_by_itself_after_an_outage,
    p10_each_kind_of_call_may_fail_at_any_time,
    p10_a_publisher_gets_an_error_and_nothing_is_stored,
    p10_a_publisher_that_asked_to_wait_waits,
    p10_a_start_during_an_outage_says_so_and_can_be_repeated,
    p10_a_drain_during_an_outage_ends_in_time,
    p10_nobody_spins_while_the_store_is_away,
    p10_nobody_spins_where_the_work_cannot_begin,
    p10_a_long_outage_is_not_told_again_and_again,
    p10_a_store_that_comes_and_goes_is_not_told_again_and_again,
    p10_a_membership_that_comes_and_goes_is_not_told_again_and_again,
);

on_engine!("memory", p10_an_answer_that_never_comes_holds_nobody_up, a_wait_for_quiet_hurries_the_checkpoint);

fn away() -> Rule {
    Rule::new(Fault::Fail(StoreErrorKind::Unavailable))
}

/// Waits until a time that counts only where nothing else is to wait for.
async fn pass(world: &World, paused: Duration, real: Duration) -> Duration {
    let time = if world.engine.paused { paused } else { real };
    tokio::time::sleep(time).await;
    time
}

async fn p10_everything_goes_on_by_itself_after_an_outage(world: World) {
    let instance = world.start(["main", "other"]).await;
    let publisher = world.publisher().await;
    publisher.publish_all((0..30).map(|n| step(&format!("k{}", n % 3), n, Act::Fail(1)))).await.unwrap();
    world.probe.until_done("other", 5).await;
    let outage = instance.faults.add(away());
    publisher.publish_all((30..60).map(|n| step(&format!("k{}", n % 3), n, Act::Done))).await.unwrap();
    // Long enough to lose the leases, too.
    pass(&world, Duration::from_secs(600), world.engine.lease_ttl() * 3 / 2).await;
    instance.faults.remove(outage);
    world
        .probe
        .until("all are done", |seen| {
            let done = |group, n| {
                seen.iter().any(|e| e.group == group && e.n == n && e.what == crate::support::What::Done)
            };
            (0..60).all(|n| done("main", n) && done("other", n))
        })
        .await;
    assert!(instance.drain().await.unwrap().is_clean());
    world.probe.assert_key_order("main");
}

async fn p10_each_kind_of_call_may_fail_at_any_time(world: World) {
    let park =
        Options { park_after: Some(Duration::from_millis(5)), checkpoint_every: Some(5), ..Options::NONE };
    let instance = world.plan(["main"]).options(park).start().await;
    for op in Op::ALL {
        for fault in [Fault::Fail(StoreErrorKind::Unavailable), Fault::LoseAnswer] {
            instance.faults.add(Rule::new(fault).on([*op]).after(1).times(1));
        }
    }
    let acts = [Act::Done, Act::Fail(1), Act::FailAfter(10), Act::PanicLater(1), Act::Defer(7)];
    let publisher = world.publisher().await;
    for n in 0..100u64 {
        let act = acts[usize::try_from(n).unwrap() % acts.len()].clone();
        publisher.publish(&step(&format!("k{}", n % 7), n, act)).await.unwrap();
    }
    world
        .probe
        .until("all are done", |seen| {
            (0..100).all(|n| seen.iter().any(|e| e.n == n && e.what == crate::support::What::Done))
        })
        .await;
    within(instance.executor.as_ref().unwrap().quiet()).await.unwrap();
    instance.faults.clear();
    instance.drain().await.unwrap();
    world.probe.assert_key_order("main");
}

async fn p10_a_publisher_gets_an_error_and_nothing_is_stored(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish(&step("k", 0, Act::Done)).await.unwrap();
    for (kind, hint) in [
        (StoreErrorKind::Unavailable, "nothing was written: try again later, or publish with .wait()"),
        (StoreErrorKind::Full, "free some space"),
    ] {
        let outage = instance.faults.add(Rule::new(Fault::Fail(kind)).on([Op::Append]));
        let error =
            within(async { instance.photon.publish(&step("k", 1, Act::Done)).await }).await.unwrap_err();
        assert!(error.to_string().contains(hint), "{error}");
        let error = instance.photon.publish_all([step("k", 2, Act::Done)]).await.unwrap_err();
        assert!(error.stored().is_empty());
        instance.faults.remove(outage);
    }
    instance.photon.publish(&step("k", 3, Act::Done)).await.unwrap();
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [0, 3]);
}

async fn p10_a_publisher_that_asked_to_wait_waits(world: World) {
    let instance = world.start(["main"]).await;
    let outage = instance.faults.add(away().on([Op::Append, Op::EnsureTopic]));
    let publish = async |n: u64| instance.photon.publish(&step("k", n, Act::Done)).wait().await;
    let mut waiting = Box::pin(publish(0));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    instance.faults.remove(outage);
    within(waiting).await.unwrap();
    // What may be stored is not sent twice.
    instance.faults.add(Rule::new(Fault::LoseAnswer).on([Op::Append]).times(1));
    let lost = within(publish(1)).await.unwrap_err();
    assert!(matches!(lost, Error::Unknown(_)) && lost.to_string().contains(".dedup_id("), "{lost:?}");
    instance.faults.add(Rule::new(Fault::LoseAnswer).on([Op::Append]).times(1));
    let known = instance.photon.publish(&step("k", 2, Act::Done)).dedup_id(2).wait();
    assert!(within(async { known.await }).await.unwrap().duplicate);
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [0, 1, 2]);
}

async fn p10_a_start_during_an_outage_says_so_and_can_be_repeated(world: World) {
    let instance = world.plan(["main"]).build().await;
    instance.photon.publish(&step("k", 0, Act::Done)).await.unwrap();
    for op in [Op::EnsureTopic, Op::Register, Op::Join] {
        let outage = instance.faults.add(away().on([op]));
        let error = within(instance.photon.start_executor()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)) && error.is_transient(), "{op:?}: {error:?}");
        instance.faults.remove(outage);
    }
    let executor = instance.photon.start_executor().await.unwrap();
    within(executor.drain()).await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [0]);
}

async fn p10_a_drain_during_an_outage_ends_in_time(world: World) {
    let instance = world.plan(["main"]).with(|b| b.drain_timeout(Duration::from_millis(100))).start().await;
    instance.photon.publish_all((0..10).map(|n| step("k", n, Act::Done))).await.unwrap();
    instance.faults.add(Rule::new(Fault::Hang));
    let began = tokio::time::Instant::now();
    instance.stop().await;
    // The timeout, the last try to write, and the answers that are waited for when it leaves.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    world.start(["main"]).await.drain().await.unwrap();
    let mut done = world.probe.done("main").remove("k").unwrap();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done, (0..10).collect::<Vec<_>>());
}

async fn p10_nobody_spins_while_the_store_is_away(world: World) {
    let park = Options { park_after: Some(Duration::ZERO), ..Options::NONE };
    let instance = world.plan(["main", "other", "loose"]).options(park).start().await;
    let publisher = world.publisher().await;
    publisher
        .publish_all((0..40).map(|n| step(&format!("k{}", n % 9), n, Act::FailAfter(50))))
        .await
        .unwrap();
    world.probe.until_done("other", 20).await;
    instance.faults.add(away());
    instance.faults.take_struck();
    let time = pass(&world, Duration::from_secs(3_600), Duration::from_secs(2)).await;
    let mut calls = BTreeMap::<Op, usize>::new();
    for (op, _) in instance.faults.take_struck() {
        *calls.entry(op).or_default() += 1;
    }
    // Three subscriptions and one membership: a few calls at first, then one in five seconds each.
    let seconds = usize::try_from(time.as_secs()).unwrap();
    let most = 3 * (8 + seconds / 4);
    assert!(!calls.is_empty());
    for (op, count) in &calls {
        assert!(
            *count <= most,
            "{op} was called {count} times in {time:?}, expected at most {most}: {calls:?}"
        );
    }
    instance.crash();
}

async fn p10_nobody_spins_where_the_work_cannot_begin(world: World) {
    let instance = world.plan(["main"]).build().await;
    instance.photon.publish(&step("k", 0, Act::Done)).await.unwrap();
    instance.faults.add(away().on([Op::Load]));
    let executor = instance.photon.start_executor().await.unwrap();
    let time = pass(&world, Duration::from_secs(3_600), Duration::from_secs(2)).await;
    let calls = instance.faults.take_struck().len();
    // The owner asks for it, and so does the look for changes by others: each once in five seconds.
    let most = 8 + usize::try_from(time.as_secs()).unwrap() / 2;
    assert!((1..=most).contains(&calls), "the checkpoint was asked for {calls} times in {time:?}");
    instance.faults.clear();
    within(executor.drain()).await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [0]);
}

/// Counts what is said to people.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.1.fetch_add(1, Ordering::Relaxed) as u64 + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = format!("{}:", event.metadata().level());
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            let _ = write!(line, " {field}={value:?}");
        });
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What is said while calls of an instance fail as `rule` says.
async fn lines_during(world: &World, rule: Rule) -> (Vec<String>, Duration) {
    let instance: Instance = world.start(["main"]).await;
    let publisher = world.publisher().await;
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    instance.faults.add(rule);
    publisher.publish_all((0..10).map(|n| step("k", n, Act::Done))).await.unwrap();
    let time = pass(world, Duration::from_secs(1_800), Duration::from_secs(3)).await;
    instance.faults.clear();
    eventually("they are done", async || world.probe.done_count("main") >= 10).await;
    instance.crash();
    (lines.0.lock().unwrap().clone(), time)
}

async fn p10_a_long_outage_is_not_told_again_and_again(world: World) {
    let (lines, time) = lines_during(&world, away()).await;
    // Reads, commits, other calls, renewals, claims and publishes each say it once a minute.
    let most = 10 + 6 * usize::try_from(time.as_secs() / 60).unwrap();
    assert!(!lines.is_empty() && lines.len() <= most, "{} lines, at most {most}: {lines:#?}", lines.len());
}

async fn p10_a_store_that_comes_and_goes_is_not_told_again_and_again(world: World) {
    let rule = away().on([Op::Read, Op::Commit, Op::Revision]).chance(500_000);
    let (lines, time) = lines_during(&world, rule).await;
    let most = 14 + 12 * usize::try_from(time.as_secs() / 60).unwrap();
    assert!(!lines.is_empty() && lines.len() <= most, "{} lines, at most {most}: {lines:#?}", lines.len());
}

async fn p10_a_membership_that_comes_and_goes_is_not_told_again_and_again(world: World) {
    let rule = away().on([Op::Heartbeat]).chance(900_000);
    let (lines, time) = lines_during(&world, rule).await;
    let most = 14 + 12 * usize::try_from(time.as_secs() / 60).unwrap();
    assert!(lines.len() <= most, "{} lines, at most {most}: {lines:#?}", lines.len());
}

/// On the paused clock alone: an answer is waited for a minute.
async fn p10_an_answer_that_never_comes_holds_nobody_up(world: World) {
    let park =
        Options { park_after: Some(Duration::from_millis(5)), checkpoint_every: Some(5), ..Options::NONE };
    let instance = world.plan(["main"]).options(park).build().await;
    for op in [Op::Load, Op::Heads, Op::Read, Op::Revision, Op::Lane, Op::Commit, Op::Commit, Op::Read] {
        instance.faults.add(Rule::new(Fault::Hang).on([op]).after(1).times(1));
    }
    let executor = instance.photon.start_executor().await.unwrap();
    let publisher = world.publisher().await;
    let acts = [Act::Done, Act::FailAfter(10), Act::Defer(7)];
    for n in 0..100u64 {
        let act = acts[usize::try_from(n).unwrap() % acts.len()].clone();
        publisher.publish(&step(&format!("k{}", n % 7), n, act)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    tokio::time::timeout(Duration::from_secs(600), world.probe.until_done("main", 100)).await.unwrap();
    assert!(instance.faults.take_struck().iter().any(|(op, _)| *op == Op::Read));
    instance.faults.clear();
    within(executor.drain()).await.unwrap();
    world.probe.assert_key_order("main");
}

/// Nobody has to wait for the interval of the checkpoint.
async fn a_wait_for_quiet_hurries_the_checkpoint(world: World) {
    let slow = Options { checkpoint_interval: Some(Duration::from_secs(50)), ..Options::NONE };
    let instance = world.plan(["main"]).options(slow).start().await;
    for n in 0..3 {
        instance.photon.publish(&step("k", n, Act::Done)).await.unwrap();
        let began = tokio::time::Instant::now();
        instance.executor.as_ref().unwrap().quiet().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    assert!(instance.drain().await.unwrap().is_clean());
}
