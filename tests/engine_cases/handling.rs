//! Cases of what handlers do.

use std::time::Duration;

use photon::prelude::*;
use photon::{DeadReason, Error, Options, Photon, Registry, Subscription};

use crate::support::{Act, What, World, step};

on_every_engine!(case_twin_subscriptions, case_poison, case_shutdown_in_backoff, case_panics);

#[topic(name = "twins", shards = 1)]
#[derive(Serialize, Deserialize)]
struct Twin {}

#[subscribe(group = "twins")]
async fn one(_: Twin) {}

#[subscribe(group = "twins")]
async fn two(_: Twin) {}

async fn case_twin_subscriptions(world: World) {
    let photon = Photon::builder().store(world.store.clone()).only(["twins"]).build().await.unwrap();
    let Error::Start(problems) = photon.start_executor().await.unwrap_err() else {
        panic!("it is about the start")
    };
    let places: Vec<String> = Registry::linked()
        .handlers
        .iter()
        .filter(|handler| handler.group_name() == "twins")
        .map(|handler| format!("{}:{}", handler.file, handler.line))
        .collect();
    assert_eq!((places.len(), problems.0.len()), (2, 1));
    let text = problems.to_string();
    assert!(places.iter().all(|place| text.contains(place.as_str())), "{places:?} in {text}");

    // The same of two that are added while the program runs.
    let photon = Photon::builder().store(world.store.clone()).allow_no_handlers().build().await.unwrap();
    let spec = || Subscription::to(photon::DynamicTopic::new("twins").unwrap().shards(1)).group("late");
    let first = photon.subscribe(spec(), async |_: Event| ()).await.unwrap();
    let error = photon.subscribe(spec(), async |_: Event| ()).await.unwrap_err().to_string();
    assert!(error.contains("same subscription") && error.contains(file!()), "{error}");
    drop(first);
}

async fn case_poison(world: World) {
    let instance = world.start(["main"]).await;
    let photon = instance.photon.clone();
    let broken = photon.publish_raw("steps", "{\"id\":").key("k").await.unwrap();
    photon.publish(&step("k", 1, Act::Fail(99))).await.unwrap();
    photon.publish(&step("k", 2, Act::Done)).await.unwrap();
    instance.drain().await.unwrap();
    let letter = photon.dead_letters("main").show(broken.id).await.unwrap();
    assert_eq!((letter.reason, letter.attempts), (DeadReason::Undecodable, 1));
    assert_eq!(letter.payload, "{\"id\":");
    let begun: Vec<_> =
        world.probe.of("main", "k", 1).into_iter().filter(|e| e.what == What::Begun).collect();
    assert_eq!(begun.len(), 4);
    assert!(begun.windows(2).all(|pair| pair[1].at - pair[0].at >= Duration::from_millis(10)));
    assert_eq!(world.probe.done("main")["k"], [2]);
}

async fn case_shutdown_in_backoff(world: World) {
    for park_after in [Duration::from_secs(5), Duration::from_secs(3_600)] {
        let layer = Options { park_after: Some(park_after), ..Options::NONE };
        let instance = world.plan(["main"]).options(layer).start().await;
        let key = format!("{park_after:?}");
        instance.photon.publish(&step(&key, 0, Act::FailAfter(600_000))).await.unwrap();
        world
            .probe
            .until("it failed", |seen| seen.iter().any(|e| e.key == key && e.what == What::Failed))
            .await;
        let began = tokio::time::Instant::now();
        let report = instance.stop().await;
        assert!(report.is_clean() && began.elapsed() < Duration::from_secs(1), "{report}");
    }
    let status = world.publisher().await.subscription("steps/main").status().await.unwrap();
    assert_eq!((status.parked, status.dead), (2, 0));
    assert_eq!(world.probe.done_count("main"), 0);
}

async fn case_panics(world: World) {
    let instance = world.start(["main"]).await;
    let acts = [Act::PanicAtOnce(1), Act::PanicLater(1), Act::Done];
    for (n, act) in (0..).zip(acts) {
        instance
            .photon
            .publish_all([step(&format!("k{n}"), 0, act), step(&format!("k{n}"), 1, Act::Done)])
            .await
            .unwrap();
    }
    assert!(instance.drain().await.unwrap().is_clean());
    for key in ["k0", "k1"] {
        assert_eq!(world.probe.ends_of("main", key, 0), [(1, What::Panicked), (2, What::Done)]);
    }
    assert_eq!(world.probe.done_count("main"), 6);
}
