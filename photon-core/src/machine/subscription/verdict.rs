//! What becomes of a delivery after its handler ran.

use std::borrow::Cow;
use std::time::Duration;

use super::{Item, Notice, Subscription};
use crate::handler::{DeadReason, FailureClass, HandlerResult, Outcome};
use crate::ids::Seq;
use crate::machine::lanes::{Origin, Queue, Rest, wait};
use crate::options::OnDead;
use crate::planted::{Bug, is_planted};
use crate::store::{Lane, RowEnd, RowState, StoredDelivery};
use crate::time::Now;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The delivery needs no more work.
    Done,
    /// The same, and a transaction of the handler has stored that already.
    Settled,
    /// The attempt failed.
    Failed {
        /// What the failure asks for; a deferral is a verdict of its own.
        class: FailureClass,
        /// Why the delivery is dead if no attempt follows.
        reason: DeadReason,
        /// The error with its causes.
        error: String,
    },
    /// Not now. It costs no attempt.
    Deferred {
        /// How long to wait.
        delay: Duration,
        /// Why.
        reason: Cow<'static, str>,
    },
    /// The attempt was broken off by Photon: it counts for nothing.
    Cancelled,
}

impl From<HandlerResult> for Verdict {
    fn from(result: HandlerResult) -> Self {
        match result {
            Ok(Outcome::Done | Outcome::Ignored(_)) => Verdict::Done,
            Ok(Outcome::Defer(delay, reason)) => Verdict::Deferred { delay, reason },
            Err(error) => match error.class() {
                FailureClass::Defer(delay) => Verdict::Deferred { delay, reason: error.to_string().into() },
                class => Verdict::Failed { class, reason: error.reason(), error: error.to_string() },
            },
        }
    }
}

impl Subscription {
    /// Takes in how an attempt ended. `random` is uniform in 0..1, for jitter.
    pub fn handle_verdict(&mut self, token: usize, verdict: Verdict, now: Now, random: f64) {
        let Some(item) = self.items.get_mut(token).filter(|item| item.running) else { return };
        item.running = false;
        let lane = item.lane;
        let watched = item.watched;
        self.running -= 1;
        if item.lost {
            self.items.remove(token);
            self.leave_solitude();
            return;
        }
        if watched {
            self.acquit(token, now);
        }
        if let Some(state) = self.lanes.get_mut(lane) {
            state.running = false;
        }
        if verdict == Verdict::Cancelled && is_planted(Bug::CancellationCounted) {
            self.items[token].attempts += 1;
        }
        match verdict {
            Verdict::Done => self.end(token, false, now),
            Verdict::Settled => self.end(token, true, now),
            // A clean end keeps the attempts that were made.
            Verdict::Cancelled if self.draining && self.persist && self.items[token].attempts > 0 => {
                self.park(token, now);
            }
            Verdict::Cancelled => self.wait_in_memory(token, now),
            Verdict::Failed { class, reason, error } => {
                self.fail(token, class, reason, error, now, random);
            }
            Verdict::Deferred { delay, reason } => self.defer(token, delay, &reason, now),
        }
        if lane != Item::NO_LANE {
            self.evaluate(lane, now);
        }
    }

    /// The delivery needs no more work. `stored`: the store knows already.
    fn end(&mut self, id: usize, stored: bool, now: Now) {
        let item = self.items.remove(id);
        match item.origin {
            Origin::Log => {
                self.settle(&item, now);
                if self.settings.settles && !stored && item.lane != Item::NO_LANE {
                    self.confirm_end(&item, now);
                }
            }
            Origin::Stored { version } => self.write_end(&item, RowEnd { seq: item.seq(), version }, now),
        }
    }

    fn fail(
        &mut self,
        id: usize,
        class: FailureClass,
        reason: DeadReason,
        error: String,
        now: Now,
        random: f64,
    ) {
        let item = &mut self.items[id];
        item.attempts += u32::from(!is_planted(Bug::RetryNotCounted));
        let failure = item.failure.get_or_insert_default();
        failure.note(error, now.wall);
        let first_failed = failure.first_failed.unwrap_or(now.wall);
        let asked = match class {
            FailureClass::RetryAfter(delay) => Some(delay),
            _ => None,
        };
        let delay = match class {
            FailureClass::Permanent => None,
            _ => self.settings.retry.next_delay(item.attempts, asked, now.wall.since(first_failed), random),
        };
        match delay {
            None => self.give_up(id, reason, now),
            Some(delay) => {
                self.notices.push_back(Notice::Retry {
                    event: item.event.clone(),
                    attempts: item.attempts,
                    delay,
                    error: failure.error.clone(),
                });
                self.again(id, delay, now);
            }
        }
    }

    fn defer(&mut self, id: usize, delay: Duration, reason: &str, now: Now) {
        let item = &mut self.items[id];
        let failure = item.failure.get_or_insert_default();
        failure.note_deferral(reason);
        let since = *failure.deferred_since.get_or_insert(now.wall);
        if now.wall.since(since).saturating_add(delay) > self.settings.max_defer_age {
            failure.last_failed = Some(now.wall);
            self.give_up(id, DeadReason::Deferred, now);
        } else {
            self.again(id, delay, now);
        }
    }

