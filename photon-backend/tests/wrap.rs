//! The wrappers: stores themselves, and the faults they inject.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use photon_backend::conformance::{Harness, Suite};
use photon_backend::memory::MemoryStore;
use photon_backend::wrap::Op;
use photon_backend::wrap::fault::{Fault, FaultStore, Faults, Rule};
use photon_backend::wrap::observe::{End, Seen, observe, record};
use photon_core::error::StoreErrorKind;
use photon_core::event::NewEvent;
use photon_core::headers::Headers;
use photon_core::ids::{
    EventId, Generation, GroupName, Incarnation, InstanceId, Seq, Shard, SubscriptionId, TopicName,
};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoint, Checkpoints, Claim, ClaimResult, Commit, Cursor, EventLog, Failure, Fence, Leases, Member,
    ReadLimit, Registration, RowState, ShardClaim, ShardCommit, ShardOutcome, Sideline, Store,
    StoredDelivery, TopicSpec,
};
use tokio::time::Instant;
use uuid::Uuid;

/// A memory store within wrappers that change nothing.
struct Wrappers;

#[async_trait]
impl Harness for Wrappers {
    async fn fresh(&self) -> Arc<dyn Store> {
        let faults = Faults::seeded(1);
        faults.add(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).chance(0));
        faults.add(Rule::new(Fault::Hang).times(0));
        Arc::new(observe(Arc::new(record(Arc::new(faults.wrap(Arc::new(MemoryStore::new())))))))
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Option<Arc<dyn Store>> {
        Some(store)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn wrappers_that_change_nothing_conform() {
    Suite::new().run(&Wrappers).await.assert_passed();
}

fn topic() -> TopicName {
    TopicName::new("orders").unwrap()
}

fn event(shard: u16, number: u8) -> NewEvent {
    NewEvent {
        id: EventId(Uuid::from_u128(u128::from(number))),
        shard: Shard(shard),
        key: None,
        headers: Headers::new(),
        payload: Bytes::from(vec![number]),
        dedup_id: None,
    }
}

async fn store(faults: &Faults, shards: u16) -> FaultStore {
    let store = faults.wrap(Arc::new(MemoryStore::new()));
    let generation = Generation(Uuid::from_u128(7));
    store.ensure_topic(&TopicSpec { name: topic(), shards, key: None, generation }).await.unwrap();
    store
}

async fn payloads(store: &dyn Store, shard: u16) -> Vec<u8> {
    let cursor = Cursor { shard: Shard(shard), after: Seq::ZERO };
    let batch = store.read(&topic(), &[cursor], ReadLimit { records: 1_000, bytes: 1 << 20 }).await.unwrap();
    batch.records.iter().map(|event| event.payload[0]).collect()
}

/// A claimed shard of a registered subscription.
async fn owned(store: &dyn Store) -> (SubscriptionId, Incarnation, Fence) {
    let subscription = SubscriptionId::new(topic(), GroupName::new("billing").unwrap());
    let registration = Registration {
        subscription: subscription.clone(),
        start: Start::Earliest,
        mode: Mode::Group,
        expire_after: None,
    };
    store.register(&registration).await.unwrap();
    let incarnation = Incarnation(Uuid::from_u128(9));
    let instance = InstanceId::new("pod-1").unwrap();
    let member = Member { incarnation, instance, host: String::new(), pid: 1, process_start: String::new() };
    store.join(&member).await.unwrap();
    let shard = ShardClaim { subscription: subscription.clone(), shard: Shard(0) };
    let claims = store.claim(incarnation, &[Claim { shard, replace: None }]).await.unwrap();
    let ClaimResult::Granted(fence) = claims[0] else { panic!("the shard is free") };
    (subscription, incarnation, fence)
}

fn commit(subscription: &SubscriptionId, fence: Fence, watermark: u64) -> Commit {
    let shard = ShardCommit {
        shard: Shard(0),
        fence,
        puts: Vec::new(),
        checkpoint: Checkpoint { watermark: Seq(watermark), ranges: Vec::new() },
        ends: Vec::new(),
        trials: Vec::new(),
    };
    Commit { subscription: subscription.clone(), shards: vec![shard] }
}

async fn watermark(store: &dyn Store, subscription: &SubscriptionId) -> Seq {
    store.load(subscription).await.unwrap()[0].checkpoint.watermark
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_not_made() {
    let faults = Faults::seeded(1);
    let store = store(&faults, 1).await;
    let rule = faults.add(Rule::new(Fault::Fail(StoreErrorKind::Full)).on([Op::Append]));
    let error = store.append(&topic(), vec![event(0, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    faults.remove(rule);
    store.append(&topic(), vec![event(0, 2)]).await.unwrap();
    assert_eq!(payloads(&store, 0).await, [2]);
    assert_eq!(faults.take_struck(), [(Op::Append, Fault::Fail(StoreErrorKind::Full))]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_unknown_for_what_writes_and_unavailable_for_what_reads() {
    let faults = Faults::seeded(1);
    let store = store(&faults, 1).await;
    faults.add(Rule::new(Fault::LoseAnswer).on([Op::Append, Op::Bounds]).times(2));
    let error = store.append(&topic(), vec![event(0, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown);
    assert_eq!(store.bounds(&topic()).await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert_eq!(payloads(&store, 0).await, [1], "it was written");
    store.bounds(&topic()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partial_batch_leaves_a_prefix_of_each_shard() {
    let mut cut = Vec::new();
    for seed in 0..200 {
        let faults = Faults::seeded(seed);
        let store = store(&faults, 2).await;
        faults.add(Rule::new(Fault::PartialBatch).times(1));
        store.bounds(&topic()).await.unwrap();
        let batch = vec![event(0, 1), event(1, 11), event(0, 2), event(1, 12), event(0, 3)];
        assert_eq!(store.append(&topic(), batch).await.unwrap_err().kind(), StoreErrorKind::Unknown);
        let (first, second) = (payloads(&store, 0).await, payloads(&store, 1).await);
        assert!([1, 2, 3].starts_with(&first), "seed {seed} left {first:?}");
        assert!([11, 12].starts_with(&second), "seed {seed} left {second:?}");
        cut.push((first.len(), second.len()));
    }
    cut.sort_unstable();
    cut.dedup();
    assert_eq!(cut.len(), 12, "every pair of prefixes comes up in 200 seeds: {cut:?}");
}

#[tokio::test(start_paused = true)]
async fn delays_come_before_and_after_the_call() {
    let faults = Faults::seeded(1);
    let store = store(&faults, 1).await;
    faults.add(Rule::new(Fault::Delay(Duration::from_secs(2))).on([Op::Append]).times(1));
    faults.add(Rule::new(Fault::DelayAnswer(Duration::from_secs(3))).on([Op::Append]));
    let (before, topic) = (Instant::now(), topic());
    {
        let append = store.append(&topic, vec![event(0, 1)]);
        tokio::pin!(append);
        assert!(append.as_mut().now_or_never().is_none());
        assert!(payloads(&store, 0).await.is_empty(), "before the first delay");
        append.await.unwrap();
    }
    assert_eq!(before.elapsed(), Duration::from_secs(5));
    // Dropped while the answer is on its way: it was made.
    let append = store.append(&topic, vec![event(0, 2)]);
    assert!(tokio::time::timeout(Duration::from_secs(1), append).await.is_err());
    assert_eq!(payloads(&store, 0).await, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_never_returns() {
    let faults = Faults::seeded(1);
    let store = store(&faults, 1).await;
    faults.add(Rule::new(Fault::Hang).on([Op::Append]).times(1));
    let hour = Duration::from_secs(3_600);
    assert!(tokio::time::timeout(hour, store.append(&topic(), vec![event(0, 1)])).await.is_err());
    assert!(payloads(&store, 0).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_fenced_commit_writes_nothing() {
    let faults = Faults::seeded(1);
    let store = store(&faults, 1).await;
    store.append(&topic(), vec![event(0, 1)]).await.unwrap();
    let (subscription, incarnation, fence) = owned(&store).await;
    let rule = faults.add(Rule::new(Fault::Fenced));
    let outcome = store.commit(&commit(&subscription, fence, 1)).await.unwrap();
    assert_eq!(outcome, [ShardOutcome::Fenced]);
    assert_eq!(store.heartbeat(incarnation).await.unwrap_err().kind(), StoreErrorKind::Fenced);
    assert_eq!(watermark(&store, &subscription).await, Seq::ZERO);
    faults.remove(rule);
    store.commit(&commit(&subscription, fence, 1)).await.unwrap();
    assert_eq!(watermark(&store, &subscription).await, Seq(1));
}

#[tokio::test(start_paused = true)]
async fn conditions_counts_and_chance_choose_the_calls() {
    let faults = Faults::seeded(3);
    let store = store(&faults, 1).await;
    let fail = Fault::Fail(StoreErrorKind::Unavailable);
    faults.add(Rule::new(fail).when(|call| call.items == Some(2)).after(1).times(1));
    let mut failed = Vec::new();
    for count in [2, 1, 2, 2] {
        let events = (0..count).map(|n| event(0, n)).collect();
        failed.push(store.append(&topic(), events).await.is_err());
    }
    assert_eq!(failed, [false, false, true, false]);
    faults.clear();
    faults.add(Rule::new(fail).on([Op::Bounds]).chance(250_000));
    let mut count = 0;
    for _ in 0..1_000 {
        count += u32::from(store.bounds(&topic()).await.is_err());
    }
    assert!((180..320).contains(&count), "{count} of 1000 calls failed at a chance of a quarter");
}

#[tokio::test(start_paused = true)]
async fn wakes_can_get_lost() {
    let faults = Faults::seeded(1);
    let store = store(&faults, 1).await;
    let mut wake = store.wake(&topic());
    faults.mute_wakes(true);
    store.append(&topic(), vec![event(0, 1)]).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(60), wake.wait()).await.is_err());
    faults.mute_wakes(false);
    store.append(&topic(), vec![event(0, 2)]).await.unwrap();
    wake.wait().await;
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_calls_errors_and_times() {
    let faults = Faults::seeded(1);
    let inner = Arc::new(store(&faults, 1).await);
    let store = record(inner);
    faults.add(Rule::new(Fault::Delay(Duration::from_millis(5))).on([Op::Append]));
    faults.add(Rule::new(Fault::Fail(StoreErrorKind::Full)).on([Op::Append]).after(1).times(1));
    store.append(&topic(), vec![event(0, 1), event(0, 2)]).await.unwrap();
    store.append(&topic(), vec![event(0, 3)]).await.unwrap_err();
    assert!(store.append(&topic(), Vec::new()).now_or_never().is_none());
    let expected = Seen {
        started: 3,
        ended: 2,
        failed: 1,
        total: Duration::from_millis(10),
        slowest: Duration::from_millis(5),
    };
    assert_eq!(store.intercept().seen(Op::Append), expected);
    let records = store.intercept().take_records();
    let texts: Vec<String> = records.iter().map(ToString::to_string).collect();
    let expected =
        ["append orders [2]: ok", "append orders [1]: failed (Full)", "append orders [0]: dropped"];
    assert_eq!(texts, expected);
    assert_eq!(records[2].end, End::Dropped);
    assert_eq!(store.intercept().take_records(), []);
}

/// A call that was forgotten in a wrapper would go around the rules.
#[tokio::test(start_paused = true)]
async fn every_method_goes_through_the_rules() {
    let faults = Faults::seeded(1);
    let store = store(&faults, 1).await;
    let (subscription, incarnation, fence) = owned(&store).await;
    faults.add(Rule::new(Fault::Fail(StoreErrorKind::Closed)));
    assert!(store.append(&topic(), vec![event(0, 1)]).await.is_err());
    assert!(store.commit(&commit(&subscription, fence, 1)).await.is_err());
    assert!(store.load(&subscription).await.is_err());
    assert!(store.list().await.is_err());
    assert!(store.heartbeat(incarnation).await.is_err());
    assert!(store.members().await.is_err());
    let struck: Vec<Op> = faults.take_struck().into_iter().map(|(op, _)| op).collect();
    assert_eq!(struck, [Op::Append, Op::Commit, Op::Load, Op::List, Op::Heartbeat, Op::Members]);
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_commit_leaves_the_rest_as_it_was() {
    let mut seen = [false; 3];
    for seed in 0..60 {
        let faults = Faults::seeded(seed);
        let store = store(&faults, 1).await;
        store.append(&topic(), vec![event(0, 1), event(0, 2)]).await.unwrap();
        let (subscription, _, fence) = owned(&store).await;
        let cursor = Cursor { shard: Shard(0), after: Seq::ZERO };
        let limit = ReadLimit { records: 10, bytes: 1 << 20 };
        let events = store.read(&topic(), &[cursor], limit).await.unwrap().records;
        let mut write = commit(&subscription, fence, 2);
        write.shards[0].puts.push(StoredDelivery {
            event: events[0].clone(),
            state: RowState::Waiting,
            attempts: 1,
            failure: Failure::default(),
            version: 0,
        });
        faults.add(Rule::new(Fault::PartialBatch).times(1));
        assert_eq!(store.commit(&write).await.unwrap_err().kind(), StoreErrorKind::Unknown);
        let rows = store.get(&subscription, Shard(0), &[Seq(1)]).await.unwrap().len();
        match (rows, watermark(&store, &subscription).await.0) {
            (0, 0) => seen[0] = true,
            (1, 0) => seen[1] = true,
            (1, 2) => seen[2] = true,
            other => panic!("seed {seed}: rows and watermark are {other:?}"),
        }
        assert_eq!(store.commit(&write).await.unwrap(), [ShardOutcome::Committed { conflicts: Vec::new() }]);
    }
    assert_eq!(seen, [true; 3], "each part comes up in 60 seeds");
}
