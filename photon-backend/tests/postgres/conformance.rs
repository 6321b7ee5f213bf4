//! The store contract, held by a database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use photon_backend::conformance::{Harness, Suite, Verdict};
use photon_backend::postgres::PostgresStore;
use photon_core::store::Store;

use crate::support::{options, server};

/// A store, and the handle on it that a check has.
type Opened = (PostgresStore, Weak<dyn Store>);

/// One database for all checks, as a service would use it.
struct Database {
    url: String,
    /// The handles, to close a store.
    open: Mutex<HashMap<usize, Opened>>,
}

impl Database {
    async fn open(&self) -> Arc<dyn Store> {
        let store = PostgresStore::open(options(&self.url)).await.unwrap();
        let handle: Arc<dyn Store> = Arc::new(store.clone());
        let mut open = self.open.lock().unwrap();
        // What no check uses any more gives its connections back.
        open.retain(|_, (store, handle)| {
            handle.strong_count() > 0 || {
                store.close();
                false
            }
        });
        open.insert(address(&handle), (store, Arc::downgrade(&handle)));
        drop(open);
        handle
    }
}

fn address(store: &Arc<dyn Store>) -> usize {
    Arc::as_ptr(store).cast::<()>().addr()
}

#[async_trait]
impl Harness for Database {
    async fn fresh(&self) -> Arc<dyn Store> {
        self.open().await
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Option<Arc<dyn Store>> {
        let (handle, _) = self.open.lock().unwrap().remove(&address(&store))?;
        drop(store);
        handle.close();
        Some(self.open().await)
    }
}

pub(crate) async fn a_database_keeps_the_store_contract() {
    let database = Database { url: server().url(&server().new_database()), open: Mutex::default() };
    let report = Suite::new().run(&database).await;
    println!("{report}");
    report.assert_passed();
    let skipped = report.results.iter().filter(|r| !matches!(r.verdict, Verdict::Passed));
    assert_eq!(skipped.count(), 0, "every check applies to a database");
}