    /// Offers a delivery again after `delay`: from memory if that is soon, else from the store.
    fn again(&mut self, id: usize, delay: Duration, now: Now) {
        self.items[id].not_before = now.mono + delay;
        let park = self.draining || delay > self.settings.park_after;
        if park && self.persist {
            self.park(id, now);
        } else {
            self.wait_in_memory(id, now);
        }
    }

    fn wait_in_memory(&mut self, id: usize, now: Now) {
        let lane = self.lane_for(id);
        self.count_in(id);
        self.lanes[lane].put_back(&mut self.items, id);
        self.evaluate(lane, now);
    }

    /// Stores a delivery until its time comes, with everything that waits behind it.
    pub(super) fn park(&mut self, id: usize, now: Now) {
        let lane = self.lane_for(id);
        let item = self.items.remove(id);
        let due = item.not_before;
        let seq = item.seq();
        let wall = now.wall.saturating_add(wait(due, now.mono));
        self.write_row(lane, item, RowState::Parked { due: wall }, now);
        self.drop_loaded(lane);
        self.lanes[lane].rest = Rest::Head { seq, due };
        self.spill(lane, now);
        self.evaluate(lane, now);
    }

    pub(super) fn give_up(&mut self, id: usize, reason: DeadReason, now: Now) {
        let lane = self.lane_for(id);
        let mut item = self.items.remove(id);
        let failure = item.failure.get_or_insert_default();
        failure.reason = Some(reason);
        self.notices.push_back(Notice::Dead {
            event: item.event.clone(),
            attempts: item.attempts,
            reason,
            error: failure.error.clone(),
        });
        if !self.persist {
            self.settle(&item, now);
            self.evaluate(lane, now);
            return;
        }
        let blocks = self.settings.on_dead == OnDead::BlockKey && item.event.key.is_some();
        let seq = item.seq();
        self.write_row(lane, item, RowState::Dead { blocks }, now);
        if blocks {
            self.drop_loaded(lane);
            self.lanes[lane].rest = Rest::Dead { seq };
            self.spill(lane, now);
        }
        self.evaluate(lane, now);
    }

    /// Stores a delivery behind others of its lane.
    pub(super) fn store_waiting(&mut self, lane: usize, item: Item, now: Now) {
        let (seq, due) = (item.seq(), item.not_before);
        self.lanes[lane].watched |= item.watched;
        let state = if due > now.mono {
            RowState::Parked { due: now.wall.saturating_add(wait(due, now.mono)) }
        } else {
            RowState::Waiting
        };
        // Read again after a crash, it comes before some of what is loaded: that is loaded again, after it.
        let dropped = self.drop_loaded_behind(lane, seq);
        let has_loaded = self.lanes[lane].loaded.first().is_some();
        let rest = &mut self.lanes[lane].rest;
        match *rest {
            Rest::Unknown => {}
            _ if dropped && has_loaded => *rest = Rest::Unknown,
            _ if dropped => *rest = Rest::Head { seq, due },
            Rest::Nothing if has_loaded => *rest = Rest::Unknown,
            Rest::Nothing => *rest = Rest::Head { seq, due },
            Rest::Head { seq: head, .. } | Rest::Dead { seq: head } if seq < head => {
                *rest = Rest::Head { seq, due };
            }
            _ => {}
        }
        self.write_row(lane, item, state, now);
    }

    fn write_row(&mut self, lane: usize, item: Item, state: RowState, now: Now) {
        if item.origin == Origin::Log {
            self.settle(&item, now);
        }
        let version = match item.origin {
            Origin::Log => 0,
            Origin::Stored { version } => version,
        };
        let row = StoredDelivery {
            event: item.event,
            state,
            attempts: item.attempts,
            failure: item.failure.map(|failure| *failure).unwrap_or_default(),
            version,
        };
        self.write_put(lane, row, now);
    }

    /// Forgets what was loaded of a lane; it is still stored.
    pub(super) fn drop_loaded(&mut self, lane: usize) {
        let queue = std::mem::replace(&mut self.lanes[lane].loaded, Queue::new());
        for id in self.empty_queue(queue) {
            self.forget_queued(id);
        }
    }

    /// Forgets what was loaded of a lane from a place on. Says whether there was any.
    fn drop_loaded_behind(&mut self, lane: usize, seq: Seq) -> bool {
        let last = self.lanes[lane].loaded.last();
        if last.is_none_or(|last| self.items[last].seq() < seq) {
            return false;
        }
        let queue = std::mem::replace(&mut self.lanes[lane].loaded, Queue::new());
        for id in self.empty_queue(queue) {
            if self.items[id].seq() < seq {
                self.lanes[lane].loaded.push_back(&mut self.items, id);
            } else {
                self.forget_queued(id);
            }
        }
        true
    }

    /// The lane of a delivery; one without a key gets one as soon as it does not just end well.
    pub(super) fn lane_for(&mut self, id: usize) -> usize {
        if self.items[id].lane == Item::NO_LANE {
            let event = &self.items[id].event;
            let (shard, lane) = (event.shard, Lane::of(event));
            self.items[id].lane = self.lane_of(shard, lane);
        }
        self.items[id].lane
    }
}
