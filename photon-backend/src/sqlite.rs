//! The embedded store: one SQLite file, which several processes may share.
//!
//! One thread writes and a few read, each on a connection of its own, so that no async worker ever waits for
//! the disk or for a lock. What waits to be written is committed together. The file holds tables whose names
//! start with `photon_`; a service may keep tables of its own beside them.
//!
//! A database must lie on a local disk: SQLite shares its write-ahead log through memory.

mod append;
mod checkpoints;
mod commit;
mod connection;
mod control;
mod error;
mod leases;
mod log;
mod options;
mod place;
mod publish_in;
mod queue;
mod read;
mod readers;
mod rows;
mod schema;
mod sideline;
#[cfg(test)]
mod tests;
mod topics;
mod trim;
mod tx;
mod wake;
mod wal;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::handler::Extensions;
use photon_core::store::Store;
use tokio::sync::{oneshot, watch};

pub use rusqlite;

pub use self::options::{Durability, SqliteOptions};
pub use self::tx::Tx;

use self::error::File;
use self::readers::Readers;
use self::wake::Wakes;
use self::wal::WalKeeper;
use self::writer::Writer;

/// About how many bytes a write without payloads takes.
const SMALL_WRITE: usize = 256;

/// A store in one SQLite file.
///
/// A clone is another handle on the same store. When the last one is dropped, what was asked to be written is
/// still written, in the background; [`close`](Self::close) waits for that. The store needs no runtime: it
/// goes on when the one it was opened on is gone.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    file: File,
    options: SqliteOptions,
    writer: Writer,
    readers: Readers,
    wakes: Wakes,
    /// Counts reads, to begin each with another shard.
    reads: AtomicUsize,
    /// Knows when every thread has ended.
    threads: watch::Sender<()>,
}

impl SqliteStore {
    /// Opens the database at `path`, and makes it if there is none. Many processes may open it, also at once.
    ///
    /// # Errors
    /// Each names the file and what to do. `Corrupt`: it is another program's, of a newer version, damaged or
    /// cut short. `Denied`: it or its directory cannot be written. `Refused`: the path cannot be a database.
    /// `Unavailable`: another process held a lock for longer than the lock timeout. `Full`: there is no room.
    /// A file that was refused is left as it was.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        let file = File::new(path.as_ref(), options.lock_timeout);
        let threads = watch::Sender::new(());
        // Whatever happens from here on, dropping it ends the threads.
        let inner = Inner {
            writer: Writer::new(file.clone()),
            readers: Readers::new(file.clone(), options.readers, &threads),
            wakes: Wakes::default(),
            reads: AtomicUsize::new(0),
            file,
            options,
            threads,
        };
        inner.start_writer().await?;
        inner.start_watch()?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Ends the store for all its handles: what was asked for before is still done, later calls fail as
    /// `Closed`. Returns when the file is closed.
    pub async fn close(&self) {
        self.inner.shut();
        self.inner.threads.closed().await;
    }
}

impl Inner {
    /// Starts the writing thread and waits until it has opened the file.
    async fn start_writer(&self) -> Result<(), StoreError> {
        let (opened, is_open) = oneshot::channel();
        let (writer, wakes, file) = (self.writer.clone(), self.wakes.clone(), self.file.clone());
        let options = self.options.clone();
        self.start_thread("photon-sqlite-write", move || {
            let opening = connection::open_writer(&file, &options).and_then(|conn| {
                let wal = WalKeeper::new(file.clone(), &conn, options.wal_limit)?;
                Ok((conn, wal))
            });
            // Nobody may wait any more; then the queue is closed.
            match opening {
                Ok((conn, wal)) => {
                    let _ = opened.send(Ok(()));
                    writer.work(conn, wal, &wakes);
                }
                Err(trouble) => {
                    let _ = opened.send(Err(file.explain(trouble)));
                }
            }
        })?;
        is_open.await.unwrap_or_else(|_| {
            let reason = "the writing thread broke off: open it again";
            Err(self.file.error(StoreErrorKind::Unavailable, reason))
        })
    }

    fn start_watch(&self) -> Result<(), StoreError> {
        let (wakes, file) = (self.wakes.clone(), self.file.clone());
        self.start_thread("photon-sqlite-watch", move || wakes.watch(&file))
    }

    fn start_thread(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
        let alive = self.threads.subscribe();
        let work = move || {
            work();
            drop(alive);
        };
        thread::Builder::new().name(name.to_owned()).spawn(work).map(drop).map_err(|error| {
            let reason = "a thread could not be started for it: raise the limit of threads";
            self.file.error(StoreErrorKind::Unavailable, reason).with_source(error)
        })
    }

    fn shut(&self) {
        self.writer.close();
        self.readers.close();
        self.wakes.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shut();
    }
}

impl Store for SqliteStore {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    fn extend(&self, extensions: &mut Extensions) {
        extensions.insert(self.clone());
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.inner.file.path())
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}
