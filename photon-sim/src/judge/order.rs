//! The order of the deliveries of one key.

use std::collections::BTreeMap;

use photon_core::options::OnDead;

use super::{Judge, Run};
use crate::history::Place;
use crate::scenario::Scenario;

impl Judge {
    pub(super) fn out_of_order(&self, run: &Run) -> Option<String> {
        let Run { group, place, key, who, .. } = *run;
        let same = |other: &Run| {
            other.group == group
                && (other.place == place || other.key == key && key.is_some() && other.place.0 == place.0)
        };
        for other in self.running.values().flatten().map(|run| &self.runs[*run]) {
            if same(other) && (other.who == who || !other.suspended) {
                return Some(format!("P3: {place:?} runs beside {:?} of the same key", other.place));
            }
        }
        key?;
        let earlier = self.log.range((place.0, 0)..place).filter(|(_, logged)| logged.key == key);
        for (earlier, _) in earlier {
            if !self.is_settled_for(run, *earlier) {
                return Some(format!(
                    "P3: {place:?} runs, but {earlier:?} before it, of the same key, is not settled"
                ));
            }
        }
        None
    }

    /// Whether a runner may take a delivery for settled: it settled it itself, or the store says so. What an earlier
    /// owner settled without writing it down is run again, and must not come after what follows it.
    fn is_settled_for(&self, run: &Run, place: Place) -> bool {
        let state = &self.groups[run.group];
        let Some(track) = state.tracks.get(&place) else { return false };
        let given_up = track.ever_dead || track.gave_up || track.alone >= self.scenario.max_attempts;
        let dead = state.plan.on_dead == OnDead::Continue && given_up;
        let here = track.last_done.is_some_and(|done| done.who == run.who && done.epoch == run.epoch);
        track.discarded || dead || here || track.done > 0 && state.has_ended(place)
    }

    /// The end of a delivery is never durable before those of all earlier ones of its key: after a crash these would
    /// run last.
    pub(super) fn ends_out_of_order(&self, group: usize, shard: u16) -> Option<String> {
        let state = &self.groups[group];
        let lenient = state.plan.on_dead == OnDead::Continue;
        let mut open: BTreeMap<u8, Place> = BTreeMap::new();
        for (place, logged) in self.log.range((shard, 0)..(shard + 1, 0)) {
            let (Some(key), Some(track)) = (logged.key, state.tracks.get(place)) else { continue };
            if track.discarded || lenient && track.ever_dead {
                continue;
            }
            if !state.has_ended(*place) {
                open.entry(key).or_insert(*place);
            } else if let Some(earlier) = open.get(&key) {
                return Some(format!(
                    "P3: the end of {place:?} is stored before that of {earlier:?}, which comes before it"
                ));
            }
        }
        None
    }

    /// A crash repeats a bounded number of deliveries.
    pub(super) fn too_many_again(&self, run: &Run) -> Option<String> {
        let again = self.groups[run.group].again.get(&(run.place.0, run.epoch))?;
        let Scenario { checkpoint_every, concurrency, window, .. } = self.scenario;
        let bound = (4 * checkpoint_every + concurrency + window) as usize;
        let exempt = self.scenario.store.fenced > 0;
        (again.len() > bound && !exempt).then(|| {
            format!(
                "P4: {} deliveries are repeated under epoch {}, at most {bound} may be",
                again.len(),
                run.epoch
            )
        })
    }

    /// The last completed runs of a key are in the order of the log.
    pub(super) fn last_runs_out_of_order(&self, group: usize) -> Option<String> {
        let state = &self.groups[group];
        let blocks = state.plan.on_dead == OnDead::BlockKey;
        let mut last: BTreeMap<(u16, u8), (Place, usize)> = BTreeMap::new();
        for (place, logged) in &self.log {
            let (Some(key), Some(track)) = (logged.key, state.tracks.get(place)) else { continue };
            // A rerun that ends dead or discarded, and a redrive under `continue`, are excepted.
            if track.discarded || track.ever_dead && !blocks {
                continue;
            }
            let Some(done) = track.last_counted else { continue };
            if let Some((before, run)) = last.get(&(place.0, key))
                && *run > done
                && !track.ever_dead
            {
                return Some(format!("P3: the last run of {before:?} comes after the last run of {place:?}"));
            }
            last.insert((place.0, key), (*place, done));
        }
        None
    }
}
