//! P7: giving up is durable and ordered.

use std::time::Duration;

use photon::{DeadReason, Error, Filter, OnDead, Options, Page, StoreErrorKind, ToKey};
use photon_backend::wrap::Op;
use photon_backend::wrap::fault::{Fault, Rule};

use crate::support::instance::eventually;
use crate::support::{Act, Entry, What, World, step};

on_every_engine!(
    p07_a_dead_letter_is_kept_whole_through_a_restart,
    p07_poison_runs_exactly_max_attempts_times_and_spaced,
    p07_a_redrive_reaches_its_own_subscription_with_fresh_attempts,
    p07_a_discarded_letter_never_comes_back,
    p07_by_default_later_events_of_the_key_go_on,
    p07_a_blocked_key_waits_in_order_until_its_letter_is_redriven,
    p07_a_blocked_key_goes_on_when_its_letter_is_discarded,
    p07_a_redrive_that_dies_again_blocks_again,
    p07_a_crash_around_the_death_neither_loses_nor_doubles_the_letter,
);

async fn p07_a_dead_letter_is_kept_whole_through_a_restart(world: World) {
    let instance = world.start(["main"]).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let before = world.engine.clock.wall();
    let receipt = instance
        .photon
        .publish(&step("k", 7, Act::Fail(9)))
        .header("trace", &every_byte)
        .header("empty", "")
        .await
        .unwrap();
    let raw =
        instance.photon.publish_raw("steps", every_byte.clone()).key(every_byte.as_slice()).await.unwrap();
    instance.drain().await.unwrap();

    let restarted = world.start(["main"]).await;
    let letters = restarted.photon.dead_letters("main");
    let letter = letters.clone().show(receipt.id).await.unwrap();
    assert_eq!((letter.shard, letter.seq, letter.attempts), (receipt.shard, receipt.seq, 4));
    assert_eq!(letter.key, "k".to_key());
    assert_eq!(letter.topic.as_str(), "steps");
    assert_eq!(letter.reason, DeadReason::Exhausted);
    assert_eq!(letter.error, "attempt 4 of k:7 failed");
    assert_eq!(letter.headers.get_bytes("trace").unwrap(), &every_byte);
    assert_eq!(letter.headers.get("empty"), Some(""));
    let payload: crate::support::Step = serde_json::from_slice(&letter.payload).unwrap();
    assert_eq!(payload, step("k", 7, Act::Fail(9)));
    let (first, last) = (letter.first_failed.unwrap(), letter.last_failed.unwrap());
    assert!(before <= letter.published && letter.published <= first, "{letter:?}");
    assert!(last.since(first) >= Duration::from_millis(29), "three waits of 10 ms: {letter:?}");
    assert!(!letter.blocks_key);

    let letter = letters.show((raw.shard, raw.seq)).await.unwrap();
    assert_eq!((letter.reason, letter.attempts), (DeadReason::Undecodable, 1));
    assert_eq!((letter.payload.as_ref(), letter.key.unwrap().as_bytes()), (&*every_byte, &*every_byte));
    assert!(letter.error.contains("Step"), "{}", letter.error);
    restarted.drain().await.unwrap();
}

