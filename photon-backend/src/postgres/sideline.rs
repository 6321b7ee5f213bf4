//! Looking at stored deliveries, and what people do with dead ones.

use std::collections::HashMap;

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::handler::DeadReason;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{
    Checkpoint, DeadLetterFilter, Head, Lane, Page, RowRef, Select, Sideline, StoredDelivery,
};
use photon_core::time::Timestamp;
use tokio_postgres::{Client, Row};

use super::PostgresStore;
use super::checkpoints::{find, read_checkpoint};
use super::commit::is_covered;
use super::control::raise_revision;
use super::error::{Effect, Target, Trouble};
use super::log::shard;
use super::param::params;
use super::read::{number, seq};
use super::rows::{Changes, MARK, RowReader, columns, decode_state, is_live, strange};
use super::schema::Schema;

/// So many dead rows are changed in one transaction.
const CHANGED_AT_ONCE: usize = 4_096;

/// Dead rows that match a filter, for the parameters that [`DeadRows`] holds.
macro_rules! dead_rows {
    () => {
        " FROM @delivery
          WHERE subscription = $1 AND state IN (2, 3) AND (shard, seq) >= ($2, $3) AND (shard, seq) <= ($4, $5)
            AND ($6 IS NULL OR lane_id = @short($6)) AND ($7 IS NULL OR reason = $7)
            AND ($8 IS NULL OR last_failed >= $8) AND ($9 IS NULL OR last_failed < $9)"
    };
}

/// The parameters of `dead_rows!`.
struct DeadRows {
    from: (i32, i64),
    to: (i32, i64),
    lane: Option<Vec<u8>>,
    reason: Option<&'static str>,
    since: Option<i64>,
    before: Option<i64>,
}

impl DeadRows {
    fn new(filter: &DeadLetterFilter, after: Option<(Shard, Seq)>) -> Self {
        let place = |(shard, seq): (Shard, Seq)| (i32::from(shard.0), number(seq));
        let (mut from, mut to) = ((0, 0), (i32::MAX, i64::MAX));
        if let Some(only) = filter.place {
            (from, to) = (place(only), place(only));
        }
        if let Some((shard, seq)) = after.map(place) {
            from = from.max((shard, seq.saturating_add(1)));
        }
        let time = |time: Option<Timestamp>| time.map(|time| time.0);
        Self {
            from,
            to,
            lane: filter.key.as_ref().map(|key| Lane::Key(key.clone()).to_bytes()),
            reason: filter.reason.map(DeadReason::as_str),
            since: time(filter.failed_since),
            before: time(filter.failed_before),
        }
    }

    async fn query(
        &self,
        client: &Client,
        schema: &Schema,
        id: i64,
        statement: &str,
        most: i64,
    ) -> Result<Vec<Row>, Trouble> {
        let Self { from, to, lane, reason, since, before } = self;
        let parameters = params![id, from.0, from.1, to.0, to.1, *lane, *reason, *since, *before, most];
        Ok(client.query_typed(&schema.sql(statement), parameters).await?)
    }
}

fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// What a look at one subscription needs.
#[derive(Clone, Copy)]
struct View<'a> {
    client: &'a Client,
    schema: &'a Schema,
    target: &'a Target,
    subscription: &'a SubscriptionId,
    id: i64,
}

