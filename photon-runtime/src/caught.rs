//! Calls of a store that panics.

use std::panic::AssertUnwindSafe;

use futures::future::FutureExt;
use photon_core::error::{StoreError, StoreErrorKind};

/// Makes a panic of the store an error of the call: a loop that waits for the answer must not end with it.
pub(crate) async fn caught<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    // What the call had borrowed is not used again.
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
        let message =
            "the store panicked: see the log of the panic, and report it to whoever wrote the store";
        Err(StoreError::new(StoreErrorKind::Unknown, message))
    })
}
