//! P6: whatever goes wrong in a handler is one failed attempt of one delivery.

use std::time::Duration;

use photon::{DeadReason, Options, Page};

use crate::support::{Act, What, World, step};

on_every_engine!(
    p06_each_way_to_fail_is_one_attempt_of_one_delivery,
    p06_a_panic_while_a_handler_is_dropped_is_one_attempt,
    p06_an_extractor_that_fails_or_panics_is_one_attempt,
    p06_a_failing_subscription_leaves_the_others_alone,
    p06_a_handler_that_never_ends_holds_its_key_alone,
    p06_a_busy_key_behind_a_long_handler_leaves_the_others_alone,
);

async fn p06_each_way_to_fail_is_one_attempt_of_one_delivery(world: World) {
    let quick = Options { timeout: Some(Duration::from_millis(150)), max_attempts: Some(2), ..Options::NONE };
    let instance = world.plan(["main"]).options(quick).start().await;
    let photon = &instance.photon;
    let acts = [
        ("error", Act::Fail(9), DeadReason::Exhausted, "attempt 2 of error:0 failed", What::Failed),
        ("panic", Act::PanicAtOnce(9), DeadReason::Panic, "the handler panicked: at once", What::Panicked),
        ("late-panic", Act::PanicLater(9), DeadReason::Panic, "the handler panicked: later", What::Panicked),
        ("odd-panic", Act::PanicOddly, DeadReason::Panic, "a value that is no text", What::Panicked),
        (
            "timeout",
            Act::Hang,
            DeadReason::Timeout,
            "did not end within its timeout of 150ms",
            What::BrokenOff,
        ),
    ];
    for (key, act, ..) in &acts {
        photon.publish(&step(key, 0, act.clone())).await.unwrap();
        // The same key goes on after it, and others beside it.
        photon.publish(&step(key, 1, Act::Done)).await.unwrap();
        photon.publish(&step("good", 0, Act::Done)).await.unwrap();
    }
    photon.publish_raw("steps", "{\"key\":").key("undecodable").await.unwrap();
    photon.publish(&step("undecodable", 1, Act::Done)).await.unwrap();
    let report = instance.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    let publisher = world.publisher().await;
    let letters = publisher.dead_letters("main").list(Page::first(100)).await.unwrap();
    assert_eq!(letters.len(), acts.len() + 1);
    let of = |key: &str| {
        let mut found =
            letters.iter().filter(|l| l.key.as_ref().is_some_and(|k| k.as_bytes() == key.as_bytes()));
        found.next().unwrap_or_else(|| panic!("no letter of {key}"))
    };
    for (key, _, reason, error, what) in acts {
        assert_eq!(world.probe.ends_of("main", key, 0), [(1, what), (2, what)], "{key}");
        assert_eq!(world.probe.ends_of("main", key, 1), [(1, What::Done)], "{key}");
        let letter = of(key);
        assert_eq!((letter.reason, letter.attempts), (reason, 2), "{key}");
        assert!(letter.error.contains(error), "{key}: {}", letter.error);
    }
    let undecodable = of("undecodable");
    assert_eq!((undecodable.reason, undecodable.attempts), (DeadReason::Undecodable, 1));
    assert_eq!(undecodable.payload, "{\"key\":");
    assert_eq!(world.probe.ends_of("main", "good", 0).len(), 5);
}

async fn p06_a_panic_while_a_handler_is_dropped_is_one_attempt(world: World) {
    let quick = Options { timeout: Some(Duration::from_millis(50)), max_attempts: Some(2), ..Options::NONE };
    let instance = world.plan(["main"]).options(quick).start().await;
    // One drops at its end, the other when its time is over.
    for (key, hang) in [("ends", false), ("hangs", true)] {
        instance.photon.publish(&step(key, 0, Act::Bomb { hang })).await.unwrap();
        instance.photon.publish(&step(key, 1, Act::Done)).await.unwrap();
    }
    let photon = instance.photon.clone();
    let report = instance.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    let letters = photon.dead_letters("main").list(Page::first(9)).await.unwrap();
    assert_eq!(letters.len(), 2);
    assert!(letters.iter().all(|l| l.attempts == 2 && l.reason == DeadReason::Panic), "{letters:?}");
    assert_eq!(world.probe.done_count("main"), 2);
}