impl View<'_> {
    fn sql(&self, statement: &str) -> String {
        self.schema.sql(statement)
    }

    fn deliveries(&self, rows: &[Row]) -> Result<Vec<StoredDelivery>, Trouble> {
        RowReader::new(self.target, &self.subscription.topic).read_all(rows)
    }

    async fn heads(self, shard: Shard, after: Seq, most: usize) -> Result<Vec<Head>, Trouble> {
        let statement = "SELECT d.lane, l.head, l.rows, d.state, d.due, d.version
                         FROM @lane l JOIN @delivery d
                             ON d.subscription = l.subscription AND d.shard = l.shard AND d.seq = l.head
                         WHERE l.subscription = $1 AND l.shard = $2 AND l.head > $3 ORDER BY l.head LIMIT $4";
        let parameters = params![self.id, i32::from(shard.0), number(after), limit(most)];
        let rows = self.client.query_typed(&self.sql(statement), parameters).await?;
        rows.iter().map(|row| self.head(row)).collect()
    }

    fn head(&self, row: &Row) -> Result<Head, Trouble> {
        let seq = seq(row.try_get(1)?);
        let bad = || strange(self.target, format!("of {} at {seq}", self.subscription));
        let lane: Option<&[u8]> = row.try_get(0)?;
        let (rows, version): (i64, i64) = (row.try_get(2)?, row.try_get(5)?);
        Ok(Head {
            lane: lane.and_then(Lane::from_bytes).ok_or_else(bad)?,
            seq,
            state: decode_state(row.try_get(3)?, row.try_get(4)?).ok_or_else(bad)?,
            version: version.unsigned_abs(),
            rows: rows.unsigned_abs(),
        })
    }

    async fn lane(self, shard: Shard, lane: &Lane, most: usize) -> Result<Vec<StoredDelivery>, Trouble> {
        let statement = concat!(
            "SELECT ",
            columns!(),
            " FROM @delivery WHERE subscription = $1 AND shard = $2 AND lane_id = @short($3)
                AND state IN (0, 1, 3) ORDER BY seq LIMIT $4"
        );
        let parameters = params![self.id, i32::from(shard.0), lane.to_bytes(), limit(most)];
        self.deliveries(&self.client.query_typed(&self.sql(statement), parameters).await?)
    }

    async fn rows_in(self, shard: Shard, after: Seq, through: Seq) -> Result<Vec<RowRef>, Trouble> {
        let statement = "SELECT seq, state, due FROM @delivery
                         WHERE subscription = $1 AND shard = $2 AND seq > $3 AND seq <= $4 ORDER BY seq";
        let parameters = params![self.id, i32::from(shard.0), number(after), number(through)];
        let rows = self.client.query_typed(&self.sql(statement), parameters).await?;
        let read = |row: &Row| {
            let (seq, state) = (seq(row.try_get(0)?), row.try_get(1)?);
            match decode_state(state, row.try_get(2)?) {
                None if state != MARK => Err(strange(self.target, format!("at {seq}")).into()),
                state => Ok(RowRef { seq, state }),
            }
        };
        rows.iter().map(read).collect()
    }

    async fn get(self, shard: Shard, seqs: &[Seq]) -> Result<Vec<StoredDelivery>, Trouble> {
        let statement = concat!(
            "SELECT ",
            columns!(),
            " FROM @delivery WHERE subscription = $1 AND shard = $2 AND seq = ANY ($3) AND state <> 4 ORDER BY seq"
        );
        let seqs: Vec<i64> = seqs.iter().map(|seq| number(*seq)).collect();
        let parameters = params![self.id, i32::from(shard.0), seqs];
        self.deliveries(&self.client.query_typed(&self.sql(statement), parameters).await?)
    }

    async fn scan(self, select: &Select, page: Page) -> Result<Vec<StoredDelivery>, Trouble> {
        if let Select::Dead(filter) = select {
            let statement = concat!("SELECT ", columns!(), dead_rows!(), " ORDER BY shard, seq LIMIT $10");
            let dead = DeadRows::new(filter, page.after);
            let rows = dead.query(self.client, self.schema, self.id, statement, limit(page.limit)).await?;
            return self.deliveries(&rows);
        }
        let statement = concat!(
            "SELECT ",
            columns!(),
            " FROM @delivery WHERE subscription = $1 AND (shard, seq) >= ($2, $3) AND state IN (0, 1)
              ORDER BY shard, seq LIMIT $4"
        );
        let from = DeadRows::new(&DeadLetterFilter::default(), page.after).from;
        let parameters = params![self.id, from.0, from.1, limit(page.limit)];
        self.deliveries(&self.client.query_typed(&self.sql(statement), parameters).await?)
    }

    async fn count(self, select: &Select) -> Result<u64, Trouble> {
        let rows = match select {
            Select::Dead(filter) => {
                // The limit is of one row, the count.
                let statement = concat!("SELECT count(*)", dead_rows!(), " LIMIT $10");
                DeadRows::new(filter, None).query(self.client, self.schema, self.id, statement, 1).await?
            }
            // The live rows without the dead ones among them: both can be counted without touching the rows.
            Select::Parked => {
                let statement = "SELECT (SELECT coalesce(sum(rows), 0) FROM @lane WHERE subscription = $1)::int8
                                     - (SELECT count(*) FROM @delivery WHERE subscription = $1 AND state IN (2, 3)
                                            AND state = 3)";
                self.client.query_typed(&self.sql(statement), params![self.id]).await?
            }
        };
        let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        Ok(count.unsigned_abs())
    }

    async fn revision(self) -> Result<u64, Trouble> {
        let statement = self.sql("SELECT revision FROM @subscription WHERE id = $1");
        let row = self.client.query_typed_opt(&statement, params![self.id]).await?;
        let revision: i64 = row.map_or(Ok(0), |row| row.try_get(0))?;
        Ok(revision.unsigned_abs())
    }

    /// Changes up to `most` dead rows that are meant, the smallest places first.
    async fn change_dead(self, filter: &DeadLetterFilter, most: usize, to: Change) -> Result<u64, Trouble> {
        let checkpoints = self.lock_checkpoints().await?;
        let statement =
            concat!("SELECT shard, seq, state, lane", dead_rows!(), " ORDER BY shard, seq LIMIT $10");
        let dead = DeadRows::new(filter, None);
        let rows = dead.query(self.client, self.schema, self.id, statement, limit(most)).await?;
        let mut changes = Changes::default();
        for row in &rows {
            let place = (shard(row.try_get(0)?), seq(row.try_get(1)?));
            let was_live = is_live(row.try_get(2)?);
            let lane: Option<&[u8]> = row.try_get(3)?;
            match to {
                Change::Redrive => changes.redrive(place),
                Change::Discard => changes.close(place, is_covered(&checkpoints, place)),
            }
            changes.count(place.0, lane.unwrap_or_default(), was_live, to == Change::Redrive);
        }
        changes.write(self.client, self.schema, self.id).await?;
        if !rows.is_empty() {
            raise_revision(self.client, self.schema, self.id).await?;
        }
        Ok(rows.len() as u64)
    }

    /// Until the end of the transaction no owner writes about any shard.
    async fn lock_checkpoints(self) -> Result<HashMap<Shard, Checkpoint>, Trouble> {
        let statement = "SELECT shard, watermark, ranges FROM @checkpoint WHERE subscription = $1
                         ORDER BY shard FOR NO KEY UPDATE";
        let rows = self.client.query_typed(&self.sql(statement), params![self.id]).await?;
        rows.iter().map(|row| Ok((shard(row.try_get(0)?), read_checkpoint(row, 1, self.target)?))).collect()
    }
}

