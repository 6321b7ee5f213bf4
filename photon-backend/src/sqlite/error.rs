//! From what SQLite says to what the caller can do.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use photon_core::envelope::BadEnvelope;
use photon_core::error::{StoreError, StoreErrorKind};
use rusqlite::ErrorCode;

use super::place::Place;

pub(super) use crate::refusal::refused;

/// Why a piece of work on a connection failed, before the file is named.
#[derive(Debug)]
pub(super) enum Trouble {
    /// SQLite said no.
    Sqlite(rusqlite::Error),
    /// It is clear already what the caller can do.
    Store(StoreError),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Trouble::Sqlite(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Trouble::Store(error)
    }
}

/// The database file, for messages, and the time that is spent waiting for its locks.
#[derive(Debug, Clone)]
pub(super) struct File {
    path: Arc<Path>,
    lock_timeout: Duration,
    place: Arc<OnceLock<Place>>,
}

impl File {
    pub(super) fn new(path: &Path, lock_timeout: Duration) -> Self {
        Self { path: path.into(), lock_timeout, place: Arc::default() }
    }

    /// It is open: from here on it must stay where it is.
    pub(super) fn opened(&self) {
        self.place.get_or_init(|| Place::of(&self.path));
    }

    /// Why nothing may be read or written any more, if the file is not in its place; to be told to each of many.
    pub(super) fn displaced(&self) -> Option<Displaced<'_>> {
        let missing = self.place.get()?.missing()?;
        Some(Displaced { file: self, missing })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn lock_timeout(&self) -> Duration {
        self.lock_timeout
    }

    /// An error that names the file: `reason` continues the sentence that starts with its name.
    pub(super) fn error(&self, kind: StoreErrorKind, reason: impl std::fmt::Display) -> StoreError {
        StoreError::new(kind, format!("the database {}: {reason}", self.path.display()))
    }

    /// The error for a piece of work that had no effect.
    pub(super) fn explain(&self, trouble: impl Into<Trouble>) -> StoreError {
        match trouble.into() {
            Trouble::Store(error) => error,
            Trouble::Sqlite(error) => {
                let (kind, reason) = self.judge(&error);
                self.error(kind, reason).with_source(error)
            }
        }
    }

    /// The same for several pieces of work that one error kept from taking effect.
    pub(super) fn explain_shared(&self, error: &rusqlite::Error) -> StoreError {
        let (kind, reason) = self.judge(error);
        keep_source(self.error(kind, reason), error)
    }

    /// The error for each piece of work of a transaction whose commit failed.
    pub(super) fn explain_commit(&self, error: &rusqlite::Error) -> StoreError {
        if is_certain(error) {
            return self.explain_shared(error);
        }
        let reason = "the disk failed in the middle of a commit, what was to be written may be stored or not: \
                      check the disk, then look at what is stored";
        keep_source(self.error(StoreErrorKind::Unknown, reason), error)
    }

    /// A piece of work panicked. What it had changed is rolled back.
    pub(super) fn panicked(&self) -> StoreError {
        let reason = "a fault of Photon, or damage that it did not expect, made it panic, nothing was changed: see the \
                      log of the panic, check the file with `PRAGMA integrity_check`";
        self.error(StoreErrorKind::Corrupt, reason)
    }

    /// Stored headers that cannot be read.
    pub(super) fn bad_envelope(&self, error: BadEnvelope, of: impl std::fmt::Display) -> StoreError {
        self.error(
            StoreErrorKind::Corrupt,
            format!(
                "the headers of {of} cannot be read: check the file with `PRAGMA integrity_check`, restore \
                     a copy"
            ),
        )
        .with_source(error)
    }

    fn judge(&self, error: &rusqlite::Error) -> (StoreErrorKind, String) {
        use StoreErrorKind::{Corrupt, Denied, Full, Refused, Unavailable};
        let (kind, reason) = match error.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed,
            ) => {
                let reason = format!(
                    "locked by another process for {:?}: find the program that holds a transaction open, or \
                     raise lock_timeout",
                    self.lock_timeout
                );
                return (Unavailable, reason);
            }
            Some(ErrorCode::DiskFull) => {
                (Full, "no room: free some on its disk, trim topics, or raise max_size if it is set")
            }
            Some(
                ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::CannotOpen
                | ErrorCode::AuthorizationForStatementDenied,
            ) => (
                Denied,
                "cannot be opened for writing: allow this user to write the file, its -wal and -shm files \
                 and its directory",
            ),
            Some(ErrorCode::NotADatabase) => {
                (Corrupt, "not a database: give Photon a file of its own, or restore a copy")
            }
            Some(ErrorCode::DatabaseCorrupt) => (
                Corrupt,
                "damaged or cut short: nothing was changed; keep the file with its -wal and restore a copy",
            ),
            Some(ErrorCode::SystemIoFailure) => (Unavailable, "the disk failed: check it, then try again"),
            Some(ErrorCode::OutOfMemory | ErrorCode::OperationInterrupted | ErrorCode::OperationAborted) => {
                (Unavailable, "interrupted or out of memory: try again")
            }
            Some(ErrorCode::TooBig) => (Refused, "a value is larger than SQLite stores (1 GB): publish less"),
            Some(_) => (
                Corrupt,
                "its tables are not what this version wrote: check that no other program changed them",
            ),
            None if matches!(error, rusqlite::Error::ToSqlConversionFailure(_)) => {
                (Refused, "a number is out of range: a seq is at most 9223372036854775807")
            }
            None => (
                Corrupt,
                "it holds a value that this version does not understand: check that no other program \
                 changed it",
            ),
        };
        (kind, reason.to_owned())
    }
}

/// A file that was removed or replaced while it was open.
pub(super) struct Displaced<'a> {
    file: &'a File,
    missing: &'a Path,
}

impl Displaced<'_> {
    /// The error for work that was not begun.
    pub(super) fn before(&self) -> StoreError {
        let reason = format!(
            "{} was removed or replaced while it was open, what is written now would be lost: put it back, or end \
             this process and start it again",
            self.missing.display()
        );
        self.file.error(StoreErrorKind::Corrupt, reason)
    }

    /// The error for work whose commit may have gone to a file that nobody will find.
    pub(super) fn after(&self) -> StoreError {
        let reason = format!(
            "{} was removed or replaced while it was open, what was just written may be lost: put it back, or end \
             this process and start it again",
            self.missing.display()
        );
        self.file.error(StoreErrorKind::Unknown, reason)
    }
}

fn keep_source(to: StoreError, error: &rusqlite::Error) -> StoreError {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => {
            to.with_source(rusqlite::Error::SqliteFailure(*code, message.clone()))
        }
        other => to.with_source(other.to_string()),
    }
}

/// Whether a commit that failed so has stored nothing. A failing disk may have taken the commit in.
pub(super) fn is_certain(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::ReadOnly)
    )
}

/// Whether somebody else holds a lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
    )
}
