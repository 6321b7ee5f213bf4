//! From what Postgres says to what the caller can do.

use std::sync::Arc;
use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind};
use tokio_postgres::error::SqlState;

pub(super) use crate::refusal::refused;

/// What our own functions raise when a topic has lost its counters.
const LOST_SHARDS: &str = "PH001";

/// Why a piece of work failed, before the database is named.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Postgres said no, or is away.
    Postgres(tokio_postgres::Error),
    /// It is clear already what the caller can do.
    Store(StoreError),
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        Trouble::Postgres(error)
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

/// The database, for messages. It knows no password.
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

    /// An error that names the database: `reason` continues the sentence that starts with its name.
    pub(super) fn error(&self, kind: StoreErrorKind, reason: impl std::fmt::Display) -> StoreError {
        StoreError::new(kind, format!("the Postgres database {}: {reason}", self.place))
    }

    /// No connection came free in time.
    pub(super) fn is_busy(&self) -> StoreError {
        let reason = format!(
            "no connection came free within {:?}: publish less at a time, or raise the number of connections",
            self.timeout
        );
        self.error(StoreErrorKind::Unavailable, reason)
    }

    /// The answer did not come in time.
    pub(super) fn is_late(&self, effect: Effect) -> StoreError {
        let (kind, next) = effect.if_lost();
        self.error(kind, format!("no answer within {:?}; {next}", self.timeout))
    }

    /// The store was closed.
    pub(super) fn is_closed(&self) -> StoreError {
        self.error(StoreErrorKind::Closed, "the store was closed: open it again")
    }

    /// A stored value that no version of Photon writes.
    pub(super) fn strange(&self, what: impl std::fmt::Display) -> StoreError {
        let reason = format!("{what} cannot be read: check that no other program changed the tables");
        self.error(StoreErrorKind::Corrupt, reason)
    }

    /// The error for a connection that could not be made.
    pub(super) fn explain_connect(&self, error: tokio_postgres::Error) -> StoreError {
        if error.as_db_error().is_some() {
            return self.explain(error, Effect::Read);
        }
        let text = photon_core::error::chain(&error);
        let (kind, next) = if text.contains("certificate") || text.contains("TLS") {
            (
                StoreErrorKind::Denied,
                "trust its certificate with sslrootcert=FILE, name the host as the certificate does, or say \
                 sslmode=disable to go without encryption",
            )
        } else if text.contains("password missing") || text.contains("invalid configuration") {
            (StoreErrorKind::Refused, "give the user and the password in the URL")
        } else {
            (StoreErrorKind::Unavailable, "check that it runs, and host and port in the URL")
        };
        self.error(kind, format!("cannot be reached: {next}")).with_source(error)
    }

    /// The error for a piece of work.
    pub(super) fn explain(&self, trouble: impl Into<Trouble>, effect: Effect) -> StoreError {
        let error = match trouble.into() {
            Trouble::Store(error) => return error,
            Trouble::Postgres(error) => error,
        };
        let Some(db) = error.as_db_error() else {
            let (kind, next) = effect.if_lost();
            let reason = format!("the connection broke; {next}");
            return self.error(kind, reason).with_source(error);
        };
        let (kind, reason) = judge(db.code(), effect);
        let text = format!("{}; {reason}", db.message());
        self.error(kind, text).with_source(error)
    }
}

fn judge(code: &SqlState, effect: Effect) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Corrupt, Denied, Full, Refused, Unavailable};
    match code.code() {
        // The server ends in the middle of it: perhaps after the commit.
        "57P01" | "57P02" => effect.if_lost(),
        "57P03" => (Unavailable, "it starts or stops: try again"),
        "57014" => (Unavailable, "it took longer than statement_timeout allows, or was cancelled: try again"),
        "55P03" => {
            (Unavailable, "a lock was not given in time: find who holds a transaction open, try again")
        }
        "40001" | "40P01" => (Unavailable, "another transaction was in the way: try again"),
        "25P03" | "25P04" => (Unavailable, "the server ended the transaction because it was slow: try again"),
        "53300" => (
            Unavailable,
            "it takes no more connections: raise max_connections there, or lower the number of connections here",
        ),
        "53100" | "53400" => (Full, "its disk is full or a limit is reached: free some, trim topics"),
        "53200" => (Unavailable, "it is out of memory: publish less at a time"),
        "25006" => (Denied, "it takes no writes, as a standby does: name the primary in the URL, or both"),
        "28P01" | "28000" => {
            (Denied, "check user and password in the URL, and that pg_hba.conf lets them in from here")
        }
        "42501" => (
            Denied,
            "let the user make the schema, or make it and give it to the user: GRANT CREATE ON DATABASE ... TO \
             ..., or ALTER SCHEMA ... OWNER TO ...",
        ),
        "3D000" => (Refused, "make the database with CREATE DATABASE, or correct its name in the URL"),
        "22003" => (Refused, "a number is out of range: a seq is at most 9223372036854775807"),
        "54000" => (Refused, "a value is larger than Postgres stores (1 GB): publish less"),
        "XX001" | "XX002" => (Corrupt, "its files are damaged: restore a copy"),
        LOST_SHARDS => (Corrupt, "its rows were removed by another program: restore a copy"),
        "42P01" | "42703" | "42883" | "42804" | "3F000" | "23502" | "23505" => (
            Corrupt,
            "the tables in the schema are not what this version of Photon made: give Photon a schema of its own \
             with schema=NAME, or restore a copy",
        ),
        state if state.starts_with("08") => effect.if_lost(),
        _ => (Unavailable, "nothing was written; see the server's log"),
    }
}
