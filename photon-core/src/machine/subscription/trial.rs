//! After a crash: which deliveries may have been what ended the process, and how they run until that is known.
//!
//! What the owner before may have had running is *watched*. A watched delivery runs among others, but only once a
//! mark of it is in the store. If the process ends again, the marks say who was there: those run alone in the
//! process, each marked as such. Only an end of the process while a delivery ran alone counts against it. A run
//! that ends in any other way acquits the delivery.

use std::collections::{BTreeMap, VecDeque};

use super::{ShardState, Subscription};
use crate::handler::DeadReason;
use crate::ids::{Seq, Shard};
use crate::machine::lanes::Item;
use crate::options::Settings;
use crate::planted::{Bug, is_planted};
use crate::store::{ShardCommit, Stage, Trial};
use crate::time::Now;

/// What is known about the trials of one shard.
#[derive(Debug, Default)]
pub(super) struct Trials {
    open: BTreeMap<Seq, Open>,
    /// So many of the records to be read may have been running when the owner before ended.
    seen_before: u64,
    /// The store may hold a mark of a delivery that runs alone.
    alone_stored: bool,
}

#[derive(Debug)]
struct Open {
    crashes: u32,
    stage: Stage,
    /// The delivery that waits for its mark to be stored.
    waiting: Option<usize>,
}

/// Deliveries on trial that wait in memory, and whether one has the process for itself.
#[derive(Debug, Default)]
pub(super) struct Court {
    /// Their marks are being written.
    marking: Vec<usize>,
    /// Their marks are stored: they run next.
    marked: VecDeque<usize>,
    /// They run alone, one after another.
    solitary: VecDeque<usize>,
    in_solitude: bool,
}

impl Trials {
    /// What an owner finds that begins. `crashed`: the one before ended in a crash.
    pub(super) fn new(found: Vec<Trial>, crashed: bool, settings: &Settings) -> Self {
        let alone_stored = found.iter().any(|trial| trial.stage == Stage::Alone);
        let open = found.into_iter().filter_map(|trial| {
            let Trial { seq, crashes, stage } = trial;
            let crashes = match stage {
                _ if crashed && is_planted(Bug::CrashNotCounted) => crashes,
                Stage::Among if crashed && is_planted(Bug::NeighbourOfAKillerBlamed) => {
                    crashes.saturating_add(1)
                }
                Stage::Alone if crashed => crashes.saturating_add(1),
                // It was among those that ran, and nothing happened to the process.
                Stage::Among if !crashed => return None,
                _ => crashes,
            };
            Some((seq, Open { crashes, stage: Stage::Waits, waiting: None }))
        });
        Self {
            open: open.collect(),
            seen_before: if crashed { most_unsettled(settings) } else { 0 },
            alone_stored,
        }
    }

    /// Whether the next record that is read, at this place, is watched.
    pub(super) fn watches(&mut self, seq: Seq) -> bool {
        let seen_before = self.seen_before > 0;
        self.seen_before = self.seen_before.saturating_sub(1);
        seen_before || self.open.contains_key(&seq)
    }

    pub(super) fn knows_any(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether the store says of a delivery that it runs alone.
    pub(super) fn says_alone(&self) -> bool {
        self.alone_stored
    }

    pub(super) fn knows(&self, seq: Seq) -> bool {
        self.open.contains_key(&seq)
    }

    /// What is written with a commit.
    pub(super) fn compose(&mut self) -> Vec<Trial> {
        let trials: Vec<Trial> = self
            .open
            .iter()
            .map(|(seq, open)| Trial { seq: *seq, crashes: open.crashes, stage: open.stage })
            .collect();
        self.alone_stored |= has_alone(&trials);
        trials
    }
}

/// How many records an owner can have read and not have written down as settled.
fn most_unsettled(settings: &Settings) -> u64 {
    u64::from(settings.window) + 4 * u64::from(settings.checkpoint_every) + u64::from(settings.concurrency)
}

fn has_alone(trials: &[Trial]) -> bool {
    trials.iter().any(|trial| trial.stage == Stage::Alone)
}

impl Subscription {
    /// Whether a delivery waits for the process to run nothing else. Then call
    /// [`handle_solitude`](Self::handle_solitude) once that is so.
    pub fn wants_solitude(&self) -> bool {
        let Court { marking, marked, solitary, in_solitude } = &self.court;
        !self.draining
            && !self.paused
            && !in_solitude
            && !solitary.is_empty()
            && self.running == 0
            && marking.is_empty()
            && marked.is_empty()
    }

    /// The process runs nothing else, until [`in_solitude`](Self::in_solitude) says that it may again.
    pub fn handle_solitude(&mut self, now: Now) {
        if self.wants_solitude() {
            self.court.in_solitude = true;
            self.begin_alone(now);
        }
    }

    /// Whether nothing else may run in the process.
    pub fn in_solitude(&self) -> bool {
        self.court.in_solitude
    }

    /// A delivery whose mark is stored.
    pub(super) fn next_marked(&mut self) -> Option<usize> {
        self.court.marked.pop_front()
    }

    /// Whether deliveries that need no trial must wait.
    pub(super) fn court_is_busy(&self) -> bool {
        let Court { marking, solitary, in_solitude, .. } = &self.court;
        *in_solitude || !solitary.is_empty() || marking.len() >= self.settings.concurrency as usize
    }

    /// Whether any delivery waits for the store or for the process.
    pub(super) fn is_in_court(&self) -> bool {
        let Court { marking, marked, solitary, in_solitude } = &self.court;
        *in_solitude || !marking.is_empty() || !marked.is_empty() || !solitary.is_empty()
    }

