//! What only shows from within.

use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind};
use tokio::time::timeout;

use super::{SMALL_WRITE, SqliteOptions, SqliteStore};

const PATIENCE: Duration = Duration::from_secs(60);

async fn open(dir: &tempfile::TempDir) -> SqliteStore {
    SqliteStore::open(dir.path().join("x.db"), SqliteOptions::new().readers(1)).await.unwrap()
}

#[track_caller]
fn assert_panicked(result: Result<(), StoreError>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("x.db: a fault of Photon"), "{error}");
}

#[tokio::test]
async fn p06_a_look_that_panics_leaves_its_thread_to_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    for _ in 0..3 {
        let look = store.inner.readers.run::<()>(|_| panic!("on purpose"));
        assert_panicked(timeout(PATIENCE, look).await.expect("an answer"));
    }
    let look = store.inner.readers.run(|snapshot| Ok(super::log::last_seq(snapshot.conn)?));
    assert_eq!(timeout(PATIENCE, look).await.expect("an answer").unwrap(), 0);
}

#[tokio::test]
async fn p06_a_write_that_panics_takes_nothing_else_along() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let writer = &store.inner.writer;
    let note = |n: u64, panics: bool| {
        let statement = format!("UPDATE photon_meta SET last_seq = last_seq + {n}");
        writer.run(SMALL_WRITE, move |tx| {
            tx.conn.execute(&statement, [])?;
            assert!(!panics, "on purpose");
            Ok(())
        })
    };
    // Whether they share a transaction or not.
    for _ in 0..20 {
        let all = async { tokio::join!(note(1, false), note(1_000_000, true), note(1, false)) };
        let (before, panicked, after) = timeout(PATIENCE, all).await.expect("answers");
        before.unwrap();
        assert_panicked(panicked);
        after.unwrap();
    }
    let look = store.inner.readers.run(|snapshot| Ok(super::log::last_seq(snapshot.conn)?));
    assert_eq!(look.await.unwrap(), 40);
}