async fn p06_an_extractor_that_fails_or_panics_is_one_attempt(world: World) {
    let instance = world.start(["picky"]).await;
    let photon = &instance.photon;
    photon.publish(&step("a", 0, Act::Done)).header("tenant", "panic").await.unwrap();
    photon.publish(&step("a", 1, Act::Done)).await.unwrap();
    photon.publish(&step("a", 2, Act::Done)).header("tenant", "acme").await.unwrap();
    let photon = photon.clone();
    instance.drain().await.unwrap();
    assert_eq!(world.probe.done("picky")["a"], [2]);
    let letters = photon.dead_letters("picky").list(Page::first(9)).await.unwrap();
    let told: Vec<_> = letters.iter().map(|l| (l.reason, l.attempts, l.error.as_str())).collect();
    assert_eq!(
        told,
        [
            (DeadReason::Panic, 4, "the handler panicked: extractor"),
            (DeadReason::Permanent, 1, "no header \"tenant\""),
        ]
    );
}

async fn p06_a_failing_subscription_leaves_the_others_alone(world: World) {
    let instance = world.start(["main", "other"]).await;
    let acts = [Act::PanicAtOnce(9), Act::Refuse, Act::Fail(9), Act::PanicLater(9)];
    let steps =
        (0..200u64).map(|n| step(&format!("k{}", n % 9), n, acts[usize::try_from(n % 4).unwrap()].clone()));
    instance.photon.publish_all(steps).await.unwrap();
    let photon = instance.photon.clone();
    let report = instance.drain().await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(world.probe.done_count("main"), 0);
    assert_eq!(world.probe.done_count("other"), 200);
    assert_eq!(photon.dead_letters("main").count().await.unwrap(), 200);
    assert_eq!(photon.dead_letters("other").count().await.unwrap(), 0);
}

async fn p06_a_handler_that_never_ends_holds_its_key_alone(world: World) {
    let instance = world.plan(["main"]).with(|b| b.drain_timeout(Duration::from_millis(50))).start().await;
    instance.photon.publish_all([step("hangs", 0, Act::Hang), step("hangs", 1, Act::Done)]).await.unwrap();
    instance
        .photon
        .publish_all((0..100).map(|n| step(&format!("k{}", n % 3), n, Act::Yield(2))))
        .await
        .unwrap();
    world.probe.until_done("main", 100).await;
    assert_eq!(world.probe.of("main", "hangs", 1), []);
    let report = instance.stop().await;
    assert_eq!((report.subscriptions[0].cancelled, report.subscriptions[0].uncommitted), (1, 0), "{report}");
}

async fn p06_a_busy_key_behind_a_long_handler_leaves_the_others_alone(world: World) {
    let few = Options {
        prefetch: Some(64),
        window: Some(128),
        park_after: Some(Duration::from_millis(100)),
        ..Options::NONE
    };
    let instance = world.plan(["main"]).options(few).start().await;
    let first = std::iter::once(step("busy", 0, Act::Wait("gate".to_owned())));
    let busy = first.chain((1..2_000).map(|n| step("busy", n, Act::Done)));
    instance.photon.publish_all(busy).await.unwrap();
    instance.photon.publish_all((0..100).map(|n| step("other", n, Act::Done))).await.unwrap();
    world.probe.until_done("main", 100).await;
    assert_eq!(world.probe.done("main").get("busy"), None);
    world.probe.open("gate");
    assert!(instance.drain().await.unwrap().is_clean());
    let done = world.probe.done("main");
    assert_eq!((&done["busy"], &done["other"]), (&(0..2_000).collect(), &(0..100).collect()));
}
