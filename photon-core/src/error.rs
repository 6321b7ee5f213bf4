//! Errors of the store contract, of encoding and of decoding, named by what the caller can do.

use std::error::Error as StdError;
use std::fmt;

/// Any error that can cross threads.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// What the caller of a store can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The engine is away or busy; nothing was written. Try again later.
    Unavailable,
    /// The answer got lost: what was to be written may be stored or not. Only a repetition that the store
    /// recognises is safe.
    Unknown,
    /// The engine has no room. Free some; nothing was written.
    Full,
    /// The engine allows no writes, or not this one. Change its permissions.
    Denied,
    /// The caller asked for something that does not fit: another shard count, a name in use, too large.
    /// Change the request; the message says how.
    Refused,
    /// The lease was lost: another owner works on the shard. Stop working on it.
    Fenced,
    /// What is stored cannot be read: another program's file, a newer version, damage. A person must look.
    Corrupt,
    /// The store was closed by its owner.
    Closed,
}

/// An error of a store: the kind for the program, the message for the person, the source kept.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<BoxError>,
}

impl StoreError {
    /// An error of `kind`. The message names the thing, the reason and the next step.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps `source` as the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Unknown | StoreErrorKind::Full)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// A value could not be encoded; nothing was published.
#[derive(Debug, thiserror::Error)]
#[error("`{type_name}` cannot be encoded as {content_type}")]
pub struct EncodeError {
    /// The event's type.
    pub type_name: &'static str,
    /// The encoding that was asked for.
    pub content_type: &'static str,
    /// What the codec said.
    #[source]
    pub source: BoxError,
}

/// A payload could not be decoded. Its delivery becomes a dead letter with the original bytes.
#[derive(Debug, thiserror::Error)]
#[error("the payload cannot be read as `{type_name}`")]
pub struct DecodeError {
    /// The event's type.
    pub type_name: &'static str,
    /// What the codec said.
    #[source]
    pub source: BoxError,
}

/// An error and its causes in one line, for logs and dead letters: `a: b: c`.
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Wrappers often repeat their cause.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
