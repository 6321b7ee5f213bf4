//! Modes, start positions, extractors and actors, as users meet them.

use std::sync::{Arc, Mutex};

use photon::prelude::*;
use photon::{BoxError, DeadReason, Options, Page, Photon, Start};

use crate::support::instance::{options, within};
use crate::support::script::LIVE;
use crate::support::{Act, World, step};

on_embedded_engines!(
    every_instance_of_a_durable_subscription_gets_every_event,
    a_durable_position_survives_a_restart,
    an_ephemeral_subscription_gets_what_comes_while_it_runs,
    a_new_subscription_starts_where_it_is_told_to,
    a_known_subscription_goes_on_wherever_it_is_told_to_start,
    extractors_give_what_the_delivery_holds,
    an_actor_travels_with_the_event,
);

async fn every_instance_of_a_durable_subscription_gets_every_event(world: World) {
    let one = world.plan(["each"]).with(|b| b.instance("one")).start().await;
    let two = world.plan(["each"]).with(|b| b.instance("two")).start().await;
    one.photon.publish_all((0..20).map(|n| step("k", n, Act::Done))).await.unwrap();
    world.probe.until_done("each", 40).await;
    let (by_one, by_two) = (one.probe.clone(), two.probe.clone());
    one.drain().await.unwrap();
    two.drain().await.unwrap();
    drop((by_one, by_two));
    let entries = world.probe.entries();
    let workers: std::collections::BTreeSet<u32> = entries.iter().map(|e| e.by).collect();
    for by in &workers {
        let of = |e: &&crate::support::Entry| e.by == *by && e.what == crate::support::What::Done;
        let numbers: Vec<u64> = entries.iter().filter(of).map(|e| e.n).collect();
        assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    }
    assert_eq!(workers.len(), 2);
}

async fn a_durable_position_survives_a_restart(world: World) {
    for round in 0..3 {
        let instance = world.plan(["each"]).with(|b| b.instance("one")).start().await;
        instance.photon.publish(&step("k", round, Act::Done)).await.unwrap();
        instance.drain().await.unwrap();
    }
    assert_eq!(world.probe.done("each")["k"], [0, 1, 2]);
    let known = world.store.list().await.unwrap();
    assert_eq!(known.len(), 1);
    assert!(known[0].subscription.to_string().contains("one"), "{}", known[0].subscription);
}

async fn an_ephemeral_subscription_gets_what_comes_while_it_runs(world: World) {
    let publisher = world.publisher().await;
    publisher.publish_all((0..5).map(|n| step("k", n, Act::Done))).await.unwrap();
    let instance = world.start([LIVE]).await;
    publisher
        .publish_all([step("k", 5, Act::Done), step("k", 6, Act::Fail(1)), step("k", 7, Act::Refuse)])
        .await
        .unwrap();
    publisher.publish(&step("k", 8, Act::Done)).await.unwrap();
    world.probe.until_done("live", 3).await;
    let report = instance.stop().await;
    assert!(report.is_clean(), "{report}");
    publisher.publish(&step("k", 9, Act::Done)).await.unwrap();
    world.start([LIVE]).await.drain().await.unwrap();
    assert_eq!(world.probe.done("live")["k"], [5, 6, 8]);
    // It left nothing behind.
    assert_eq!(world.store.list().await.unwrap(), []);
}

async fn a_new_subscription_starts_where_it_is_told_to(world: World) {
    let publisher = world.publisher().await;
    publisher.publish_all((0..5).map(|n| step("k", n, Act::Done))).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let between = world.engine.clock.wall();
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    publisher.publish_all((5..10).map(|n| step("k", n, Act::Done))).await.unwrap();
    for (group, start, first) in
        [("main", Start::Earliest, 0), ("other", Start::At(between), 5), ("picky", Start::Latest, 10)]
    {
        let plan = world.plan([group]).options(Options { start: Some(start), ..Options::NONE });
        let instance = plan.start().await;
        publisher.publish(&step(group, 10, Act::Done)).header("tenant", "acme").await.unwrap();
        instance.drain().await.unwrap();
        let done = world.probe.done(group);
        assert_eq!(done.get("k").map_or(10, |done| done[0]), first, "{group}");
        assert_eq!(done[group], [10]);
    }
}

