//! The store contract, held by a server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use photon_backend::conformance::{Harness, Suite, Verdict};
use photon_backend::redis::{RedisOptions, RedisStore};
use photon_backend::servers::Redis;
use photon_core::store::Store;

/// One server for all checks, which is killed whenever a store is opened again.
struct Server {
    redis: Redis,
    /// The handles, to close a store.
    open: Mutex<HashMap<usize, RedisStore>>,
}

impl Server {
    async fn open(&self) -> Arc<dyn Store> {
        let options = RedisOptions::from_url(&self.redis.url()).unwrap();
        let store = RedisStore::open(options).await.unwrap();
        let handle: Arc<dyn Store> = Arc::new(store.clone());
        self.open.lock().unwrap().insert(address(&handle), store);
        handle
    }
}

fn address(store: &Arc<dyn Store>) -> usize {
    Arc::as_ptr(store).cast::<()>().addr()
}

#[async_trait]
impl Harness for Server {
    async fn fresh(&self) -> Arc<dyn Store> {
        self.open().await
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Option<Arc<dyn Store>> {
        let handle = self.open.lock().unwrap().remove(&address(&store))?;
        drop(store);
        handle.close().await;
        self.redis.crash();
        Some(self.open().await)
    }
}

pub(crate) async fn a_server_keeps_the_store_contract() {
    let server = Server { redis: Redis::start_new(&[]), open: Mutex::default() };
    let report = Suite::new().run(&server).await;
    println!("{report}");
    report.assert_passed();
    let skipped = report.results.iter().filter(|result| result.verdict != Verdict::Passed);
    assert_eq!(skipped.count(), 0, "every check applies to a server");
}