async fn p07_poison_runs_exactly_max_attempts_times_and_spaced(world: World) {
    let spaced = Options {
        max_attempts: Some(5),
        backoff: Some(photon::Backoff::Exponential {
            first: Duration::from_millis(10),
            max: Duration::from_millis(40),
        }),
        ..Options::NONE
    };
    let instance = world.plan(["main"]).options(spaced).start().await;
    instance.photon.publish(&step("k", 0, Act::Fail(99))).await.unwrap();
    let photon = instance.photon.clone();
    instance.drain().await.unwrap();
    let begun: Vec<Entry> =
        world.probe.of("main", "k", 0).into_iter().filter(|e| e.what == What::Begun).collect();
    assert_eq!(begun.iter().map(|e| e.attempt).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for (pair, least) in begun.windows(2).zip([10, 20, 40, 40]) {
        assert!(pair[1].at - pair[0].at >= Duration::from_millis(least), "{begun:#?}");
    }
    assert_eq!(photon.dead_letters("main").count().await.unwrap(), 1);
}

async fn p07_a_redrive_reaches_its_own_subscription_with_fresh_attempts(world: World) {
    let instance = world.start(["main", "other"]).await;
    let photon = &instance.photon;
    // Fails as often as there are attempts: a fresh set of them is not enough either, a good handler is.
    photon.publish(&step("k", 0, Act::Gated("mended".to_owned()))).await.unwrap();
    photon.publish(&step("k", 1, Act::Done)).await.unwrap();
    instance.quiet().await;
    let letters = photon.dead_letters("main");
    assert_eq!(letters.clone().count().await.unwrap(), 1);
    assert_eq!(letters.clone().redrive_all().await.unwrap(), 1);
    eventually("it died again", async || letters.clone().count().await.unwrap() == 1).await;
    world.probe.open("mended");
    assert_eq!(letters.clone().key("k").redrive().await.unwrap(), 1);
    world.probe.until_done("main", 2).await;
    instance.quiet().await;
    assert_eq!(letters.clone().count().await.unwrap(), 0);
    let nothing = letters.key("k").redrive().await.unwrap_err();
    assert!(matches!(nothing, Error::NotFound(_)), "{nothing:?}");
    let attempts: Vec<u32> =
        world.probe.ends_of("main", "k", 0).iter().map(|(attempt, _)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 1, 2, 3, 4, 1]);
    assert_eq!(world.probe.done("other")["k"], [0, 1]);
    instance.drain().await.unwrap();
    world.start(["main", "other"]).await.drain().await.unwrap();
    assert_eq!((world.probe.done_count("main"), world.probe.done_count("other")), (2, 2));
}

async fn p07_a_discarded_letter_never_comes_back(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish_all((0..5).map(|n| step("k", n, Act::Refuse))).await.unwrap();
    instance.quiet().await;
    let photon = instance.photon.clone();
    let letters = photon.dead_letters("main");
    let one = letters.clone().list(Page::first(1)).await.unwrap().remove(0);
    assert_eq!(letters.clone().letter(&one).discard().await.unwrap(), 1);
    assert_eq!(letters.clone().count().await.unwrap(), 4);
    assert_eq!(letters.clone().filter(Filter::reason(DeadReason::Panic)).discard().await.unwrap(), 0);
    assert_eq!(letters.clone().filter(Filter::reason(DeadReason::Permanent)).discard().await.unwrap(), 4);
    let gone = letters.clone().show(&one).await.unwrap_err();
    assert!(gone.to_string().contains("discarded"), "{gone}");
    let unnamed = letters.discard().await.unwrap_err();
    assert!(unnamed.to_string().contains(".discard_all()"), "{unnamed}");
    instance.drain().await.unwrap();
    world.start(["main"]).await.drain().await.unwrap();
    assert_eq!(world.probe.entries().iter().filter(|e| e.what == What::Begun).count(), 5);
}

async fn p07_by_default_later_events_of_the_key_go_on(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish_all([step("k", 0, Act::Refuse), step("k", 1, Act::Done)]).await.unwrap();
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [1]);
}

fn blocking() -> Options {
    Options { on_dead: Some(OnDead::BlockKey), ..Options::NONE }
}

