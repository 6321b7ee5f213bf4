//! From what Redis says to what the caller can do.

use std::sync::Arc;
use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind};
use redis::RedisError;

pub(super) use crate::refusal::refused;

/// Why a piece of work failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The caller gets this.
    Store(StoreError),
    /// The keys of the topic are not there.
    NoTopic,
    /// The keys of the subscription are not there.
    NoSubscription,
    /// The caller is not a member.
    Stranger,
}

impl Trouble {
    /// Whether keys are gone that may be made anew.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self, Trouble::NoTopic | Trouble::NoSubscription)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Trouble::Store(error)
    }
}

/// What is left behind if an answer gets lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing: it only looks.
    Read,
    /// Perhaps what it was to write.
    Write,
}

impl Effect {
    fn if_lost(self) -> (StoreErrorKind, &'static str) {
        match self {
            Effect::Read => (StoreErrorKind::Unavailable, "try again"),
            Effect::Write => (
                StoreErrorKind::Unknown,
                "what was to be written may be stored or not: look, or repeat only what the store recognises",
            ),
        }
    }
}

/// The server, for messages. It knows no password.
#[derive(Debug, Clone)]
pub(super) struct Target {
    place: Arc<str>,
    timeout: Duration,
}

impl Target {
    pub(super) fn new(place: &str, timeout: Duration) -> Self {
        Self { place: place.into(), timeout }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// An error that names the server: `reason` continues the sentence that starts with its name.
    pub(super) fn error(&self, kind: StoreErrorKind, reason: impl std::fmt::Display) -> StoreError {
        StoreError::new(kind, format!("the Redis server {}: {reason}", self.place))
    }

    /// The store was closed.
    pub(super) fn is_closed(&self) -> StoreError {
        self.error(StoreErrorKind::Closed, "the store was closed: open it again")
    }

    /// A stored value that no version of Photon writes.
    pub(super) fn strange(&self, what: impl std::fmt::Display) -> StoreError {
        let reason = format!("{what} cannot be read: check that no other program changed the keys");
        self.error(StoreErrorKind::Corrupt, reason)
    }

    /// The error for a connection that could not be made.
    pub(super) fn explain_connect(&self, error: RedisError) -> StoreError {
        if error.code().is_some() {
            return self.judge(error, Effect::Read);
        }
        let text = error.to_string();
        let (kind, next) = if error.kind() == redis::ErrorKind::AuthenticationFailed {
            (StoreErrorKind::Denied, "check user and password in the URL")
        } else if text.contains("certificate") {
            (
                StoreErrorKind::Denied,
                "trust its certificate with tls_ca=FILE, name the host as the certificate does, or say tls=off \
                 to go without encryption",
            )
        } else {
            (StoreErrorKind::Unavailable, "check that it runs, and host, port and tls in the URL")
        };
        self.error(kind, format!("cannot be reached: {next}")).with_source(error)
    }

    /// The error for a command or script.
    pub(super) fn explain(&self, error: RedisError, effect: Effect) -> Trouble {
        if error.code() == Some("PHOTON") {
            return match error.detail().unwrap_or_default().split_whitespace().next() {
                Some("topic") => Trouble::NoTopic,
                Some("subscription") => Trouble::NoSubscription,
                Some("stranger") => Trouble::Stranger,
                _ => Trouble::Store(self.error(
                    StoreErrorKind::Corrupt,
                    "a stream holds an entry of another program with an id beyond all numbers, and takes no more: \
                     copy its other entries, with their ids, to a new stream, and RENAME that to its name",
                )),
            };
        }
        if error.code().is_some() {
            return self.judge(error, effect).into();
        }
        if error.kind() == redis::ErrorKind::UnexpectedReturnType {
            return Trouble::Store(self.strange("an answer").with_source(error));
        }
        let (kind, next) = effect.if_lost();
        let reason = if error.is_timeout() {
            format!("no answer within {:?}; {next}", self.timeout)
        } else {
            format!("the connection broke; {next}")
        };
        self.error(kind, reason).with_source(error).into()
    }

    fn judge(&self, error: RedisError, effect: Effect) -> StoreError {
        use StoreErrorKind::{Corrupt, Denied, Full, Refused, Unavailable};
        let text = error.to_string();
        let (kind, next) = match error.code().unwrap_or_default() {
            "OOM" => (Full, "its memory is full: raise maxmemory or trim topics"),
            "MISCONF" if text.contains("No space") => (Full, "its disk is full: free some"),
            "MISCONF" => (Unavailable, "it cannot write its files, and so takes no writes: see its log"),
            "NOAUTH" => (Denied, "give a user and a password in the URL"),
            "WRONGPASS" => (Denied, "check user and password in the URL"),
            "NOPERM" => (
                Denied,
                "the user lacks a right, to a command or to the keys of the prefix: ACL SETUSER ... ~PREFIX:* \
                 &PREFIX/* +@all -@dangerous +info +config|get",
            ),
            "READONLY" => (Denied, "it is a replica and takes no writes: name the primary in the URL"),
            "LOADING" => (Unavailable, "it still loads its data: try again"),
            "BUSY" => (Unavailable, "a script of another program keeps it busy: try again"),
            "MASTERDOWN" => (Unavailable, "it is a replica without its primary: try again"),
            "NOREPLICAS" => (Unavailable, "it has too few replicas to take writes: look after them"),
            "CLUSTERDOWN" | "MOVED" | "ASK" | "CROSSSLOT" => {
                (Refused, "it is part of a cluster: name a server that is not")
            }
            "WRONGTYPE" => (
                Corrupt,
                "a key of this prefix holds something else: another program uses it. Remove the key, or give \
                 Photon a prefix of its own with prefix=NAME",
            ),
            "UNKILLABLE" | "EXECABORT" => return self.lost(error, effect),
            _ => (Unavailable, "see the server's log"),
        };
        self.error(kind, format!("{text}; {next}")).with_source(error)
    }

    fn lost(&self, error: RedisError, effect: Effect) -> StoreError {
        let (kind, next) = effect.if_lost();
        self.error(kind, format!("it broke off; {next}")).with_source(error)
    }
}
