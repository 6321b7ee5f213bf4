//! P7: giving up is durable and ordered.

use std::time::Duration;

use photon::store::DeadLetterFilter;
use photon::{DeadReason, Error, OnDead, Options, Page};

use crate::support::instance::{eventually, subscription};
use crate::support::{Act, What, World, single, step};

on_every_engine!(
    p07_no_watermark_passes_what_is_not_stored,
    p07_under_continue_later_events_of_the_key_go_on,
    p07_a_blocked_key_waits_through_restarts_and_crashes_and_goes_on_in_order,
    p07_a_discard_lets_the_key_go_on,
    p07_a_redriven_letter_that_dies_again_blocks_again,
    p07_a_payload_that_still_does_not_decode_is_dead_again_with_both_errors,
    p07_a_redrive_that_is_broken_off_delivers_nothing_twice,
    p07_two_redrives_at_once_share_the_letters,
    p07_a_redrive_keeps_to_its_rate,
    p07_too_many_behind_one_key_pause_the_subscription,
    p07_what_is_not_there_gets_a_clear_answer,
);

fn blocking() -> Options {
    Options { on_dead: Some(OnDead::BlockKey), ..Options::NONE }
}

fn closed(gate: &str) -> Act {
    Act::RefuseUntil(gate.to_owned())
}

async fn p07_no_watermark_passes_what_is_not_stored(world: World) {
    let instance = world.plan(["single"]).start().await;
    let mut places = Vec::new();
    for n in 0..40 {
        let act = if n % 2 == 0 { Act::Refuse } else { Act::Done };
        places.push(instance.photon.publish(&single(&format!("k{n}"), n, act)).await.unwrap().seq);
        // Whatever the moment: what the checkpoint covers is handled or stored.
        let covered = world.checkpoint().await.watermark;
        let letters = instance.photon.dead_letters("single").list(Page::first(100)).await.unwrap();
        let refused = world.probe.entries().iter().filter(|e| e.what == What::Failed).count();
        assert!(letters.len() <= refused);
        for entry in world.probe.entries().iter().filter(|entry| entry.what == What::Failed) {
            let is_here = |letter: &photon::DeadLetter| {
                letter.key.as_ref().is_some_and(|key| key.as_bytes() == entry.key.as_bytes())
            };
            let place = places[usize::try_from(entry.n).unwrap()];
            let is_stored = letters.iter().any(is_here);
            assert!(is_stored || covered < place, "{} is passed, and not stored", entry.n);
        }
    }
    assert!(instance.drain().await.unwrap().is_clean());
    assert_eq!(world.publisher().await.dead_letters("single").count().await.unwrap(), 20);
}

async fn p07_under_continue_later_events_of_the_key_go_on(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish_all([step("a", 0, Act::Refuse), step("a", 1, Act::Done)]).await.unwrap();
    instance.quiet().await;
    assert_eq!(world.probe.done("main")["a"], [1]);
    let letter = instance.photon.dead_letters("main").list(Page::first(9)).await.unwrap().remove(0);
    assert!(!letter.blocks_key);
    assert!(instance.stop().await.is_clean());
}

async fn p07_a_blocked_key_waits_through_restarts_and_crashes_and_goes_on_in_order(world: World) {
    let plan = || world.plan(["main"]).options(blocking());
    let first = plan().start().await;
    first.photon.publish(&step("a", 0, closed("gateway"))).await.unwrap();
    first.photon.publish_all((1..10).map(|n| step("a", n, Act::Yield(1)))).await.unwrap();
    first.photon.publish_all((0..10).map(|n| step("b", n, Act::Done))).await.unwrap();
    first.quiet().await;
    assert!(first.stop().await.is_clean());
    assert_eq!(world.probe.done_count("main"), 10, "only b went on");

    let second = plan().start().await;
    second.photon.publish_all((10..20).map(|n| step("a", n, Act::Yield(1)))).await.unwrap();
    second.quiet().await;
    second.crash();
    let third = plan().start().await;
    third.photon.publish_all((20..30).map(|n| step("a", n, Act::Done))).await.unwrap();
    third.quiet().await;
    assert_eq!(world.probe.of("main", "a", 0).len(), 2, "it ran once and failed once");
    assert_eq!(world.probe.done_count("main"), 10, "a waits behind its dead letter");
    let status = third.photon.subscription("main").status().await.unwrap();
    assert_eq!((status.dead, status.parked), (1, 29));

    world.probe.open("gateway");
    assert_eq!(third.photon.dead_letters("main").key("a").redrive().await.unwrap(), 1);
    third.photon.publish(&step("a", 30, Act::Done)).await.unwrap();
    third.quiet().await;
    assert_eq!(world.probe.done("main")["a"], (0..=30).collect::<Vec<_>>(), "once each, in order");
    assert!(third.stop().await.is_clean());
}

