//! Waiting until a store is back.

use photon_core::error::chain;
use photon_core::ids::TopicName;
use photon_core::machine::outage;
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::publisher::Core;

/// One publisher's wait through an outage: backs off, and says so now and then.
#[derive(Debug, Default)]
pub(crate) struct Outage(outage::Outage);

impl Outage {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Waits before the next attempt. Gives `error` back where nothing can wait.
    pub(crate) async fn wait(&mut self, core: &Core, topic: &TopicName, error: Error) -> Result<()> {
        if Handle::try_current().is_err() {
            return Err(error);
        }
        let now = core.clock.now().mono;
        if self.0.handle_failed(now) {
            let failures = self.0.failures();
            tracing::warn!(%topic, error = chain(&error), failures, "publishing waits for the store");
        }
        let delay = self.0.retry_at().since(now);
        // Many publishers wait for one store: they do not come back all at once.
        tokio::time::sleep(delay + delay.mul_f64(0.2 * core.random.unit())).await;
        Ok(())
    }
}
