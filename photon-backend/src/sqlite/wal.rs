//! Keeps the write-ahead log short.

use std::time::{Duration, Instant};

use photon_core::error::chain;
use rusqlite::Connection;

use super::connection::wait_for_locks;
use super::error::{File, Trouble};

/// After so many new pages the log is copied into the database.
const CHECKPOINT_PAGES: u64 = 1_000;
/// How long the writer waits for readers to leave a log that is over its limit. Photon's own are quick.
const READERS_PATIENCE: Duration = Duration::from_millis(250);
/// How long it leaves a log alone that readers did not leave.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Decides after each commit whether to copy the log into the database, and does so.
///
/// A copy without waiting keeps the log short as long as readers leave it now and then. When it grows over
/// its limit all the same, the writer waits for them and empties it.
#[derive(Debug)]
pub(super) struct WalKeeper {
    file: File,
    limit: u64,
    tried_at: u64,
    failed: Option<Instant>,
}

impl WalKeeper {
    pub(super) fn new(file: File, conn: &Connection, limit: u64) -> Result<Self, Trouble> {
        let page: u64 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let limit = (limit / page.max(1)).max(CHECKPOINT_PAGES);
        Ok(Self { file, limit, tried_at: 0, failed: None })
    }

    pub(super) fn after_commit(&mut self, conn: &Connection) {
        if self.failed.is_some_and(|failed| failed.elapsed() < RETRY_AFTER) {
            return;
        }
        self.failed = None;
        if let Err(error) = self.check(conn) {
            self.failed = Some(Instant::now());
            tracing::warn!(
                database = %self.file.path().display(),
                error = chain(&error),
                "the write-ahead log could not be copied into the database; it is tried again"
            );
        }
    }

    fn check(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let (pages, copied) = checkpoint(conn, "PRAGMA wal_checkpoint(NOOP)")?;
        if pages < self.tried_at {
            self.tried_at = 0;
        }
        if pages >= self.limit {
            wait_for_locks(READERS_PATIENCE);
            let left = checkpoint(conn, "PRAGMA wal_checkpoint(TRUNCATE)");
            wait_for_locks(self.file.lock_timeout());
            let (left, _) = left?;
            self.tried_at = left;
            if left > 0 {
                self.failed = Some(Instant::now());
                tracing::debug!(
                    database = %self.file.path().display(),
                    pages = left,
                    "a reader keeps the write-ahead log over its limit"
                );
            }
        } else if pages.saturating_sub(copied.max(self.tried_at)) >= CHECKPOINT_PAGES {
            let (pages, _) = checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)")?;
            self.tried_at = pages;
        }
        Ok(())
    }
}

/// The pages in the log, and how many of them are in the database already.
fn checkpoint(conn: &Connection, pragma: &str) -> rusqlite::Result<(u64, u64)> {
    conn.prepare_cached(pragma)?.query_row([], |row| {
        // -1 while there is no log.
        let (pages, copied): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok((u64::try_from(pages).unwrap_or(0), u64::try_from(copied).unwrap_or(0)))
    })
}
