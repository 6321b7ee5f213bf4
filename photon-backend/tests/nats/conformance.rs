//! The store contract, held by a server.

use std::sync::Arc;

use async_trait::async_trait;
use photon_backend::conformance::{Harness, Suite, Verdict};
use photon_backend::nats::{NatsOptions, NatsStore};
use photon_backend::servers::Nats;
use photon_core::store::Store;

/// One server for all checks.
struct Shared {
    server: Nats,
}

impl Shared {
    async fn open(&self) -> Arc<dyn Store> {
        let options = NatsOptions::from_url(&self.server.url()).unwrap();
        Arc::new(NatsStore::open(options).await.unwrap())
    }
}

#[async_trait]
impl Harness for Shared {
    async fn fresh(&self) -> Arc<dyn Store> {
        self.open().await
    }

    /// The server is killed, too.
    async fn reopen(&self, store: Arc<dyn Store>) -> Option<Arc<dyn Store>> {
        drop(store);
        self.server.crash();
        Some(self.open().await)
    }
}

pub(crate) async fn a_server_keeps_the_store_contract() {
    let report = Suite::new().run(&Shared { server: Nats::start_new(&[]) }).await;
    println!("{report}");
    report.assert_passed();
    let skipped = report.results.iter().filter(|result| result.verdict != Verdict::Passed);
    assert_eq!(skipped.count(), 0, "every check applies to a server");
}
