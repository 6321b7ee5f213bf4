//! The error of the public interface, named by what the caller can do.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use photon_core::error::{BoxError, EncodeError, StoreError, StoreErrorKind, chain};
use photon_core::ids::InvalidName;
use photon_core::registry::Problems;

use crate::publish::Receipt;

/// The result of Photon's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, named by what the caller can do about it.
///
/// The message names the thing, the reason and the next step; causes are kept as
/// [`source`](std::error::Error::source). Neither holds payloads or secrets. `Debug` writes the message with
/// its causes in one line, so that a `main` that returns it reads well.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call does not fit: change it as the message says. Nothing was stored.
    #[error("{message}")]
    Refused {
        /// The thing, the reason and the next step.
        message: String,
        /// What found it, if something below did.
        #[source]
        source: Option<BoxError>,
    },
    /// A payload, key or other part is larger than allowed. Nothing was stored.
    #[error("{what} has {bytes} bytes, at most {limit} are allowed: {hint}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size in bytes.
        bytes: usize,
        /// The most that is allowed, in bytes.
        limit: usize,
        /// What to do about it.
        hint: &'static str,
    },
    /// The event could not be encoded. Nothing was stored.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The store is away or busy; nothing was written. Try again later, or publish with `.wait()`.
    #[error("the store is away and nothing was written: try again later, or publish with .wait()")]
    Unavailable(#[source] Arc<StoreError>),
    /// The answer of the store got lost: what was to be written may be stored or not. Repeating it is safe only
    /// for a publish with a dedup id.
    #[error(
        "the store's answer got lost, it is unknown whether the write is stored: it may be; \
         a publish with .dedup_id(...) can be repeated safely"
    )]
    Unknown(#[source] Arc<StoreError>),
    /// The store has no room: free some. Nothing was written.
    #[error("the store is full and nothing was written: free some space and try again")]
    Full(#[source] Arc<StoreError>),
    /// The store needs a person: permissions, damage, another program's data. The message says what to do.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The publisher or its store was closed by a shutdown. Nothing was stored.
    #[error("Photon was shut down: nothing can be published or asked any more, nothing was stored")]
    Closed,
    /// What keeps the handlers and topics of the program from starting, all at once.
    #[error(transparent)]
    Start(Problems),
    /// What is wrong with the builder's calls and the environment, all at once.
    #[error(transparent)]
    Config(Problems),
    /// What was asked for is not there; the message says what is.
    #[error("{0}")]
    NotFound(String),
    /// What was asked for does not fit the state of things; the message says what the state is.
    #[error("{0}")]
    Conflict(String),
    /// `publish_all` came to an end in the middle.
    ///
    /// The first `receipts.len()` events are certainly stored. Of those after them a prefix in each shard may be
    /// stored too if `source` is [`Error::Unknown`], else none is. If `source` is about an event itself, it is
    /// the event at index `receipts.len()`.
    #[error("publishing ended after {} stored events", receipts.len())]
    Partial {
        /// A receipt for each event that is certainly stored, in order.
        receipts: Vec<Receipt>,
        /// Why it ended.
        #[source]
        source: Box<Error>,
    },
}

impl Error {
    /// A refusal without a deeper cause.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Error::Refused { message: message.into(), source: None }
    }

    /// Whether the same call may succeed later, without anybody changing anything, and is safe to repeat.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unavailable(_) => true,
            Error::Partial { source, .. } => source.is_transient(),
            _ => false,
        }
    }

    /// The events of a `publish_all` that are certainly stored although it failed, in order.
    pub fn stored(&self) -> &[Receipt] {
        match self {
            Error::Partial { receipts, .. } => receipts,
            _ => &[],
        }
    }
}

impl From<Arc<StoreError>> for Error {
    fn from(error: Arc<StoreError>) -> Self {
        match error.kind() {
            StoreErrorKind::Unavailable => Error::Unavailable(error),
            StoreErrorKind::Unknown => Error::Unknown(error),
            StoreErrorKind::Full => Error::Full(error),
            StoreErrorKind::Closed => Error::Closed,
            StoreErrorKind::Refused => Error::Refused {
                message: error.to_string(),
                source: StdError::source(&*error).is_some().then(|| Beneath(error.clone()).into()),
            },
            _ => Error::Store(error),
        }
    }
}

/// What is beneath an error of the store whose message is told already: no chain says it twice.
#[derive(Debug)]
struct Beneath(Arc<StoreError>);

impl fmt::Display for Beneath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        StdError::source(&*self.0).map_or(Ok(()), |source| fmt::Display::fmt(source, f))
    }
}

impl StdError for Beneath {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        StdError::source(&*self.0)?.source()
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Arc::new(error).into()
    }
}

impl From<InvalidName> for Error {
    fn from(error: InvalidName) -> Self {
        Error::refused(error.to_string())
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_error(kind: StoreErrorKind) -> Error {
        StoreError::new(kind, "the file is locked").with_source("lock held by 12").into()
    }

    #[test]
    fn an_error_crosses_threads_and_keeps_its_causes() {
        fn check<T: std::error::Error + Send + Sync + 'static>(_: &T) {}
        let error = store_error(StoreErrorKind::Unavailable);
        check(&error);
        assert!(error.is_transient());
        let text = format!("{error:?}");
        assert!(text.contains("the file is locked: lock held by 12"), "{text}");
    }

    #[test]
    fn the_kind_of_a_store_error_decides() {
        assert!(matches!(store_error(StoreErrorKind::Unknown), Error::Unknown(_)));
        assert!(matches!(store_error(StoreErrorKind::Full), Error::Full(_)));
        assert!(matches!(store_error(StoreErrorKind::Closed), Error::Closed));
        assert!(matches!(store_error(StoreErrorKind::Denied), Error::Store(_)));
        assert!(matches!(store_error(StoreErrorKind::Corrupt), Error::Store(_)));
        let refused = store_error(StoreErrorKind::Refused);
        assert_eq!(refused.to_string(), "the file is locked");
        assert_eq!(format!("{refused:?}"), "the file is locked: lock held by 12");
        let source = StdError::source(&refused).expect("the cause is kept");
        assert_eq!(source.to_string(), "lock held by 12");
        let alone: Error = StoreError::new(StoreErrorKind::Refused, "no such topic").into();
        assert!(StdError::source(&alone).is_none());
    }
}
