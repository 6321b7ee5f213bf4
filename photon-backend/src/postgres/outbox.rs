//! Publishing within a transaction of the user.
//!
//! The transaction writes into a table of its own, without any counter: so it can stay open as long as it likes.
//! After its commit a relay moves the rows into the log, as does every append to the same shards before it gives
//! out places: both take the counters first. So a row is moved once, and comes before what is appended later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use photon_core::envelope::encode_headers;
use photon_core::error::{BoxError, StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::ids::TopicName;
use photon_core::store::{Outbox, Staged};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use super::error::{Effect, refused};
use super::param::params;
use super::{Inner, PostgresStore};

/// How long the relay rests when there was nothing to move: at first after somebody staged something, and at most.
const REST: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(250));
/// How long it rests after an error, at most.
const REST_AFTER_ERROR: Duration = Duration::from_secs(5);

/// A transaction of the user on a Postgres database, which takes events in.
#[async_trait]
pub trait PostgresTransaction: Send {
    /// Executes a statement within the transaction.
    async fn stage(&mut self, staged: &Staged) -> Result<(), BoxError>;
}

#[async_trait]
impl PostgresTransaction for tokio_postgres::Transaction<'_> {
    async fn stage(&mut self, staged: &Staged) -> Result<(), BoxError> {
        Ok(insert_staged(tokio_postgres::Transaction::client(self), staged).await?)
    }
}

/// Stages events in the transaction that is open on the client.
pub(super) async fn insert_staged(client: &Client, staged: &Staged) -> Result<(), tokio_postgres::Error> {
    let payloads: Vec<&[u8]> = staged.payloads.iter().map(|payload| &payload[..]).collect();
    let Staged { statement, topic, shards, ids, keys, headers, .. } = staged;
    let (shards, ids, keys, headers) = (shards.clone(), ids.clone(), keys.clone(), headers.clone());
    client.query_typed(statement, params![*topic, shards, ids, keys, headers, payloads]).await?;
    Ok(())
}

/// The task that moves events from the outbox into the log.
#[derive(Default)]
pub(super) struct Relay {
    task: Mutex<Option<JoinHandle<()>>>,
    /// Something was staged.
    staged: Arc<Notify>,
}

impl Relay {
    /// Ends it.
    pub(super) fn close(&self) {
        if let Some(task) = self.lock().take() {
            task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        // Nothing that runs under the lock can panic half-way through a change.
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostgresStore {
    /// Starts the relay if it does not run: it ends with the runtime that it was started on.
    pub(super) fn keep_relaying(&self) {
        let mut task = self.inner.relay.lock();
        if task.as_ref().is_none_or(JoinHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            *task =
                Some(runtime.spawn(relay(Arc::downgrade(&self.inner), Arc::clone(&self.inner.relay.staged))));
        }
    }
}

/// Moves what is committed, as long as the store is there.
async fn relay(store: Weak<Inner>, staged: Arc<Notify>) {
    let mut rest = REST.1;
    loop {
        let Some(inner) = store.upgrade() else { return };
        rest = match move_committed(&inner).await {
            Ok(true) => REST.0,
            Ok(false) => (rest * 2).min(REST.1),
            Err(error) if error.kind() == StoreErrorKind::Closed => return,
            Err(error) => {
                // Publishers and readers report what is wrong.
                tracing::debug!(%error, "the outbox could not be moved");
                (rest * 2).min(REST_AFTER_ERROR)
            }
        };
        // Not held through the rest: the last handle ends the relay.
        drop(inner);
        if timeout(rest, staged.notified()).await.is_ok() {
            rest = REST.0;
            sleep(rest).await;
        }
    }
}

/// Moves what is committed now. `false` if there is nothing.
async fn move_committed(inner: &Inner) -> Result<bool, StoreError> {
    let waiting = inner.schema.sql(
        "SELECT t.id, t.name, array_agg(DISTINCT o.shard ORDER BY o.shard)
         FROM @outbox o JOIN @topic t ON t.id = o.topic GROUP BY t.id, t.name",
    );
    let session = inner.reserved.session().await?;
    let rows = session.run(Effect::Read, session.client().query_typed(&waiting, &[])).await?;
    let take = inner.schema.sql("SELECT FROM @take($1, $2)");
    for row in &rows {
        let read = || -> Result<(i32, &str, Vec<i32>), tokio_postgres::Error> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
        };
        let (topic, name, shards) = read().map_err(|error| inner.target.explain(error, Effect::Read))?;
        session.run(Effect::Write, session.client().query_typed(&take, params![topic, shards])).await?;
        if let Ok(name) = TopicName::new(name) {
            inner.wakes.appended(&name);
        }
    }
    Ok(!rows.is_empty())
}

#[async_trait]
impl Outbox for PostgresStore {
    async fn stage(&self, topic: &TopicName, events: &[NewEvent]) -> Result<Staged, StoreError> {
        let row = self.topic(topic).await?;
        let statement = self.inner.schema.sql(
            "INSERT INTO @outbox (topic, shard, id, key, headers, payload)
             SELECT $1, u.shard, u.id, u.key, u.headers, u.payload
             FROM unnest($2, $3, $4, $5, $6) WITH ORDINALITY u(shard, id, key, headers, payload, n) ORDER BY u.n",
        );
        let mut staged = Staged {
            statement,
            topic: row.id,
            shards: Vec::new(),
            ids: Vec::new(),
            keys: Vec::new(),
            headers: Vec::new(),
            payloads: Vec::new(),
        };
        for event in events {
            row.check(topic, event.shard)?;
            if event.dedup_id.is_some() {
                return Err(refused(format!(
                    "an event of topic {topic:?} has a dedup id and is published in a transaction, which is stored \
                     once by itself: leave the dedup id out"
                )));
            }
            let mut headers = Vec::new();
            encode_headers(&event.headers, &mut headers);
            staged.shards.push(i32::from(event.shard.0));
            staged.ids.push(event.id.0);
            staged.keys.push(event.key.as_ref().map(|key| key.as_bytes().to_vec()));
            staged.headers.push(headers);
            staged.payloads.push(event.payload.clone());
        }
        self.keep_relaying();
        self.inner.relay.staged.notify_one();
        Ok(staged)
    }

    async fn flush(&self) -> Result<(), StoreError> {
        move_committed(&self.inner).await.map(drop)
    }
}
