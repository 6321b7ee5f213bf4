//! Looking at stored deliveries, and what people do with dead ones.

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::handler::DeadReason;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{DeadLetterFilter, Head, Lane, Page, RowRef, Select, Sideline, StoredDelivery};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};

use super::checkpoints::find;
use super::error::{File, Trouble};
use super::read::blob;
use super::readers::Snapshot;
use super::rows::{self, MARK, Place, RowReader, columns, decode_state, is_live, strange};
use super::writer::Transaction;
use super::{SMALL_WRITE, SqliteStore, commit};

/// A place before the first one, and one after the last.
const ENDS: [(u16, i64); 2] = [(0, 0), (u16::MAX, i64::MAX)];

/// Dead rows that match a filter, for the parameters that [`dead_params`] makes.
macro_rules! dead_rows {
    () => {
        " FROM photon_delivery INDEXED BY photon_delivery_dead
          WHERE subscription = ?1 AND state IN (2, 3) AND (shard, seq) >= (?2, ?3) AND (shard, seq) <= (?4, ?5)
            AND (?6 IS NULL OR lane = ?6) AND (?7 IS NULL OR reason = ?7)
            AND (?8 IS NULL OR last_failed >= ?8) AND (?9 IS NULL OR last_failed < ?9)"
    };
}

fn dead_params(id: u64, filter: &DeadLetterFilter, after: Option<(Shard, Seq)>) -> Vec<Value> {
    let number = |seq: Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
    let [mut from, mut to] = ENDS;
    if let Some((shard, seq)) = filter.place {
        (from, to) = ((shard.0, number(seq)), (shard.0, number(seq)));
    }
    if let Some((shard, seq)) = after {
        from = from.max((shard.0, number(seq).saturating_add(1)));
    }
    let time = |time: Option<photon_core::time::Timestamp>| time.map(|time| time.0).into();
    vec![
        number(Seq(id)).into(),
        from.0.into(),
        from.1.into(),
        to.0.into(),
        to.1.into(),
        filter.key.as_ref().map(|key| Lane::Key(key.clone()).to_bytes()).into(),
        filter.reason.map(|reason| DeadReason::as_str(reason).to_owned()).into(),
        time(filter.failed_since),
        time(filter.failed_before),
    ]
}

fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// A head, from the columns lane, seq, rows, state, due, version.
fn read_head(row: &Row<'_>, file: &File) -> Result<Head, Trouble> {
    let seq = Seq(row.get(1)?);
    let lane = Lane::from_bytes(blob(row, 0)?).ok_or_else(|| strange(file, format!("at {seq}")))?;
    let state = decode_state(row.get(3)?, row.get(4)?).ok_or_else(|| strange(file, format!("at {seq}")))?;
    Ok(Head { lane, seq, state, version: row.get(5)?, rows: row.get(2)? })
}

fn heads(
    snapshot: &Snapshot<'_>,
    id: u64,
    shard: Shard,
    after: Seq,
    most: usize,
) -> Result<Vec<Head>, Trouble> {
    let mut statement = snapshot.conn.prepare_cached(
        "SELECT l.lane, l.head, l.rows, d.state, d.due, d.version
         FROM photon_lane l INDEXED BY photon_lane_head CROSS JOIN photon_delivery d
             ON d.subscription = l.subscription AND d.shard = l.shard AND d.seq = l.head
         WHERE l.subscription = ?1 AND l.shard = ?2 AND l.head > ?3 ORDER BY l.head LIMIT ?4",
    )?;
    let after = i64::try_from(after.0).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![id, shard.0, after, limit(most)])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read_head(row, snapshot.file)?);
    }
    Ok(all)
}

fn lane_rows(
    snapshot: &Snapshot<'_>,
    id: u64,
    subscription: &SubscriptionId,
    shard: Shard,
    lane: &Lane,
    most: usize,
) -> Result<Vec<StoredDelivery>, Trouble> {
    let mut statement = snapshot.conn.prepare_cached(concat!(
        "SELECT ",
        columns!(),
        " FROM photon_delivery INDEXED BY photon_delivery_live
         WHERE subscription = ?1 AND shard = ?2 AND lane = ?3 AND state IN (0, 1, 3) ORDER BY seq LIMIT ?4"
    ))?;
    let mut rows = statement.query(params![id, shard.0, lane.to_bytes(), limit(most)])?;
    let mut reader = RowReader::new(snapshot.file, &subscription.topic);
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(reader.read(row)?);
    }
    Ok(all)
}

