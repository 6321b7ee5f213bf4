//! What happens when the server fails.

use std::time::Duration;

use photon_backend::redis::RedisStore;
use photon_backend::servers::{Proxy, Redis};
use photon_core::error::StoreErrorKind;
use photon_core::ids::Shard;
use photon_core::store::{Cursor, EventLog};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::common::nothing_is_lost_when_it_is_killed;
use crate::support::{
    NO_LIMIT, event, new_url, numbers, open, options, other_program, read_all, run, server, topic, wait_for,
};

/// Killed with -9 under load and restarted, several times: what was acknowledged is there, once and in order; what
/// was not is there only if the store had said that it may be.
pub(crate) async fn p01_nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let server = spawn_blocking(|| Redis::start_new(&[])).await.unwrap();
    let store = open(&server.url()).await;
    nothing_is_lost_when_it_is_killed(server, &store).await;
}

/// The event is stored, the answer is cut off in the middle: the publisher hears that it does not know.
pub(crate) async fn an_answer_that_is_cut_off_is_unknown() {
    let url = new_url();
    let proxy = Proxy::before(server().addr()).await.unwrap();
    let proxied = url.replace(&server().addr().to_string(), &proxy.addr().to_string());
    let (store, direct) = (open(&proxied).await, open(&url).await);
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 0)]).await.unwrap();
    proxy.cut_after(2);
    let error = store.append(&name, vec![event(0, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    let stored = || async { read_all(&direct, &name, 0).await.len() == 2 };
    wait_for("it is stored all the same", stored).await;
    // A read that is cut off has no effect to be unsure of.
    store.bounds(&name).await.unwrap();
    proxy.cut_after(2);
    let error = store.bounds(&name).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    store.append(&name, vec![event(0, 2)]).await.unwrap();
    assert_eq!(numbers(&read_all(&direct, &name, 0).await), [0, 1, 2]);
}

/// Every wait ends: with a server that accepts and says nothing, and with one that is not there.
pub(crate) async fn p10_a_server_that_stalls_fails_in_time_and_comes_back() {
    let url = new_url();
    let proxy = Proxy::before(server().addr()).await.unwrap();
    let proxied = url.replace(&server().addr().to_string(), &proxy.addr().to_string());
    let limit = Duration::from_secs(2);
    let store = RedisStore::open(options(&proxied).timeout(limit)).await.unwrap();
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 0)]).await.unwrap();
    proxy.stall();
    let began = Instant::now();
    let error = store.append(&name, vec![event(0, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    // The next ones cannot connect, and do not wait for one another.
    let appends = (0..20).map(|_| store.append(&name, vec![event(0, 2)]));
    for result in futures::future::join_all(appends).await {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    let error = store.bounds(&name).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(began.elapsed() < limit * 6, "it took {:?}", began.elapsed());
    proxy.refuse();
    let is_refused = || async {
        // The proxy takes a moment to refuse, and breaks what it had taken by then.
        let Err(error) = store.append(&name, vec![event(0, 2)]).await else { return false };
        error.kind() == StoreErrorKind::Unavailable && error.to_string().contains("cannot be reached")
    };
    wait_for("connections are refused", is_refused).await;
    proxy.forward();
    let is_back = || async { store.append(&name, vec![event(0, 3)]).await.is_ok() };
    wait_for("it comes back", is_back).await;
}

/// A full memory is told to publishers, with what to do, and nothing is stored by halves.
pub(crate) async fn a_full_memory_refuses_events_and_says_so() {
    let redis = Redis::start_new(&[]);
    let (store, mut admin) = (open(&redis.url()).await, other_program(&redis.url()).await);
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 0)]).await.unwrap();
    run(&mut admin, &["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let error = store.append(&name, (1..10).map(|n| event(0, n)).collect()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [0]);
    run(&mut admin, &["CONFIG", "SET", "maxmemory", "0"]).await;
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [0, 1]);
}

/// An event that is larger than a value may be is refused here, because the server would hang up.
pub(crate) async fn an_event_over_the_limit_of_the_server_is_refused() {
    let redis = Redis::start_new(&["--proto-max-bulk-len", "2mb"]);
    let store = open(&redis.url()).await;
    let name = topic(&store, "orders", 1).await;
    let mut large = event(0, 0);
    large.payload = vec![0; 3 << 20].into();
    let error = store.append(&name, vec![event(0, 1), large]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("proto-max-bulk-len"), "{error}");
    assert!(read_all(&store, &name, 0).await.is_empty());
}

/// The server comes back as it was earlier: from a copy of its files, or because a replica took over that had not seen
/// everything. Places are not given out again, so readers that have passed them see what comes next.
pub(crate) async fn places_of_lost_writes_are_not_given_out_again() {
    let redis = spawn_blocking(|| Redis::start_new(&[])).await.unwrap();
    let store = open(&redis.url()).await;
    let name = topic(&store, "orders", 1).await;
    store.append(&name, (0..5).map(|number| event(0, number)).collect()).await.unwrap();
    let (files, copy) = (redis.dir().join("appendonlydir"), redis.dir().join("copy"));
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(&files).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let lost = store.append(&name, (5..10).map(|number| event(0, number)).collect()).await.unwrap();
    redis.kill();
    std::fs::remove_dir_all(&files).unwrap();
    std::fs::rename(&copy, &files).unwrap();
    let redis = spawn_blocking(move || {
        redis.start();
        redis
    });
    let redis = redis.await.unwrap();
    assert_eq!(read_all(&open(&redis.url()).await, &name, 0).await.len(), 5, "the server forgot the rest");
    let is_back = || async { store.append(&name, vec![event(0, 10)]).await.is_ok() };
    wait_for("it takes events again", is_back).await;
    let reader = Cursor { shard: Shard(0), after: lost[4].seq };
    let read = store.read(&name, &[reader], NO_LIMIT).await.unwrap();
    assert_eq!(numbers(&read.records), [10]);
    assert!(read.shards[0].end > lost[4].seq, "{:?}", read.shards);
}
