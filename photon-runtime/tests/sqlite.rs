//! The same on SQLite.
#![cfg(feature = "sqlite")]

mod common;

use common::{events, memory, numbers_of, order};
use photon_core::event::Event;
use photon_core::ids::MAX_KEY_BYTES;
use photon_runtime::{Error, Photon};

#[tokio::test]
async fn p01_what_was_published_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("orders.db");
    let url = format!("sqlite://{}?durability=normal", path.display());
    for (round, builder) in
        [Photon::builder().sqlite(&path), Photon::builder().from_url(&url)].into_iter().enumerate()
    {
        let photon = builder.build().await.unwrap();
        assert_eq!(photon.store().engine(), "sqlite");
        let base = round as u64 * 1_000;
        let first = photon.publish(&order("ann", base)).dedup_id("same").await.unwrap();
        assert_eq!(first.duplicate, round > 0);
        photon.publish_all((base + 1..base + 1_000).map(|n| order("ann", n))).await.unwrap();
        photon.close().await;
    }
    let photon = Photon::builder().sqlite(&path).build().await.unwrap();
    let numbers = numbers_of(&events(&**photon.store(), "orders.placed").await, "ann");
    let expected: Vec<_> = (0..1_000).chain(1_001..2_000).collect();
    assert_eq!(numbers, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishes_of_many_tasks_keep_the_order_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let photon = Photon::builder().sqlite(dir.path().join("orders.db")).build().await.unwrap();
    let mut running = Vec::new();
    for task in 0..32u64 {
        let photon = photon.clone();
        running.push(tokio::spawn(async move {
            for n in 0..20 {
                photon.publish(&order(&format!("customer-{task}"), n)).await.unwrap();
            }
        }));
    }
    for task in running {
        task.await.unwrap();
    }
    let stored = events(&**photon.store(), "orders.placed").await;
    for task in 0..32 {
        assert_eq!(numbers_of(&stored, &format!("customer-{task}")), (0..20).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn p11_the_engines_give_the_same_verdicts_and_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let sqlite =
        Photon::builder().sqlite(dir.path().join("orders.db")).max_payload(1_000).build().await.unwrap();
    let memory = memory().max_payload(1_000).build().await.unwrap();
    let mut verdicts = Vec::new();
    for photon in [&memory, &sqlite] {
        let bytes: Vec<u8> = (0..=255).collect();
        let results = [
            photon.publish_raw("raw", bytes.clone()).key(bytes.as_slice()).header("é\0\n", &bytes).await,
            photon.publish_raw("raw", "").key("").await,
            photon.publish_raw("raw", "").await,
            photon
                .publish_raw("raw", vec![0; 1_000])
                .key(vec![0xff; MAX_KEY_BYTES])
                .dedup_id("é".repeat(128))
                .await,
            photon.publish_raw("raw", vec![0; 1_001]).await,
            photon.publish_raw("raw", "").key(vec![0; MAX_KEY_BYTES + 1]).await,
            photon.publish_raw("raw", "").dedup_id("é".repeat(129)).await,
            photon.publish_raw("x".repeat(200).as_str(), "").await,
            photon.publish_raw("x".repeat(201).as_str(), "").await,
        ];
        verdicts.push(results.map(|result| result.map(|_| ()).map_err(|error| error.to_string())));
    }
    assert_eq!(verdicts[0], verdicts[1]);
    assert_eq!(verdicts[0].iter().filter(|verdict| verdict.is_ok()).count(), 5);
    // What is unlike by nature: ids, places, times; and the shard of an event without a key follows its id.
    let content = |events: Vec<Event>| {
        let mut content: Vec<_> = events.into_iter().map(|e| (e.key, e.payload, e.headers)).collect();
        content.sort_by_key(|(key, payload, _)| (key.clone(), payload.clone()));
        content
    };
    let in_sqlite = content(events(&**sqlite.store(), "raw").await);
    assert_eq!(in_sqlite.len(), 4);
    assert_eq!(in_sqlite, content(events(&**memory.store(), "raw").await));
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("letter.txt");
    std::fs::write(&path, "Dear Ann, this is a letter and certainly no database. ".repeat(100)).unwrap();
    let error = Photon::builder().sqlite(&path).build().await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error:?}");
    assert!(format!("{error:?}").contains("letter.txt"), "{error:?}");
    let error = Photon::builder().sqlite(dir.path()).build().await.unwrap_err();
    assert!(format!("{error:?}").contains(&*dir.path().to_string_lossy()), "{error:?}");
}
