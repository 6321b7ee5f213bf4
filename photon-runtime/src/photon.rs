//! The handle of a Photon.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use photon_core::registry::{Problems, Registry};
use photon_core::store::Store;
use photon_core::topic::Topic;

use crate::builder::PhotonBuilder;
use crate::check;
use crate::config::Config;
use crate::deadletters::DeadLetters;
use crate::error::{Error, Result};
use crate::inner::Inner;
use crate::publish::{Publish, PublishAll};
use crate::publisher::Publisher;
use crate::status::{Snapshot, SubscriptionHandle, snapshot};
use crate::subscriptions::SubscriptionRef;
use crate::topics::DynamicTopic;

/// A Photon: publishes events, and tells about topics, subscriptions and dead letters.
///
/// Made by [`Photon::builder`]. Cloning is cheap, and all clones are the same Photon.
#[derive(Clone)]
pub struct Photon {
    pub(crate) inner: Arc<Inner>,
}

impl Photon {
    /// Starts the making of a Photon: name at least an engine.
    pub fn builder() -> PhotonBuilder {
        PhotonBuilder::new()
    }

    /// Publishes one event: `photon.publish(&event).await?`.
    ///
    /// The event is encoded here; the answer can be changed before the await with
    /// [`.key(...)`](Publish::key), [`.header(...)`](Publish::header), [`.dedup_id(...)`](Publish::dedup_id),
    /// [`.actor(...)`](Publish::actor) and [`.wait()`](Publish::wait). When the await gives a receipt, the event
    /// is in the log, as durable as the engine is. Publishes that are awaited one after another ascend in their
    /// shard; publishes that run at the same time share one write.
    ///
    /// # Errors
    /// Reported by the await. [`Error::Refused`], [`Error::TooLarge`] and [`Error::Encode`]: the event does not
    /// fit. [`Error::Unavailable`] and [`Error::Full`]: nothing was stored. [`Error::Unknown`]: it may be stored.
    /// [`Error::Closed`]: after the shutdown. Dropping the future before its end leaves it open whether the
    /// event is stored.
    pub fn publish<E: Topic>(&self, event: &E) -> Publish {
        self.inner.publisher.publish(event)
    }

    /// Publishes one event within a transaction of the user, on the database that holds the log: it is in the log
    /// if and only if the transaction commits.
    ///
    /// ```
    /// # async fn example(photon: photon_runtime::Photon, client: &mut tokio_postgres::Client,
    /// #     order: impl photon_core::topic::Topic) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = client.transaction().await?;
    /// transaction.execute("INSERT INTO orders VALUES (7)", &[]).await?;
    /// photon.publish_in(&mut transaction, &order).await?;
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The transaction is one of tokio-postgres, with the feature `sqlx` one of sqlx, or a type of your own that implements
    /// [`PostgresTransaction`](photon_backend::postgres::PostgresTransaction).
    ///
    /// The event gets its place soon after the commit, before everything that is published to its shard after
    /// that; events of one transaction keep their order. A transaction that stays open or is rolled back holds
    /// nobody up. With key, headers or an actor:
    /// `photon.publish(&order).header("source", "web").within(&mut transaction).await?`.
    ///
    /// # Errors
    /// As [`publish`](Self::publish). [`Error::Refused`], too, if the engine is not Postgres, the event has a
    /// dedup id, or the transaction could not take it; then it must be rolled back.
    #[cfg(feature = "postgres")]
    pub async fn publish_in<E, T>(&self, transaction: &mut T, event: &E) -> Result<photon_core::ids::EventId>
    where
        E: Topic,
        T: photon_backend::postgres::PostgresTransaction,
    {
        self.publish(event).within(transaction).await
    }