async fn a_known_subscription_goes_on_wherever_it_is_told_to_start(world: World) {
    let publisher = world.publisher().await;
    for (round, start) in (0..).zip([Start::Earliest, Start::Latest, Start::Earliest]) {
        publisher.publish(&step("k", round, Act::Done)).await.unwrap();
        let plan = world.plan(["main"]).options(Options { start: Some(start), ..Options::NONE });
        plan.start().await.drain().await.unwrap();
    }
    assert_eq!(world.probe.done("main")["k"], [0, 1, 2]);
}

#[derive(Debug, Clone, PartialEq)]
struct User {
    name: String,
}

struct Users;

impl IdentityFactory for Users {
    type Identity = User;

    fn write(&self, user: &User) -> Result<Vec<u8>, BoxError> {
        Ok(user.name.clone().into_bytes())
    }

    fn rebuild(&self, bytes: &[u8]) -> Result<User, BoxError> {
        match std::str::from_utf8(bytes)? {
            "gone" => Err("the user does not exist any more".into()),
            name => Ok(User { name: name.to_owned() }),
        }
    }
}

/// What a handler was given.
#[derive(Clone, Default)]
struct Given(Arc<Mutex<Vec<String>>>);

#[topic(name = "visits", key = page, shards = 2)]
#[derive(Debug, Serialize, Deserialize)]
struct Visit {
    page: String,
}

#[subscribe(group = "extract")]
async fn extract(
    Visit { page }: Visit,
    cx: Context,
    State(given): State<Given>,
    key: Option<Key>,
    headers: Headers,
    id: EventId,
) {
    assert_eq!((cx.event_id(), cx.key()), (id, key.as_ref()));
    assert_eq!(cx.subscription().to_string(), "visits/extract");
    assert!(cx.delivery_id().contains(&id.to_string()) && cx.attempt() == 1 && !cx.is_last_attempt());
    let line = format!("{page} {:?} {:?}", key.map(|key| key.to_string()), headers.get("from"));
    given.0.lock().unwrap().push(line);
}

#[subscribe(group = "actors")]
async fn actors(visit: Visit, State(given): State<Given>, Actor(user): Actor<User>) {
    given.0.lock().unwrap().push(format!("{} by {}", visit.page, user.name));
}

async fn photon(world: &World, group: &str) -> (Photon, Given) {
    let given = Given::default();
    let builder = Photon::builder().store(world.store.clone()).clock(world.engine.clock).options(options());
    let photon = builder.state(given.clone()).identity(Users).only([group]).build().await.unwrap();
    (photon, given)
}

async fn extractors_give_what_the_delivery_holds(world: World) {
    let (photon, given) = photon(&world, "extract").await;
    let executor = photon.start_executor().await.unwrap();
    photon.publish(&Visit { page: "home".into() }).header("from", "mail").await.unwrap();
    photon.publish(&Visit { page: "about".into() }).key("home").await.unwrap();
    photon.publish(&Visit { page: "free".into() }).key(None::<Key>).await.unwrap();
    within(executor.drain()).await.unwrap();
    let mut given = given.0.lock().unwrap().clone();
    given.sort_unstable();
    assert_eq!(given, ["about Some(\"home\") None", "free None None", "home Some(\"home\") Some(\"mail\")"]);
}

async fn an_actor_travels_with_the_event(world: World) {
    let (photon, given) = photon(&world, "actors").await;
    let executor = photon.start_executor().await.unwrap();
    let by = |name: &str| User { name: name.to_owned() };
    photon.publish(&Visit { page: "home".into() }).actor(&by("ann")).await.unwrap();
    let gone = photon.publish(&Visit { page: "home".into() }).actor(&by("gone")).await.unwrap();
    let error = photon.publish(&Visit { page: "home".into() }).actor(&"somebody").await.unwrap_err();
    assert!(error.to_string().contains(".identity(factory)"), "{error}");
    photon.publish(&Visit { page: "home".into() }).actor(&by("bob")).await.unwrap();
    within(executor.drain()).await.unwrap();
    assert_eq!(*given.0.lock().unwrap(), ["home by ann", "home by bob"]);
    let letters = photon.dead_letters("actors").list(Page::first(9)).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].event_id, letters[0].reason, letters[0].attempts),
        (gone.id, DeadReason::Identity, 1)
    );
    assert_eq!(letters[0].error, "the user does not exist any more");
}
