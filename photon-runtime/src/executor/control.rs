//! What people and other processes do to a running subscription: pause, reset, redrive, discard; and what the loop
//! does itself about a log that lost its end.

use photon_core::error::StoreError;
use photon_core::ids::{Seq, Shard};
use photon_core::machine::subscription::ShardStart;
use photon_core::store::{Checkpoint, Paused, ResetOutcome};
use photon_core::time::Now;

use super::driver::Driver;
use super::work::Revised;

impl Driver {
    /// Takes in what may have changed from outside.
    pub(super) fn take_revised(&mut self, revised: Revised, now: Now) {
        self.revision = Some(revised.revision);
        let Some(changed) = revised.changed else { return };
        self.follow_pause(changed.paused);
        for (shard, resets) in changed.resets {
            if self.resets.get(&shard).is_some_and(|known| *known != resets) {
                tracing::info!(subscription = %self.asker.id, %shard, "reset: going on from another place");
                self.give_up(shard);
            }
        }
        for (shard, heads) in changed.heads {
            if self.machine.position(shard).is_some() {
                self.machine.handle_heads(shard, heads, now);
            }
        }
    }

    fn follow_pause(&mut self, paused: Option<Paused>) {
        self.machine.handle_paused(paused.is_some());
        if self.paused == paused {
            return;
        }
        let subscription = &self.asker.id;
        if let Some(Paused { reason, since }) = &paused {
            tracing::info!(%subscription, reason, %since, "paused: what runs may end, nothing new is handed out");
        } else {
            tracing::info!(%subscription, "resumed");
        }
        self.paused = paused;
    }

    /// Stops to work on a shard that was taken away, and claims it again.
    fn give_up(&mut self, shard: Shard) {
        self.resets.remove(&shard);
        let running = self.machine.handle_lost(shard);
        self.handlers.cancel(&running);
        if let (Some(ownership), Some(fence)) = (&self.ownership, self.held.remove(&shard)) {
            ownership.fenced(shard, fence);
        }
    }

    /// The log ends before the place where the reader stands: what comes next would be taken for read.
    pub(super) fn begin_rewind(&mut self, shard: Shard, end: Seq, now: Now) {
        if self.ownership.is_some() {
            self.to_rewind.push((shard, end));
            return;
        }
        // Without a position there is nothing to change in the store.
        let fence = self.machine.assigned().find(|(assigned, _)| *assigned == shard);
        if let Some((_, fence)) = fence {
            let checkpoint = Checkpoint { watermark: end, ranges: Vec::new() };
            let running = self.machine.handle_lost(shard);
            self.handlers.cancel(&running);
            self.machine.handle_assigned(
                shard,
                fence,
                ShardStart { checkpoint, ..ShardStart::default() },
                now,
            );
        }
    }

    /// Asks the store to set positions back that lie behind the end of the log.
    pub(super) fn ask_rewinds(&mut self) {
        for (shard, end) in std::mem::take(&mut self.to_rewind) {
            if let Some(fence) = self.held.get(&shard) {
                self.work.push(self.asker.rewind(shard, end, *fence));
            }
        }
    }

    pub(super) fn take_rewound(
        &mut self,
        (shard, end): (Shard, Seq),
        result: Result<Vec<ResetOutcome>, StoreError>,
        now: Now,
    ) {
        let Some(outcomes) = self.heard(result, "set the position back", now, false) else {
            return self.to_rewind.push((shard, end));
        };
        if let Some(ResetOutcome::Reset { after, removed }) = outcomes.first() {
            tracing::error!(
                subscription = %self.asker.id, %shard, %after, removed,
                "set back to the end of a log that lost records: stored deliveries of the lost ones are removed",
            );
        }
        self.give_up(shard);
    }
}