fn rows_in(
    snapshot: &Snapshot<'_>,
    id: u64,
    shard: Shard,
    after: Seq,
    through: Seq,
) -> Result<Vec<RowRef>, Trouble> {
    let mut statement = snapshot.conn.prepare_cached(
        "SELECT seq, state, due FROM photon_delivery
         WHERE subscription = ?1 AND shard = ?2 AND seq > ?3 AND seq <= ?4 ORDER BY seq",
    )?;
    let number = |seq: Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![id, shard.0, number(after), number(through)])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let (seq, state) = (Seq(row.get(0)?), row.get(1)?);
        let state = match decode_state(state, row.get(2)?) {
            None if state != MARK => return Err(strange(snapshot.file, format!("at {seq}")).into()),
            state => state,
        };
        all.push(RowRef { seq, state });
    }
    Ok(all)
}

fn get(
    snapshot: &Snapshot<'_>,
    id: u64,
    subscription: &SubscriptionId,
    shard: Shard,
    mut seqs: Vec<Seq>,
) -> Result<Vec<StoredDelivery>, Trouble> {
    seqs.sort_unstable();
    seqs.dedup();
    let mut statement = snapshot.conn.prepare_cached(concat!(
        "SELECT ",
        columns!(),
        " FROM photon_delivery WHERE subscription = ?1 AND shard = ?2 AND seq = ?3 AND state <> 4"
    ))?;
    let mut reader = RowReader::new(snapshot.file, &subscription.topic);
    let mut all = Vec::with_capacity(seqs.len());
    for seq in seqs {
        let mut rows = statement.query(params![id, shard.0, seq.0])?;
        if let Some(row) = rows.next()? {
            all.push(reader.read(row)?);
        }
    }
    Ok(all)
}

fn scan(
    snapshot: &Snapshot<'_>,
    id: u64,
    subscription: &SubscriptionId,
    select: &Select,
    page: Page,
) -> Result<Vec<StoredDelivery>, Trouble> {
    let (sql, mut values) = match select {
        Select::Dead(filter) => (
            concat!("SELECT ", columns!(), dead_rows!(), " ORDER BY shard, seq LIMIT ?10"),
            dead_params(id, filter, page.after),
        ),
        Select::Parked => (
            concat!(
                "SELECT ",
                columns!(),
                " FROM photon_delivery
                  WHERE subscription = ?1 AND (shard, seq) >= (?2, ?3) AND (shard, seq) <= (?4, ?5)
                    AND state IN (0, 1)
                  ORDER BY shard, seq LIMIT ?6"
            ),
            dead_params(id, &DeadLetterFilter::default(), page.after),
        ),
    };
    if *select == Select::Parked {
        values.truncate(5);
    }
    values.push(limit(page.limit).into());
    let mut statement = snapshot.conn.prepare_cached(sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut reader = RowReader::new(snapshot.file, &subscription.topic);
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(reader.read(row)?);
    }
    Ok(all)
}

fn count(snapshot: &Snapshot<'_>, id: u64, select: &Select) -> Result<u64, Trouble> {
    let count = match select {
        Select::Dead(filter) => snapshot
            .conn
            .prepare_cached(concat!("SELECT count(*)", dead_rows!()))?
            .query_row(params_from_iter(dead_params(id, filter, None)), |row| row.get(0))?,
        // The live rows without the dead ones among them: both can be counted without touching the rows.
        Select::Parked => snapshot
            .conn
            .prepare_cached(
                "SELECT (SELECT ifnull(sum(rows), 0) FROM photon_lane WHERE subscription = ?1)
                     - (SELECT count(*) FROM photon_delivery INDEXED BY photon_delivery_dead
                        WHERE subscription = ?1 AND state IN (2, 3) AND state = 3)",
            )?
            .query_row([id], |row| row.get(0))?,
    };
    Ok(count)
}

/// A dead row: where it lies, its state and its lane.
type Dead = (Place, u8, Vec<u8>);

