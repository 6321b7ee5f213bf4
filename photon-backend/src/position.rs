//! The position of a subscription in one shard, as engines without tables keep it.

mod rows;

use photon_core::error::StoreError;
use photon_core::event::Event;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{Checkpoint, ResetOutcome, ShardCommit, ShardOutcome, Trial};

#[cfg(feature = "nats")]
pub(crate) use self::rows::Place;
pub(crate) use self::rows::ShardRows;
pub(crate) use crate::refusal::{refused, unregistered};

/// What is stored about one shard of a subscription.
#[derive(Default)]
pub(crate) struct ShardPosition {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) resets: u64,
    pub(crate) rows: ShardRows,
    pub(crate) trials: Vec<Trial>,
}

impl ShardPosition {
    pub(crate) fn reset(&mut self, after: Seq) -> ResetOutcome {
        self.checkpoint = Checkpoint { watermark: after, ranges: Vec::new() };
        self.trials.clear();
        self.resets += 1;
        ResetOutcome::Reset { after, removed: self.rows.remove_after(after) }
    }

    pub(crate) fn write(&mut self, commit: &ShardCommit) -> ShardOutcome {
        let mut conflicts = Vec::new();
        for put in &commit.puts {
            let covered = self.checkpoint.covers(put.event.seq);
            if !self.rows.put(put, covered) {
                conflicts.push(put.event.seq);
            }
        }
        if commit.checkpoint.replaces(&self.checkpoint) {
            self.checkpoint = commit.checkpoint.clone();
        }
        self.trials.clone_from(&commit.trials);
        for end in &commit.ends {
            let covered = self.checkpoint.covers(end.seq);
            if !self.rows.end(*end, covered) {
                conflicts.push(end.seq);
            }
        }
        self.rows.sweep(self.checkpoint.watermark);
        ShardOutcome::Committed { conflicts }
    }
}

/// Refuses what no owner can mean: a shard that is not there, or a row of another shard.
pub(crate) fn check(
    subscription: &SubscriptionId,
    shards: &[ShardCommit],
    known: usize,
) -> Result<(), StoreError> {
    for commit in shards {
        let shard = commit.shard;
        if usize::from(shard.0) >= known {
            return Err(no_such_shard(subscription, shard, known));
        }
        let foreign = |event: &Event| event.shard != shard || event.topic != subscription.topic;
        if let Some(put) = commit.puts.iter().find(|put| foreign(&put.event)) {
            return Err(refused(format!(
                "the delivery of {}/{} at {} cannot be stored for shard {shard} of {subscription}: commit it \
                 with its own shard",
                put.event.topic, put.event.shard, put.event.seq
            )));
        }
    }
    Ok(())
}

pub(crate) fn no_such_shard(subscription: &SubscriptionId, shard: Shard, known: usize) -> StoreError {
    refused(format!(
        "subscription {subscription} has no shard {shard}, its {known} shards count from 0: name only shards \
         that its topic has"
    ))
}
