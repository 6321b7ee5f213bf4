//! What other programs do to the keys.

use photon_backend::redis::RedisStore;
use photon_core::error::StoreErrorKind;
use photon_core::ids::{GroupName, Incarnation, InstanceId, Seq, Shard, SubscriptionId};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoint, Checkpoints, Claim, ClaimResult, Commit, Cursor, EventLog, Leases, Member, Registration,
    ShardClaim, ShardCommit, ShardOutcome,
};
use uuid::Uuid;

use crate::support::{
    NO_LIMIT, event, new_url, numbers, open, other_program, prefix, read_all, run, spec, topic, wait_for,
};

fn cursor(after: Seq) -> Cursor {
    Cursor { shard: Shard(0), after }
}

/// Entries that Photon did not write are skipped and counted, wherever they are; whatever their ids, events go on
/// behind them, and a reader sees nothing twice and no gap.
pub(crate) async fn entries_of_other_programs_are_skipped() {
    let url = new_url();
    let (store, mut admin) = (open(&url).await, other_program(&url).await);
    let name = topic(&store, "orders", 1).await;
    let log = format!("{}:{{orders/0}}:log", prefix(&url));
    run(&mut admin, &["XADD", &log, "0-1", "hello", "world"]).await;
    let mut last = store.append(&name, vec![event(0, 0)]).await.unwrap()[0].seq;
    let mut after = Seq::ZERO;
    for round in 1..=5 {
        // An id from the clock, and one with a field of the name that Photon uses.
        run(&mut admin, &["XADD", &log, "*", "a", "1", "b", "2"]).await;
        let read = store.read(&name, &[cursor(after)], NO_LIMIT).await.unwrap();
        assert!(
            read.shards[0].through <= read.shards[0].end,
            "a reader never stands behind the end: {read:?}"
        );
        assert_eq!(read.shards[0].floor, Seq::ZERO);
        after = read.shards[0].through;
        run(&mut admin, &["XADD", &log, "*", "e", "\u{1}nonsense"]).await;
        let appended = store.append(&name, vec![event(0, 2 * round - 1), event(0, 2 * round)]).await.unwrap();
        assert!(appended[0].seq > last && appended[1].seq > appended[0].seq, "{appended:?} after {last}");
        last = appended[1].seq;
    }
    assert_eq!(numbers(&read_all(&store, &name, 0).await), (0..=10).collect::<Vec<_>>());
    assert!(store.skipped() >= 11, "{} entries were skipped", store.skipped());
    let read = store.read(&name, &[cursor(after)], NO_LIMIT).await.unwrap();
    assert_eq!(numbers(&read.records), [9, 10]);
    assert_eq!((read.shards[0].floor, read.shards[0].end), (Seq::ZERO, last));
    // Trimming and looking for a time get along with them.
    store.trim(&name, Shard(0), read.records[0].seq).await.unwrap();
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [10]);
    let at = store.position_at(&name, read.records[1].time).await.unwrap()[0];
    assert!(at < last, "{at}");
}

/// An id beyond all numbers leaves no room behind it: that is said, and what to do.
pub(crate) async fn a_stream_without_room_is_named() {
    let url = new_url();
    let (store, mut admin) = (open(&url).await, other_program(&url).await);
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 0)]).await.unwrap();
    let log = format!("{}:{{orders/0}}:log", prefix(&url));
    run(&mut admin, &["XADD", &log, "18446744073709551615-1", "e", "x"]).await;
    let error = store.append(&name, vec![event(0, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("RENAME"), "{error}");
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [0]);
    // XSETID would be shorter, but newer servers set no id before one that was ever removed.
    let good = log.replace(":log", ":good");
    let entries = run(&mut admin, &["XRANGE", &log, "-", "(18446744073709551615-0"]).await;
    let entries: Vec<(String, Vec<redis::Value>)> = redis::from_redis_value(entries).unwrap();
    for (id, fields) in entries {
        let fields: Vec<Vec<u8>> = redis::from_redis_value(redis::Value::Array(fields)).unwrap();
        let mut copy = redis::cmd("XADD");
        copy.arg(&good).arg(id).arg(fields).query_async::<String>(&mut admin).await.unwrap();
    }
    run(&mut admin, &["RENAME", &good, &log]).await;
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [0, 1]);
}

