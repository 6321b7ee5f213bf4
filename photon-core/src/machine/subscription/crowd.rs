//! How many deliveries are stored behind one of their key, and what happens when there are too many.

use super::{Notice, Subscription};
use crate::machine::lanes::Rest;
use crate::time::Now;

impl Subscription {
    /// The number of live rows of a lane changed by so many, or is known anew.
    pub(super) fn count_rows(&mut self, lane: usize, count: impl FnOnce(u64) -> u64) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        state.rows = count(state.rows);
        // The one that holds up the others is not behind itself.
        if state.rows > u64::from(self.settings.max_blocked) {
            self.crowded.insert(lane);
        } else {
            self.crowded.remove(&lane);
        }
    }

    /// Whether a key has as much stored behind a delivery that cannot run, or runs for long, as it may have: then
    /// nothing more is read, because it might be of that key.
    pub(super) fn is_held_up(&mut self, now: Now) -> bool {
        let holds_up = |lane: &usize| {
            let Some(state) = self.lanes.get(*lane) else { return false };
            if let Some(at) = state.held_up_at(self.settings.park_after) {
                return at <= now.mono;
            }
            let position = self.shard(state.shard).map(|shard| shard.mark.position());
            position.is_some_and(|position| state.is_held_by_store(&self.items, now.mono, position))
        };
        let lane = self.crowded.iter().copied().find(holds_up);
        if lane.is_some() != self.held_up {
            self.held_up = lane.is_some();
            self.notices.push_back(match lane.and_then(|lane| self.lanes.get(lane)) {
                Some(state) => Notice::HeldUp {
                    shard: state.shard,
                    lane: state.lane.clone(),
                    rows: state.rows,
                    dead: matches!(state.rest, Rest::Dead { .. }),
                },
                None => Notice::GoesOn,
            });
        }
        self.held_up
    }
}
