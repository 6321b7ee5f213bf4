//! What happens when the server fails.

use std::time::Duration;

use photon_backend::postgres::PostgresStore;
use photon_backend::servers::{self, Postgres, Proxy};
use photon_core::error::StoreErrorKind;
use photon_core::ids::{Seq, Shard};
use photon_core::store::{Cursor, EventLog, ReadLimit};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::common::nothing_is_lost_when_it_is_killed;
use crate::support::{event, new_url, numbers, open, options, read_all, server, topic, wait_for};

/// Killed with -9 under load and restarted, several times: what was acknowledged is there, once and in order; what
/// was not is there only if the store had said that it may be.
pub(crate) async fn p01_nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let server = spawn_blocking(|| Postgres::start_new(&servers::PostgresOptions::new())).await.unwrap();
    let store = open(&server.url("postgres")).await;
    nothing_is_lost_when_it_is_killed(server, &store).await;
}

/// The event is stored, the answer is cut off in the middle: the publisher hears that it does not know. A read that
/// is cut off has no effect to be unsure of.
pub(crate) async fn an_answer_that_is_cut_off_is_unknown() {
    let url = new_url();
    let proxy = Proxy::before(server().addr()).await.unwrap();
    let proxied = url.replace(&server().addr().to_string(), &proxy.addr().to_string());
    let (store, direct) = (open(&proxied).await, open(&url).await);
    let name = topic(&store, "orders", 1).await;
    // The store's other connections are cut, too, and may be hit first: so it takes a few tries.
    let (mut unknown_and_stored, mut read_is_cut) = (false, false);
    for number in 0..100 {
        proxy.forward();
        let is_connected = || async {
            let cursor = Cursor { shard: Shard(0), after: Seq::ZERO };
            let read = store.read(&name, &[cursor], ReadLimit { records: 1, bytes: 1 }).await;
            read.is_ok() && store.bounds(&name).await.is_ok()
        };
        wait_for("connections are open", is_connected).await;
        proxy.cut_after(8);
        let appended = store.append(&name, vec![event(0, number)]).await;
        let is_stored = numbers(&read_all(&direct, &name, 0).await).contains(&number);
        match appended.map_err(|error| error.kind()) {
            Ok(_) => assert!(is_stored, "acknowledged, and not stored"),
            Err(StoreErrorKind::Unavailable) => assert!(!is_stored, "it was said that nothing was written"),
            Err(kind) => {
                assert_eq!(kind, StoreErrorKind::Unknown);
                unknown_and_stored |= is_stored;
            }
        }
        proxy.forward();
        wait_for("connections are open", is_connected).await;
        proxy.cut_after(8);
        if let Err(error) = store.bounds(&name).await {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
            read_is_cut = true;
        }
        if unknown_and_stored && read_is_cut {
            break;
        }
    }
    assert!(unknown_and_stored && read_is_cut);
    proxy.forward();
    let is_back = || async { store.append(&name, vec![event(0, u64::MAX)]).await.is_ok() };
    wait_for("it takes events again", is_back).await;
    let stored = numbers(&read_all(&direct, &name, 0).await);
    assert!(stored.windows(2).all(|w| w[0] < w[1]), "each once: {stored:?}");
}

/// Every wait ends: with a server that accepts and says nothing, and with one that is not there.
pub(crate) async fn p10_a_server_that_stalls_fails_in_time_and_comes_back() {
    let url = new_url();
    let proxy = Proxy::before(server().addr()).await.unwrap();
    let proxied = url.replace(&server().addr().to_string(), &proxy.addr().to_string());
    let limit = Duration::from_secs(3);
    let store = PostgresStore::open(options(&proxied).timeout(limit).connections(2)).await.unwrap();
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 0)]).await.unwrap();
    proxy.stall();
    let began = Instant::now();
    let error = store.append(&name, vec![event(0, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    // The next one finds no connection, and cannot make one.
    let error = store.append(&name, vec![event(0, 2)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    let error = store.bounds(&name).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(began.elapsed() < limit * 10, "it took {:?}", began.elapsed());
    proxy.refuse();
    let is_refused = || async {
        // One that is under way may still come through, or be cut in its middle.
        let refused = store.append(&name, vec![event(0, 2)]).await.err();
        refused.is_some_and(|error| {
            error.kind() == StoreErrorKind::Unavailable && error.to_string().contains("cannot be reached")
        })
    };
    wait_for("connections are refused", is_refused).await;
    proxy.forward();
    let is_back = || async { store.append(&name, vec![event(0, 3)]).await.is_ok() };
    wait_for("it comes back", is_back).await;
}

/// An append that the server cancels is not stored, says so, and leaves the connection in order.
pub(crate) async fn a_statement_timeout_leaves_nothing_behind() {
    let url = new_url();
    let database = url.rsplit('/').next().unwrap_or_default().to_owned();
    server().sql(&database, &format!("ALTER DATABASE {database} SET statement_timeout = '200ms'"));
    let store = open(&url).await;
    let name = topic(&store, "orders", 1).await;
    let blocker = spawn_blocking({
        let database = database.clone();
        move || {
            let statements = "SET statement_timeout = 0; BEGIN; SELECT FROM photon.shard FOR UPDATE;
                              SELECT pg_sleep(2); COMMIT";
            server().sql(&database, statements)
        }
    });
    let cancelled = || async {
        match store.append(&name, vec![event(0, 1)]).await {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                assert!(error.to_string().contains("statement_timeout"), "{error}");
                true
            }
        }
    };
    wait_for("an append waits too long", cancelled).await;
    blocker.await.unwrap();
    let before = read_all(&store, &name, 0).await.len();
    store.append(&name, vec![event(0, 2)]).await.unwrap();
    assert_eq!(read_all(&store, &name, 0).await.len(), before + 1);
}
