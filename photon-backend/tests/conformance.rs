//! The stores of this crate keep the contract.

use std::sync::Arc;

use async_trait::async_trait;
use photon_backend::conformance::{self, Harness};
use photon_backend::memory::MemoryStore;
use photon_core::store::Store;

struct Memory;

#[async_trait]
impl Harness for Memory {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    /// A clone is what a restarted process would find if memory were durable.
    async fn reopen(&self, store: Arc<dyn Store>) -> Option<Arc<dyn Store>> {
        Some(store)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_conforms() {
    conformance::assert_conforms(&Memory).await;
}
