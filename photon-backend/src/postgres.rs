//! The store in a Postgres database, for services on more than one machine.
//!
//! Everything lies in tables of one schema, `photon` by default, which is made and brought up to date when the
//! store is opened. An append is one statement: it takes the counters of its shards in order and holds them until
//! its commit, so that the order of places is the order in which records become visible. No statement has a name
//! on the server and no session keeps a setting: a pooler in transaction mode may stand between. Notifications
//! wake readers; behind them readers look from time to time by themselves.
//!
//! Needs Postgres 14 or later, and a primary: what a standby has acknowledged alone is not read.

mod append;
mod checkpoints;
mod commit;
mod connect;
mod control;
mod error;
mod leases;
mod log;
mod options;
mod outbox;
mod param;
mod pool;
mod read;
mod rows;
mod schema;
mod sideline;
#[cfg(feature = "sqlx")]
mod sqlx;
mod topics;
mod tx;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use photon_core::error::StoreError;
use photon_core::handler::Extensions;
use photon_core::store::{Outbox, Store};

pub use self::options::PostgresOptions;
pub use self::outbox::PostgresTransaction;
pub use self::tx::Tx;

use self::connect::Connector;
use self::error::Target;
use self::outbox::Relay;
use self::pool::Pool;
use self::schema::Schema;
use self::topics::TopicCache;
use self::wake::Wakes;

/// Connections that are for checkpoints, leases and the like.
const RESERVED: usize = 3;

/// A store in a Postgres database.
///
/// A clone is another handle on the same store. Connections are opened at need; they live on the runtime that
/// first used them, and are opened again when that is gone.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    target: Target,
    schema: Schema,
    options: PostgresOptions,
    /// For publishing and reading.
    work: Pool,
    /// For everything that a subscription needs to stay alive.
    reserved: Arc<Pool>,
    /// For the transactions of handlers.
    transactions: Arc<Pool>,
    topics: TopicCache,
    wakes: Wakes,
    relay: Relay,
    /// Counts reads, to begin each with another shard.
    reads: AtomicUsize,
    /// In microseconds.
    dedup_window: i64,
}

impl PostgresStore {
    /// Connects, checks the server, and makes the schema or brings it up to date. Many processes may do that at
    /// once.
    ///
    /// # Errors
    /// Each names the database and what to do, none the password. `Unavailable`: it cannot be reached. `Denied`:
    /// user, password, certificate or a right is missing. `Refused`: the database is not there, the server too old
    /// or an option cannot be. `Corrupt`: the schema holds tables of somebody else, or of a newer version.
    pub async fn open(options: PostgresOptions) -> Result<Self, StoreError> {
        options.check()?;
        let target = Target::new(&options.place(), options.timeout);
        let schema = Schema::new(&options.schema);
        let connector = Connector::new(&options, target.clone())?;
        let reserved = Arc::new(Pool::new(connector.clone(), RESERVED));
        {
            let session = reserved.session().await?;
            schema::prepare(&session, &schema, &target).await?;
        }
        let inner = Inner {
            work: Pool::new(connector.clone(), options.connections),
            transactions: Arc::new(Pool::new(connector.clone(), options.connections)),
            wakes: Wakes::new(connector, Arc::clone(&reserved), schema.name()),
            reserved,
            relay: Relay::default(),
            topics: TopicCache::default(),
            reads: AtomicUsize::new(0),
            dedup_window: i64::try_from(options.dedup_window.as_micros()).unwrap_or(i64::MAX),
            target,
            schema,
            options,
        };
        let store = Self { inner: Arc::new(inner) };
        store.keep_relaying();
        Ok(store)
    }

    /// Ends the store for all its handles: later calls fail as `Closed`. What is under way goes on to its end.
    pub fn close(&self) {
        self.inner.work.close();
        self.inner.reserved.close();
        self.inner.transactions.close();
        self.inner.wakes.close();
        self.inner.relay.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wakes.close();
        self.relay.close();
    }
}

impl Store for PostgresStore {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    fn as_outbox(&self) -> Option<&dyn Outbox> {
        Some(self)
    }

    fn extend(&self, extensions: &mut Extensions) {
        extensions.insert(self.clone());
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}
