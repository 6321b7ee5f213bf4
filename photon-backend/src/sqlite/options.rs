//! What can be set for a [`SqliteStore`](super::SqliteStore).

use std::time::Duration;

/// What a commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// A crash of the process, of the system and a loss of power: every commit waits for the disk
    /// (`synchronous = FULL`).
    #[default]
    Full,
    /// A crash of the process, at any instant. After a crash of the system or a loss of power the last
    /// commits may be missing; the file stays sound (`synchronous = NORMAL`).
    Normal,
}

/// What can be set for a [`SqliteStore`](super::SqliteStore). Every process may set its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteOptions {
    pub(super) durability: Durability,
    pub(super) lock_timeout: Duration,
    pub(super) dedup_window: Duration,
    pub(super) wal_limit: u64,
    pub(super) max_size: Option<u64>,
    pub(super) readers: usize,
    pub(super) shared: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Full,
            lock_timeout: Duration::from_secs(30),
            dedup_window: Duration::from_secs(600),
            wal_limit: 64 << 20,
            max_size: None,
            readers: 4,
            shared: false,
        }
    }
}

impl SqliteOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// What a commit survives. Default: [`Durability::Full`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long to wait for a lock that another process holds before the operation fails as `Unavailable`.
    /// Nothing but the operation waits. Default: 30 s.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// For how long after an event with a dedup id another one with the same id in the same shard is not
    /// stored. The ids are kept in the file for so long. Zero: every event is stored. Default: 10 minutes.
    #[must_use]
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.dedup_window = window;
        self
    }

    /// How large the write-ahead log (the `-wal` file beside the database) may grow, in bytes, before the
    /// writer waits for readers to leave it and empties it. A reader of another program that keeps a
    /// transaction open can hold it above. Default: 64 MiB.
    #[must_use]
    pub fn wal_limit(mut self, bytes: u64) -> Self {
        self.wal_limit = bytes;
        self
    }

    /// How large the database may grow, in bytes. Over it, writes fail as `Full` until something was trimmed.
    /// Default: no limit but the disk.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = Some(bytes);
        self
    }

    /// Lets Photon into a file that holds tables of the application, whose file it is. The application keeps
    /// `application_id` and `user_version` for itself; Photon's tables start with `photon_`. The file is switched to a
    /// write-ahead log. Once Photon is in it, other openers need not say so. Default: a file that holds something
    /// else is refused, because it may be another program's.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// How many threads read at a time, each on a connection of its own that is opened at need. At least 1;
    /// default 4.
    #[must_use]
    pub fn readers(mut self, threads: usize) -> Self {
        self.readers = threads.max(1);
        self
    }
}