async fn p07_a_discard_lets_the_key_go_on(world: World) {
    let instance = world.plan(["main"]).options(blocking()).start().await;
    instance.photon.publish_all([step("a", 0, Act::Refuse), step("a", 1, Act::Refuse)]).await.unwrap();
    instance.photon.publish_all((2..6).map(|n| step("a", n, Act::Done))).await.unwrap();
    instance.quiet().await;
    for _ in 0..2 {
        assert_eq!(instance.photon.dead_letters("main").count().await.unwrap(), 1, "the next one waits");
        assert_eq!(instance.photon.dead_letters("main").key("a").discard().await.unwrap(), 1);
        instance.quiet().await;
    }
    assert_eq!(world.probe.done("main")["a"], [2, 3, 4, 5]);
    assert!(instance.stop().await.is_clean());
}

async fn p07_a_redriven_letter_that_dies_again_blocks_again(world: World) {
    let instance = world.plan(["main"]).options(blocking()).start().await;
    instance.photon.publish_all([step("a", 0, Act::Fail(99)), step("a", 1, Act::Done)]).await.unwrap();
    instance.quiet().await;
    for round in 1..=2 {
        let letter = instance.photon.dead_letters("main").list(Page::first(9)).await.unwrap().remove(0);
        assert_eq!((letter.attempts, letter.reason), (4, DeadReason::Exhausted), "attempts start over");
        assert!(letter.blocks_key);
        assert_eq!(world.probe.ends_of("main", "a", 0).len(), 4 * round);
        assert!(world.probe.of("main", "a", 1).is_empty(), "nothing newer comes before it");
        assert_eq!(instance.photon.dead_letters("main").letter(&letter).redrive().await.unwrap(), 1);
        instance.quiet().await;
    }
    assert!(instance.stop().await.is_clean());
}

async fn p07_a_payload_that_still_does_not_decode_is_dead_again_with_both_errors(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish_raw("steps", "{\"key\":").key("a").await.unwrap();
    instance.quiet().await;
    let letters = || instance.photon.dead_letters("main");
    let first = letters().list(Page::first(9)).await.unwrap().remove(0);
    assert_eq!(letters().redrive_all().await.unwrap(), 1);
    instance.quiet().await;
    let again = letters().list(Page::first(9)).await.unwrap().remove(0);
    assert_eq!((again.reason, again.attempts, &again.payload), (first.reason, 1, &first.payload));
    assert_eq!(again.error, format!("{} (before the redrive: {})", first.error, first.error));
    assert!(instance.stop().await.is_clean());
}

/// Thirty dead letters of as many keys, which end well once "shop" is open.
async fn thirty_dead(world: &World) -> crate::support::Instance {
    let instance = world.start(["main"]).await;
    let steps = (0..30).map(|n| step(&format!("k{n}"), n, closed("shop")));
    instance.photon.publish_all(steps).await.unwrap();
    instance.quiet().await;
    assert_eq!(instance.photon.dead_letters("main").count().await.unwrap(), 30);
    world.probe.open("shop");
    instance
}

fn assert_each_once(world: &World) {
    for n in 0..30 {
        let ends = world.probe.ends_of("main", &format!("k{n}"), n);
        assert_eq!(ends, [(1, What::Failed), (1, What::Done)], "number {n}");
    }
}

async fn p07_a_redrive_that_is_broken_off_delivers_nothing_twice(world: World) {
    let instance = thirty_dead(&world).await;
    {
        // Dropped in the middle, as by a process that ends.
        let redrive = instance.photon.dead_letters("main").rate(20).redrive_all();
        let some = world.probe.until_done("main", 5);
        tokio::select! {
            _ = redrive => panic!("it was to be broken off"),
            () = some => {}
        }
    }
    let left = instance.photon.dead_letters("main").count().await.unwrap();
    assert!((1..30).contains(&left), "{left}");
    assert!(instance.stop().await.is_clean());
    // The rest is redriven while nobody works, by one that crashes before it has run any of it.
    let publisher = world.publisher().await;
    assert_eq!(publisher.dead_letters("main").redrive_all().await.unwrap(), left);
    world.plan(["main"]).build().await.crash();
    let instance = world.start(["main"]).await;
    instance.quiet().await;
    assert!(instance.stop().await.is_clean());
    assert_each_once(&world);
}

