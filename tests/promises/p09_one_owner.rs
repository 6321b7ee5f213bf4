//! P9: one owner's word counts.

use std::time::Duration;

use photon::store::{Claim, ClaimResult, Fence, Lane, Member, RowState, ShardClaim, Store};
use photon::{Incarnation, InstanceId, Options, Page, Shard};

use crate::support::instance::{eventually, subscription};
use crate::support::{Act, What, World, single};

on_every_engine!(
    p09_what_a_late_owner_settles_is_refused_and_done_again,
    p09_a_dead_letter_of_a_late_owner_is_refused,
    p09_a_parked_delivery_of_a_late_owner_is_refused,
);

/// Takes the only shard of "single" from whoever owns it, as another process does that sees it stand still.
async fn take_over(store: &dyn Store) -> (Incarnation, Fence) {
    let incarnation = Incarnation(uuid::Uuid::new_v4());
    let member = Member {
        incarnation,
        instance: InstanceId::new("usurper").unwrap(),
        host: "elsewhere".to_owned(),
        pid: 1,
        process_start: "1".to_owned(),
    };
    store.join(&member).await.unwrap();
    let shard = ShardClaim { subscription: subscription("single", "single"), shard: Shard(0) };
    loop {
        let holders = store.members().await.unwrap();
        let replace = holders.iter().find(|info| info.member.incarnation != incarnation);
        let replace = replace.map(|info| (info.member.incarnation, info.heartbeat));
        let claim = Claim { shard: shard.clone(), replace };
        if let ClaimResult::Granted(fence) = store.claim(incarnation, &[claim]).await.unwrap()[0] {
            return (incarnation, fence);
        }
    }
}

/// Ends what [`take_over`] began; the instance gets the shard back.
async fn give_back(store: &dyn Store, incarnation: Incarnation) {
    let shard = ShardClaim { subscription: subscription("single", "single"), shard: Shard(0) };
    store.release(incarnation, &[shard]).await.unwrap();
    store.leave(incarnation).await.unwrap();
}

/// An instance whose handler of one event stands at the gate "end" while another owner takes its shard; then the gate
/// opens, and the handler ends as `act` says.
async fn overtaken(world: &World, act: Act, options: Options) -> (crate::support::Instance, Incarnation) {
    let instance = world.plan(["single"]).options(options).start().await;
    // Two of one key: the second runs once the first has ended, under the fence that is late by then.
    instance.photon.publish(&single("a", 0, Act::Wait("end".to_owned()))).await.unwrap();
    instance.photon.publish(&single("a", 1, act)).await.unwrap();
    world.probe.until("the first runs", |entries| !entries.is_empty()).await;
    let before = world.checkpoint().await;
    let (usurper, _) = take_over(&*world.store).await;
    world.probe.open("end");
    world.probe.until("the first ended", |entries| entries.iter().any(|e| e.what == What::Done)).await;
    // Whatever the late owner writes from here on is refused.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.checkpoint().await, before, "a late owner moved the checkpoint");
    let id = subscription("single", "single");
    let rows = world.store.rows_in(&id, Shard(0), photon::Seq::ZERO, photon::Seq::MAX).await.unwrap();
    assert_eq!(rows, [], "a late owner stored deliveries");
    (instance, usurper)
}

async fn p09_what_a_late_owner_settles_is_refused_and_done_again(world: World) {
    let (instance, usurper) = overtaken(&world, Act::Done, Options::NONE).await;
    give_back(&*world.store, usurper).await;
    world
        .probe
        .until("the first is done again", |entries| {
            entries.iter().filter(|entry| entry.n == 0 && entry.what == What::Done).count() == 2
        })
        .await;
    instance.quiet().await;
    world.probe.assert_key_order("single");
    assert!(instance.stop().await.is_clean());
    let places: Vec<_> = world.events("single").await.into_iter().map(|event| event.seq).collect();
    assert_eq!((places.len(), world.checkpoint().await.watermark), (2, places[1]));
}

async fn p09_a_dead_letter_of_a_late_owner_is_refused(world: World) {
    let (instance, usurper) = overtaken(&world, Act::Refuse, Options::NONE).await;
    assert_eq!(instance.photon.dead_letters("single").count().await.unwrap(), 0);
    give_back(&*world.store, usurper).await;
    eventually("the owner of today stores it", async || {
        instance.photon.dead_letters("single").count().await.unwrap() == 1
    })
    .await;
    let letter = instance.photon.dead_letters("single").list(Page::first(1)).await.unwrap().remove(0);
    assert_eq!(letter.attempts, 1, "what was done under the old fence costs nothing");
    assert!(instance.stop().await.is_clean());
}

async fn p09_a_parked_delivery_of_a_late_owner_is_refused(world: World) {
    let park = Options { park_after: Some(Duration::ZERO), ..Options::NONE };
    let (instance, usurper) = overtaken(&world, Act::FailAfter(3_600_000), park).await;
    give_back(&*world.store, usurper).await;
    let (id, lane) = (subscription("single", "single"), Lane::Key(photon::Key::new("a")));
    eventually("the owner of today parks it", async || {
        let rows = world.store.lane(&id, Shard(0), &lane, 9).await.unwrap();
        rows.iter().any(|row| matches!(row.state, RowState::Parked { .. }) && row.attempts == 1)
    })
    .await;
    assert!(instance.stop().await.is_clean());
}