/// Changes up to `most` dead rows that are meant, the smallest places first.
fn change_dead(
    tx: &mut Transaction<'_>,
    subscription: &SubscriptionId,
    filter: &DeadLetterFilter,
    most: usize,
    change: impl Fn(&Transaction<'_>, Dead) -> Result<(), Trouble>,
) -> Result<u64, Trouble> {
    let Some(id) = find(tx.conn, subscription)? else { return Ok(0) };
    let mut values = dead_params(id, filter, None);
    values.push(limit(most).into());
    let dead: Vec<Dead> = tx
        .conn
        .prepare_cached(concat!(
            "SELECT shard, seq, state, lane",
            dead_rows!(),
            " ORDER BY shard, seq LIMIT ?10"
        ))?
        .query_map(params_from_iter(values), |row| {
            let place = Place { subscription: id, shard: Shard(row.get(0)?), seq: Seq(row.get(1)?) };
            Ok((place, row.get(2)?, row.get(3)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let changed = dead.len() as u64;
    for row in dead {
        change(tx, row)?;
    }
    if changed > 0 {
        tx.conn
            .prepare_cached("UPDATE photon_subscription SET revision = revision + 1 WHERE id = ?1")?
            .execute([id])?;
    }
    Ok(changed)
}

fn redrive(tx: &Transaction<'_>, (place, state, lane): Dead) -> Result<(), Trouble> {
    tx.conn
        .prepare_cached(
            "UPDATE photon_delivery SET state = 0, due = ?4, attempts = 0, version = version + 1, reason = NULL,
                 first_failed = NULL, deferred_since = NULL
             WHERE subscription = ?1 AND shard = ?2 AND seq = ?3",
        )?
        .execute(params![place.subscription, place.shard.0, place.seq.0, tx.now.0])?;
    if !is_live(state) {
        rows::enter_lane(tx.conn, place, &lane)?;
    }
    Ok(())
}

fn discard(tx: &Transaction<'_>, (place, state, lane): Dead) -> Result<(), Trouble> {
    let covered = commit::is_covered(tx.conn, tx.file, place)?;
    Ok(rows::close(tx.conn, place, state, &lane, covered)?)
}

fn revision(conn: &Connection, id: u64) -> Result<u64, Trouble> {
    Ok(conn
        .prepare_cached("SELECT revision FROM photon_subscription WHERE id = ?1")?
        .query_row([id], |row| row.get(0))?)
}

impl SqliteStore {
    /// Looks at a subscription; without it there is nothing to see.
    pub(super) async fn look_at<T: Default + Send + 'static>(
        &self,
        subscription: &SubscriptionId,
        look: impl FnOnce(&Snapshot<'_>, u64, &SubscriptionId) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let subscription = subscription.clone();
        let look = move |snapshot: &mut Snapshot<'_>| match find(snapshot.conn, &subscription)? {
            Some(id) => look(snapshot, id, &subscription),
            None => Ok(T::default()),
        };
        self.inner.readers.run(look).await
    }
}

#[async_trait]
impl Sideline for SqliteStore {
    async fn heads(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError> {
        self.look_at(subscription, move |snapshot, id, _| heads(snapshot, id, shard, after, limit)).await
    }

    async fn lane(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        lane: &Lane,
        limit: usize,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let lane = lane.clone();
        self.look_at(subscription, move |snapshot, id, subscription| {
            lane_rows(snapshot, id, subscription, shard, &lane, limit)
        })
        .await
    }

    async fn rows_in(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError> {
        self.look_at(subscription, move |snapshot, id, _| rows_in(snapshot, id, shard, after, through)).await
    }

    async fn get(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: &[Seq],
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let seqs = seqs.to_vec();
        self.look_at(subscription, move |snapshot, id, of| get(snapshot, id, of, shard, seqs)).await
    }

    async fn scan(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        page: Page,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let select = select.clone();
        self.look_at(subscription, move |snapshot, id, of| scan(snapshot, id, of, &select, page)).await
    }

    async fn count(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError> {
        let select = select.clone();
        self.look_at(subscription, move |snapshot, id, _| count(snapshot, id, &select)).await
    }

    async fn redrive(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let (subscription, filter) = (subscription.clone(), filter.clone());
        let work = move |tx: &mut Transaction<'_>| change_dead(tx, &subscription, &filter, limit, redrive);
        self.inner.writer.run(SMALL_WRITE, work).await
    }

    async fn discard(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let (subscription, filter) = (subscription.clone(), filter.clone());
        let work = move |tx: &mut Transaction<'_>| change_dead(tx, &subscription, &filter, limit, discard);
        self.inner.writer.run(SMALL_WRITE, work).await
    }

    async fn revision(&self, subscription: &SubscriptionId) -> Result<u64, StoreError> {
        self.look_at(subscription, |snapshot, id, _| revision(snapshot.conn, id)).await
    }
}