async fn p07_two_redrives_at_once_share_the_letters(world: World) {
    let instance = thirty_dead(&world).await;
    let redrive = || instance.photon.dead_letters("main").rate(500).redrive_all();
    let (one, two) = tokio::join!(redrive(), redrive());
    assert_eq!(one.unwrap() + two.unwrap(), 30);
    instance.quiet().await;
    assert!(instance.stop().await.is_clean());
    assert_each_once(&world);
}

async fn p07_a_redrive_keeps_to_its_rate(world: World) {
    let instance = thirty_dead(&world).await;
    let before = tokio::time::Instant::now();
    assert_eq!(instance.photon.dead_letters("main").rate(50).redrive_all().await.unwrap(), 30);
    // Six batches of five, a tenth of a second apart.
    assert!(before.elapsed() >= Duration::from_millis(500), "{:?}", before.elapsed());
    instance.quiet().await;
    assert!(instance.stop().await.is_clean());
    assert_each_once(&world);
}

async fn p07_too_many_behind_one_key_pause_the_subscription(world: World) {
    let tight = Options { prefetch: Some(4), window: Some(16), max_blocked: Some(5), ..blocking() };
    let instance = world.plan(["single"]).options(tight.clone()).start().await;
    let photon = &instance.photon;
    photon.publish(&single("a", 0, closed("gateway"))).await.unwrap();
    instance.quiet().await;
    photon.publish_all((1..60).map(|n| single("a", n, Act::Done))).await.unwrap();
    photon.publish(&single("b", 0, Act::Done)).await.unwrap();
    let held_up = async || photon.subscription("single").status().await.unwrap().held_up;
    eventually("it says that it is held up", async || held_up().await.is_some()).await;
    let said = held_up().await.unwrap();
    assert_eq!((said.key.unwrap().as_bytes(), said.dead), (&b"a"[..], true));
    // It says so before what is behind it is on its way to the store.
    instance.quiet().await;
    let stored = photon.subscription("single").status().await.unwrap().parked;
    assert!((5..20).contains(&stored), "{stored} are stored behind it");
    assert!(world.probe.of("single", "b", 0).is_empty(), "nothing is read past the bound");
    // So it is for the next owner.
    assert!(instance.stop().await.is_clean());
    let instance = world.plan(["single"]).options(tight).start().await;
    let photon = &instance.photon;
    let held_up = async || photon.subscription("single").status().await.unwrap().held_up;
    eventually("it says so again", async || held_up().await.is_some()).await;

    world.probe.open("gateway");
    assert_eq!(photon.dead_letters("single").key("a").redrive().await.unwrap(), 1);
    world.probe.until_done("single", 61).await;
    assert_eq!(world.probe.done("single")["a"], (0..60).collect::<Vec<_>>(), "nothing was dropped");
    instance.quiet().await;
    eventually("it goes on", async || held_up().await.is_none()).await;
    assert!(instance.stop().await.is_clean());
}

async fn p07_what_is_not_there_gets_a_clear_answer(world: World) {
    let instance = world.start(["main"]).await;
    instance.photon.publish(&step("a", 0, Act::Refuse)).await.unwrap();
    instance.quiet().await;
    let photon = &instance.photon;
    let unknown = photon.dead_letters("mian").redrive_all().await.unwrap_err();
    assert!(matches!(&unknown, Error::NotFound(text) if text.contains("steps/main")), "{unknown}");
    let letter = photon.dead_letters("main").list(Page::first(1)).await.unwrap().remove(0);
    let other = photon.dead_letters("main").key("b").redrive().await.unwrap_err();
    assert!(matches!(&other, Error::NotFound(_)), "{other}");
    // Nobody works on it meanwhile, so that it stays redriven.
    photon.subscription("main").pause("test").await.unwrap();
    assert!(instance.stop().await.is_clean());
    let publisher = world.publisher().await;
    assert_eq!(publisher.dead_letters("main").letter(&letter).redrive().await.unwrap(), 1);
    let again = publisher.dead_letters("main").letter(&letter).redrive().await.unwrap_err();
    assert!(matches!(&again, Error::Conflict(text) if text.contains("redriven already")), "{again}");
    let filter = DeadLetterFilter::reason(DeadReason::Timeout);
    assert_eq!(publisher.dead_letters("main").filter(filter).redrive().await.unwrap(), 0);
    // Without a handler a subscription keeps what it has, and is listed as an orphan.
    let snapshot = publisher.snapshot().await.unwrap();
    let id = subscription("steps", "main");
    assert!(snapshot.subscriptions.iter().any(|s| s.subscription == id && s.parked == 1));
}
