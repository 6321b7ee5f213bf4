//! The store's side of a subscription's loop: futures that end in one value each.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::machine::subscription::{Load, Read, ShardStart};
use photon_core::store::{
    Checkpoint, Commit, CommitOutcome, Fence, Head, Member, Paused, ReadBatch, ResetOutcome, ShardCommit,
    ShardReset, Store, StoredCheckpoint, StoredDelivery, Trial,
};
use tracing::Instrument;

use super::solitude::Granted;
use crate::caught::caught;
use crate::clock::Clock;

/// How long an answer is waited for. Engines give up on their own calls before; this is for a store that never
/// answers, so that it holds nobody up for good. What arrives later does no harm: reads change nothing, and a commit
/// that takes effect after a later one is a no-op.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many heads are read at a time.
const HEADS: usize = 1_000;

/// The end of something that was asked of the store.
pub(super) enum Done {
    Read(Read, Result<ReadBatch, StoreError>),
    Loaded(Load, Result<Vec<StoredDelivery>, StoreError>),
    Committed(Vec<ShardCommit>, Result<CommitOutcome, StoreError>),
    Started(Vec<(Shard, Fence)>, Result<Vec<Begin>, StoreError>),
    Revised(Result<Revised, StoreError>),
    Rewound((Shard, Seq), Result<Vec<ResetOutcome>, StoreError>),
    Placed(Granted),
}

/// What an owner of a shard begins with.
pub(super) struct Begin {
    /// Where it begins.
    pub(super) start: ShardStart,
    /// How often it had been reset.
    pub(super) resets: u64,
    /// The owner before, if its work did not end in order.
    pub(super) unended: Option<Member>,
}

/// The revision of a subscription, and what is there to see if it was not the known one.
pub(super) struct Revised {
    pub(super) revision: u64,
    pub(super) changed: Option<Changed>,
}

/// What others can change about a subscription.
pub(super) struct Changed {
    pub(super) paused: Option<Paused>,
    /// How often each shard of the topic was reset.
    pub(super) resets: Vec<(Shard, u64)>,
    /// The heads of the shards that were asked about.
    pub(super) heads: Vec<(Shard, Vec<Head>)>,
}

/// Something asked of the store.
pub(super) type Work = BoxFuture<'static, Done>;

/// Waits for an answer as long as makes sense.
pub(super) async fn answer<T>(
    clock: Clock,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let deadline = clock.instant(clock.mono() + PATIENCE);
    tokio::time::timeout_at(deadline, caught(call)).await.unwrap_or_else(|_| {
        let message = format!("the store gave no answer for {PATIENCE:?}: check that it is up");
        Err(StoreError::new(StoreErrorKind::Unavailable, message))
    })
}

/// Asks the store on behalf of one subscription.
#[derive(Clone)]
pub(super) struct Asker {
    pub(super) store: Arc<dyn Store>,
    pub(super) id: Arc<SubscriptionId>,
    pub(super) clock: Clock,
}

impl Asker {
    pub(super) fn read(&self, read: Read) -> Work {
        let asker = self.clone();
        Box::pin(async move {
            let call = asker.store.read(&asker.id.topic, &read.cursors, read.limit);
            let result = asker.answer(call).await;
            Done::Read(read, result)
        })
    }

    pub(super) fn load(&self, load: Load) -> Work {
        let asker = self.clone();
        Box::pin(async move {
            let call = asker.store.lane(&asker.id, load.shard, &load.lane, load.limit);
            let result = asker.answer(call).await;
            Done::Loaded(load, result)
        })
    }

    pub(super) fn commit(&self, shards: Vec<ShardCommit>) -> Work {
        let asker = self.clone();
        Box::pin(async move {
            let id = &asker.id;
            let commit = Commit { subscription: (**id).clone(), shards };
            let span = tracing::debug_span!(
                "commit",
                topic = %id.topic,
                group = %id.group,
                shards = commit.shards.len(),
            );
            let result = asker.answer(asker.store.commit(&commit)).instrument(span).await;
            Done::Committed(commit.shards, result)
        })
    }

