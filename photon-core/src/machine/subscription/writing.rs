//! Commits: what to write, when, and what the answer means.

use std::time::Duration;

use super::{Item, Notice, Subscription, Write};
use crate::ids::Shard;
use crate::machine::lanes::Rest;
use crate::planted::{Bug, is_planted};
use crate::store::{Checkpoint, Lane, RowEnd, ShardCommit, ShardOutcome, StoredDelivery};
use crate::time::Now;

/// What the log should say about a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitReport {
    /// It failed, and this has not been said lately.
    pub log_failure: bool,
    /// It succeeded after commits had been failing for so long.
    pub outage: Option<Duration>,
}

impl Subscription {
    /// What to commit now, an entry a shard. The next commit follows after
    /// [`handle_commit`](Self::handle_commit).
    pub fn poll_commit(&mut self, now: Now) -> Option<Vec<ShardCommit>> {
        if !self.persist || !self.coalescer.poll_commit(now.mono) {
            return None;
        }
        let commits: Vec<ShardCommit> = (0u16..)
            .zip(&mut self.shards)
            .filter_map(|(n, state)| Some((n, state.as_mut().filter(|state| state.dirty || state.moved)?)))
            .map(|(n, state)| state.compose(Shard(n)))
            .collect();
        let half = is_planted(Bug::CheckpointBeforeDeadLetter) || is_planted(Bug::EndBeforeCheckpoint);
        if half && self.shards.iter().flatten().any(|shard| shard.dirty) {
            // The other half follows.
            self.coalescer.handle_settled(1, now.mono);
        }
        if commits.is_empty() {
            self.coalescer.handle_committed(now.mono);
            return None;
        }
        Some(commits)
    }

    /// Takes in the answer to a commit: the outcome of each shard in its order, or `None` if it failed. What
    /// failed is written again, with what came meanwhile.
    pub fn handle_commit(
        &mut self,
        commits: &[ShardCommit],
        outcomes: Option<&[ShardOutcome]>,
        now: Now,
    ) -> CommitReport {
        let Some(outcomes) = outcomes.filter(|outcomes| outcomes.len() == commits.len()) else {
            for commit in commits {
                self.commit_failed(commit);
            }
            return CommitReport { log_failure: self.coalescer.handle_failed(now.mono), outage: None };
        };
        let outage = self.coalescer.handle_committed(now.mono);
        for (commit, outcome) in commits.iter().zip(outcomes) {
            match outcome {
                ShardOutcome::Fenced => self.fenced(commit),
                ShardOutcome::Committed { conflicts } => {
                    if self.shard(commit.shard).is_some_and(|state| state.fence == commit.fence) {
                        self.marks_stored(commit);
                    }
                    let mut lanes = self.confirm(commit);
                    lanes.sort_unstable();
                    lanes.dedup();
                    if !conflicts.is_empty() {
                        for lane in &lanes {
                            self.distrust(*lane);
                        }
                    }
                    for lane in lanes {
                        self.evaluate(lane, now);
                    }
                }
            }
        }
        CommitReport { log_failure: false, outage }
    }

    /// The store has what the commit said. Returns the lanes that it wrote rows of.
    fn confirm(&mut self, commit: &ShardCommit) -> Vec<usize> {
        let mut lanes = Vec::new();
        let Some(state) = self.shards.get_mut(usize::from(commit.shard.0)).and_then(Option::as_mut) else {
            return lanes;
        };
        if state.fence != commit.fence {
            return lanes;
        }
        state.committed = state.committed.max(commit.checkpoint.watermark);
        state.in_flight = false;
        let before = state.puts.len();
        for put in &commit.puts {
            lanes.extend(state.puts.remove(&put.event.seq).map(|put| put.lane));
        }
        self.puts -= before - state.puts.len();
        let puts = lanes.len();
        for end in &commit.ends {
            lanes.extend(state.ends.remove(&end.seq).map(|end| end.lane));
        }
        for lane in &lanes[puts..] {
            if let Some(lane) = self.lanes.get_mut(*lane) {
                lane.ending = lane.ending.saturating_sub(1);
            }
        }
        for lane in &lanes {
            if let Some(lane) = self.lanes.get_mut(*lane) {
                lane.pending = lane.pending.saturating_sub(1);
            }
        }
        lanes
    }

    fn commit_failed(&mut self, commit: &ShardCommit) {
        if is_planted(Bug::FailedCommitTakenForWritten) {
            self.confirm(commit);
            return;
        }
        let Some(state) = self.shard_mut(commit.shard).filter(|state| state.fence == commit.fence) else {
            return;
        };
        state.dirty = !is_planted(Bug::LostCoalescerBatch);
        state.in_flight = false;
        state.puts.values_mut().for_each(|put| put.in_flight = false);
        state.ends.values_mut().for_each(|end| end.in_flight = false);
    }

