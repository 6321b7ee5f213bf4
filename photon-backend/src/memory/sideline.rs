//! Looking at stored deliveries, and what people do with dead ones.

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{DeadLetterFilter, Head, Lane, Page, RowRef, Select, Sideline, StoredDelivery};

use super::MemoryStore;
use super::positions::Position;
use crate::position::ShardPosition;

impl MemoryStore {
    /// Looks at one shard of a subscription; without it there is nothing to see.
    fn with_shard<T: Default>(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        look: impl FnOnce(&ShardPosition) -> T,
    ) -> T {
        let book = self.book();
        let position = book.positions.get(subscription);
        position.and_then(|position| position.shard(shard)).map(look).unwrap_or_default()
    }

    /// Changes up to `limit` dead rows that are meant, the smallest places first.
    fn change_dead(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
        change: impl Fn(&mut ShardPosition, Seq),
    ) -> u64 {
        let mut book = self.book();
        let Some(position) = book.positions.get_mut(subscription) else { return 0 };
        let mut changed = 0;
        for shard in &mut position.shards {
            let meant = shard.rows.after(None).filter(|row| filter.matches(row)).map(|row| row.event.seq);
            let seqs: Vec<Seq> = meant.take(limit - changed).collect();
            changed += seqs.len();
            for seq in seqs {
                change(shard, seq);
            }
        }
        position.revision += u64::from(changed > 0);
        changed as u64
    }
}

fn rows(position: &Position, after: Option<(Shard, Seq)>) -> impl Iterator<Item = &StoredDelivery> {
    let (first, seq) = after.map_or((Shard(0), None), |(shard, seq)| (shard, Some(seq)));
    (0..)
        .map(Shard)
        .zip(&position.shards)
        .skip(usize::from(first.0))
        .flat_map(move |(shard, position)| position.rows.after(if shard == first { seq } else { None }))
}

#[async_trait]
impl Sideline for MemoryStore {
    async fn heads(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError> {
        Ok(self.with_shard(subscription, shard, |shard| shard.rows.heads(after, limit)))
    }

    async fn lane(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        lane: &Lane,
        limit: usize,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        Ok(self.with_shard(subscription, shard, |shard| shard.rows.lane(lane, limit)))
    }

    async fn rows_in(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError> {
        Ok(self.with_shard(subscription, shard, |shard| shard.rows.rows_in(after, through)))
    }

    async fn get(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: &[Seq],
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let mut seqs = seqs.to_vec();
        seqs.sort_unstable();
        seqs.dedup();
        Ok(self.with_shard(subscription, shard, |shard| {
            seqs.iter().filter_map(|seq| shard.rows.get(*seq)).cloned().collect()
        }))
    }

    async fn scan(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        page: Page,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let book = self.book();
        let Some(position) = book.positions.get(subscription) else { return Ok(Vec::new()) };
        let meant = rows(position, page.after).filter(|row| select.matches(row));
        Ok(meant.take(page.limit).cloned().collect())
    }

    async fn count(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError> {
        let book = self.book();
        let Some(position) = book.positions.get(subscription) else { return Ok(0) };
        Ok(rows(position, None).filter(|row| select.matches(row)).count() as u64)
    }

    async fn redrive(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let now = self.now();
        Ok(self.change_dead(subscription, filter, limit, |shard, seq| shard.rows.redrive(seq, now)))
    }

    async fn discard(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        Ok(self.change_dead(subscription, filter, limit, |shard, seq| {
            let covered = shard.checkpoint.covers(seq);
            shard.rows.close(seq, covered);
        }))
    }

    async fn revision(&self, subscription: &SubscriptionId) -> Result<u64, StoreError> {
        Ok(self.book().positions.get(subscription).map_or(0, |position| position.revision))
    }
}