    /// Publishes one event within a transaction that is open on a connection to the SQLite file that holds the log:
    /// it is in the log if and only if the transaction commits. For synchronous code.
    ///
    /// ```
    /// # use photon_runtime::sqlite::rusqlite::{Connection, TransactionBehavior};
    /// # fn example(photon: photon_runtime::Photon, conn: &mut Connection,
    /// #     order: impl photon_core::topic::Topic) -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// transaction.execute("INSERT INTO orders VALUES (7)", [])?;
    /// photon.publish_in_blocking(&transaction, &order)?;
    /// transaction.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// For a file that is the application's, build with
    /// [`sqlite_shared`](crate::PhotonBuilder::sqlite_shared). Begin the transaction with `BEGIN IMMEDIATE`, and end
    /// it soon: from the publish to its end all other writers of the file wait. Handlers hear of the event within
    /// some 25 ms of the commit. With key, headers or a dedup id:
    /// `photon.publish(&order).key("ann").within_blocking(&transaction)?`. Inside of the work of a
    /// [`Tx`](crate::sqlite::Tx) it takes the connection that the work is given.
    ///
    /// # Errors
    /// As [`publish`](Self::publish). [`Error::Refused`], too, if the engine is not SQLite, no transaction is open or
    /// it is on another file; then it should be rolled back.
    #[cfg(feature = "sqlite")]
    pub fn publish_in_blocking<E: Topic>(
        &self,
        conn: &photon_backend::sqlite::rusqlite::Connection,
        event: &E,
    ) -> Result<crate::publish::Receipt> {
        self.publish(event).within_blocking(conn)
    }

    /// Publishes the events of an iterator, in order: `photon.publish_all(orders).await?`.
    ///
    /// Events of one key keep their order. They are written in chunks, and the next chunk is encoded while the
    /// former is written; so when it fails, the iterator has been read further than what is stored. Gives a
    /// receipt for each event.
    ///
    /// # Errors
    /// As [`publish`](Self::publish). If some events are certainly stored, [`Error::Partial`] has their receipts:
    /// a beginning of the events.
    pub fn publish_all<I>(&self, events: I) -> PublishAll<'_, I::IntoIter>
    where
        I: IntoIterator,
        I::Item: Topic,
    {
        self.inner.publisher.publish_all(events)
    }

    /// Publishes bytes to a topic named at run time: `photon.publish_raw("wf.acme.events", bytes).await?`.
    ///
    /// The payload is taken as it is, without a key and without a content type unless the builder's methods
    /// add them. If the topic has a type, its handlers get what the bytes decode to, or a dead letter.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); and `Refused` for a bad name or a number of shards that does not fit.
    pub fn publish_raw<T>(&self, topic: T, payload: impl Into<Bytes>) -> Publish
    where
        T: TryInto<DynamicTopic>,
        Error: From<T::Error>,
    {
        self.inner.publisher.publish_raw(topic, payload)
    }

    /// The publishing half alone, for parts of a program that need no more.
    pub fn publisher(&self) -> Publisher {
        self.inner.publisher.clone()
    }

    /// The dead letters of a subscription: to read, to redrive, to discard.
    ///
    /// It is named by its group, `"billing"`, or by topic and group, `("orders.placed", "billing")`, where
    /// several topics have a subscription of that group. A subscription whose handler is gone can be named, too.
    pub fn dead_letters(&self, subscription: impl Into<SubscriptionRef>) -> DeadLetters<'_> {
        DeadLetters::new(&self.inner, subscription.into())
    }

    /// A subscription, named as in [`dead_letters`](Self::dead_letters).
    pub fn subscription(&self, subscription: impl Into<SubscriptionRef>) -> SubscriptionHandle {
        SubscriptionHandle::new(self.inner.clone(), subscription.into())
    }

    /// The state of everything: topics, subscriptions and instances.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        snapshot(&self.inner).await
    }

    /// Looks for everything that would keep an executor from starting, without starting one.
    ///
    /// # Errors
    /// [`Error::Start`] with all problems, each with the place of the handler or topic.
    pub fn check(&self) -> Result<()> {
        let problems = check::problems(&self.inner);
        if problems.is_empty() { Ok(()) } else { Err(Error::Start(Problems(problems))) }
    }

    /// What it runs with, all layers put together.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The handlers and topics that it works with.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// The engine, for what this interface does not offer.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Ends publishing: every later publish gets [`Error::Closed`]. Returns when those under way are answered,
    /// at the latest after the [drain timeout](PhotonBuilder::drain_timeout): a publish whose future is kept but not
    /// awaited never is. The drain of an executor does it last; a program without an executor may call it before it
    /// ends.
    pub async fn close(&self) {
        self.inner.publisher.close(self.inner.config.drain_timeout).await;
    }
}

impl fmt::Debug for Photon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Photon")
            .field("engine", &self.inner.store.engine())
            .field("handlers", &self.inner.registry.handlers.len())
            .finish_non_exhaustive()
    }
}
