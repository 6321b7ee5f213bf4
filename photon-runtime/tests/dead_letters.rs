//! Dead letters and the state of subscriptions, read and changed through the handle.

mod common;

use std::sync::Arc;

use common::{Order, events, note, order};
use photon_backend::memory::MemoryStore;
use photon_core::codec::decode_json;
use photon_core::descriptor::HandlerDescriptor;
use photon_core::event::Event;
use photon_core::handler::{DeadReason, Outcome};
use photon_core::ids::{GroupName, Incarnation, InstanceId, Seq, SubscriptionId, TopicName};
use photon_core::options::{Mode, Options, Start};
use photon_core::registry::Registry;
use photon_core::store::{
    Checkpoint, Checkpoints, Claim, ClaimResult, Commit, DeadLetterFilter, EventLog, Failure, Leases, Member,
    Page, Registration, RowState, ShardClaim, ShardCommit, ShardOutcome, Sideline, StoredDelivery,
};
use photon_core::time::Timestamp;
use photon_core::topic::Topic;
use photon_runtime::{Error, Photon};
use uuid::Uuid;

static BILLING: HandlerDescriptor = HandlerDescriptor {
    name: "charge",
    module: "billing",
    topic: "orders.placed",
    descriptor: Some(Order::DESCRIPTOR),
    group: Some("billing"),
    mode: Mode::Group,
    options: Options::NONE,
    call: |_| Box::pin(async { Ok(Outcome::Done) }),
    needs: |_| {},
    file: file!(),
    line: line!(),
};

/// A program with one handler, on a store that has more subscriptions.
struct World {
    store: MemoryStore,
    photon: Photon,
}

impl World {
    async fn new() -> Self {
        let store = MemoryStore::new();
        let photon = Photon::builder()
            .store(Arc::new(store.clone()))
            .registry(Registry::new(vec![&BILLING], vec![Order::DESCRIPTOR]))
            .build()
            .await
            .unwrap();
        Self { store, photon }
    }

    async fn subscribe(&self, topic: &str, group: &str, instance: Option<&str>) -> SubscriptionId {
        let id = SubscriptionId {
            topic: TopicName::new(topic).unwrap(),
            group: GroupName::new(group).unwrap(),
            instance: instance.map(|name| InstanceId::new(name).unwrap()),
        };
        let mode = if instance.is_some() { Mode::Durable } else { Mode::Group };
        let registration =
            Registration { subscription: id.clone(), start: Start::Earliest, mode, expire_after: None };
        self.store.register(&registration).await.unwrap();
        id
    }

    /// Stores the events in these states, the way an owner does, and settles everything up to them.
    async fn put(&self, id: &SubscriptionId, rows: Vec<(Event, RowState, DeadReason)>) {
        let token = Incarnation(Uuid::new_v4());
        let member = Member {
            incarnation: token,
            instance: InstanceId::new("test").unwrap(),
            host: String::new(),
            pid: 1,
            process_start: String::new(),
        };
        self.store.join(&member).await.unwrap();
        for (event, state, reason) in rows {
            let claim = ShardClaim { subscription: id.clone(), shard: event.shard };
            let claims = [Claim { shard: claim, replace: None }];
            let ClaimResult::Granted(fence) = self.store.claim(token, &claims).await.unwrap()[0] else {
                panic!("the shard is free")
            };
            let failed = Timestamp(i64::try_from(event.seq.0).unwrap() * 1_000_000);
            let failure = Failure {
                error: format!("{reason} of {}", event.id),
                reason: matches!(state, RowState::Dead { .. }).then_some(reason),
                first_failed: Some(failed),
                last_failed: Some(failed),
                deferred_since: None,
            };
            let checkpoint = Checkpoint { watermark: event.seq, ranges: Vec::new() };
            let shard = event.shard;
            let puts = vec![StoredDelivery { event, state, attempts: 3, failure, version: 0 }];
            let commit = Commit {
                subscription: id.clone(),
                shards: vec![ShardCommit {
                    shard,
                    fence,
                    puts,
                    checkpoint,
                    ends: Vec::new(),
                    trials: Vec::new(),
                }],
            };
            let outcome = self.store.commit(&commit).await.unwrap();
            assert_eq!(outcome, [ShardOutcome::Committed { conflicts: Vec::new() }]);
        }
        self.store.leave(token).await.unwrap();
    }

