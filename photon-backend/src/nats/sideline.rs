//! Looking at stored deliveries, and what people do with dead ones.

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{DeadLetterFilter, Head, Lane, Page, RowRef, Select, Sideline, StoredDelivery};

use super::cell::{Cell, Touched};
use super::cells::Step;
use super::{Inner, NatsStore, now};

impl Inner {
    /// The shards of a subscription that is known.
    async fn shards_of(
        &self,
        id: &SubscriptionId,
    ) -> Result<impl Iterator<Item = Shard> + use<>, StoreError> {
        let shards = self.known(id).await?.map_or(0, |known| known.starts.len());
        Ok((0..u16::try_from(shards).unwrap_or(u16::MAX)).map(Shard))
    }

    /// Changes up to `limit` dead rows that are meant, the smallest places first.
    async fn change_dead(
        &self,
        id: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
        what: &str,
        change: impl Fn(&mut Cell, &[Seq], &mut Touched),
    ) -> Result<u64, StoreError> {
        let mut changed = 0;
        for shard in self.shards_of(id).await? {
            if changed == limit {
                break;
            }
            changed += self
                .change_cell(id, shard, what, |cell, touched| {
                    let rows = cell.position.rows.after(None);
                    let meant = rows.filter(|row| filter.matches(row)).map(|row| row.event.seq);
                    let seqs: Vec<Seq> = meant.take(limit - changed).collect();
                    if seqs.is_empty() {
                        return Step::Keep(0);
                    }
                    change(cell, &seqs, touched);
                    Step::Write(seqs.len())
                })
                .await?;
        }
        if changed > 0 {
            self.raise_revision(id).await?;
        }
        Ok(changed as u64)
    }
}

#[async_trait]
impl Sideline for NatsStore {
    async fn heads(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError> {
        self.inner.look(subscription, shard, |cell| cell.position.rows.heads(after, limit)).await
    }

    async fn lane(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        lane: &Lane,
        limit: usize,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let rows = self.inner.look(subscription, shard, |cell| cell.position.rows.lane(lane, limit)).await?;
        self.inner.fill(subscription, rows).await
    }

    async fn rows_in(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError> {
        self.inner.look(subscription, shard, |cell| cell.position.rows.rows_in(after, through)).await
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
        let rows = self.inner.look(subscription, shard, |cell| {
            seqs.iter().filter_map(|seq| cell.position.rows.get(*seq)).cloned().collect()
        });
        let rows = rows.await?;
        self.inner.fill(subscription, rows).await
    }

    async fn scan(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        page: Page,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let (first, seq) = page.after.map_or((Shard(0), None), |(shard, seq)| (shard, Some(seq)));
        let mut found = Vec::new();
        for shard in self.inner.shards_of(subscription).await?.skip(usize::from(first.0)) {
            let left = page.limit - found.len();
            if left == 0 {
                break;
            }
            let after = if shard == first { seq } else { None };
            let rows = self.inner.look(subscription, shard, |cell| {
                let rows = cell.position.rows.after(after).filter(|row| select.matches(row));
                rows.take(left).cloned().collect::<Vec<_>>()
            });
            found.extend(rows.await?);
        }
        self.inner.fill(subscription, found).await
    }

    async fn count(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError> {
        let mut count = 0;
        for shard in self.inner.shards_of(subscription).await? {
            let meant = self.inner.look(subscription, shard, |cell| {
                cell.position.rows.after(None).filter(|row| select.matches(row)).count() as u64
            });
            count += meant.await?;
        }
        Ok(count)
    }

    async fn redrive(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let what = format!("dead letters of subscription {subscription} cannot be redriven");
        let redrive =
            |cell: &mut Cell, seqs: &[Seq], touched: &mut Touched| cell.redrive(seqs, now(), touched);
        self.inner.change_dead(subscription, filter, limit, &what, redrive).await
    }

    async fn discard(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let what = format!("dead letters of subscription {subscription} cannot be discarded");
        self.inner.change_dead(subscription, filter, limit, &what, Cell::discard).await
    }

    async fn revision(&self, subscription: &SubscriptionId) -> Result<u64, StoreError> {
        self.inner.revision(subscription).await
    }
}
