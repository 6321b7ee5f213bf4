//! Ends: of a process, and of the whole run.

use std::collections::BTreeSet;

use photon_core::store::RowState;

use super::{GroupState, Judge, Run, Stored, track};
use crate::history::{Place, What};
use crate::scenario::TIMEOUT_MS;

impl Judge {
    /// A process ended its drain. After a clean one nothing that it settled comes again.
    pub(crate) fn joined(&mut self, clean: bool) {
        let who = self.clock.who;
        self.note(What::Note(if clean { "joined, clean" } else { "joined, broken off" }, None));
        // A short drain may break handlers off.
        if !clean && self.calm && self.scenario.drain_timeout > 2 * TIMEOUT_MS {
            self.violate("P4: a drain was not clean although nothing stood in its way");
        }
        if !clean || self.scenario.store.fenced > 0 {
            return;
        }
        let mut broken = None;
        for state in &mut self.groups {
            for (place, track) in &mut state.tracks {
                let mine = |done: &track::Done| {
                    done.who == who && done.counts && state.given_back.contains(&(place.0, done.epoch))
                };
                let Some(done) = track.last_done.filter(mine).filter(|_| !track.redriven_since_done) else {
                    continue;
                };
                let later = |(number, run): &(usize, &Run)| {
                    *number > done.run && run.place == *place && run.who != who
                };
                let group = state.plan.name;
                let same = |run: &Run| self.scenario.groups[run.group].name == group;
                if self.runs.iter().enumerate().skip(done.run).any(|pair| later(&pair) && same(pair.1)) {
                    broken = Some(*place);
                }
                track.never_again = true;
            }
        }
        if let Some(place) = broken {
            self.violate(format!("P4: {place:?} was delivered again although its owner ended cleanly"));
        }
    }

    /// How many runs there were.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// From here on nothing goes wrong, and nothing is to be done.
    pub(crate) fn calm(&mut self) {
        self.calm = true;
    }

    /// From here on the handlers treat this event without fuss, and it is to be handled soon.
    pub(crate) fn expect_prompt(&mut self, n: u32) {
        self.prompt = Some(n);
    }

    /// Whether an event is the one that is handled without fuss.
    pub(crate) fn is_prompt(&self, n: u32) -> bool {
        self.prompt == Some(n)
    }

    /// What is wrong if an event was not handled by now.
    pub(crate) fn late(&self, n: u32) -> Option<String> {
        let place = self.log.iter().find(|(_, logged)| logged.n == n).map(|(place, _)| *place)?;
        let late = |state: &&GroupState| state.tracks.get(&place).is_none_or(|track| track.done == 0);
        let group = self.groups.iter().find(late)?.plan.name;
        Some(format!("{group} did not handle {place:?} soon, although nothing stood in the way"))
    }

    /// What is not settled yet of a group, where the store holds `shards`; empty if the run can end.
    pub(crate) fn open(&self, group: &str, shards: &[Stored]) -> Vec<Place> {
        let Some(group) = self.group(group) else { return Vec::new() };
        let state = &self.groups[group];
        let is_open = |place: &Place| {
            let stored = &shards[usize::from(place.0)];
            let row = stored.rows.get(&place.1).copied().flatten();
            let dead = matches!(row, Some(RowState::Dead { blocks: false }));
            let settled = state.tracks.get(place).is_some_and(|track| track.done > 0 || track.discarded);
            !(dead || settled && row.is_none()) || stored.checkpoint.watermark.0 < place.1
        };
        self.log.keys().copied().filter(is_open).collect()
    }

    /// Looks at the whole run once all is settled.
    pub(crate) fn conclude(&mut self) {
        let lost: Vec<_> = self.acknowledged.keys().filter(|place| !self.log.contains_key(*place)).collect();
        if let Some(place) = lost.first() {
            let text = format!("P1: the event at {place:?} was acknowledged and is not in the log");
            self.violate(text);
        }
        let mut numbers = BTreeSet::new();
        let twice = self.log.values().find(|logged| !numbers.insert(logged.n)).map(|logged| logged.n);
        if let Some(n) = twice {
            self.violate(format!("#{n} is twice in the log although it has a dedup id"));
        }
        for group in 0..self.groups.len() {
            if let Some(broken) = self.last_runs_out_of_order(group) {
                self.violate(broken);
            }
        }
    }
}
