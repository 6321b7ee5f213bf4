//! Transactions of handlers, which settle a delivery together with the handler's own writes.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use photon_core::error::{BoxError, StoreError};
use photon_core::handler::{Delivery, FromDelivery, HandlerError, Needs};
use photon_core::machine::settlement::{Decision, Known, decide};
use photon_core::settlement::{Settle, Settled, Settlement};
use photon_core::store::Staged;
use tokio_postgres::Client;

use super::commit::{self, Lock};
use super::error::{Effect, Trouble};
use super::outbox::{PostgresTransaction, insert_staged};
use super::param::params;
use super::pool::Lent;
use super::read::number;
use super::rows::{self, Changes, MARK, is_live};
use super::{PostgresStore, leases};

/// The setting ends with the transaction: so it tells whether that is still open.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL photon.settles = 'yes'";
const IS_OPEN: &str = "SELECT coalesce(current_setting('photon.settles', true), '') = 'yes'";

/// The transaction that settles a delivery, for a handler whose effects go into the database that holds the log.
///
/// It is begun before the handler runs and derefs to its client. Everything that is written through it commits with
/// the end of the delivery in [`settle`](Self::settle), or not at all, so that each effect happens exactly once,
/// whatever crashes. Effects elsewhere may be repeated, as in any handler.
///
/// ```
/// use photon_backend::postgres::Tx;
/// # struct OrderPlaced { customer: String, cents: i64 }
///
/// async fn charge(order: OrderPlaced, tx: Tx) -> Result<(), photon_core::handler::HandlerError> {
///     tx.execute("UPDATE account SET cents = cents - $2 WHERE owner = $1", &[&order.customer, &order.cents]).await?;
///     tx.settle().await?;
///     Ok(())
/// }
/// ```
///
/// The rules:
///
/// - Dropped, it is rolled back: so it is when the handler fails, panics, runs out of time or is broken off.
/// - A handler that returns `Ok` must have called `settle`, or `rollback` if there was nothing to do; else the attempt
///   failed.
/// - Leave the end of the transaction to `settle` and `rollback`, and keep it at `READ COMMITTED`. After a `COMMIT` of your
///   own `settle` fails, and the delivery is dead.
/// - Each holds a connection of a pool of its own, as large as the one for publishing; a handler waits for one within
///   its timeout. Photon's own work has other connections.
/// - Of one key the next delivery waits until the end of the one before is stored, so retries and dead letters cost a
///   key one more commit.
///
/// A start on another engine is refused. `photon.publish_in(&mut tx, &event)` publishes within it.
pub struct Tx {
    store: PostgresStore,
    connection: Lent,
    settle: Settle,
    settlement: Arc<Settlement>,
}

impl Tx {
    /// Settles the delivery and commits.
    ///
    /// What the handler does afterwards changes nothing: the delivery is settled, also if the handler then fails.
    ///
    /// # Errors
    /// The delivery was settled by an earlier attempt, was changed by somebody else, or the shard went to another
    /// owner: nothing was written. Or the store failed: then the next attempt finds out what was written. The handler
    /// should return the error.
    pub async fn settle(mut self) -> Result<(), HandlerError> {
        let place = format!(
            "{}/{} at {} for {}",
            self.settle.subscription.topic, self.settle.shard, self.settle.seq, self.settle.subscription
        );
        let verdict = match self.write_end().await {
            Ok(verdict) => verdict,
            Err(trouble) => return Err(self.explain(trouble, Effect::Read).into()),
        };
        match verdict {
            Verdict::Written => {}
            Verdict::AlreadySettled => {
                self.settlement.set(Settled::Yes);
                return Err(HandlerError::permanent(format!(
                    "the delivery of {place} was settled by an earlier attempt"
                )));
            }
            Verdict::Overtaken => {
                self.settlement.set(Settled::Overtaken);
                return Err(HandlerError::retry(format!(
                    "the delivery of {place} was changed by somebody else meanwhile"
                )));
            }
            Verdict::Ended => {
                return Err(HandlerError::permanent(format!(
                    "the delivery of {place} cannot be settled: the handler ended its transaction by a statement of its \
                     own. What it wrote may be stored, and is repeated when the delivery is: leave the end to settle or \
                     rollback"
                )));
            }
            Verdict::Fenced => {
                return Err(HandlerError::retry(format!(
                    "the delivery of {place} cannot be settled: another owner holds the shard, and handles it"
                )));
            }
        }
        if let Err(error) = self.connection.client().batch_execute("COMMIT").await {
            return Err(self.explain(error, Effect::Write).into());
        }
        self.settlement.set(Settled::Yes);
        self.connection.is_sound();
        Ok(())
    }