    /// `billing` with ten orders, all of them dead: even ones by timeout.
    async fn with_ten_dead() -> (Self, SubscriptionId) {
        let world = Self::new().await;
        let orders = (0..10).map(|n| order(if n < 4 { "ann" } else { "bob" }, n));
        world.photon.publish_all(orders).await.unwrap();
        let id = world.subscribe("orders.placed", "billing", None).await;
        let rows = events(&world.store, "orders.placed").await.into_iter().map(|event| {
            let even = event.seq.0.is_multiple_of(2);
            let reason = if even { DeadReason::Timeout } else { DeadReason::Permanent };
            (event, RowState::Dead { blocks: false }, reason)
        });
        world.put(&id, rows.collect()).await;
        (world, id)
    }
}

#[tokio::test]
async fn p07_dead_letters_are_listed_whole_and_in_pages() {
    let (world, _) = World::with_ten_dead().await;
    let letters = || world.photon.dead_letters("billing");
    assert_eq!(letters().count().await.unwrap(), 10);
    let mut seen = Vec::new();
    let mut page = Page::first(3);
    loop {
        let found = letters().list(page).await.unwrap();
        let Some(last) = found.last() else { break };
        page = Page::after(last.place(), 3);
        seen.extend(found);
    }
    let stored = events(&world.store, "orders.placed").await;
    assert_eq!(seen.len(), 10);
    for (letter, event) in seen.iter().zip(&stored) {
        assert_eq!(
            (letter.event_id, &letter.topic, letter.place()),
            (event.id, &event.topic, (event.shard, event.seq))
        );
        assert_eq!(
            (&letter.key, &letter.headers, &letter.payload),
            (&event.key, &event.headers, &event.payload)
        );
        assert_eq!((letter.attempts, letter.published, letter.blocks_key), (3, event.time, false));
        assert_eq!(letter.error, format!("{} of {}", letter.reason, event.id));
        assert_eq!(letter.last_failed, letter.first_failed);
        assert!(!format!("{letter:?}").contains("customer"));
    }
}

#[tokio::test]
async fn dead_letters_are_picked_by_key_reason_and_time() {
    let (world, _) = World::with_ten_dead().await;
    let letters = || world.photon.dead_letters("billing");
    assert_eq!(letters().key("ann").count().await.unwrap(), 4);
    let timeouts = letters().filter(DeadLetterFilter::reason(DeadReason::Timeout));
    let found = timeouts.clone().list(Page::first(50)).await.unwrap();
    assert!(!found.is_empty() && found.iter().all(|letter| letter.reason == DeadReason::Timeout));
    let of_both = timeouts.key("ann").list(Page::first(50)).await.unwrap();
    assert!(of_both.len() < found.len() && of_both.iter().all(|letter| letter.reason == DeadReason::Timeout));
    let late = letters().filter(DeadLetterFilter::failed_since(Timestamp(3_000_000))).count().await.unwrap();
    let early =
        letters().filter(DeadLetterFilter::failed_before(Timestamp(3_000_000))).count().await.unwrap();
    assert!(late > 0 && early > 0);
    assert_eq!(late + early, 10);
}

#[tokio::test]
async fn one_dead_letter_is_shown_by_place_or_by_event() {
    let (world, _) = World::with_ten_dead().await;
    let letters = || world.photon.dead_letters("billing");
    let all = letters().list(Page::first(50)).await.unwrap();
    let wanted = &all[6];
    assert_eq!(letters().show(wanted.place()).await.unwrap().event_id, wanted.event_id);
    assert_eq!(letters().show(wanted.event_id).await.unwrap().place(), wanted.place());
    assert_eq!(letters().show(wanted).await.unwrap().payload, wanted.payload);
    let error = letters().show((wanted.shard, Seq(999))).await.unwrap_err();
    assert!(matches!(error, Error::NotFound(_)), "{error}");
}

