//! Publishing within a transaction of the user, on a connection of the user.

use std::fs;
use std::time::SystemTime;

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::store::{Appended, TopicInfo, TopicSpec};
use rusqlite::Connection;

use super::error::{Trouble, refused};
use super::topics::TopicCache;
use super::writer::Transaction;
use super::{SqliteStore, append, log, schema};

impl SqliteStore {
    /// Appends an event within a transaction that is open on a connection of the caller's, to the same file: it is in
    /// the log if and only if the transaction commits. `event` makes the event, given what the store says about the
    /// topic, which is made if it is not there.
    ///
    /// SQLite has one writer at a time, so the order of places is the order of commits here, too: from this call to
    /// the end of the transaction all other writers of the file wait. Begin it with `BEGIN IMMEDIATE`: one that has
    /// read before cannot write when somebody else wrote meanwhile. Readers hear of the event within some 25 ms of the
    /// commit.
    ///
    /// It waits for the file and must not be called on an async worker.
    ///
    /// # Errors
    /// `Refused` if no transaction is open, the connection has another file open, or the topic or the event does not
    /// fit; else as `append`. The transaction should then be rolled back.
    pub fn append_in(
        &self,
        conn: &Connection,
        topic: &TopicSpec,
        event: impl FnOnce(&TopicInfo) -> NewEvent,
    ) -> Result<Appended, StoreError> {
        let file = &self.inner.file;
        self.check_connection(conn)?;
        let mut topics = TopicCache::default();
        let mut tx = Transaction::of_user(conn, file, SystemTime::now().into(), &mut topics);
        let window = self.inner.options.dedup_window;
        let within = || -> Result<Option<Appended>, Trouble> {
            schema::check_current(conn, file)?;
            let info = log::ensure_topic(&mut tx, topic)?;
            let appended = append::append(&mut tx, &topic.name, &[event(&info)], window)?;
            Ok(appended.into_iter().next())
        };
        match within() {
            Ok(Some(appended)) => Ok(appended),
            Ok(None) => Err(file.error(StoreErrorKind::Corrupt, "an event was appended without a place")),
            Err(trouble) => Err(file.explain(trouble)),
        }
    }

    fn check_connection(&self, conn: &Connection) -> Result<(), StoreError> {
        let path = self.inner.file.path();
        if conn.is_autocommit() {
            return Err(refused(
                "the connection has no open transaction, in which an event could be published: begin one with \
                 `BEGIN IMMEDIATE`",
            ));
        }
        let same = conn.path().is_some_and(|other| {
            let (own, other) = (fs::canonicalize(path), fs::canonicalize(other));
            matches!((own, other), (Ok(own), Ok(other)) if own == other)
        });
        if same {
            return Ok(());
        }
        Err(refused(format!(
            "the transaction is on the database {:?}, and the log in {:?}: both must be one file",
            conn.path().unwrap_or("in memory"),
            path.display().to_string()
        )))
    }
}
