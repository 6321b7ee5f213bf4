//! Runs of handlers: what each of them must not be.

use std::collections::BTreeSet;

use photon_core::ids::Seq;
use photon_core::store::{Fence, RowState, StoredDelivery};

use super::track::Track;
use super::{Judge, Run};
use crate::history::{End, Place, What};

impl Judge {
    /// A handler begins. `row` is the delivery as it is stored, if it is. Returns the number of the run, and how
    /// often the event was played to an end before.
    pub(crate) fn begin(
        &mut self,
        group: &str,
        place: Place,
        attempt: u32,
        fence: Fence,
        row: Option<&StoredDelivery>,
    ) -> (usize, u32) {
        let (who, run) = (self.clock.who, self.runs.len());
        let key = self.log.get(&place).and_then(|logged| logged.key);
        let epoch = fence.epoch;
        self.note(What::Runs { run, place, key, attempt, epoch });
        let Some(group) = self.group(group) else {
            self.violate("an unknown group runs");
            return (run, 0);
        };
        let this = Run { group, place, key, who, attempt, epoch, suspended: false, ended: false };
        if let Some(broken) = self.objection(&this, fence, row) {
            self.violate(broken);
        }
        let track = self.groups[group].tracks.entry(place).or_default();
        let played = track.played;
        if track.is_done_again() {
            self.groups[group].again.entry((place.0, epoch)).or_default().insert(place.1);
        }
        self.runs.push(this);
        self.running.entry(who).or_default().insert(run);
        (run, played)
    }

    /// What is wrong with this run at its beginning.
    fn objection(&self, run: &Run, fence: Fence, row: Option<&StoredDelivery>) -> Option<String> {
        let Run { group, place, who, attempt, epoch, .. } = *run;
        let state = &self.groups[group];
        let none = Track::default();
        let track = state.tracks.get(&place).unwrap_or(&none);
        if !self.log.contains_key(&place) {
            return Some(format!("{place:?} runs, but is not in the log"));
        }
        if state.grants[usize::from(place.0)] != Some(fence) {
            return Some(format!(
                "P9: {place:?} runs under epoch {epoch}, but another one was granted since"
            ));
        }
        if track.never_again {
            return Some(format!("P4: {place:?} is delivered again after a clean end"));
        }
        let covered = state.stored[usize::from(place.0)].checkpoint.covers(Seq(place.1));
        if covered && row.is_none() {
            return Some(format!("P4: {place:?} is delivered again although a checkpoint covers it"));
        }
        if attempt > track.failed + 1 {
            return Some(format!(
                "P8: {place:?} is at attempt {attempt}, but only {} have failed",
                track.failed
            ));
        }
        if attempt > self.scenario.max_attempts {
            return Some(format!("{place:?} runs more often than max_attempts allows: attempt {attempt}"));
        }
        // An owner that is told that it lost a shard starts over from the checkpoint, maybe under the same epoch.
        if attempt <= track.failed_under(who, epoch) && self.scenario.store.fenced == 0 {
            return Some(format!("a failed attempt of {place:?} was not counted: this is attempt {attempt}"));
        }
        if let Some(row) = row {
            if matches!(row.state, RowState::Dead { .. }) {
                return Some(format!("P7: {place:?} runs although it is dead"));
            }
            if attempt <= row.attempts {
                return Some(format!(
                    "{place:?} was stored with {} attempts, but is at attempt {attempt}",
                    row.attempts
                ));
            }
        }
        let of_who = self.running.get(&who).map_or(0, BTreeSet::len);
        if of_who >= self.scenario.concurrency as usize {
            return Some(format!(
                "P5: more handlers run than the concurrency of {}",
                self.scenario.concurrency
            ));
        }
        self.out_of_order(run).or_else(|| self.too_many_again(run))
    }

    /// A handler ends.
    pub(crate) fn end(&mut self, run: usize, end: End) {
        let Some(this) = self.runs.get_mut(run).filter(|run| !run.ended) else { return };
        this.ended = true;
        let this = *this;
        self.note(What::Ends(run, end));
        if let Some(running) = self.running.get_mut(&this.who) {
            running.remove(&run);
        }
        let state = &mut self.groups[this.group];
        let current = state.grants[usize::from(this.place.0)];
        let counts = current.is_some_and(|fence| fence.epoch == this.epoch);
        let final_one = this.attempt >= self.scenario.max_attempts;
        let track = state.tracks.entry(this.place).or_default();
        track.ended(run, this.who, this.epoch, end, counts, final_one);
    }

    // Processes.

    /// A process stands still: nobody can break its handlers off.
    pub(crate) fn suspended(&mut self, who: usize) {
        for run in self.running.get(&who).into_iter().flatten() {
            self.runs[*run].suspended = true;
        }
    }

    /// Whether a run of an event that kills ends its process: until people had a look at it.
    pub(crate) fn is_deadly(&self, run: usize) -> bool {
        let Run { group, place, .. } = self.runs[run];
        self.groups[group].tracks.get(&place).is_none_or(|track| !track.healed)
    }

    /// A process ends in the middle of everything, while the store says that these ran alone.
    pub(crate) fn crashed(&mut self, who: usize, group: &str, alone: &[Place]) {
        self.crashed.insert(who);
        if let Some(group) = self.group(group) {
            for place in alone {
                self.groups[group].tracks.entry(*place).or_default().alone += 1;
            }
        }
        for run in self.running.remove(&who).unwrap_or_default() {
            self.end(run, End::Cut);
        }
    }

    /// A process is gone with all its handlers.
    pub(crate) fn gone(&mut self, who: usize) {
        self.running.remove(&who);
    }
}
