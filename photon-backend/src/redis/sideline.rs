//! Looking at stored deliveries, and what people do with dead ones.

use async_trait::async_trait;
use bytes::Bytes;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{DeadLetterFilter, Head, Lane, Page, RowRef, Select, Sideline, StoredDelivery};
use redis::{Cmd, FromRedisValue};

use super::RedisStore;
use super::error::{Effect, Trouble};
use super::keys::subscription_name;
use super::known::{Topic, mending};
use super::link::Use;
use super::rows::{self, Strange};
use super::scripts;

/// The most rows that are fetched to look through them.
const ROWS_AT_ONCE: usize = 64;
/// The most rows of a kind whose states one script tells.
const REFS_AT_ONCE: usize = 1_000;

/// A place and what is stored there.
type Found = (u64, Vec<u8>);

impl RedisStore {
    fn strange_row(&self, subscription: &SubscriptionId, shard: Shard, seq: u64) -> StoreError {
        self.target().strange(format!("the stored delivery of {subscription} in shard {shard} at {seq}"))
    }

    async fn look<T: FromRedisValue>(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        args: impl FnOnce(&mut Cmd),
    ) -> Result<T, StoreError> {
        let keys = self.inner.keys.rows(subscription, shard);
        let answer = self.inner.links.run(Use::Read, Effect::Read, &scripts::LOOK, &keys, |command| {
            command.arg(1);
            args(command);
        });
        self.plain(answer.await)
    }

    /// The revision, if all that is to be known of the subscription is there.
    async fn revision_of(&self, topic: &Topic, subscription: &SubscriptionId) -> Result<u64, Trouble> {
        let (links, keys) = (&self.inner.links, &self.inner.keys);
        let mut all = vec![keys.topic(&topic.name), keys.subscription(subscription), keys.subscriptions()];
        all.extend(topic.shard_numbers().map(|shard| keys.position(subscription, shard)));
        let answer = links.run(Use::Control, Effect::Read, &scripts::REVISION, &all, |command| {
            command.arg(subscription_name(subscription));
        });
        answer.await
    }

    /// Reads what was found at places of a shard.
    fn read<T>(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        found: impl IntoIterator<Item = Found>,
        read: impl Fn(Seq, Bytes) -> Result<T, Strange>,
    ) -> Result<Vec<T>, StoreError> {
        let read = |(seq, row): Found| {
            read(Seq(seq), row.into()).map_err(|Strange| self.strange_row(subscription, shard, seq))
        };
        found.into_iter().map(read).collect()
    }

    fn read_rows<F: IntoIterator<Item = Found>>(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        found: F,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        self.read(subscription, shard, found, |seq, row| rows::decode(&subscription.topic, shard, seq, row))
    }

    /// The rows at these places; without those that are not there.
    async fn rows_at(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: Vec<u64>,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        if seqs.is_empty() {
            return Ok(Vec::new());
        }
        let [rows, ..] = self.inner.keys.rows(subscription, shard);
        let mut command = redis::cmd("HMGET");
        command.arg(rows).arg(&seqs);
        let found = self.inner.links.ask(Use::Read, Effect::Read, &command).await;
        let found: Vec<Option<Vec<u8>>> = self.plain(found)?;
        let found = seqs.into_iter().zip(found).filter_map(|(seq, row)| Some((seq, row?)));
        self.read_rows(subscription, shard, found)
    }

    /// The next rows of a shard that are dead, or that are not.
    async fn next_rows(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        select: &Select,
        after: Seq,
        most: usize,
    ) -> Result<(Vec<StoredDelivery>, Option<Seq>), StoreError> {
        let [_, dead, parked, ..] = self.inner.keys.rows(subscription, shard);
        let index = if matches!(select, Select::Dead(_)) { dead } else { parked };
        let mut command = redis::cmd("ZRANGEBYSCORE");
        command.arg(index).arg(format!("({after}")).arg("+inf").arg("LIMIT").arg(0).arg(most);
        let seqs: Vec<u64> = self.plain(self.inner.links.ask(Use::Read, Effect::Read, &command).await)?;
        let last = seqs.last().copied().map(Seq).filter(|_| seqs.len() == most);
        Ok((self.rows_at(subscription, shard, seqs).await?, last))
    }

    /// Goes through the rows that are meant, by shard and seq, for as long as `take` says so.
    async fn go_through(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        after: Option<(Shard, Seq)>,
        mut take: impl FnMut(StoredDelivery) -> bool + Send,
    ) -> Result<(), StoreError> {
        let Some(topic) = self.find_topic(&subscription.topic).await? else { return Ok(()) };
        let (first, seq) = after.unwrap_or((Shard(0), Seq::ZERO));
        for shard in topic.shard_numbers().skip(usize::from(first.0)) {
            let mut after = Some(if shard == first { seq } else { Seq::ZERO });
            while let Some(from) = after {
                let (rows, next) = self.next_rows(subscription, shard, select, from, ROWS_AT_ONCE).await?;
                for row in rows.into_iter().filter(|row| select.matches(row)) {
                    if !take(row) {
                        return Ok(());
                    }
                }
                after = next;
            }
        }
        Ok(())
    }

