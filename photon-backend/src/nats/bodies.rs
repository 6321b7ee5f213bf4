//! The large parts of stored deliveries, beside the journals.
//!
//! They lie under the digest of their content and are stored before the entry that names it; what no entry names
//! does not exist. What is not needed any more is removed only up to the entry that dropped it, so that the same
//! content stored again later stays.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use photon_core::envelope::{BadEnvelope, Envelope, get_bytes, put_bytes};
use photon_core::error::StoreError;
use photon_core::ids::{Shard, SubscriptionId};
use photon_core::store::{ShardCommit, StoredDelivery};
use xxhash_rust::xxh3::xxh3_128;

use super::Inner;
use super::cell::{Cell, Touched, bad, digest, strip, unreadable};

/// So many are read or written at a time.
const AT_ONCE: usize = 64;

fn encode(row: &StoredDelivery) -> Bytes {
    let mut out = Vec::new();
    put_bytes(&mut out, row.failure.error.as_bytes());
    let event = &row.event;
    // The key is in the journal.
    let envelope =
        Envelope { id: event.id, key: None, headers: event.headers.clone(), payload: event.payload.clone() };
    envelope.encode(&mut out);
    out.into()
}

fn decode(row: &mut StoredDelivery, mut body: Bytes) -> Result<(), BadEnvelope> {
    let error = get_bytes(&mut body)?;
    row.failure.error =
        String::from_utf8(error.to_vec()).map_err(|_| bad("the error of a delivery is not UTF-8"))?;
    let envelope = Envelope::decode(body)?;
    (row.event.headers, row.event.payload) = (envelope.headers, envelope.payload);
    Ok(())
}

impl Inner {
    /// Stores the large parts of the puts of a commit, and gives the commit without them.
    pub(super) async fn store_bodies(
        &self,
        id: &SubscriptionId,
        commit: &ShardCommit,
        what: &str,
    ) -> Result<ShardCommit, StoreError> {
        let store = async |put: &StoredDelivery| {
            let body = encode(put);
            let digest = xxh3_128(&body);
            let subject = self.names.body(id, commit.shard, put.event.seq, digest);
            self.js.put(what, subject, None, body).await?;
            Ok::<_, StoreError>(strip(put, digest))
        };
        let puts = stream::iter(&commit.puts).map(store).buffered(AT_ONCE).try_collect().await?;
        Ok(ShardCommit {
            puts,
            shard: commit.shard,
            fence: commit.fence,
            checkpoint: commit.checkpoint.clone(),
            ends: commit.ends.clone(),
            trials: commit.trials.clone(),
        })
    }

    /// Makes stripped deliveries whole. Those that came to an end meanwhile are left out.
    pub(super) async fn fill(
        &self,
        id: &SubscriptionId,
        rows: Vec<StoredDelivery>,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let fill = async |row: StoredDelivery| self.fill_one(id, row).await;
        let filled: Vec<Option<StoredDelivery>> =
            stream::iter(rows).map(fill).buffered(AT_ONCE).try_collect().await?;
        Ok(filled.into_iter().flatten().collect())
    }

    async fn fill_one(
        &self,
        id: &SubscriptionId,
        mut row: StoredDelivery,
    ) -> Result<Option<StoredDelivery>, StoreError> {
        let (shard, seq) = (row.event.shard, row.event.seq);
        loop {
            let Some(name) = digest(&row) else {
                return Err(unreadable(id, shard, bad("a digest has another length")));
            };
            let subject = self.names.body(id, shard, seq, name);
            if let Some(body) = self.js.last(&self.state, &subject).await? {
                decode(&mut row, body.data).map_err(|source| unreadable(id, shard, source))?;
                return Ok(Some(row));
            }
            let now = self.look(id, shard, |cell| cell.position.rows.get(seq).cloned()).await?;
            match now {
                None => return Ok(None),
                Some(now) if digest(&now) == Some(name) => {
                    return Err(unreadable(id, shard, bad("the content of a delivery is gone")));
                }
                Some(now) => row = now,
            }
        }
    }

    /// Lets what a change dropped be removed.
    pub(super) fn tidy_bodies(
        &self,
        id: &SubscriptionId,
        shard: Shard,
        cell: &Cell,
        touched: &Touched,
        seq: u64,
    ) {
        let dropped: Vec<_> = touched.dropped(cell).collect();
        if !dropped.is_empty() && cell.position.rows.len() == 0 {
            // Whatever was left behind by those who could not finish goes, too.
            return self.tidy(self.names.bodies(id, shard), seq);
        }
        for (place, digest) in dropped {
            self.tidy(self.names.body(id, shard, place, digest), seq);
        }
    }
}