    pub(super) fn start(&self, shards: Vec<(Shard, Fence)>) -> Work {
        let asker = self.clone();
        Box::pin(async move {
            let result = asker.starts(&shards).await;
            Done::Started(shards, result)
        })
    }

    pub(super) fn revise(&self, known: Option<u64>, shards: Vec<Shard>) -> Work {
        let asker = self.clone();
        Box::pin(async move { Done::Revised(asker.revised(known, shards).await) })
    }

    pub(super) fn rewind(&self, shard: Shard, end: Seq, fence: Fence) -> Work {
        let asker = self.clone();
        Box::pin(async move {
            let reset = ShardReset { shard, after: end, fence: Some(fence) };
            let result = asker.answer(asker.store.reset(&asker.id, &[reset])).await;
            Done::Rewound((shard, end), result)
        })
    }

    async fn answer<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        answer(self.clock, call).await
    }

    async fn starts(&self, shards: &[(Shard, Fence)]) -> Result<Vec<Begin>, StoreError> {
        let checkpoints = self.answer(self.store.load(&self.id)).await?;
        let mut starts = Vec::with_capacity(shards.len());
        for (shard, _) in shards {
            let of_shard = |stored: &&StoredCheckpoint| stored.shard == *shard;
            let stored = checkpoints.iter().find(of_shard);
            let Some(StoredCheckpoint { checkpoint, trials, unended, resets, .. }) = stored.cloned() else {
                starts.push(Begin { start: ShardStart::default(), resets: 0, unended: None });
                continue;
            };
            let rows =
                self.answer(self.store.rows_in(&self.id, *shard, checkpoint.watermark, Seq::MAX)).await?;
            let heads = self.heads(*shard).await?;
            let rows_above = rows.into_iter().map(|row| row.seq).collect();
            let trials = self.open_trials(*shard, trials, &checkpoint).await?;
            let start = ShardStart { checkpoint, rows_above, heads, trials, crashed: false };
            starts.push(Begin { start, resets, unended });
        }
        Ok(starts)
    }

    /// The trials of deliveries that are still to be handled.
    async fn open_trials(
        &self,
        shard: Shard,
        trials: Vec<Trial>,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<Trial>, StoreError> {
        if trials.is_empty() {
            return Ok(trials);
        }
        let seqs: Vec<Seq> = trials.iter().map(|trial| trial.seq).collect();
        let rows = self.answer(self.store.get(&self.id, shard, &seqs)).await?;
        let is_stored = |seq: Seq| rows.iter().any(|row| row.event.seq == seq && row.state.is_live());
        let is_open = |trial: &Trial| !checkpoint.covers(trial.seq) || is_stored(trial.seq);
        Ok(trials.into_iter().filter(is_open).collect())
    }

    async fn heads(&self, shard: Shard) -> Result<Vec<Head>, StoreError> {
        let mut heads = Vec::new();
        let mut after = Seq::ZERO;
        loop {
            let page = self.answer(self.store.heads(&self.id, shard, after, HEADS)).await?;
            let more = page.len() >= HEADS;
            after = page.last().map_or(after, |head| head.seq);
            heads.extend(page);
            if !more {
                return Ok(heads);
            }
        }
    }

    async fn revised(&self, known: Option<u64>, shards: Vec<Shard>) -> Result<Revised, StoreError> {
        let revision = self.answer(self.store.revision(&self.id)).await?;
        if known == Some(revision) {
            return Ok(Revised { revision, changed: None });
        }
        let paused = self.answer(self.store.paused(&self.id)).await?;
        let stored = self.answer(self.store.load(&self.id)).await?;
        let resets = stored.into_iter().map(|stored| (stored.shard, stored.resets)).collect();
        let mut heads = Vec::new();
        for shard in shards {
            heads.push((shard, self.heads(shard).await?));
        }
        Ok(Revised { revision, changed: Some(Changed { paused, resets, heads }) })
    }
}