#[tokio::test]
async fn p07_redrive_gives_back_what_was_picked_and_nothing_else() {
    let (world, id) = World::with_ten_dead().await;
    // A second subscription with the same rows.
    let other = world.subscribe("orders.placed", "mail", None).await;
    let rows = events(&world.store, "orders.placed").await.into_iter();
    let rows = rows.map(|event| (event, RowState::Dead { blocks: false }, DeadReason::Crash)).collect();
    world.put(&other, rows).await;

    let letters = || world.photon.dead_letters("billing");
    assert_eq!(letters().key("ann").redrive().await.unwrap(), 4);
    assert_eq!(letters().count().await.unwrap(), 6);
    let status = world.photon.subscription("billing").status().await.unwrap();
    assert_eq!((status.parked, status.dead), (4, 6));
    let again = letters().key("ann").redrive().await.unwrap_err();
    assert!(matches!(&again, Error::NotFound(text) if text.contains("ann")), "{again}");

    let one = letters().list(Page::first(1)).await.unwrap().remove(0);
    assert_eq!(letters().letter(&one).redrive().await.unwrap(), 1);
    for letter in [one.place().into(), photon_runtime::Letter::from(one.event_id)] {
        let again = letters().letter(letter).redrive().await.unwrap_err();
        assert!(matches!(&again, Error::Conflict(text) if text.contains("redriven already")), "{again}");
        let again = letters().show(letter).await.unwrap_err();
        assert!(matches!(again, Error::Conflict(_)), "{again}");
    }
    let rows = world.store.get(&id, one.shard, &[one.seq]).await.unwrap();
    assert_eq!(rows[0].attempts, 0);

    assert_eq!(letters().redrive_all().await.unwrap(), 5);
    assert_eq!(letters().redrive_all().await.unwrap(), 0);
    assert_eq!(world.photon.dead_letters("mail").count().await.unwrap(), 10);
}

#[tokio::test]
async fn discard_ends_dead_letters_for_good() {
    let (world, _) = World::with_ten_dead().await;
    let letters = || world.photon.dead_letters("billing");
    let one = letters().list(Page::first(1)).await.unwrap().remove(0);
    assert_eq!(letters().letter(one.event_id).discard().await.unwrap(), 1);
    let again = letters().letter(&one).discard().await.unwrap_err();
    assert!(matches!(&again, Error::NotFound(text) if text.contains("was discarded")), "{again}");
    let other_reason = letters()
        .letter(letters().list(Page::first(1)).await.unwrap()[0].place())
        .filter(DeadLetterFilter::reason(DeadReason::Crash));
    let error = other_reason.discard().await.unwrap_err();
    assert!(matches!(&error, Error::NotFound(text) if text.contains("does not match")), "{error}");
    assert_eq!(letters().discard_all().await.unwrap(), 9);
    assert_eq!(letters().count().await.unwrap(), 0);
}

#[tokio::test]
async fn everything_must_be_asked_for_by_name() {
    let (world, _) = World::with_ten_dead().await;
    for error in [
        world.photon.dead_letters("billing").redrive().await.unwrap_err(),
        world.photon.dead_letters("billing").discard().await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Refused { message, .. } if message.contains("_all()")), "{error}");
    }
    assert_eq!(world.photon.dead_letters("billing").count().await.unwrap(), 10);
}

#[tokio::test]
async fn more_than_a_thousand_are_changed_at_once() {
    let world = World::new().await;
    world.photon.publish_all((0..2_500).map(|n| order("ann", n))).await.unwrap();
    let id = world.subscribe("orders.placed", "billing", None).await;
    let rows = events(&world.store, "orders.placed").await.into_iter();
    world
        .put(&id, rows.map(|event| (event, RowState::Dead { blocks: true }, DeadReason::Panic)).collect())
        .await;
    let last = world.photon.dead_letters("billing").list(Page::first(5_000)).await.unwrap().pop().unwrap();
    assert!(last.blocks_key);
    let shown = world.photon.dead_letters("billing").show(last.event_id).await.unwrap();
    assert_eq!(shown.place(), last.place());
    assert_eq!(decode_json::<Order>(&shown.event()).unwrap(), order("ann", 2_499));
    assert_eq!(shown.decode::<Event>().unwrap(), shown.event());
    assert_eq!(world.photon.dead_letters("billing").redrive_all().await.unwrap(), 2_500);
    assert_eq!(world.photon.dead_letters("billing").count().await.unwrap(), 0);
}

