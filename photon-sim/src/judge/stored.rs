//! What the store holds: whether it is true, and who may write it.

use photon_core::handler::DeadReason;
use photon_core::ids::Seq;
use photon_core::options::OnDead;
use photon_core::store::{RowState, ShardCommit, ShardOutcome, StoredDelivery};

use super::{Judge, Stored};
use crate::history::{Commit, Place, What};

impl Judge {
    /// A commit was carried out; `stored` is what the store holds of the shard now.
    pub(crate) fn committed(
        &mut self,
        group: &str,
        commit: &ShardCommit,
        outcome: &ShardOutcome,
        stored: &Stored,
    ) {
        let Some(group) = self.group(group) else { return };
        let shard = commit.shard.0;
        let puts = commit.puts.iter().map(|row| (row.event.seq.0, state_text(row))).collect();
        self.note(What::Committed(Box::new(Commit {
            group: self.groups[group].plan.name,
            shard,
            epoch: commit.fence.epoch,
            checkpoint: commit.checkpoint.clone(),
            puts,
            ends: commit.ends.iter().map(|end| end.seq.0).collect(),
            outcome: outcome.clone(),
        })));
        let ShardOutcome::Committed { conflicts } = outcome else { return };
        if self.groups[group].grants[usize::from(shard)] != Some(commit.fence) {
            self.violate(format!(
                "P9: epoch {} wrote to shard {shard} although it is not the current one",
                commit.fence.epoch
            ));
        }
        for row in commit.puts.iter().filter(|row| !conflicts.contains(&row.event.seq)) {
            if let Some(broken) = self.stored_row(group, row) {
                self.violate(broken);
            }
        }
        self.check_shard(group, shard, stored);
        if let Some(broken) = self.ends_out_of_order(group, shard) {
            self.violate(broken);
        }
    }

    fn stored_row(&mut self, group: usize, row: &StoredDelivery) -> Option<String> {
        let place = (row.event.shard.0, row.event.seq.0);
        let max = self.scenario.max_attempts;
        let blocks = self.groups[group].plan.on_dead == OnDead::BlockKey && row.event.key.is_some();
        let track = self.groups[group].tracks.entry(place).or_default();
        if row.attempts > track.failed {
            return Some(format!(
                "P8: {place:?} is stored with {} attempts, but only {} have failed",
                row.attempts, track.failed
            ));
        }
        let RowState::Dead { blocks: stored } = row.state else { return None };
        track.ever_dead = true;
        let reason = row.failure.reason;
        let spent = match reason {
            Some(DeadReason::Crash) => track.alone >= max,
            Some(DeadReason::Permanent) => track.permanent,
            _ => row.attempts == max,
        };
        if !spent || stored != blocks {
            return Some(format!(
                "P7: {place:?} is dead ({reason:?}) after {} of {max} attempts and {} crashes, blocking: {stored}",
                row.attempts, track.alone
            ));
        }
        None
    }

    /// Whether what the store says of a shard is true: every place that a checkpoint covers is settled for good.
    fn check_shard(&mut self, group: usize, shard: u16, stored: &Stored) {
        let state = &mut self.groups[group];
        let now = stored.checkpoint.watermark;
        let before = std::mem::replace(&mut state.stored[usize::from(shard)], stored.clone());
        if before.checkpoint.watermark > now {
            let before = before.checkpoint.watermark;
            self.violate(format!("P2: the watermark of shard {shard} went back from {before} to {now}"));
            return;
        }
        let state = &self.groups[group];
        let open = self.log.range((shard, 0)..(shard + 1, 0)).map(|(place, _)| *place).find(|place| {
            let covered = stored.checkpoint.covers(Seq(place.1));
            let row = stored.rows.get(&place.1).is_some_and(Option::is_some);
            let settled = state.tracks.get(place).is_some_and(|track| track.done > 0 || track.discarded);
            covered && !row && !settled
        });
        if let Some(place) = open {
            self.violate(format!(
                "P2: the checkpoint of {} covers {place:?}, which is neither done nor stored",
                state.plan.name
            ));
        }
    }

    pub(crate) fn redriven(&mut self, group: &str, places: Vec<Place>) {
        let Some(group) = self.group(group) else { return };
        for place in &places {
            self.groups[group].tracks.entry(*place).or_default().redriven();
        }
        self.note(What::Redriven(self.groups[group].plan.name, places));
    }

    pub(crate) fn discarded(&mut self, group: &str, places: Vec<Place>) {
        let Some(group) = self.group(group) else { return };
        for place in &places {
            self.groups[group].tracks.entry(*place).or_default().discarded = true;
        }
        self.note(What::Discarded(self.groups[group].plan.name, places));
    }
}

fn state_text(row: &StoredDelivery) -> String {
    let attempts = row.attempts;
    match row.state {
        RowState::Parked { .. } => format!("parked after {attempts}"),
        RowState::Waiting => "waiting".to_owned(),
        RowState::Dead { blocks: true } => format!("dead after {attempts}, blocking"),
        RowState::Dead { blocks: false } => format!("dead after {attempts}"),
    }
}