/// What becomes of dead rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Redrive,
    Discard,
}

/// Looks at a subscription; without it there is nothing to see.
macro_rules! look_at {
    ($store:expr, $subscription:expr, $look:expr) => {{
        let session = $store.inner.reserved.session().await?;
        let (client, schema, target) = (session.client(), &$store.inner.schema, &$store.inner.target);
        let looking = async {
            match find(client, schema, $subscription).await? {
                Some(id) => $look(View { client, schema, target, subscription: $subscription, id }).await,
                None => Ok(Default::default()),
            }
        };
        session.run(Effect::Read, looking).await
    }};
}

impl PostgresStore {
    async fn change_all_dead(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        most: usize,
        to: Change,
    ) -> Result<u64, StoreError> {
        let mut changed = 0;
        let mut left = most;
        while left > 0 {
            let session = self.inner.reserved.session().await?;
            let (client, schema, target) = (session.client(), &self.inner.schema, &self.inner.target);
            let now = left.min(CHANGED_AT_ONCE);
            let step = async {
                match find(client, schema, subscription).await? {
                    Some(id) => {
                        let view = View { client, schema, target, subscription, id };
                        view.change_dead(filter, now, to).await
                    }
                    None => Ok(0),
                }
            };
            let some = session.transact(step).await?;
            changed += some;
            left -= now;
            if some < now as u64 {
                break;
            }
        }
        Ok(changed)
    }
}

#[async_trait]
impl Sideline for PostgresStore {
    async fn heads(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError> {
        look_at!(self, subscription, |view| View::heads(view, shard, after, limit))
    }

    async fn lane(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        lane: &Lane,
        limit: usize,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        look_at!(self, subscription, |view| View::lane(view, shard, lane, limit))
    }

    async fn rows_in(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError> {
        look_at!(self, subscription, |view| View::rows_in(view, shard, after, through))
    }

    async fn get(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: &[Seq],
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        look_at!(self, subscription, |view| View::get(view, shard, seqs))
    }

    async fn scan(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        page: Page,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        look_at!(self, subscription, |view| View::scan(view, select, page))
    }

    async fn count(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError> {
        look_at!(self, subscription, |view| View::count(view, select))
    }

    async fn redrive(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.change_all_dead(subscription, filter, limit, Change::Redrive).await
    }

    async fn discard(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.change_all_dead(subscription, filter, limit, Change::Discard).await
    }

    async fn revision(&self, subscription: &SubscriptionId) -> Result<u64, StoreError> {
        look_at!(self, subscription, View::revision)
    }
}
