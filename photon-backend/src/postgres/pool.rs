//! Connections that are used again.
//!
//! A connection is given back only when its last exchange came to an end: one whose user was cancelled, or whose
//! answer did not come, is closed.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use photon_core::error::StoreError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Client;

use super::connect::{Connection, Connector};
use super::error::{Effect, Target, Trouble};

/// Up to a number of connections.
pub(super) struct Pool {
    connector: Connector,
    /// Open connections that nobody uses; the one used last is used next.
    idle: Mutex<Vec<Connection>>,
    free: Semaphore,
}

impl Pool {
    pub(super) fn new(connector: Connector, most: usize) -> Self {
        Self { connector, idle: Mutex::default(), free: Semaphore::new(most) }
    }

    /// A connection for one piece of work.
    pub(super) async fn session(&self) -> Result<Session<'_>, StoreError> {
        let target = self.connector.target();
        let until = Instant::now() + target.timeout();
        let permit = match timeout_at(until, self.free.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(target.is_closed()),
            Err(_) => return Err(target.is_busy()),
        };
        let idle = self.take_idle();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connector.connect(Box::new(drop)).await?,
        };
        let (connection, is_sound) = (Some(connection), AtomicBool::new(true));
        Ok(Session { pool: self, connection, until, is_sound, _permit: permit })
    }

    /// A connection for a transaction of a handler. It is waited for as long as the caller waits.
    pub(super) async fn lend(self: &Arc<Self>) -> Result<Lent, StoreError> {
        let permit = self.free.acquire().await.map_err(|_| self.connector.target().is_closed())?;
        let idle = self.take_idle();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connector.connect(Box::new(drop)).await?,
        };
        // Given back when the loan ends.
        permit.forget();
        Ok(Lent { pool: Arc::clone(self), connection: Some(connection), is_sound: false })
    }

    /// Ends it: whoever asks from now on gets an error.
    pub(super) fn close(&self) {
        self.free.close();
        self.lock().clear();
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.lock();
        while let Some(connection) = idle.pop() {
            if !connection.client.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    fn give_back(&self, connection: Connection) {
        if !self.free.is_closed() && !connection.client.is_closed() {
            self.lock().push(connection);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Connection>> {
        // Nothing that runs under the lock can panic half-way through a change.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is lent for a transaction. Dropped before that came to an end, it is closed, and the server takes
/// the transaction back.
pub(super) struct Lent {
    pool: Arc<Pool>,
    connection: Option<Connection>,
    is_sound: bool,
}

impl Lent {
    pub(super) fn client(&self) -> &Client {
        &self.connection.as_ref().expect("only drop takes it").client
    }

    /// The transaction came to an end: somebody else may use the connection.
    pub(super) fn is_sound(&mut self) {
        self.is_sound = true;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| self.is_sound) {
            self.pool.give_back(connection);
        }
        self.pool.free.add_permits(1);
    }
}

/// A connection in use. Dropped before its work came to an end, it is closed.
pub(super) struct Session<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
    /// When the time is up that the operation has.
    until: Instant,
    /// Whether the last exchange came to an end.
    is_sound: AtomicBool,
    _permit: SemaphorePermit<'a>,
}

impl Session<'_> {
    /// The client for the statements of the work.
    pub(super) fn client(&self) -> &Client {
        &self.connection.as_ref().expect("only drop takes it").client
    }

    /// Does work of one statement, or of several that are transactions of their own.
    pub(super) async fn run<T, E: Into<Trouble>>(
        &self,
        effect: Effect,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, StoreError> {
        self.is_sound.store(false, Ordering::Relaxed);
        let done = self.in_time(effect, work).await?;
        // After an error of a statement the connection is as before; after any other it finds itself closed.
        self.is_sound.store(true, Ordering::Relaxed);
        done.map_err(|trouble| self.target().explain(trouble, effect))
    }

    /// Does work within a transaction, which is committed if it succeeds.
    pub(super) async fn transact<T, E: Into<Trouble>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, StoreError> {
        let client = self.client();
        self.is_sound.store(false, Ordering::Relaxed);
        // The first statement of the work goes out with the beginning.
        let begun = async {
            let (begun, worked) = futures::join!(client.batch_execute("BEGIN"), work);
            begun?;
            worked.map_err(Into::into)
        };
        // Nothing is written before the commit.
        let done = match self.in_time(Effect::Read, begun).await? {
            Ok(done) => done,
            Err(trouble) => {
                let error = self.target().explain(trouble, Effect::Read);
                let undone = self.in_time(Effect::Read, client.batch_execute("ROLLBACK")).await;
                self.is_sound.store(matches!(undone, Ok(Ok(()))), Ordering::Relaxed);
                return Err(error);
            }
        };
        self.run(Effect::Write, client.batch_execute("COMMIT")).await?;
        Ok(done)
    }

    fn target(&self) -> &Target {
        self.pool.connector.target()
    }

    /// Does work within the time that is left, and asks the server to stop when it is over.
    async fn in_time<T, E: Into<Trouble>>(
        &self,
        effect: Effect,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, Trouble>, StoreError> {
        if let Ok(done) = timeout_at(self.until, work).await {
            return Ok(done.map_err(Into::into));
        }
        self.pool.connector.cancel(self.client().cancel_token());
        Err(self.target().is_late(effect))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| self.is_sound.load(Ordering::Relaxed)) {
            self.pool.give_back(connection);
        }
    }
}