    /// How many rows of this kind there are in all shards.
    async fn count_all(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError> {
        let Some(topic) = self.find_topic(&subscription.topic).await? else { return Ok(0) };
        let mut ask = redis::pipe();
        for shard in topic.shard_numbers() {
            let [_, dead, parked, ..] = self.inner.keys.rows(subscription, shard);
            ask.cmd("ZCARD").arg(if matches!(select, Select::Dead(_)) { dead } else { parked });
        }
        let counts = self.inner.links.ask(Use::Read, Effect::Read, &ask).await;
        Ok(self.plain::<Vec<u64>>(counts)?.into_iter().sum())
    }

    /// Changes up to `limit` dead rows that are meant, the smallest places first.
    async fn change_dead(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
        what: &str,
    ) -> Result<u64, StoreError> {
        let mut meant: Vec<(Shard, Seq, u64)> = Vec::new();
        if limit > 0 {
            let select = Select::Dead(filter.clone());
            self.go_through(subscription, &select, None, |row| {
                meant.push((row.event.shard, row.event.seq, row.version));
                meant.len() < limit
            })
            .await?;
        }
        let mut changed = 0;
        for rows in meant.chunk_by(|(one, ..), (other, ..)| one == other) {
            for rows in rows.chunks(ROWS_AT_ONCE) {
                let shard = rows[0].0;
                let keys = &self.inner.keys;
                let first = [keys.position(subscription, shard), keys.subscription(subscription)];
                let keys = self.row_keys(first, subscription, shard);
                let answer =
                    self.inner.links.run(Use::Control, Effect::Write, &scripts::CHANGE, &keys, |command| {
                        command.arg(3).arg(what);
                        for (_, seq, version) in rows {
                            command.arg(seq.0).arg(*version);
                        }
                    });
                changed += self.plain::<u64>(answer.await)?;
            }
        }
        Ok(changed)
    }
}

#[async_trait]
impl Sideline for RedisStore {
    async fn heads(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Head>, StoreError> {
        let found = self.look(subscription, shard, |command| {
            command.arg("heads").arg(after.0).arg(limit);
        });
        let found: Vec<(u64, Vec<u8>, u64)> = found.await?;
        let head = |(seq, row, rows): (u64, Vec<u8>, u64)| {
            let row = rows::decode_head(&mut row.into());
            let row = row.map_err(|Strange| self.strange_row(subscription, shard, seq))?;
            Ok(Head { lane: row.lane, seq: Seq(seq), state: row.state, version: row.version, rows })
        };
        found.into_iter().map(head).collect()
    }

    async fn lane(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        lane: &Lane,
        limit: usize,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let mut encoded = Vec::new();
        rows::encode_lane(lane, &mut encoded);
        let found = self.look(subscription, shard, |command| {
            command.arg("lane").arg(encoded).arg(limit);
        });
        self.read_rows::<Vec<Found>>(subscription, shard, found.await?)
    }

    async fn rows_in(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<RowRef>, StoreError> {
        let (mut after, mut refs) = (after, Vec::new());
        while after < through {
            let (reached, found): (u64, Vec<Found>) = self
                .look(subscription, shard, |command| {
                    command.arg("between").arg(after.0).arg(through.0).arg(REFS_AT_ONCE);
                })
                .await?;
            refs.extend(self.read(subscription, shard, found, |seq, row| {
                let state = if row.is_empty() { None } else { Some(rows::decode_state(&row)?) };
                Ok(RowRef { seq, state })
            })?);
            after = Seq(reached);
        }
        refs.sort_unstable_by_key(|row| row.seq);
        Ok(refs)
    }

    async fn get(
        &self,
        subscription: &SubscriptionId,
        shard: Shard,
        seqs: &[Seq],
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let mut seqs: Vec<u64> = seqs.iter().map(|seq| seq.0).collect();
        seqs.sort_unstable();
        seqs.dedup();
        self.rows_at(subscription, shard, seqs).await
    }

    async fn scan(
        &self,
        subscription: &SubscriptionId,
        select: &Select,
        page: Page,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let mut found = Vec::new();
        if page.limit > 0 {
            self.go_through(subscription, select, page.after, |row| {
                found.push(row);
                found.len() < page.limit
            })
            .await?;
        }
        Ok(found)
    }

    async fn count(&self, subscription: &SubscriptionId, select: &Select) -> Result<u64, StoreError> {
        if matches!(select, Select::Dead(filter) if *filter != DeadLetterFilter::default()) {
            let mut count = 0;
            self.go_through(subscription, select, None, |_| {
                count += 1;
                true
            })
            .await?;
            return Ok(count);
        }
        self.count_all(subscription, select).await
    }

    async fn redrive(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.change_dead(subscription, filter, limit, "redrive").await
    }

    async fn discard(
        &self,
        subscription: &SubscriptionId,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.change_dead(subscription, filter, limit, "discard").await
    }

    async fn revision(&self, subscription: &SubscriptionId) -> Result<u64, StoreError> {
        let Some(topic) = self.find_topic(&subscription.topic).await? else { return Ok(0) };
        match mending!(self, topic, Some(subscription), self.revision_of(&topic, subscription)) {
            // It was forgotten by its name, or others work for it and look after it.
            Err(error) if error.kind() == StoreErrorKind::Refused => Ok(0),
            revision => revision,
        }
    }
}
