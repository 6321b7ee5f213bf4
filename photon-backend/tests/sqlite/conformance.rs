//! The store contract, held by a file.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use photon_backend::conformance::{Harness, Suite};
use photon_backend::sqlite::{SqliteOptions, SqliteStore};
use photon_core::store::Store;
use tempfile::TempDir;

/// A new file for each check.
struct Files {
    dir: TempDir,
    made: AtomicUsize,
    /// The handles, to find the file of a store again.
    open: Mutex<HashMap<usize, (SqliteStore, PathBuf)>>,
}

impl Files {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), made: AtomicUsize::new(0), open: Mutex::default() }
    }

    async fn open(&self, path: PathBuf) -> Arc<dyn Store> {
        let store = SqliteStore::open(&path, SqliteOptions::new()).await.unwrap();
        let handle: Arc<dyn Store> = Arc::new(store.clone());
        self.open.lock().unwrap().insert(address(&handle), (store, path));
        handle
    }
}

fn address(store: &Arc<dyn Store>) -> usize {
    Arc::as_ptr(store).cast::<()>().addr()
}

#[async_trait]
impl Harness for Files {
    async fn fresh(&self) -> Arc<dyn Store> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        self.open(self.dir.path().join(format!("{number}.db"))).await
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Option<Arc<dyn Store>> {
        let (handle, path) = self.open.lock().unwrap().remove(&address(&store))?;
        drop(store);
        handle.close().await;
        Some(self.open(path).await)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_keeps_the_store_contract() {
    let report = Suite::new().run(&Files::new()).await;
    println!("{report}");
    report.assert_passed();
    let skipped =
        report.results.iter().filter(|r| !matches!(r.verdict, photon_backend::conformance::Verdict::Passed));
    assert_eq!(skipped.count(), 0, "every check applies to a file");
}
