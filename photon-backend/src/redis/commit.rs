//! What an owner writes about a shard.

use std::fmt::Write;

use photon_core::error::StoreError;
use photon_core::event::Event;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::{Checkpoint, RowEnd, SeqRange, ShardCommit, ShardOutcome, StoredDelivery};

use super::RedisStore;
use super::error::{Effect, Trouble, refused};
use super::known::Topic;
use super::link::Use;
use super::{rows, scripts};
use crate::columns::encode_trials;

/// The most bytes of rows of one script, but for a single larger row.
const BYTES_AT_ONCE: usize = 8 << 20;
/// Where the keys of the rows begin.
const ROWS_AT: usize = 2;

/// Ranges as the scripts read them.
fn encode_ranges(ranges: &[SeqRange]) -> String {
    ranges.iter().fold(String::new(), |mut text, range| {
        // A string takes everything.
        let _ = write!(text, "{}-{},", range.first, range.last);
        text
    })
}

/// Reads a checkpoint back.
pub(super) fn decode_checkpoint(watermark: &str, ranges: &str) -> Option<Checkpoint> {
    let seq = |text: &str| text.parse().ok().map(Seq);
    let range = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some(SeqRange { first: seq(first)?, last: seq(last)? })
    };
    let ranges = ranges.split_terminator(',').map(range).collect::<Option<_>>()?;
    Some(Checkpoint { watermark: seq(watermark)?, ranges })
}

/// Refuses what no owner can mean: a shard that is not there, or a row of another shard.
pub(super) fn check(
    subscription: &SubscriptionId,
    shards: &[ShardCommit],
    topic: &Topic,
) -> Result<(), StoreError> {
    for commit in shards {
        let shard = commit.shard;
        topic.check(shard)?;
        let foreign = |event: &Event| event.shard != shard || event.topic != subscription.topic;
        if let Some(put) = commit.puts.iter().find(|put| foreign(&put.event)) {
            return Err(refused(format!(
                "the delivery of {}/{} at {} cannot be stored for shard {shard} of {subscription}: commit it with \
                 its own shard",
                put.event.topic, put.event.shard, put.event.seq
            )));
        }
    }
    Ok(())
}

/// A part of a commit: puts that fit into one script; with the last of them the rest.
struct Part<'a> {
    commit: &'a ShardCommit,
    /// Each with the row as it is stored.
    puts: &'a [(&'a StoredDelivery, Vec<u8>)],
    is_last: bool,
}

impl RedisStore {
    /// Writes what concerns one shard, if the fence is good: in one step, or, if it is too large for one, first rows
    /// and at last the checkpoint.
    pub(super) async fn commit_shard(
        &self,
        subscription: &SubscriptionId,
        commit: &ShardCommit,
    ) -> Result<ShardOutcome, Trouble> {
        let puts: Vec<_> = commit.puts.iter().map(|row| (row, rows::encode(row, row.version + 1))).collect();
        let mut rest = puts.as_slice();
        let mut conflicts = Vec::new();
        loop {
            let (now, later) = rest.split_at(first_part(rest));
            let part = Part { commit, puts: now, is_last: later.is_empty() };
            match self.commit_part(subscription, &part).await? {
                ShardOutcome::Fenced => return Ok(ShardOutcome::Fenced),
                ShardOutcome::Committed { conflicts: found } => conflicts.extend(found),
            }
            if later.is_empty() {
                break;
            }
            rest = later;
        }
        self.inner.known.reach(subscription, commit.shard, commit.checkpoint.watermark);
        Ok(ShardOutcome::Committed { conflicts })
    }

    async fn commit_part(
        &self,
        subscription: &SubscriptionId,
        part: &Part<'_>,
    ) -> Result<ShardOutcome, Trouble> {
        let inner = &self.inner;
        let Part { commit, puts, is_last } = part;
        let keys =
            self.row_keys([inner.keys.position(subscription, commit.shard)], subscription, commit.shard);
        let answer: Vec<String> = inner
            .links
            .run(Use::Control, Effect::Write, &scripts::COMMIT, &keys, |command| {
                command.arg(ROWS_AT).arg(commit.fence.epoch).arg(commit.fence.token.0.to_string());
                if *is_last {
                    command.arg(commit.checkpoint.watermark.0).arg(encode_ranges(&commit.checkpoint.ranges));
                    command.arg(encode_trials(&commit.trials));
                } else {
                    command.arg("").arg("").arg("");
                }
                command.arg(puts.len());
                for (row, bytes) in *puts {
                    command.arg(row.event.seq.0).arg(row.version).arg(bytes);
                }
                for RowEnd { seq, version } in commit.ends.iter().filter(|_| *is_last) {
                    command.arg(seq.0).arg(*version);
                }
            })
            .await?;
        let Some((word, conflicts)) = answer.split_first() else {
            return Err(self.target().strange("the answer to a commit").into());
        };
        if word == "fenced" {
            return Ok(ShardOutcome::Fenced);
        }
        let conflicts = conflicts.iter().filter_map(|seq| seq.parse().ok().map(Seq)).collect();
        Ok(ShardOutcome::Committed { conflicts })
    }

    /// These keys and then those of the rows.
    pub(super) fn row_keys<const N: usize>(
        &self,
        first: [String; N],
        subscription: &SubscriptionId,
        shard: Shard,
    ) -> Vec<String> {
        first.into_iter().chain(self.inner.keys.rows(subscription, shard)).collect()
    }
}

/// How many rows fit into one script.
fn first_part(puts: &[(&StoredDelivery, Vec<u8>)]) -> usize {
    let mut bytes = 0;
    let fits = puts.iter().take_while(|(_, row)| {
        let fits = bytes == 0 || bytes + row.len() <= BYTES_AT_ONCE;
        bytes += row.len();
        fits
    });
    fits.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_come_back() {
        for ranges in [vec![], vec![(4, 4)], vec![(4, 9), (12, 12)]] {
            let range = |(first, last)| SeqRange { first: Seq(first), last: Seq(last) };
            let ranges: Vec<SeqRange> = ranges.into_iter().map(range).collect();
            let read = decode_checkpoint("2", &encode_ranges(&ranges));
            assert_eq!(read, Some(Checkpoint { watermark: Seq(2), ranges }));
        }
        assert_eq!(decode_checkpoint("x", ""), None);
        assert_eq!(decode_checkpoint("1", "2,"), None);
    }
}