async fn p07_a_blocked_key_waits_in_order_until_its_letter_is_redriven(world: World) {
    let instance = world.plan(["main"]).options(blocking()).start().await;
    let photon = &instance.photon;
    photon.publish(&step("k", 0, Act::Gated("mended".to_owned()))).await.unwrap();
    photon.publish_all((1..4).map(|n| step("k", n, Act::Done))).await.unwrap();
    photon.publish(&step("free", 0, Act::Done)).await.unwrap();
    instance.drain().await.unwrap();
    assert!(!world.probe.done("main").contains_key("k"));
    assert_eq!(world.probe.done("main")["free"], [0]);

    // It stays blocked in the next life, for what comes then, too; and a crash changes nothing.
    let next = world.plan(["main"]).options(blocking()).start().await;
    next.photon.publish_all((4..6).map(|n| step("k", n, Act::Fail(1)))).await.unwrap();
    next.photon.publish(&step("free", 1, Act::Done)).await.unwrap();
    world.probe.until_done("main", 2).await;
    next.quiet().await;
    next.crash();
    let last = world.plan(["main"]).options(blocking()).start().await;
    last.quiet().await;
    assert!(!world.probe.done("main").contains_key("k"));
    let letters = last.photon.dead_letters("main");
    let letter = letters.clone().list(Page::first(9)).await.unwrap().remove(0);
    assert!(letter.blocks_key);
    world.probe.open("mended");
    assert_eq!(letters.clone().key("k").redrive().await.unwrap(), 1);
    world.probe.until_done("main", 8).await;
    last.photon.publish(&step("k", 6, Act::Done)).await.unwrap();
    last.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [0, 1, 2, 3, 4, 5, 6]);
    world.probe.assert_key_order("main");
}

async fn p07_a_blocked_key_goes_on_when_its_letter_is_discarded(world: World) {
    let instance = world.plan(["main"]).options(blocking()).start().await;
    instance.photon.publish(&step("k", 0, Act::Refuse)).await.unwrap();
    instance.photon.publish_all((1..4).map(|n| step("k", n, Act::Done))).await.unwrap();
    instance.quiet().await;
    assert_eq!(world.probe.done_count("main"), 0);
    // From another process: it is noticed within a second or so.
    let elsewhere = world.publisher().await;
    assert_eq!(elsewhere.dead_letters("steps/main").key("k").discard().await.unwrap(), 1);
    world.probe.until_done("main", 3).await;
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [1, 2, 3]);
}

async fn p07_a_redrive_that_dies_again_blocks_again(world: World) {
    let instance = world.plan(["main"]).options(blocking()).start().await;
    instance.photon.publish(&step("k", 0, Act::Refuse)).await.unwrap();
    instance.photon.publish_all((1..4).map(|n| step("k", n, Act::Done))).await.unwrap();
    instance.quiet().await;
    let photon = instance.photon.clone();
    for round in 2..5 {
        assert_eq!(photon.dead_letters("main").redrive_all().await.unwrap(), 1);
        world
            .probe
            .until("it ran again", |seen| seen.iter().filter(|e| e.what == What::Failed).count() == round)
            .await;
        instance.quiet().await;
        assert_eq!(photon.dead_letters("main").count().await.unwrap(), 1);
        assert_eq!(world.probe.done_count("main"), 0);
    }
    photon.dead_letters("main").discard_all().await.unwrap();
    world.probe.until_done("main", 3).await;
    instance.drain().await.unwrap();
}

async fn p07_a_crash_around_the_death_neither_loses_nor_doubles_the_letter(world: World) {
    let publisher = world.publisher().await;
    publisher.publish_all((0..40).map(|n| step(&format!("k{}", n % 3), n, Act::Refuse))).await.unwrap();
    for (fault, goal) in
        [(Fault::LoseAnswer, 5), (Fault::Fail(StoreErrorKind::Unavailable), 20), (Fault::LoseAnswer, 45)]
    {
        let instance = world
            .plan(["main"])
            .options(Options { checkpoint_every: Some(2), ..Options::NONE })
            .fault(Rule::new(fault).on([Op::Commit]).chance(400_000))
            .start()
            .await;
        let failed = |seen: &[Entry]| seen.iter().filter(|e| e.what == What::Failed).count();
        world.probe.until("some died", |seen| failed(seen) >= goal.min(40)).await;
        instance.crash();
    }
    world.start(["main"]).await.drain().await.unwrap();
    let letters = publisher.dead_letters("steps/main").list(Page::first(100)).await.unwrap();
    assert_eq!(letters.len(), 40);
    assert!(letters.iter().all(|letter| letter.attempts == 1), "{letters:?}");
}
