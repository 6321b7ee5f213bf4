//! The end of work: what is written before it, and when it is over.

use super::Subscription;
use crate::ids::{Seq, Shard};
use crate::planted::{Bug, is_planted};
use crate::time::{Mono, Now};

impl Subscription {
    /// No more deliveries. What waits in memory for a retry is stored with its attempts; what never ran is read again
    /// by the next owner.
    pub fn begin_drain(&mut self, now: Now) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        self.adjourn();
        if self.persist {
            self.park_retries(now);
        }
        self.coalescer.handle_urgent(now.mono);
    }

    fn park_retries(&mut self, now: Now) {
        let lanes: Vec<usize> = self.lanes.iter().map(|(id, _)| id).collect();
        for lane in lanes {
            let state = &mut self.lanes[lane];
            let first = [state.queue.first(), state.loaded.first()].into_iter().flatten();
            let tried =
                first.filter(|id| self.items[*id].failure.is_some()).min_by_key(|id| self.items[*id].seq());
            let Some(id) = tried.filter(|id| self.items[*id].not_before > Mono(0)) else { continue };
            let from_log = state.queue.first() == Some(id);
            let queue = if from_log { &mut state.queue } else { &mut state.loaded };
            queue.pop_front(&self.items);
            self.count_out(id);
            self.park(id, now);
        }
    }

    /// Whether everything that ran has ended and is written down.
    pub fn is_drained(&self) -> bool {
        let forgets = is_planted(Bug::DrainForgetsTheLastCommit);
        self.draining && self.running == 0 && (forgets || !self.needs_commit())
    }

    fn needs_commit(&self) -> bool {
        self.persist && self.shards.iter().flatten().any(|shard| shard.dirty || shard.in_flight)
    }

    /// Whether everything up to `targets` that can run has run and is written down. Deliveries that are parked
    /// for later or held up by a dead letter do not count; in a paused subscription none can run.
    pub fn is_quiet(&self, targets: &[(Shard, Seq)]) -> bool {
        if self.paused {
            return self.running == 0 && !self.needs_commit();
        }
        // What is held up behind a delivery that cannot run, cannot run.
        let passed =
            |(shard, target): &(Shard, Seq)| self.shard(*shard).is_none_or(|s| s.mark.position() >= *target);
        self.running == 0
            && self.queued == 0
            && self.loading == 0
            && !self.needs_commit()
            && (self.held_up || targets.iter().all(passed))
    }

    /// Somebody waits until it is quiet: once nothing runs, what is settled is written down without delay.
    pub fn hurry(&mut self, now: Now) {
        let is_idle = self.running == 0 && self.queued == 0;
        let is_dirty = self.persist && self.shards.iter().flatten().any(|shard| shard.dirty);
        if is_idle && is_dirty && !self.coalescer.is_committing() {
            self.coalescer.handle_urgent(now.mono);
        }
    }
}