    /// Takes everything back. The delivery then ends as the handler says, like that of any other handler.
    ///
    /// # Errors
    /// The store failed; nothing was written.
    pub async fn rollback(mut self) -> Result<(), HandlerError> {
        self.settlement.set(Settled::No);
        if let Err(error) = self.connection.client().batch_execute("ROLLBACK").await {
            return Err(self.explain(error, Effect::Read).into());
        }
        self.connection.is_sound();
        Ok(())
    }

    fn explain(&self, trouble: impl Into<Trouble>, effect: Effect) -> StoreError {
        self.store.inner.target.explain(trouble, effect)
    }

    /// Checks that the delivery is still to be settled, which holds until the end of the transaction, and settles it.
    async fn write_end(&self) -> Result<Verdict, Trouble> {
        let (client, schema, target) =
            (self.connection.client(), &self.store.inner.schema, &self.store.inner.target);
        let Settle { subscription, shard, seq, fence, row } = &self.settle;
        let shards = [i32::from(shard.0)];
        let (open, fences) = futures::join!(
            client.query_typed_one(IS_OPEN, &[]),
            leases::current(client, schema, subscription, &shards)
        );
        if !open?.try_get::<_, bool>(0)? {
            return Ok(Verdict::Ended);
        }
        let fences = fences?;
        if fences.get(shard) != Some(fence) {
            return Ok(Verdict::Fenced);
        }
        // Owners and operators change the checkpoint's rows under a stronger lock; transactions share this one.
        let locked = commit::lock(client, schema, target, subscription, &shards, Lock::Shared).await?;
        let Some(stored) = locked else { return Ok(Verdict::Fenced) };
        let place = (*shard, *seq);
        let rows: HashMap<_, _> = rows::known(client, schema, stored.id, [place]).await?;
        let covered = commit::is_covered(&stored.checkpoints, place);
        let known = rows.get(&place);
        match decide(*row, covered, known.map_or(Known::Nothing, judge)) {
            Decision::AlreadySettled => return Ok(Verdict::AlreadySettled),
            Decision::Overtaken => return Ok(Verdict::Overtaken),
            Decision::End | Decision::Mark => {}
        }
        if let Some(known) = known {
            let mut changes = Changes::default();
            changes.close(place, covered);
            changes.count(*shard, &known.lane, is_live(known.state), false);
            changes.write(client, schema, stored.id).await?;
        } else {
            let mark = "INSERT INTO @delivery (subscription, shard, seq, version, state, attempts)
                        VALUES ($1, $2, $3, 1, 4, 0)";
            let parameters = params![stored.id, i32::from(shard.0), number(*seq)];
            client.execute_typed(&schema.sql(mark), parameters).await?;
        }
        Ok(Verdict::Written)
    }
}

/// Whether the end of the delivery is written.
enum Verdict {
    Written,
    AlreadySettled,
    Overtaken,
    Fenced,
    /// The transaction was ended by somebody else.
    Ended,
}

fn judge(row: &rows::Known) -> Known {
    match row.state {
        MARK => Known::Mark,
        0 | 1 => Known::Live(row.version),
        _ => Known::Dead,
    }
}

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.connection.client()
    }
}

#[async_trait]
impl PostgresTransaction for Tx {
    async fn stage(&mut self, staged: &Staged) -> Result<(), BoxError> {
        Ok(insert_staged(self.connection.client(), staged).await?)
    }
}

impl FromDelivery for Tx {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        let (Some(store), Some(settlement)) = (delivery.extension::<PostgresStore>(), &delivery.settlement)
        else {
            return Err(HandlerError::permanent(
                "a handler takes a transaction of Postgres outside of an executor on Postgres",
            ));
        };
        let connection = store.inner.transactions.lend().await?;
        let begun = connection.client().batch_execute(BEGIN).await;
        begun.map_err(|error| store.inner.target.explain(error, Effect::Read))?;
        settlement.set(Settled::Open);
        let settle = Settle {
            subscription: delivery.shared.subscription.clone(),
            shard: delivery.event.shard,
            seq: delivery.event.seq,
            fence: delivery.fence,
            row: settlement.row(),
        };
        Ok(Self { store: store.clone(), connection, settle, settlement: Arc::clone(settlement) })
    }

    fn needs(needs: &mut Needs) {
        needs.settlement();
        needs.extension::<PostgresStore>(
            "it takes a transaction of Postgres, and the log is in another engine: keep the log in the database that \
             the handler writes, with .from_url(\"postgres://...\")",
        );
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("settle", &self.settle).finish_non_exhaustive()
    }
}
