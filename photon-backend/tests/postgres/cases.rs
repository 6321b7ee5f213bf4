//! Faults that were met in practice.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use photon_backend::postgres::PostgresStore;
use photon_core::ids::{Incarnation, InstanceId, Seq, Shard};
use photon_core::store::{EventLog, Leases, Member};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::support::{event, new_url, numbers, open, options, read_all, server, topic, wait_for};

fn database(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

fn listeners(url: &str) -> String {
    let statement = "SELECT count(*) FROM pg_stat_activity
                     WHERE query LIKE 'LISTEN%' OR (query = 'SELECT 1' AND application_name = 'photon')";
    server().sql(database(url), &format!("{statement} AND datname = current_database()"))
}

/// The LISTEN connection is terminated while events are published: all are delivered, the later ones by
/// notification again.
pub(crate) async fn listener_killed() {
    let url = new_url();
    let (reader, writer) = (open(&url).await, open(&url).await);
    let name = topic(&writer, "orders", 1).await;
    let mut wake = reader.wake(&name);
    let publishing = tokio::spawn({
        let (writer, name) = (writer.clone(), name.clone());
        async move {
            for number in 0..300 {
                writer.append(&name, vec![event(0, number)]).await.expect("publishing goes on");
            }
        }
    });
    let mut kills = 0;
    let mut seen = 0;
    while seen < 300 {
        // As a subscription does: woken or not, it looks.
        let _ = timeout(reader.poll_interval(), wake.wait()).await;
        seen = read_all(&reader, &name, 0).await.len();
        if kills < 3 && listeners(&url) != "0" {
            let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                        WHERE query LIKE 'LISTEN%' AND datname = current_database()";
            server().sql(database(&url), kill);
            kills += 1;
        }
    }
    publishing.await.unwrap();
    assert!(kills > 0, "there was a listener to kill");
    assert_eq!(numbers(&read_all(&reader, &name, 0).await), (0..300).collect::<Vec<_>>());
    // And it listens again.
    let mut wake = reader.wake(&name);
    let woken = async {
        loop {
            let waiting = timeout(Duration::from_millis(100), wake.wait());
            writer.append(&name, vec![event(0, 1_000)]).await.unwrap();
            if waiting.await.is_ok() {
                return;
            }
        }
    };
    timeout(Duration::from_secs(20), woken).await.expect("notifications come again");
}

/// A notification is much faster than the poll behind it.
pub(crate) async fn other_processes_are_woken() {
    let url = new_url();
    let reader = PostgresStore::open(options(&url).poll_interval(Duration::from_secs(3_600))).await.unwrap();
    let writer = open(&url).await;
    let name = topic(&writer, "orders", 1).await;
    let mut wake = reader.wake(&name);
    // The first wake is of the connection that begins to listen.
    timeout(Duration::from_secs(20), wake.wait()).await.expect("the listener starts");
    for number in 0..20 {
        let other = topic(&writer, "elsewhere", 1).await;
        writer.append(&other, vec![event(0, number)]).await.unwrap();
        writer.append(&name, vec![event(0, number)]).await.unwrap();
        timeout(Duration::from_secs(20), wake.wait()).await.expect("every append is told");
    }
}

/// What a transaction of the user has committed goes into the log before what is appended after it, and a
/// transaction that is open or rolled back holds nobody up.
pub(crate) async fn an_event_in_the_outbox_comes_before_a_later_append() {
    let url = new_url();
    let store = open(&url).await;
    let name = topic(&store, "orders", 2).await;
    let row = |number: u64| {
        format!(
            "INSERT INTO photon.outbox (topic, shard, id, headers, payload)
             SELECT id, 1, '{}', '\\x00', '{number}' FROM photon.topic;",
            Uuid::new_v4()
        )
    };
    store.append(&name, vec![event(1, 0), event(0, 100)]).await.unwrap();
    server().sql(database(&url), &format!("BEGIN; {} ROLLBACK", row(99)));
    server().sql(database(&url), &format!("BEGIN; {} {} COMMIT", row(1), row(2)));
    let appended = store.append(&name, vec![event(0, 101), event(1, 3), event(1, 4)]).await.unwrap();
    assert_eq!(appended.iter().map(|a| a.seq).collect::<Vec<_>>(), [Seq(2), Seq(4), Seq(5)]);
    assert_eq!(numbers(&read_all(&store, &name, 1).await), [0, 1, 2, 3, 4]);
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [100, 101]);
    assert_eq!(server().sql(database(&url), "SELECT count(*) FROM photon.outbox"), "0");
}

/// Connections are kept for what a subscription needs to stay alive.
pub(crate) async fn a_busy_publisher_does_not_keep_a_heartbeat_waiting() {
    let url = new_url();
    let store = Arc::new(PostgresStore::open(options(&url).connections(2)).await.unwrap());
    let name = topic(&*store, "orders", 1).await;
    let member = Member {
        incarnation: Incarnation(Uuid::new_v4()),
        instance: InstanceId::new("one").unwrap(),
        host: String::new(),
        pid: 1,
        process_start: String::new(),
    };
    store.join(&member).await.unwrap();
    // Whoever holds the counter holds every publisher up.
    let blocker = tokio::task::spawn_blocking({
        let database = database(&url).to_owned();
        move || {
            server().sql(&database, "BEGIN; SELECT FROM photon.shard FOR UPDATE; SELECT pg_sleep(3); COMMIT")
        }
    });
    let is_held = || async {
        let statement = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3)%'
                             AND wait_event = 'PgSleep' AND datname = current_database()";
        server().sql(database(&url), statement) == "1"
    };
    wait_for("the counter is held", is_held).await;
    let publishing = (0..20).map(|number| {
        let (store, name) = (Arc::clone(&store), name.clone());
        tokio::spawn(async move { store.append(&name, vec![event(0, number)]).await.map(drop) })
    });
    let publishing: Vec<_> = publishing.collect();
    let began = Instant::now();
    for _ in 0..10 {
        store.heartbeat(member.incarnation).await.unwrap();
    }
    assert!(
        publishing.iter().all(|task| !task.is_finished()),
        "publishers wait, after {:?}",
        began.elapsed()
    );
    for published in join_all(publishing).await {
        published.unwrap().unwrap();
    }
    blocker.await.unwrap();
    assert_eq!(store.bounds(&name).await.unwrap()[0].end, Seq(20));
    assert_eq!(store.bounds(&name).await.unwrap()[0].shard, Shard(0));
}
