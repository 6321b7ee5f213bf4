//! What happened to one event in one group.

use std::collections::BTreeMap;

use crate::history::End;

/// A run that ended well.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) run: usize,
    pub(super) who: usize,
    pub(super) epoch: u64,
    /// The shard was still the runner's.
    pub(super) counts: bool,
}

/// What happened to one event in one group.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Default)]
pub(super) struct Track {
    /// How often a handler came to an end with it.
    pub(super) played: u32,
    /// How often it ended well.
    pub(super) done: u32,
    pub(super) last_done: Option<Done>,
    /// The last run that ended well while its shard was still the runner's.
    pub(super) last_counted: Option<usize>,
    /// Attempts that failed since it was published or redriven.
    pub(super) failed: u32,
    /// Those of them that failed under one owner.
    failed_under: BTreeMap<(usize, u64), u32>,
    /// The last attempt said that no other is of use.
    pub(super) permanent: bool,
    /// The last attempt was the last one that is allowed.
    pub(super) gave_up: bool,
    pub(super) ever_dead: bool,
    /// How often a process ended while the store said that this ran alone.
    pub(super) alone: u32,
    /// People redrove it: if it killed processes, they mended that.
    pub(super) healed: bool,
    pub(super) discarded: bool,
    pub(super) redriven_since_done: bool,
    /// It was settled before a clean end.
    pub(super) never_again: bool,
}

impl Track {
    pub(super) fn failed_under(&self, who: usize, epoch: u64) -> u32 {
        self.failed_under.get(&(who, epoch)).copied().unwrap_or_default()
    }

    /// Whether a run now is a repetition.
    pub(super) fn is_done_again(&self) -> bool {
        self.done > 0 && !self.redriven_since_done
    }

    pub(super) fn ended(&mut self, run: usize, who: usize, epoch: u64, end: End, counts: bool, last: bool) {
        self.played += u32::from(end != End::Cut);
        match end {
            End::Done => {
                self.done += 1;
                self.last_done = Some(Done { run, who, epoch, counts });
                if counts {
                    self.last_counted = Some(run);
                }
                self.redriven_since_done = false;
            }
            End::Failed | End::Permanent => {
                self.failed += 1;
                *self.failed_under.entry((who, epoch)).or_default() += 1;
                self.permanent = end == End::Permanent;
                self.gave_up = last || self.permanent;
            }
            End::Deferred | End::Cut => {}
        }
    }

    pub(super) fn redriven(&mut self) {
        self.failed = 0;
        self.failed_under.clear();
        self.permanent = false;
        self.alone = 0;
        self.healed = true;
        self.redriven_since_done = true;
        self.never_again = false;
    }
}
