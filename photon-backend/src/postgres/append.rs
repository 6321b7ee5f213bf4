//! Appending.

use photon_core::envelope::encode_headers;
use photon_core::error::StoreError;
use photon_core::event::NewEvent;
use photon_core::ids::{Key, Seq, TopicName};
use photon_core::store::Appended;
use tokio_postgres::Client;
use uuid::Uuid;

use super::PostgresStore;
use super::error::{Effect, Trouble};
use super::param::params;
use super::schema::Schema;

/// A statement takes no more than so many bytes, so that its size stays far from the limit of a gigabyte. A
/// larger batch takes several, in one transaction.
const STATEMENT_BYTES: usize = 32 << 20;
/// About how many bytes an event takes beside its payload.
const ROW_BYTES: usize = 100;

/// Events of a topic on their way into one statement, shard by shard in ascending order.
#[derive(Default)]
struct Rows<'a> {
    /// The indices of the rows in the batch of the caller.
    places: Vec<usize>,
    shards: Vec<i32>,
    counts: Vec<i32>,
    /// Which of `shards` a row belongs to, and which number it has there; from 1.
    indexes: Vec<i32>,
    ranks: Vec<i32>,
    ids: Vec<Uuid>,
    keys: Vec<Option<&'a [u8]>>,
    headers: Vec<Vec<u8>>,
    payloads: Vec<&'a [u8]>,
    dedups: Vec<Option<&'a [u8]>>,
    bytes: usize,
}

impl<'a> Rows<'a> {
    fn push(&mut self, place: usize, event: &'a NewEvent) {
        let shard = i32::from(event.shard.0);
        if self.shards.last() != Some(&shard) {
            self.shards.push(shard);
            self.counts.push(0);
        }
        let index = self.shards.len() - 1;
        self.counts[index] += 1;
        self.indexes.push(i32::try_from(index + 1).unwrap_or(i32::MAX));
        self.ranks.push(self.counts[index]);
        self.places.push(place);
        self.ids.push(event.id.0);
        self.keys.push(event.key.as_ref().map(Key::as_bytes));
        let mut headers = Vec::new();
        encode_headers(&event.headers, &mut headers);
        self.bytes += event.payload.len() + headers.len() + ROW_BYTES;
        self.headers.push(headers);
        self.payloads.push(&event.payload);
        self.dedups.push(event.dedup_id.as_deref().map(str::as_bytes));
    }

    async fn append(
        &self,
        client: &Client,
        schema: &Schema,
        topic: i32,
        window: i64,
        appended: &mut [Appended],
    ) -> Result<(), Trouble> {
        if window > 0 && self.dedups.iter().any(Option::is_some) {
            let row = client
                .query_typed_one(
                    &schema
                        .sql("SELECT seqs, duplicates FROM @append_once($1, $2, $3, $4, $5, $6, $7, $8, $9)"),
                    params![
                        topic,
                        self.shards,
                        self.indexes,
                        self.ids,
                        self.keys,
                        self.headers,
                        self.payloads,
                        self.dedups,
                        window
                    ],
                )
                .await?;
            let (seqs, duplicates): (Vec<i64>, Vec<bool>) = (row.try_get(0)?, row.try_get(1)?);
            for ((place, seq), duplicate) in self.places.iter().zip(seqs).zip(duplicates) {
                appended[*place] = Appended { seq: Seq(seq.unsigned_abs()), duplicate };
            }
            return Ok(());
        }
        let row = client
            .query_typed_one(
                &schema.sql("SELECT @append($1, $2, $3, $4, $5, $6, $7, $8, $9)"),
                params![
                    topic,
                    self.shards,
                    self.counts,
                    self.indexes,
                    self.ranks,
                    self.ids,
                    self.keys,
                    self.headers,
                    self.payloads
                ],
            )
            .await?;
        let firsts: Vec<i64> = row.try_get(0)?;
        for ((place, index), rank) in self.places.iter().zip(&self.indexes).zip(&self.ranks) {
            let first =
                usize::try_from(index - 1).ok().and_then(|index| firsts.get(index)).copied().unwrap_or(0);
            appended[*place].seq = Seq((first + i64::from(*rank)).unsigned_abs());
        }
        Ok(())
    }
}

/// The rows of a batch, by shard, in statements that are not too large.
fn statements(events: &[NewEvent]) -> Vec<Rows<'_>> {
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|&index| events[index].shard);
    let mut all = Vec::new();
    let mut rows = Rows::default();
    for index in order {
        if rows.bytes >= STATEMENT_BYTES {
            all.push(std::mem::take(&mut rows));
        }
        rows.push(index, &events[index]);
    }
    all.push(rows);
    all
}

impl PostgresStore {
    pub(super) async fn append_batch(
        &self,
        topic: &TopicName,
        events: &[NewEvent],
    ) -> Result<Vec<Appended>, StoreError> {
        let row = self.topic(topic).await?;
        for event in events {
            row.check(topic, event.shard)?;
        }
        let mut appended = vec![Appended { seq: Seq::ZERO, duplicate: false }; events.len()];
        if events.is_empty() {
            return Ok(appended);
        }
        let (schema, window) = (&self.inner.schema, self.inner.dedup_window);
        let statements = statements(events);
        let session = self.inner.work.session().await?;
        let client = session.client();
        if let [rows] = &statements[..] {
            session.run(Effect::Write, rows.append(client, schema, row.id, window, &mut appended)).await?;
        } else {
            // Shards ascend from one to the next, too: so the locks are taken in the order that all take them.
            let all = async {
                for rows in &statements {
                    rows.append(client, schema, row.id, window, &mut appended).await?;
                }
                Ok::<_, Trouble>(())
            };
            session.transact(all).await?;
        }
        drop(session);
        self.inner.wakes.appended(topic);
        Ok(appended)
    }
}
