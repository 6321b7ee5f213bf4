//! The tokio runtime that a call is made on.

use std::panic::catch_unwind;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::{Error, Result};

/// Refuses what cannot work here, instead of panicking somewhere within: no runtime, or one without timers. `what`
/// needs them.
pub(crate) fn check(what: &str) -> Result<()> {
    if Handle::try_current().is_err() {
        return Err(Error::refused(format!(
            "{what} needs a tokio runtime, and this call is made on none: make it in #[tokio::main], or within \
             Runtime::block_on"
        )));
    }
    // Tokio tells in no other way whether there are timers.
    if catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_err() {
        return Err(Error::refused(format!(
            "{what} needs timers, and this tokio runtime has none: call .enable_all() where it is built"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_does_not_do_is_refused() {
        let said = |result: Result<()>| result.unwrap_err().to_string();
        assert!(said(check("it")).contains("it needs a tokio runtime"));
        let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(said(bare.block_on(async { check("it") })).contains(".enable_all()"));
        let whole = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        whole.block_on(async { check("it") }).unwrap();
    }
}
