//! Publishing within transactions of the user.

use std::time::Duration;

use futures::future::join_all;
use photon_backend::postgres::{PostgresStore, PostgresTransaction};
use photon_core::ids::TopicName;
use photon_core::store::{EventLog, Outbox};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls, Transaction};

use crate::support::{event, new_url, numbers, open, read_all, topic, wait_for};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the user can connect");
    tokio::spawn(connection);
    client
}

async fn stage(store: &PostgresStore, name: &TopicName, tx: &mut Transaction<'_>, numbers: &[u64]) {
    let events: Vec<_> = numbers.iter().map(|number| event(0, *number)).collect();
    let staged = store.stage(name, &events).await.expect("it can be staged");
    tx.stage(&staged).await.expect("the transaction takes it");
}

async fn wait_for_log(store: &PostgresStore, name: &TopicName, expected: &[u64]) {
    wait_for("the log holds what was committed", || async {
        numbers(&read_all(store, name, 0).await) == expected
    })
    .await;
}

/// A publishes in its own transaction and stalls before the commit; B publishes and commits; the reader runs; then
/// A commits, or is rolled back. Both are delivered, B never waits for A, a rollback stalls nobody.
pub(crate) async fn concurrent_writers() {
    for commits in [true, false] {
        let url = new_url();
        let store = open(&url).await;
        let name = topic(&store, "orders", 1).await;
        let (mut a, mut b) = (connect(&url).await, connect(&url).await);
        let mut a = a.transaction().await.unwrap();
        stage(&store, &name, &mut a, &[1]).await;
        let b_publishes = async {
            let mut b = b.transaction().await.unwrap();
            stage(&store, &name, &mut b, &[2]).await;
            b.commit().await.unwrap();
            wait_for_log(&store, &name, &[2]).await;
            store.append(&name, vec![event(0, 3)]).await.unwrap();
        };
        timeout(Duration::from_secs(20), b_publishes).await.expect("B does not wait for A");
        assert_eq!(numbers(&read_all(&store, &name, 0).await), [2, 3]);
        if commits {
            a.commit().await.unwrap();
            wait_for_log(&store, &name, &[2, 3, 1]).await;
        } else {
            a.rollback().await.unwrap();
            store.append(&name, vec![event(0, 4)]).await.unwrap();
            assert_eq!(numbers(&read_all(&store, &name, 0).await), [2, 3, 4]);
        }
    }
}

/// Several relays, direct appends and committing transactions at once: each event is in the log once, those of
/// each writer in their order.
pub(crate) async fn staged_events_go_into_the_log_once_and_in_order() {
    let url = new_url();
    let stores = [open(&url).await, open(&url).await, open(&url).await];
    let name = topic(&stores[0], "orders", 1).await;
    let writers = (0..6u64).map(|writer| {
        let (store, name, url) =
            (stores[usize::try_from(writer).unwrap() % 3].clone(), name.clone(), url.clone());
        tokio::spawn(async move {
            let mut client = connect(&url).await;
            for round in 0..20 {
                let number = writer * 1_000 + round * 10;
                if writer % 2 == 0 {
                    store.append(&name, vec![event(0, number)]).await.unwrap();
                }
                let mut tx = client.transaction().await.unwrap();
                stage(&store, &name, &mut tx, &[number + 1, number + 2]).await;
                stage(&store, &name, &mut tx, &[number + 3]).await;
                if round % 5 == 4 { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
            }
        })
    });
    for done in join_all(writers.collect::<Vec<_>>()).await {
        done.unwrap();
    }
    let expected = |writer: u64| -> Vec<u64> {
        (0..20)
            .flat_map(|round| {
                let number = writer * 1_000 + round * 10;
                let direct = writer.is_multiple_of(2).then_some(number);
                let staged = (round % 5 != 4).then_some([number + 1, number + 2, number + 3]);
                direct.into_iter().chain(staged.into_iter().flatten())
            })
            .collect()
    };
    let all: usize = (0..6).map(|writer| expected(writer).len()).sum();
    wait_for("everything is in the log", || async { read_all(&stores[0], &name, 0).await.len() >= all })
        .await;
    let stored = numbers(&read_all(&stores[0], &name, 0).await);
    assert_eq!(stored.len(), all);
    for writer in 0..6 {
        let of_writer: Vec<u64> = stored.iter().copied().filter(|number| number / 1_000 == writer).collect();
        assert_eq!(of_writer, expected(writer));
    }
}