pub(crate) async fn a_key_of_another_type_is_named() {
    let url = new_url();
    let (store, mut admin) = (open(&url).await, other_program(&url).await);
    let log = format!("{}:{{orders/0}}:log", prefix(&url));
    let name = topic(&store, "orders", 2).await;
    run(&mut admin, &["SET", &log, "theirs"]).await;
    let error = store.append(&name, vec![event(0, 0)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    let text = error.to_string();
    assert!(text.contains("another program uses it") && text.contains(prefix(&url)), "{text}");
    // The other shard goes on, and this one when the key is gone.
    store.append(&name, vec![event(1, 0)]).await.unwrap();
    run(&mut admin, &["DEL", &log]).await;
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [1]);
    run(&mut admin, &["SET", &format!("{}:{{other}}:topic", prefix(&url)), "theirs"]).await;
    let error = store.ensure_topic(&spec("other", 1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
}

/// The case engine-forgot, for entries: readers hear how far the log reaches, and go on behind the gap.
pub(crate) async fn engine_forgot_the_beginning_of_a_log() {
    let url = new_url();
    let (store, mut admin) = (open(&url).await, other_program(&url).await);
    let name = topic(&store, "orders", 1).await;
    let places = store.append(&name, (0..10).map(|n| event(0, n)).collect()).await.unwrap();
    let log = format!("{}:{{orders/0}}:log", prefix(&url));
    run(&mut admin, &["XTRIM", &log, "MAXLEN", "3"]).await;
    let read = store.read(&name, &[cursor(places[1].seq)], NO_LIMIT).await.unwrap();
    assert_eq!(numbers(&read.records), [7, 8, 9]);
    assert_eq!((read.shards[0].floor, read.shards[0].end), (places[6].seq, places[9].seq));
    // One in the middle: the reader passes it.
    let id = read.records[1].time;
    let removed = run(&mut admin, &["XDEL", &log, &format!("{}-{}", places[8].seq, id.0)]).await;
    assert_eq!(removed, redis::Value::Int(1));
    let read = store.read(&name, &[cursor(places[7].seq)], NO_LIMIT).await.unwrap();
    assert_eq!((numbers(&read.records), read.shards[0].through), (vec![9], places[9].seq));
    // All of it.
    run(&mut admin, &["DEL", &log]).await;
    let read = store.read(&name, &[cursor(places[1].seq)], NO_LIMIT).await.unwrap();
    assert_eq!(read.records.len(), 0);
    assert_eq!((read.shards[0].floor, read.shards[0].end), (places[9].seq, places[9].seq));
    let more = store.append(&name, vec![event(0, 10)]).await.unwrap();
    assert!(more[0].seq > places[9].seq);
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [10]);
}

pub(crate) async fn register(store: &RedisStore, subscription: &SubscriptionId) -> bool {
    let registration = Registration {
        subscription: subscription.clone(),
        start: Start::Latest,
        mode: Mode::Group,
        expire_after: None,
    };
    store.register(&registration).await.unwrap().new
}

pub(crate) async fn own(store: &RedisStore, subscription: &SubscriptionId) -> photon_core::store::Fence {
    let incarnation = Incarnation(Uuid::new_v4());
    let member = Member {
        incarnation,
        instance: InstanceId::new("pod").unwrap(),
        host: String::new(),
        pid: 1,
        process_start: String::new(),
    };
    store.join(&member).await.unwrap();
    let shard = ShardClaim { subscription: subscription.clone(), shard: Shard(0) };
    let granted = store.claim(incarnation, &[Claim { shard, replace: None }]).await.unwrap();
    let ClaimResult::Granted(fence) = granted[0] else { panic!("{granted:?}") };
    fence
}

pub(crate) async fn commit(
    store: &RedisStore,
    subscription: &SubscriptionId,
    fence: photon_core::store::Fence,
    watermark: Seq,
) -> Vec<ShardOutcome> {
    let checkpoint = Checkpoint { watermark, ranges: Vec::new() };
    let shard =
        ShardCommit { shard: Shard(0), fence, puts: vec![], checkpoint, ends: vec![], trials: vec![] };
    store.commit(&Commit { subscription: subscription.clone(), shards: vec![shard] }).await.unwrap()
}

/// The case engine-forgot, for everything: places are not given out again, subscriptions go on where they were.
pub(crate) async fn engine_forgot_everything() {
    let redis = photon_backend::servers::Redis::start_new(&[]);
    let (store, mut admin) = (open(&redis.url()).await, other_program(&redis.url()).await);
    let made = store.ensure_topic(&spec("orders", 1)).await.unwrap();
    let name = topic(&store, "orders", 1).await;
    let subscription = SubscriptionId::new(name.clone(), GroupName::new("billing").unwrap());
    assert!(register(&store, &subscription).await);
    let places = store.append(&name, (0..10).map(|n| event(0, n)).collect()).await.unwrap();
    let fence = own(&store, &subscription).await;
    let committed = [ShardOutcome::Committed { conflicts: vec![] }];
    assert_eq!(commit(&store, &subscription, fence, places[4].seq).await, committed);
    for round in 0..2 {
        run(&mut admin, &["FLUSHALL"]).await;
        run(&mut admin, &["SCRIPT", "FLUSH"]).await;
        // The owner is fenced, and its process has to join again.
        let error = store.heartbeat(fence.token).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Fenced, "{error}");
        assert_eq!(commit(&store, &subscription, fence, places[9].seq).await, [ShardOutcome::Fenced]);
        let after = Cursor { shard: Shard(0), after: places[4].seq };
        let read = store.read(&name, &[after], NO_LIMIT).await.unwrap();
        assert_eq!(read.records.len(), 0);
        let more = store.append(&name, vec![event(0, 10 + round)]).await.unwrap();
        assert!(more[0].seq > places[9].seq, "place {} was given out before", more[0].seq);
        let read = store.read(&name, &[after], NO_LIMIT).await.unwrap();
        assert_eq!(numbers(&read.records), [10 + round]);
        assert!(read.shards[0].floor >= places[9].seq, "the reader hears of the gap");
        let stored = store.load(&subscription).await.unwrap();
        assert!(stored[0].checkpoint.watermark >= places[4].seq, "{stored:?}");
        assert!(stored[0].checkpoint.watermark < more[0].seq, "what came later is still to be read");
    }
    let found = store.ensure_topic(&spec("orders", 1)).await.unwrap();
    assert_ne!(found.generation, made.generation, "it is another life of the topic");
    let fence = own(&store, &subscription).await;
    let end = store.bounds(&name).await.unwrap()[0].end;
    assert_eq!(commit(&store, &subscription, fence, end).await, committed);
}

/// Only what the engine forgot comes back, not what somebody forgot by name.
pub(crate) async fn a_subscription_that_was_forgotten_by_name_stays_so() {
    let url = new_url();
    let (store, other, mut admin) = (open(&url).await, open(&url).await, other_program(&url).await);
    let name = topic(&store, "orders", 1).await;
    let places = store.append(&name, (0..3).map(|n| event(0, n)).collect()).await.unwrap();
    let subscription = SubscriptionId::new(name, GroupName::new("billing").unwrap());
    register(&store, &subscription).await;
    let fence = own(&store, &subscription).await;
    commit(&store, &subscription, fence, places[1].seq).await;
    let prefix = prefix(&url);
    run(&mut admin, &["DEL", &format!("{prefix}:{{orders/0}}:position/billing")]).await;
    run(&mut admin, &["DEL", &format!("{prefix}:{{orders}}:subscription/billing")]).await;
    let stored = store.load(&subscription).await.unwrap();
    assert!(stored[0].checkpoint.watermark >= places[1].seq, "it goes on where it was seen last: {stored:?}");
    other.forget(&subscription).await.unwrap();
    for _ in 0..2 {
        let error = store.load(&subscription).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    }
    assert!(register(&store, &subscription).await, "it is new again");
}

/// A message tells other processes of an append, also after the connection that brought it broke.
pub(crate) async fn other_processes_are_woken() {
    let url = new_url();
    let (reader, writer, mut admin) = (open(&url).await, open(&url).await, other_program(&url).await);
    let name = topic(&writer, "orders", 1).await;
    let mut wake = reader.wake(&name);
    for number in 0..3 {
        let is_listening = || async {
            let mut admin = admin.clone();
            let clients = redis::cmd("CLIENT").arg("LIST").query_async::<String>(&mut admin).await.unwrap();
            clients.lines().any(|line| line.contains(" sub=1 "))
        };
        wait_for("the reader listens", is_listening).await;
        // What came until now may have woken it for nothing.
        while tokio::time::timeout(std::time::Duration::from_millis(100), wake.wait()).await.is_ok() {}
        writer.append(&name, vec![event(0, number)]).await.unwrap();
        let woken = tokio::time::timeout(std::time::Duration::from_secs(10), wake.wait()).await;
        assert!(woken.is_ok(), "no wake for append number {number}");
        run(&mut admin, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    }
}
