//! A file that does not stay in its place while it is open.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use photon_backend::sqlite::{SqliteOptions, SqliteStore};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Generation, Seq, Shard, TopicName};
use photon_core::store::{Appended, EventLog, TopicSpec};
use uuid::Uuid;

fn topic() -> TopicName {
    TopicName::new("orders").unwrap()
}

async fn open(path: &Path) -> SqliteStore {
    let store = SqliteStore::open(path, SqliteOptions::new()).await.unwrap();
    let spec = TopicSpec { name: topic(), shards: 1, key: None, generation: Generation(Uuid::now_v7()) };
    store.ensure_topic(&spec).await.unwrap();
    store
}

async fn append(store: &SqliteStore) -> Result<Vec<Appended>, StoreError> {
    let event = NewEvent {
        id: EventId(Uuid::now_v7()),
        shard: Shard(0),
        key: None,
        headers: Headers::new(),
        payload: Bytes::from_static(b"x"),
        dedup_id: None,
    };
    store.append(&topic(), vec![event]).await
}

async fn end(store: &SqliteStore) -> Result<Seq, StoreError> {
    store.bounds(&topic()).await.map(|bounds| bounds[0].end)
}

#[track_caller]
fn assert_displaced<T: std::fmt::Debug>(result: Result<T, StoreError>, file: &Path) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("{} was removed or replaced", file.display())), "{text}");
    assert!(text.contains("put it back"), "{text}");
}

#[cfg(unix)]
#[tokio::test]
async fn p01_nothing_is_taken_in_for_a_file_that_was_removed_or_replaced() {
    for suffix in ["", "-wal"] {
        for replaced in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.db");
            let store = open(&path).await;
            append(&store).await.unwrap();
            let before = end(&store).await.unwrap();

            let file = dir.path().join(format!("x.db{suffix}"));
            let aside = dir.path().join("aside");
            std::fs::rename(&file, &aside).unwrap();
            if replaced {
                std::fs::copy(&aside, &file).unwrap();
            }
            let real = file.parent().unwrap().canonicalize().unwrap().join(file.file_name().unwrap());
            assert_displaced(append(&store).await, &real);
            assert_displaced(end(&store).await, &real);

            // Back in its place it goes on, and nothing was written meanwhile.
            std::fs::rename(&aside, &file).unwrap();
            assert_eq!(end(&store).await.unwrap(), before);
            append(&store).await.unwrap();
            tokio::time::timeout(Duration::from_secs(60), store.close()).await.unwrap();
            let store = open(&path).await;
            assert_eq!(end(&store).await.unwrap(), Seq(before.0 + 1));
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_to_the_file_may_lead_elsewhere_later() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real.db"), dir.path().join("link.db"));
    drop(open(&real).await);
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let store = open(&link).await;
    append(&store).await.unwrap();
    std::fs::remove_file(&link).unwrap();
    append(&store).await.unwrap();
}
