//! A store in a Redis server, version 7 or newer, or Valkey: one stream for each shard of a topic.
//!
//! What belongs together is written by one script inside the server: so a batch is appended to a shard, and an owner
//! commits to one, in a single step that nobody sees half done. Several connections are kept, so that bursts of
//! publishing do not keep leases waiting; they come back by themselves.
//!
//! All keys start with a prefix (`photon:` unless told otherwise) and never expire. The server must keep them: a
//! server that may evict them, or that writes less to its disk than is asked for, is refused when the store is opened.
//! A server that is part of a cluster is refused, too.

mod append;
mod checkpoints;
mod checks;
mod commit;
mod connect;
mod error;
mod keys;
mod known;
mod leases;
mod link;
mod log;
mod options;
mod read;
mod rows;
mod scripts;
mod sideline;
mod throttle;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use photon_core::error::StoreError;
use photon_core::store::Store;

pub use self::options::{Durability, RedisOptions};

use self::checks::Limits;
use self::connect::Connector;
use self::error::Target;
use self::keys::Keys;
use self::known::Known;
use self::link::Links;
use self::wake::Wakes;

/// A store in a Redis server.
///
/// A clone is another handle on the same store. Its connections belong to the runtime that they were made on; when
/// that is gone they are made anew.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    options: RedisOptions,
    keys: Keys,
    links: Links,
    limits: Limits,
    known: Known,
    wakes: Wakes,
    /// Counts reads, to begin each with another shard.
    reads: AtomicUsize,
}

impl RedisStore {
    /// Connects, and checks that the server keeps what it is given. Many processes may open a store at once.
    ///
    /// # Errors
    /// Each names the server and what to do. `Unavailable`: it cannot be reached. `Denied`: user, password or rights
    /// are wrong. `Refused`: it is too old, part of a cluster, may evict keys, or is set to survive less than
    /// [`durability`](RedisOptions::durability) asks for. `Corrupt`: the keys are another program's, or of a newer
    /// version.
    pub async fn open(options: RedisOptions) -> Result<Self, StoreError> {
        options.check()?;
        let target = Target::new(&options.place(), options.timeout);
        let links = Links::new(Connector::new(&options, target)?);
        let keys = Keys::new(&options.prefix);
        let limits = checks::check(&links, &keys, &options).await?;
        let wakes = Wakes::new(Arc::clone(links.connector()), keys.clone(), options.database);
        let known = Known::default();
        let reads = AtomicUsize::new(0);
        Ok(Self { inner: Arc::new(Inner { options, keys, links, limits, known, wakes, reads }) })
    }

    /// Closes the connections of all handles: calls that wait for an answer fail, later ones as `Closed`.
    pub async fn close(&self) {
        self.inner.wakes.close();
        self.inner.links.close().await;
    }

    /// How many entries this store skipped that were in its streams and that Photon did not write.
    pub fn skipped(&self) -> u64 {
        self.inner.known.strangers.total()
    }

    fn target(&self) -> &Target {
        self.inner.links.connector().target()
    }
}

impl Store for RedisStore {
    fn engine(&self) -> &'static str {
        "redis"
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}
