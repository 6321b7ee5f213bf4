//! Deliveries beside the log: parked, waiting behind a parked one, or dead.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::time::SystemTime;

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{
    DeadLetterFilter, Head, Lane, Page, RowEnd, RowRef, RowState, Select, Sideline, StoredDelivery,
};
use photon_core::time::Timestamp;

use crate::positions::ShardPosition;
use crate::{Content, Shelf};

/// The rows of one shard of one subscription. `None` is the mark of a row that ended before a checkpoint covered
/// its place: without it, a restart would read the event from the log and run it again.
#[derive(Default)]
pub struct Rows(BTreeMap<Seq, Option<StoredDelivery>>);

impl Rows {
    /// Stores a row. Returns `false` if somebody else changed it.
    pub fn put(&mut self, row: &StoredDelivery, covered: bool) -> bool {
        let seq = row.event.seq;
        let stored = StoredDelivery { version: row.version + 1, ..row.clone() };
        match self.0.get(&seq) {
            Some(Some(old)) if old.version == row.version => {}
            // The same put again, whose answer got lost.
            Some(Some(old)) => return *old == stored,
            // It has ended since, with a mark or without.
            Some(None) => return false,
            None if row.version > 0 || covered => return false,
            None => {}
        }
        self.0.insert(seq, Some(stored));
        true
    }

    /// Ends a row. Returns `false` if somebody else changed it.
    pub fn end(&mut self, end: RowEnd, covered: bool) -> bool {
        match self.0.get(&end.seq) {
            Some(Some(row)) if row.version != end.version => false,
            Some(Some(_)) => {
                self.close(end.seq, covered);
                true
            }
            _ => true,
        }
    }

    fn close(&mut self, seq: Seq, covered: bool) {
        if covered {
            self.0.remove(&seq);
        } else {
            self.0.insert(seq, None);
        }
    }

    /// Removes the marks that the watermark has reached.
    pub fn remove_marks(&mut self, watermark: Seq) {
        self.0.retain(|seq, row| row.is_some() || *seq > watermark);
    }

    /// Removes everything behind a place. Returns how many rows there were.
    pub fn remove_after(&mut self, after: Seq) -> u64 {
        let rows = self.iter().filter(|row| row.event.seq > after).count();
        self.0.retain(|seq, _| *seq <= after);
        rows as u64
    }

    fn redrive(&mut self, seq: Seq) {
        if let Some(Some(row)) = self.0.get_mut(&seq) {
            row.state = RowState::Parked { due: Timestamp::from(SystemTime::now()) };
            row.attempts = 0;
            row.version += 1;
            row.failure.reason = None;
            row.failure.first_failed = None;
            row.failure.deferred_since = None;
        }
    }

    fn iter(&self) -> impl Iterator<Item = &StoredDelivery> {
        self.0.values().flatten()
    }

    /// The rows that take part in the order of a lane.
    fn live(&self) -> impl Iterator<Item = &StoredDelivery> {
        self.iter().filter(|row| row.state.is_live())
    }

    fn heads(&self) -> Vec<Head> {
        let mut heads: BTreeMap<Lane, Head> = BTreeMap::new();
        for row in self.live() {
            let (lane, seq) = (row.lane(), row.event.seq);
            let head = Head { lane: lane.clone(), seq, state: row.state, version: row.version, rows: 0 };
            heads.entry(lane).or_insert(head).rows += 1;
        }
        let mut heads: Vec<Head> = heads.into_values().collect();
        heads.sort_by_key(|head| head.seq);
        heads
    }
}

impl Shelf {
    /// Looks at the rows of a shard; of what is unknown there are none.
    fn rows<T>(&self, id: &SubscriptionId, shard: Shard, look: impl FnOnce(&Rows) -> T) -> T {
        let content = self.content();
        let position = content.positions.get(id);
        match position.and_then(|position| position.shards.get(usize::from(shard.0))) {
            Some(shard) => look(&shard.rows),
            None => look(&Rows::default()),
        }
    }

    /// Changes dead letters in one step, and tells the owner by the revision.
    fn change(
        &self,
        id: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
        change: impl Fn(&mut ShardPosition, Seq),
    ) -> u64 {
        let mut content = self.content();
        let mut meant = selected(&content, id, &Select::Dead(filter.clone()));
        meant.truncate(limit);
        let Some(position) = content.positions.get_mut(id) else { return 0 };
        for row in &meant {
            change(&mut position.shards[usize::from(row.event.shard.0)], row.event.seq);
        }
        position.revision += u64::from(!meant.is_empty());
        meant.len() as u64
    }
}

/// The rows that are meant, by shard and seq.
fn selected(content: &Content, id: &SubscriptionId, select: &Select) -> Vec<StoredDelivery> {
    let shards = content.positions.get(id).into_iter().flat_map(|position| &position.shards);
    shards.flat_map(|shard| shard.rows.iter()).filter(|row| select.matches(row)).cloned().collect()
}

#[async_trait]
impl Sideline for Shelf {
    async fn heads(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError> {
        let heads = self.rows(subscription, shard, Rows::heads);
        Ok(heads.into_iter().filter(|head| head.seq > after).take(limit).collect())
    }

    async fn lane(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        lane: &Lane,
        limit: usize,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        Ok(self.rows(subscription, shard, |rows| {
            rows.live().filter(|row| row.lane() == *lane).take(limit).cloned().collect()
        }))
    }

    async fn rows_in(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError> {
        if after >= through {
            return Ok(Vec::new());
        }
        Ok(self.rows(subscription, shard, |rows| {
            let rows = rows.0.range((Excluded(after), Included(through)));
            rows.map(|(seq, row)| RowRef { seq: *seq, state: row.as_ref().map(|row| row.state) }).collect()
        }))
    }

    async fn get(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: &[Seq],
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        Ok(self.rows(subscription, shard, |rows| {
            rows.iter().filter(|row| seqs.contains(&row.event.seq)).cloned().collect()
        }))
    }

    async fn scan(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        page: Page,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let rows = selected(&self.content(), subscription, select).into_iter();
        let behind =
            |row: &StoredDelivery| page.after.is_none_or(|place| (row.event.shard, row.event.seq) > place);
        Ok(rows.filter(behind).take(page.limit).collect())
    }

    async fn count(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError> {
        Ok(selected(&self.content(), subscription, select).len() as u64)
    }

    async fn redrive(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        Ok(self.change(subscription, filter, limit, |shard, seq| shard.rows.redrive(seq)))
    }

    async fn discard(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        Ok(self.change(subscription, filter, limit, |shard, seq| {
            shard.rows.close(seq, shard.checkpoint.covers(seq));
        }))
    }

    async fn revision(&self, subscription: &SubscriptionId) -> Result<u64, StoreError> {
        Ok(self.content().positions.get(subscription).map_or(0, |position| position.revision))
    }
}