    fn fenced(&mut self, commit: &ShardCommit) {
        if self.shard(commit.shard).is_some_and(|state| state.fence == commit.fence) {
            self.handle_lost(commit.shard);
            self.notices.push_back(Notice::Fenced { shard: commit.shard });
        }
    }

    /// Somebody else changed rows of the lane: what is known of them does not count.
    pub(super) fn distrust(&mut self, lane: usize) {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.rest = Rest::Unknown;
            state.stale |= state.loading;
        }
    }

    /// A delivery read from the log needs no more work, or is about to be stored.
    pub(super) fn settle(&mut self, item: &Item, now: Now) {
        let Some(state) = self.shards.get_mut(usize::from(item.event.shard.0)).and_then(Option::as_mut)
        else {
            return;
        };
        state.mark.settle(item.event.seq);
        self.unsettled -= 1;
        if self.persist {
            state.dirty = true;
            self.coalescer.handle_settled(1, now.mono);
        }
    }

    pub(super) fn write_put(&mut self, lane: usize, row: StoredDelivery, now: Now) {
        match (row.version, row.state.is_live()) {
            (0, true) => self.count_rows(lane, |rows| rows + 1),
            (1.., false) => self.count_rows(lane, |rows| rows.saturating_sub(1)),
            _ => {}
        }
        let of = &mut self.lanes[lane];
        of.pending += 1;
        // What is being loaded may miss the row.
        of.stale |= of.loading;
        let Some(state) = self.shard_mut(row.event.shard) else { return };
        state.puts.insert(row.event.seq, Write { what: row, lane, in_flight: false });
        state.dirty = true;
        self.puts += 1;
        self.coalescer.handle_urgent(now.mono);
    }

    pub(super) fn write_end(&mut self, item: &Item, end: RowEnd, now: Now) {
        let shard = item.event.shard;
        let lane = match item.lane {
            Item::NO_LANE => self.lane_of(shard, Lane::of(&item.event)),
            lane => lane,
        };
        self.count_rows(lane, |rows| rows.saturating_sub(1));
        self.write_end_in(lane, shard, end, now);
    }

    /// Lets the lane of a delivery that was read from the log wait until its end is stored. The next one of its key
    /// may store its own end by itself, which must not come before.
    pub(super) fn confirm_end(&mut self, item: &Item, now: Now) {
        // There is no row: what matters is the checkpoint that is written along.
        let end = RowEnd { seq: item.seq(), version: 0 };
        self.write_end_in(item.lane, item.event.shard, end, now);
    }

    fn write_end_in(&mut self, lane: usize, shard: Shard, end: RowEnd, now: Now) {
        self.lanes[lane].pending += 1;
        self.lanes[lane].ending += 1;
        let Some(state) = self.shard_mut(shard) else { return };
        state.ends.insert(end.seq, Write { what: end, lane, in_flight: false });
        state.dirty = true;
        self.coalescer.handle_settled(1, now.mono);
        self.coalescer.handle_urgent(now.mono);
    }
}

impl super::ShardState {
    /// Everything that is to be written about the shard, in one piece.
    fn compose(&mut self, shard: Shard) -> ShardCommit {
        let early = is_planted(Bug::EndBeforeCheckpoint) && !self.ends.is_empty();
        self.dirty = early;
        self.moved = false;
        self.in_flight = true;
        if is_planted(Bug::CheckpointBeforeDeadLetter) {
            return self.compose_half(shard);
        }
        ShardCommit {
            shard,
            fence: self.fence,
            puts: take_writes(self.puts.values_mut()),
            checkpoint: if early { Checkpoint::default() } else { self.mark.checkpoint() },
            ends: take_writes(self.ends.values_mut()),
            trials: self.trials.compose(),
        }
    }
}

impl super::ShardState {
    /// What a planted bug writes.
    fn compose_half(&mut self, shard: Shard) -> ShardCommit {
        let mut commit = ShardCommit {
            shard,
            fence: self.fence,
            puts: Vec::new(),
            checkpoint: self.mark.checkpoint(),
            ends: Vec::new(),
            trials: Vec::new(),
        };
        let is_new = self.puts.values().any(|put| !put.in_flight);
        let puts = take_writes(self.puts.values_mut());
        let ends = take_writes(self.ends.values_mut());
        commit.ends = ends;
        if is_new {
            self.dirty = true;
        } else {
            commit.puts = puts;
        }
        commit
    }
}

fn take_writes<'a, T: Clone + 'a>(writes: impl Iterator<Item = &'a mut Write<T>>) -> Vec<T> {
    writes
        .map(|write| {
            write.in_flight = true;
            write.what.clone()
        })
        .collect()
}