#[tokio::test]
async fn a_subscription_without_a_handler_is_listed_as_an_orphan() {
    let world = World::new().await;
    world.photon.publish(&order("ann", 1)).await.unwrap();
    let id = world.subscribe("orders.placed", "gone", None).await;
    let event = events(&world.store, "orders.placed").await.remove(0);
    world.put(&id, vec![(event, RowState::Dead { blocks: false }, DeadReason::Undecodable)]).await;
    let letters = world.photon.dead_letters("gone").list(Page::first(5)).await.unwrap();
    assert_eq!(letters[0].reason, DeadReason::Undecodable);
    let status = world.photon.subscription("gone").status().await.unwrap();
    assert!(!status.has_handler && status.registered.is_some());
}

#[tokio::test]
async fn a_name_that_fits_none_or_several_is_answered_with_what_there_is() {
    let world = World::new().await;
    world.photon.publish(&note("x")).await.unwrap();
    world.photon.publish(&order("ann", 1)).await.unwrap();
    world.subscribe("notes", "billing", None).await;
    world.subscribe("notes", "mail", Some("pod-1")).await;
    world.subscribe("notes", "mail", Some("pod-2")).await;

    let error = world.photon.dead_letters("biling").count().await.unwrap_err();
    let Error::NotFound(text) = &error else { panic!("{error}") };
    assert!(text.contains("notes/billing") && text.contains("orders.placed/billing"), "{text}");
    let error = world.photon.dead_letters("billing").count().await.unwrap_err();
    let Error::Conflict(text) = &error else { panic!("{error}") };
    assert!(text.contains("notes/billing, orders.placed/billing"), "{text}");
    assert!(matches!(world.photon.subscription("mail").status().await, Err(Error::Conflict(_))));

    for name in ["notes/billing", "orders.placed/billing", "mail@pod-1", "notes/mail@pod-2"] {
        assert_eq!(world.photon.dead_letters(name).count().await.unwrap(), 0, "{name}");
    }
    let status = world.photon.subscription(("notes", "billing")).status().await.unwrap();
    assert_eq!(status.subscription.to_string(), "notes/billing");
    let again = world.photon.subscription(&status.subscription).status().await.unwrap();
    assert_eq!(again.subscription, status.subscription);
}

#[tokio::test]
async fn the_snapshot_tells_how_far_everybody_is() {
    let (world, id) = World::with_ten_dead().await;
    world.photon.publish_all((0..6).map(|n| order("ann", n))).await.unwrap();
    let snapshot = world.photon.snapshot().await.unwrap();
    assert_eq!(snapshot.engine, "memory");
    assert_eq!(snapshot.topics.len(), 1);
    assert_eq!(snapshot.topics[0].shards.len(), 4);
    assert_eq!(snapshot.members, []);
    assert_eq!(snapshot.subscriptions.len(), 1);
    let status = &snapshot.subscriptions[0];
    assert_eq!((&status.subscription, status.mode, status.has_handler), (&id, Mode::Group, true));
    assert_eq!((status.lag(), status.dead, status.parked), (6, 10, 0));
    let at_end = world.store.bounds(&id.topic).await.unwrap();
    for (shard, bounds) in status.shards.iter().zip(at_end) {
        assert_eq!((shard.shard, shard.end), (bounds.shard, bounds.end));
    }
}

#[tokio::test]
async fn a_handler_that_never_started_has_an_empty_state() {
    let world = World::new().await;
    let status = world.photon.subscription("billing").status().await.unwrap();
    assert!(status.has_handler && status.registered.is_none() && status.shards.is_empty());
    assert_eq!(world.photon.dead_letters("billing").count().await.unwrap(), 0);
    let snapshot = world.photon.snapshot().await.unwrap();
    assert_eq!((snapshot.topics.len(), snapshot.subscriptions.len()), (0, 1));
}
