//! Transactions of handlers, which settle a delivery together with the handler's own writes.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use photon_core::handler::{Delivery, FromDelivery, HandlerError, Needs};
use photon_core::machine::settlement::{Decision, Known, decide};
use photon_core::settlement::{Settle, Settled, Settlement};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, params};

use super::checkpoints::find;
use super::commit::{self, is_covered};
use super::error::{Trouble, refused};
use super::rows::{self, MARK, Place, is_live};
use super::writer::Transaction;
use super::{SMALL_WRITE, SqliteStore, leases};

thread_local! {
    /// Whether a handler's work runs on this thread.
    static IN_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Keeps a handler's work from ending the transaction, which is not its alone.
pub(super) fn guard(conn: &mut Connection) -> rusqlite::Result<()> {
    conn.authorizer(Some(|context: AuthContext<'_>| match context.action {
        AuthAction::Transaction { .. } | AuthAction::Attach { .. } | AuthAction::Detach { .. }
            if IN_WORK.get() =>
        {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    }))
}

/// The transaction that settles a delivery, for a handler whose effects go into the same SQLite file.
///
/// The writes of [`settle`](Self::settle) and the end of the delivery commit together: either both are there or
/// neither, so that each effect happens exactly once, whatever crashes. Other effects of the handler, outside of the
/// file, may be repeated as in any handler.
///
/// ```
/// use photon_backend::sqlite::Tx;
/// # struct OrderPlaced { customer: String, cents: i64 }
///
/// async fn charge(order: OrderPlaced, tx: Tx) -> Result<(), photon_core::handler::HandlerError> {
///     tx.settle(move |conn| {
///         conn.execute("UPDATE account SET cents = cents - ?2 WHERE owner = ?1", (&order.customer, order.cents))
///     })
///     .await?;
///     Ok(())
/// }
/// ```
///
/// The rules:
///
/// - It commits once. What the handler does afterwards changes nothing: the delivery is settled, also if the handler
///   then fails.
/// - If the work fails or panics, or the shard went to another owner, nothing is written and the attempt failed.
/// - A handler that takes it, returns `Ok` and never called `settle` ends like any other: its end is written with
///   the next checkpoint.
/// - Of one key the next delivery waits until the end of the one before is stored, so retries and dead letters cost a
///   key one more commit.
///
/// A start on another engine is refused. Events are published within the work by `publish_in_blocking`.
pub struct Tx {
    store: SqliteStore,
    settle: Settle,
    settlement: Arc<Settlement>,
}

/// How the work ended.
enum Ended<T> {
    Settled(T),
    Failed(HandlerError),
    Panicked(Box<dyn Any + Send>),
    AlreadySettled,
    Overtaken,
    Fenced,
}

impl Tx {
    /// Does `work` and settles the delivery, in one transaction; returns after its commit.
    ///
    /// The work runs on the thread that writes the file, together with what else is to be written: keep it short,
    /// and wait for nothing in it. It may run more than once, when what it shares the transaction with fails; only
    /// the last run takes effect, so it must have no effect outside of the connection. It cannot end the transaction;
    /// savepoints are its own affair.
    ///
    /// # Errors
    /// What the work returned; and if the delivery cannot be settled any more or the store fails. The handler should
    /// return the error: the attempt is then repeated where that is right.
    pub async fn settle<T, E, F>(self, mut work: F) -> Result<T, HandlerError>
    where
        T: Send + 'static,
        E: Into<HandlerError>,
        F: FnMut(&Connection) -> Result<T, E> + Send + 'static,
    {
        let Tx { store, settle, settlement } = self;
        let place = format!(
            "{}/{} at {} for {}",
            settle.subscription.topic, settle.shard, settle.seq, settle.subscription
        );
        let run = move |tx: &mut Transaction<'_>| settle_within(tx, &settle, &mut work);
        let ended = store.inner.writer.run(SMALL_WRITE, run).await?;
        match ended {
            Ended::Settled(value) => {
                settlement.set(Settled::Yes);
                Ok(value)
            }
            Ended::Failed(error) => Err(error),
            Ended::Panicked(panic) => resume_unwind(panic),
            Ended::AlreadySettled => {
                settlement.set(Settled::Yes);
                Err(HandlerError::permanent(format!(
                    "the delivery of {place} was settled by an earlier attempt"
                )))
            }
            Ended::Overtaken => {
                settlement.set(Settled::Overtaken);
                Err(HandlerError::retry(format!(
                    "the delivery of {place} was changed by somebody else meanwhile"
                )))
            }
            Ended::Fenced => Err(HandlerError::retry(format!(
                "the delivery of {place} cannot be settled: another owner holds the shard, and handles it"
            ))),
        }
    }
}

/// Checks that the delivery is still to be settled, does the work, and settles it.
fn settle_within<T, E: Into<HandlerError>>(
    tx: &mut Transaction<'_>,
    settle: &Settle,
    work: &mut impl FnMut(&Connection) -> Result<T, E>,
) -> Result<Ended<T>, Trouble> {
    let conn = tx.conn;
    if !leases::is_current(conn, &settle.subscription, settle.shard, settle.fence)? {
        return Ok(Ended::Fenced);
    }
    let Some(subscription) = find(conn, &settle.subscription)? else { return Ok(Ended::Fenced) };
    let place = Place { subscription, shard: settle.shard, seq: settle.seq };
    let row = commit::known(conn, place)?;
    let known = match &row {
        None => Known::Nothing,
        Some((_, MARK, _)) => Known::Mark,
        Some((version, 0 | 1, _)) => Known::Live(*version),
        Some(_) => Known::Dead,
    };
    let covered = is_covered(conn, tx.file, place)?;
    let decision = decide(settle.row, covered, known);
    match decision {
        Decision::AlreadySettled => return Ok(Ended::AlreadySettled),
        Decision::Overtaken => return Ok(Ended::Overtaken),
        Decision::Mark | Decision::End => {}
    }
    conn.prepare_cached("SAVEPOINT photon_work")?.execute([])?;
    let done = within_guard(|| work(conn));
    // It may have published.
    tx.forget_places();
    if conn.is_autocommit() {
        return Err(
            refused("a handler ended the transaction that it was given: let it return instead").into()
        );
    }
    let value = match done {
        Ok(Ok(value)) => value,
        failed => {
            conn.prepare_cached("ROLLBACK TO photon_work")?.execute([])?;
            conn.prepare_cached("RELEASE photon_work")?.execute([])?;
            return Ok(match failed {
                Ok(Err(error)) => Ended::Failed(error),
                Err(panic) => Ended::Panicked(panic),
                Ok(Ok(value)) => Ended::Settled(value),
            });
        }
    };
    conn.prepare_cached("RELEASE photon_work")?.execute([])?;
    match (decision, row) {
        (Decision::End, Some((_, state, lane))) => {
            debug_assert!(is_live(state), "only a live row is ended");
            rows::close(conn, place, state, &lane.unwrap_or_default(), covered)?;
        }
        _ => mark(conn, place)?,
    }
    Ok(Ended::Settled(value))
}

/// Runs the work where it cannot end the transaction. A panic is for the one who waits, not for this thread.
fn within_guard<T, E: Into<HandlerError>>(
    work: impl FnOnce() -> Result<T, E>,
) -> Result<Result<T, HandlerError>, Box<dyn Any + Send>> {
    IN_WORK.set(true);
    let done = catch_unwind(AssertUnwindSafe(|| work().map_err(Into::into)));
    IN_WORK.set(false);
    done
}

/// Notes that the delivery ended, above the checkpoint that is stored.
fn mark(conn: &Connection, place: Place) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO photon_delivery (subscription, shard, seq, version, state, attempts) VALUES (?1, ?2, ?3, 1, 4, 0)",
    )?
    .execute(params![place.subscription, place.shard.0, place.seq.0])?;
    Ok(())
}

impl FromDelivery for Tx {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        let (Some(store), Some(settlement)) = (delivery.extension::<SqliteStore>(), &delivery.settlement)
        else {
            return Err(HandlerError::permanent(
                "a handler takes a transaction of SQLite outside of an executor on SQLite",
            ));
        };
        let settle = Settle {
            subscription: delivery.shared.subscription.clone(),
            shard: delivery.event.shard,
            seq: delivery.event.seq,
            fence: delivery.fence,
            row: settlement.row(),
        };
        Ok(Self { store: store.clone(), settle, settlement: Arc::clone(settlement) })
    }

    fn needs(needs: &mut Needs) {
        needs.settlement();
        needs.extension::<SqliteStore>(
            "it takes a transaction of SQLite, and the log is in another engine: keep the log in the SQLite file that \
             the handler writes, with .sqlite(path)",
        );
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("settle", &self.settle).finish_non_exhaustive()
    }
}
