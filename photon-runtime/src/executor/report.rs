//! What an executor did, for people: in the log as it goes, and as a report at its end.

use std::fmt;
use std::time::Duration;

use photon_core::ids::SubscriptionId;
use photon_core::machine::subscription::{Figures, Notice, Verdict};
use photon_core::machine::throttle::Throttle;
use photon_core::time::Mono;

use super::crew::STUCK;

/// How a drain ended. Given by [`Executor::join`](crate::Executor::join).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainReport {
    /// How each subscription ended, by name.
    pub subscriptions: Vec<SubscriptionReport>,
    /// How long the drain took, from the shutdown on.
    pub took: Duration,
}

impl DrainReport {
    /// Whether every handler ended by itself and all progress is written down: nothing that was settled will be
    /// delivered again.
    pub fn is_clean(&self) -> bool {
        self.subscriptions.iter().all(|subscription| subscription.clean)
    }

    /// How many deliveries ended well, in all.
    pub fn handled(&self) -> u64 {
        self.subscriptions.iter().map(|subscription| subscription.handled).sum()
    }

    /// How many deliveries were given up on, in all: they are dead letters now.
    pub fn dead(&self) -> u64 {
        self.subscriptions.iter().map(|subscription| subscription.dead).sum()
    }
}

impl fmt::Display for DrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.is_clean() { "drained" } else { "broken off" };
        write!(f, "{end} after {:?}, {} handled", self.took, self.handled())?;
        if self.dead() > 0 {
            write!(f, ", {} given up on", self.dead())?;
        }
        for report in self.subscriptions.iter().filter(|report| !report.clean) {
            if !report.ended {
                write!(f, "; {}: did not end: {STUCK}", report.subscription)?;
                continue;
            }
            write!(
                f,
                "; {}: {} handlers broken off, {} settled deliveries not written down",
                report.subscription, report.cancelled, report.uncommitted
            )?;
        }
        Ok(())
    }
}

/// What one subscription did between start and drain, in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriptionReport {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// Attempts that ended well.
    pub handled: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Attempts that asked to be offered again later.
    pub deferred: u64,
    /// Deliveries that were given up on.
    pub dead: u64,
    /// Attempts that were broken off: by the drain's timeout, or because a shard was lost.
    pub cancelled: u64,
    /// Settled deliveries whose checkpoint could not be written; they will be delivered again.
    pub uncommitted: u64,
    /// Whether every handler ended by itself and all progress is written down.
    pub clean: bool,
    /// Whether its loop ended. One does not while a handler blocks the thread without an await, which nobody can
    /// break off; nothing else is known about it then, and all numbers here are 0. End the process: what was not
    /// written down is delivered again.
    pub ended: bool,
}

impl SubscriptionReport {
    fn new(subscription: SubscriptionId, ended: bool) -> Self {
        Self {
            subscription,
            handled: 0,
            failed: 0,
            deferred: 0,
            dead: 0,
            cancelled: 0,
            uncommitted: 0,
            clean: false,
            ended,
        }
    }

    /// Of a loop that gave none.
    pub(super) fn unheard(subscription: SubscriptionId) -> Self {
        Self::new(subscription, false)
    }
}

/// Counts and tells what happens in one subscription.
pub(super) struct Tally {
    report: SubscriptionReport,
    dead_lines: Throttle,
    lines: Throttle,
}

impl Tally {
    pub(super) fn new(subscription: SubscriptionId) -> Self {
        let report = SubscriptionReport::new(subscription, true);
        Self { report, dead_lines: Throttle::default(), lines: Throttle::default() }
    }

    pub(super) fn count(&mut self, verdict: &Verdict) {
        let counter = match verdict {
            Verdict::Done | Verdict::Settled => &mut self.report.handled,
            Verdict::Failed { .. } => &mut self.report.failed,
            Verdict::Deferred { .. } => &mut self.report.deferred,
            Verdict::Cancelled => &mut self.report.cancelled,
        };
        *counter += 1;
    }

    pub(super) fn tell(&mut self, notice: &Notice, now: Mono) {
        match notice {
            Notice::Retry { event, attempts, delay, error } => tracing::debug!(
                subscription = %self.report.subscription, event = %event.id, attempts, ?delay, error,
                "an attempt failed, another follows",
            ),
            Notice::Dead { .. } => {
                self.report.dead += 1;
                if let Some(unsaid) = self.dead_lines.allow(now) {
                    say(&self.report.subscription, notice, unsaid);
                }
            }
            _ => {
                if let Some(unsaid) = self.lines.allow(now) {
                    say(&self.report.subscription, notice, unsaid);
                }
            }
        }
    }

    pub(super) fn finish(mut self, drained: bool, figures: Figures) -> SubscriptionReport {
        self.report.uncommitted = figures.uncommitted;
        self.report.clean = drained && figures.uncommitted == 0;
        self.report
    }
}

/// `unsaid`: how many lines were left out before this one.
fn say(subscription: &SubscriptionId, notice: &Notice, unsaid: u64) {
    match notice {
        Notice::Dead { event, attempts, reason, error } => tracing::warn!(
            %subscription, event = %event.id, shard = event.shard.0, seq = event.seq.0, attempts, %reason,
            error, unsaid, "given up on a delivery: it is a dead letter",
        ),
        Notice::Retry { .. } => {}
        Notice::Gap { shard, after, floor } => tracing::warn!(
            %subscription, %shard, %after, %floor, unsaid,
            "events were trimmed before this subscription read them: it goes on behind the gap",
        ),
        Notice::Shrunk { shard, after, end } => tracing::error!(
            %subscription, %shard, %after, %end, unsaid,
            "the log ends before the place where this subscription stands, which is set back: was an old copy restored?",
        ),
        Notice::HeldUp { shard, lane, rows, dead } => tracing::warn!(
            %subscription, %shard, ?lane, stored = rows, dead, unsaid,
            "one key has max_blocked deliveries stored behind one that does not end: nothing more is read until it \
             is redriven, discarded or due",
        ),
        Notice::GoesOn => {
            tracing::info!(%subscription, unsaid, "no key holds up the reading any more");
        }
        Notice::Fenced { shard } => tracing::warn!(
            %subscription, %shard, unsaid, "another owner took the shard: its handlers here are broken off",
        ),
    }
}