    /// A watched delivery that was about to run: it is marked first, or waits to run alone, or is given up on.
    pub(super) fn try_watched(&mut self, id: usize, now: Now) {
        let (shard, seq) = (self.items[id].event.shard, self.items[id].seq());
        let max_attempts = self.settings.retry.max_attempts;
        let Some(state) = self.shard_mut(shard) else { return };
        match state.trials.open.get(&seq).map(|open| open.crashes) {
            None => {
                state.trials.open.insert(seq, Open { crashes: 0, stage: Stage::Among, waiting: Some(id) });
                state.dirty = true;
                self.court.marking.push(id);
                self.coalescer.handle_urgent(now.mono);
            }
            Some(crashes) if crashes >= max_attempts => {
                state.trials.open.remove(&seq);
                self.convict(id, crashes, now);
            }
            Some(_) => self.court.solitary.push_back(id),
        }
    }

    fn convict(&mut self, id: usize, crashes: u32, now: Now) {
        self.count_out(id);
        if let Some(lane) = self.lanes.get_mut(self.items[id].lane) {
            lane.running = false;
        }
        let failure = self.items[id].failure.get_or_insert_default();
        failure.note(format!("the process ended {crashes} times while this delivery ran alone"), now.wall);
        self.give_up(id, DeadReason::Crash, now);
    }

    fn begin_alone(&mut self, now: Now) {
        if self.draining || self.paused {
            return;
        }
        let Some(id) = self.court.solitary.front().copied() else { return };
        let (shard, seq) = (self.items[id].event.shard, self.items[id].seq());
        let Some(state) = self.shard_mut(shard) else { return };
        if let Some(open) = state.trials.open.get_mut(&seq) {
            (open.stage, open.waiting) = (Stage::Alone, Some(id));
            state.dirty = true;
        }
        self.court.solitary.pop_front();
        self.court.marking.push(id);
        self.coalescer.handle_urgent(now.mono);
    }

    /// The store has the marks of a commit.
    pub(super) fn marks_stored(&mut self, commit: &ShardCommit) {
        let Some(state) = self.shards.get_mut(usize::from(commit.shard.0)).and_then(Option::as_mut) else {
            return;
        };
        state.trials.alone_stored = has_alone(&commit.trials);
        for trial in &commit.trials {
            let open = state.trials.open.get_mut(&trial.seq).filter(|open| open.stage == trial.stage);
            if let Some(id) = open.and_then(|open| open.waiting.take()) {
                self.court.marking.retain(|waiting| *waiting != id);
                self.court.marked.push_back(id);
            }
        }
        self.leave_solitude();
    }

    /// A watched delivery ran, and the process is still there.
    pub(super) fn acquit(&mut self, id: usize, now: Now) {
        let item = &mut self.items[id];
        item.watched = false;
        let (shard, seq) = (item.event.shard, item.seq());
        let alone = self.court.in_solitude;
        if let Some(state) = self.shard_mut(shard) {
            state.trials.open.remove(&seq);
            state.moved = true;
            // Such a mark must be gone before anything else runs.
            state.dirty |= alone;
        }
        if alone {
            self.coalescer.handle_urgent(now.mono);
            self.begin_alone(now);
        }
    }

    /// Lets others run again once nothing of it is left, here and in the store.
    pub(super) fn leave_solitude(&mut self) {
        let Court { marking, marked, in_solitude, .. } = &self.court;
        let at_work = self.running > 0 || !marking.is_empty() || !marked.is_empty();
        let stored = |shard: &ShardState| shard.trials.alone_stored;
        if *in_solitude && !at_work && !self.shards.iter().flatten().any(stored) {
            self.court.in_solitude = false;
        }
    }

    /// Deliveries of a shard that was lost are gone.
    pub(super) fn leave_court(&mut self) {
        let items = &self.items;
        self.court.marking.retain(|id| items.contains(*id));
        self.court.marked.retain(|id| items.contains(*id));
        self.court.solitary.retain(|id| items.contains(*id));
        self.leave_solitude();
    }

    /// Nothing more runs: what is marked and did not run yet goes back to where it was.
    pub(super) fn adjourn(&mut self) {
        let Court { marking, marked, solitary, .. } = &mut self.court;
        let waiting: Vec<usize> =
            marking.drain(..).chain(marked.drain(..)).chain(solitary.drain(..)).collect();
        for id in waiting {
            let (shard, seq, lane) = (self.items[id].event.shard, self.items[id].seq(), self.items[id].lane);
            if let Some(state) = self.shard_mut(shard) {
                state.moved = true;
                match state.trials.open.get_mut(&seq) {
                    Some(open) if open.stage == Stage::Among => drop(state.trials.open.remove(&seq)),
                    Some(open) => {
                        // The mark may be stored, or on its way: left there, the next crash would count against it.
                        state.dirty |= open.stage == Stage::Alone;
                        (open.stage, open.waiting) = (Stage::Waits, None);
                    }
                    None => {}
                }
            }
            if lane != Item::NO_LANE {
                self.lanes[lane].running = false;
                self.lanes[lane].put_back(&mut self.items, id);
            }
        }
    }

    /// The deliveries stored in lanes that can run now may have run when the owner before ended.
    pub(super) fn watch_lanes(&mut self, shard: Shard, now: Now) {
        for (_, lane) in self.lanes.iter_mut().filter(|(_, lane)| lane.shard == shard) {
            lane.watched = lane.is_due(now.mono);
        }
    }
}
