//! Stored deliveries on their way back into memory.

use super::{Item, Subscription};
use crate::ids::Shard;
use crate::machine::lanes::{Origin, Rest};
use crate::planted::{Bug, is_planted};
use crate::store::{Head, Lane, RowState, StoredDelivery};
use crate::time::{Mono, Now};

/// The most rows of a lane that are loaded at a time.
const LOAD_ROWS: usize = 32;

/// The first live rows of a lane are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// The shard.
    pub shard: Shard,
    /// The lane.
    pub lane: Lane,
    /// At most so many rows.
    pub limit: usize,
    number: u64,
}

impl Subscription {
    /// The next lane whose rows are wanted, if there is room for them.
    pub fn poll_load(&mut self) -> Option<Load> {
        let room = self.stored_places().saturating_sub(self.queued_stored);
        if self.draining || self.paused || room == 0 {
            return None;
        }
        let lane = self.loads.pop_front()?;
        self.load_number += 1;
        let state = &mut self.lanes[lane];
        state.load_number = self.load_number;
        Some(Load {
            shard: state.shard,
            lane: state.lane.clone(),
            limit: room.min(LOAD_ROWS),
            number: self.load_number,
        })
    }

    /// Takes in the rows of a lane, or that they could not be read.
    pub fn handle_loaded(&mut self, load: &Load, rows: Option<Vec<StoredDelivery>>, now: Now) {
        let key = (load.shard, load.lane.clone());
        // The lane may be another one of that name, made after the shard was lost and came back.
        let asked = |lane: &usize| self.lanes[*lane].loading && self.lanes[*lane].load_number == load.number;
        let Some(lane) = self.lane_index.get(&key).copied().filter(asked) else { return };
        self.loading -= 1;
        let state = &mut self.lanes[lane];
        state.loading = false;
        let stale = std::mem::take(&mut state.stale);
        match rows {
            Some(rows) if !stale || is_planted(Bug::StaleLoadTaken) => {
                self.take_rows(lane, rows, load.limit, now);
            }
            // It asks again: the driver waits in between if the store failed.
            _ => state.rest = Rest::Unknown,
        }
        self.evaluate(lane, now);
    }

    fn take_rows(&mut self, lane: usize, rows: Vec<StoredDelivery>, limit: usize, now: Now) {
        let full = rows.len() >= limit;
        if !full {
            self.count_rows(lane, |_| rows.len() as u64);
        }
        self.lanes[lane].rest = if full { Rest::Unknown } else { Rest::Nothing };
        let shard = self.lanes[lane].shard;
        for row in rows {
            let seq = row.event.seq;
            if matches!(row.state, RowState::Dead { .. }) {
                self.lanes[lane].rest = Rest::Dead { seq };
                return;
            }
            let watched =
                self.lanes[lane].watched || self.shard(shard).is_some_and(|state| state.trials.knows(seq));
            let item = Item {
                watched,
                attempts: if is_planted(Bug::AttemptsResetOnRestart) { 0 } else { row.attempts },
                failure: Some(Box::new(row.failure)),
                not_before: due_of(row.state, now),
                origin: Origin::Stored { version: row.version },
                lane,
                ..Item::from_log(row.event)
            };
            let id = self.items.insert(item);
            self.count_in(id);
            self.lanes[lane].loaded.push_back(&mut self.items, id);
        }
    }

    /// Takes in the heads of all lanes of a shard: at the beginning, and after somebody redrove or discarded dead
    /// letters.
    pub fn handle_heads(&mut self, shard: Shard, heads: Vec<Head>, now: Now) {
        let known: Vec<usize> =
            self.lanes.iter().filter(|(_, lane)| lane.shard == shard).map(|(id, _)| id).collect();
        for lane in &known {
            if self.lanes[*lane].rest != Rest::Nothing {
                self.distrust(*lane);
            }
        }
        for head in heads {
            let is_dead = matches!(head.state, RowState::Dead { .. });
            if is_dead && is_planted(Bug::DeadKeyForgottenOnRestart) {
                continue;
            }
            let lane = self.lane_of(shard, head.lane);
            let state = &mut self.lanes[lane];
            let rows = head.rows;
            let is_idle = !state.running && !state.loading && state.pending == 0;
            if is_idle && state.loaded.first().is_none() {
                state.rest = match head.state {
                    RowState::Dead { .. } => Rest::Dead { seq: head.seq },
                    live => Rest::Head { seq: head.seq, due: due_of(live, now) },
                };
                self.count_rows(lane, |_| rows);
            } else {
                self.distrust(lane);
            }
            self.evaluate(lane, now);
        }
        for lane in known {
            self.evaluate(lane, now);
        }
    }
}

fn due_of(state: RowState, now: Now) -> Mono {
    match state {
        RowState::Parked { due } if due > now.wall => now.mono + due.since(now.wall),
        _ => Mono(0),
    }
}
