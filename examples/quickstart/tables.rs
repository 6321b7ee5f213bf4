//! The program's own tables. They live in the SQLite file that holds the log.
//!
//! A delivery may come twice: after a crash, what was not in a checkpoint yet is delivered again. So each change
//! is made in one transaction with a row that names the commit, and a second time it changes nothing.
//!
//! The transactions do not wait for the disk (`synchronous = NORMAL`), and are no less durable for that: they lie
//! in the same write-ahead log as Photon's checkpoints. A checkpoint waits for the disk, and takes to it what was
//! written before it, which is the work that it vouches for.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::commit::Commit;

const SCHEMA: &str = "
    -- The projection: what each author did. `trail` depends on every commit of the author and on their order.
    CREATE TABLE IF NOT EXISTS author (
        name BLOB PRIMARY KEY,
        commits INTEGER NOT NULL,
        first_time INTEGER,
        last_time INTEGER,
        trail INTEGER NOT NULL
    ) WITHOUT ROWID;
    -- The commits that are in it.
    CREATE TABLE IF NOT EXISTS counted (hash TEXT PRIMARY KEY) WITHOUT ROWID;
    -- What the chat room remembers of each post.
    CREATE TABLE IF NOT EXISTS post (
        hash TEXT PRIMARY KEY,
        refusals INTEGER NOT NULL,
        subject TEXT
    ) WITHOUT ROWID;
    -- Whose history this is.
    CREATE TABLE IF NOT EXISTS repository (path BLOB PRIMARY KEY) WITHOUT ROWID;
";

/// The tables. Clones share one connection.
#[derive(Clone)]
pub struct Tables(Arc<Mutex<Connection>>);

/// One line of the projection.
pub struct Author {
    pub name: Vec<u8>,
    pub commits: u64,
    pub trail: i64,
}

/// The numbers of all tables.
#[derive(Debug, PartialEq)]
pub struct Totals {
    pub commits: u64,
    pub authors: u64,
    pub posts: u64,
    pub retries: u64,
}

impl Tables {
    /// Opens the file, or tables in memory. [`create`](Self::create) comes next, after Photon has opened it too:
    /// Photon takes a file that is its own or empty.
    pub fn open(file: Option<&Path>) -> rusqlite::Result<Self> {
        let connection = match file {
            Some(file) => Connection::open(file)?,
            None => Connection::open_in_memory()?,
        };
        connection.busy_timeout(Duration::from_secs(10))?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    pub async fn create(&self) -> rusqlite::Result<()> {
        self.run(|connection| {
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            connection.execute_batch(SCHEMA)
        })
        .await
    }

    /// The repository that these tables are about; `repository` if they are new.
    pub async fn owner(&self, repository: Vec<u8>) -> rusqlite::Result<Vec<u8>> {
        self.change(move |tables| {
            tables.execute(
                "INSERT INTO repository SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM repository)",
                [repository],
            )?;
            tables.query_row("SELECT path FROM repository", [], |row| row.get(0))
        })
        .await
    }

    /// Which of these commits the projection does not have, in the same order.
    pub async fn without_counted(&self, commits: Vec<Commit>) -> rusqlite::Result<Vec<Commit>> {
        self.run(move |connection| {
            let mut counted = connection.prepare_cached("SELECT 1 FROM counted WHERE hash = ?1")?;
            let mut new = Vec::new();
            for commit in commits {
                if !counted.exists([&commit.hash])? {
                    new.push(commit);
                }
            }
            Ok(new)
        })
        .await
    }

    /// Counts the commit for its author, once.
    pub async fn count(&self, commit: Commit) -> rusqlite::Result<()> {
        self.change(move |tables| {
            let new = tables
                .prepare_cached("INSERT INTO counted VALUES (?1) ON CONFLICT DO NOTHING")?
                .execute([&commit.hash])?;
            if new == 0 {
                return Ok(());
            }
            let author = commit.author.as_bytes();
            let before: Option<i64> = tables
                .prepare_cached("SELECT trail FROM author WHERE name = ?1")?
                .query_row([author], |row| row.get(0))
                .optional()?;
            let trail = follow(before.unwrap_or_default(), &commit.hash);
            tables
                .prepare_cached(
                    "INSERT INTO author VALUES (?1, 1, ?2, ?2, ?3) ON CONFLICT DO UPDATE SET
                     commits = commits + 1, trail = excluded.trail,
                     first_time = min(ifnull(first_time, excluded.first_time), ifnull(excluded.first_time, first_time)),
                     last_time = max(ifnull(last_time, excluded.last_time), ifnull(excluded.last_time, last_time))",
                )?
                .execute(params![author, commit.time, trail])?;
            Ok(())
        })
        .await
    }

    /// Notes another refusal of the commit's post, unless there were `most` already. Returns whether it did.
    pub async fn refuse(&self, hash: String, most: u32) -> rusqlite::Result<bool> {
        self.change(move |tables| {
            let changed = tables
                .prepare_cached(
                    "INSERT INTO post SELECT ?1, 1, NULL WHERE ?2 > 0
                     ON CONFLICT DO UPDATE SET refusals = refusals + 1 WHERE refusals < ?2",
                )?
                .execute(params![hash, most])?;
            Ok(changed > 0)
        })
        .await
    }

    /// Keeps the post, once.
    pub async fn post(&self, hash: String, subject: String) -> rusqlite::Result<()> {
        self.change(move |tables| {
            tables
                .prepare_cached(
                    "INSERT INTO post VALUES (?1, 0, ?2) ON CONFLICT DO UPDATE SET subject = excluded.subject",
                )?
                .execute(params![hash, subject])?;
            Ok(())
        })
        .await
    }

    pub async fn totals(&self) -> rusqlite::Result<Totals> {
        self.run(|connection| {
            connection.query_row(
                "SELECT (SELECT count(*) FROM counted), (SELECT count(*) FROM author),
                        count(subject), ifnull(sum(refusals), 0) FROM post",
                [],
                |row| {
                    let [commits, authors, posts, retries] =
                        [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
                    Ok(Totals { commits, authors, posts, retries })
                },
            )
        })
        .await
    }

    /// The authors, the busiest first.
    pub async fn authors(&self, limit: u32) -> rusqlite::Result<Vec<Author>> {
        self.run(move |connection| {
            connection
                .prepare("SELECT name, commits, trail FROM author ORDER BY commits DESC, name LIMIT ?1")?
                .query_map([limit], |row| {
                    Ok(Author { name: row.get(0)?, commits: row.get(1)?, trail: row.get(2)? })
                })?
                .collect()
        })
        .await
    }

    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        self.run(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let result = change(&transaction)?;
            transaction.commit()?;
            Ok(result)
        })
        .await
    }

    /// SQLite may wait, for another process or for the disk: never in a thread that runs handlers.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        let connection = self.0.clone();
        let task = tokio::task::spawn_blocking(move || {
            work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))
        });
        match task.await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is going down.
            Err(_) => Err(rusqlite::Error::InvalidQuery),
        }
    }
}

/// One step of the trail: FNV-1a over the bytes of the hash.
fn follow(trail: i64, hash: &str) -> i64 {
    hash.bytes().fold(trail, |trail, byte| (trail ^ i64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
