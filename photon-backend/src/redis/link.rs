//! Connections that come back by themselves, and commands and scripts on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use photon_core::error::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, Script, ToRedisArgs};
use tokio::sync::Mutex;

use super::connect::{Connection, Connector};
use super::error::{Effect, Trouble};

/// What a connection is for: so that no burst of one kind keeps the others waiting.
#[derive(Debug, Clone, Copy)]
pub(super) enum Use {
    /// Events on their way in.
    Append,
    /// Records and stored deliveries on their way out.
    Read,
    /// Checkpoints, leases and whatever is small.
    Control,
}

/// The connections to one server: one for each use, made when it is needed.
pub(super) struct Links {
    connector: Arc<Connector>,
    by_use: [Mutex<Link>; 3],
    closed: AtomicBool,
}

/// One connection.
#[derive(Default)]
struct Link {
    connection: Option<Connection>,
    /// Counts connections, so that one is thrown away once.
    number: u64,
    failed: Option<(Instant, StoreErrorKind, String)>,
}

/// A command or several, which can be sent again.
pub(super) trait Ask<T> {
    fn ask(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> impl Future<Output = Result<T, RedisError>> + Send;
}

impl<T: FromRedisValue + Send> Ask<T> for Cmd {
    async fn ask(&self, connection: &mut MultiplexedConnection) -> Result<T, RedisError> {
        self.query_async(connection).await
    }
}

impl<T: FromRedisValue + Send> Ask<T> for Pipeline {
    async fn ask(&self, connection: &mut MultiplexedConnection) -> Result<T, RedisError> {
        // Of several errors the first one counts.
        self.query_async(connection).await.map_err(|error: RedisError| {
            let first = error.clone().into_server_errors().and_then(|errors| errors.first().cloned());
            first.map_or(error, |(_, first)| first.into())
        })
    }
}

impl Links {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector: Arc::new(connector), by_use: Default::default(), closed: AtomicBool::new(false) }
    }

    pub(super) fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    /// Ends all connections; later calls fail as closed.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        for link in &self.by_use {
            link.lock().await.connection = None;
        }
    }

    /// Sends a command, or several at once, and waits for the answer.
    pub(super) async fn ask<T>(
        &self,
        through: Use,
        effect: Effect,
        what: &impl Ask<T>,
    ) -> Result<T, Trouble> {
        let (mut connection, number) = self.connection(through).await?;
        match what.ask(&mut connection).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(through, number, error, effect).await),
        }
    }

    /// Runs a script.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        through: Use,
        effect: Effect,
        script: &Script,
        keys: &[impl ToRedisArgs],
        args: impl FnOnce(&mut Cmd),
    ) -> Result<T, Trouble> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.get_hash()).arg(keys.len()).arg(keys);
        args(&mut command);
        let (mut connection, number) = self.connection(through).await?;
        let mut answer = command.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(|error: &RedisError| error.code() == Some("NOSCRIPT")) {
            // The server was restarted or told to forget; nothing has run.
            let load = script.prepare_invoke().load_async(&mut connection).await;
            answer = match load {
                Ok(_) => command.query_async(&mut connection).await,
                Err(error) => Err(error),
            };
        }
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(through, number, error, effect).await),
        }
    }

    /// The connection, which is made if there is none. Who waited for an attempt that failed does not try again.
    async fn connection(&self, through: Use) -> Result<(MultiplexedConnection, u64), StoreError> {
        let asked = Instant::now();
        let mut link = self.by_use[through as usize].lock().await;
        if self.closed.load(Ordering::Relaxed) {
            return Err(self.connector.target().is_closed());
        }
        if let Some(connection) = &link.connection
            && connection.is_alive()
        {
            return Ok((connection.commands.clone(), link.number));
        }
        if let Some((at, kind, message)) = &link.failed
            && *at >= asked
        {
            return Err(StoreError::new(*kind, message.clone()));
        }
        link.connection = None;
        match self.connector.connect().await {
            Ok(connection) => {
                let commands = connection.commands.clone();
                link.number += 1;
                (link.connection, link.failed) = (Some(connection), None);
                Ok((commands, link.number))
            }
            Err(error) => {
                link.failed = Some((Instant::now(), error.kind(), photon_core::error::chain(&error)));
                Err(error)
            }
        }
    }

    /// What an error means. A connection that broke, or whose other end is silent, is thrown away; so is one whose
    /// rights may be old.
    async fn failed(&self, through: Use, number: u64, error: RedisError, effect: Effect) -> Trouble {
        let is_answer = error.code().is_some() || error.kind() == ErrorKind::UnexpectedReturnType;
        if !is_answer || matches!(error.code(), Some("NOAUTH" | "NOPERM" | "READONLY")) {
            let mut link = self.by_use[through as usize].lock().await;
            if link.number == number {
                link.connection = None;
            }
        }
        if self.closed.load(Ordering::Relaxed) && effect == Effect::Read {
            return self.connector.target().is_closed().into();
        }
        self.connector.target().explain(error, effect)
    }
}
