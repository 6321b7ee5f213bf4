//! Reading the log: when, how much, and what becomes of the records.

use super::{Item, Notice, PREFETCH_BYTES, Ready, Subscription};
use crate::event::Event;
use crate::ids::Shard;
use crate::machine::lanes::Queue;
use crate::store::{Cursor, Lane, ReadBatch, ReadLimit, ShardRead};
use crate::time::Now;

/// The most records of one read: more would only delay the first of them.
const READ_RECORDS: usize = 512;

/// What to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Where the reader stands in every shard that is worked on.
    pub cursors: Vec<Cursor>,
    /// How much there is room for.
    pub limit: ReadLimit,
    assignment: u64,
}

impl Subscription {
    /// There may be new records.
    pub fn handle_wake(&mut self) {
        self.may_have_more = true;
    }

    /// What to read, if there is room for it. The next one follows after
    /// [`handle_read`](Self::handle_read).
    pub fn poll_read(&mut self, now: Now) -> Option<Read> {
        if self.draining || self.paused || self.read_in_flight || !self.may_have_more {
            return None;
        }
        if self.is_held_up(now) {
            return None;
        }
        if self.is_stuck() {
            self.relieve(now);
        }
        let records = self.room()?;
        let cursors: Vec<Cursor> = self
            .assigned()
            .filter_map(|(shard, _)| Some(Cursor { shard, after: self.shard(shard)?.mark.position() }))
            .collect();
        if cursors.is_empty() {
            return None;
        }
        self.may_have_more = false;
        self.read_in_flight = true;
        let bytes = PREFETCH_BYTES.saturating_sub(self.queued_bytes).max(1);
        Some(Read { cursors, limit: ReadLimit { records, bytes }, assignment: self.assignment })
    }

    /// Takes in what a read brought, or that it failed. Whoever failed waits before the next one.
    pub fn handle_read(&mut self, read: &Read, result: Option<ReadBatch>, now: Now) {
        self.read_in_flight = false;
        // What was read for shards that changed owner meanwhile would leave gaps: read again.
        let Some(batch) = result.filter(|_| read.assignment == self.assignment) else {
            self.may_have_more = true;
            return;
        };
        let bytes: usize = batch.records.iter().map(|event| event.payload.len()).sum();
        if batch.records.len() >= read.limit.records || bytes >= read.limit.bytes || has_rest(read, &batch) {
            self.may_have_more = true;
        }
        for event in batch.records {
            self.take_in(event, now);
        }
        for (cursor, shard_read) in read.cursors.iter().zip(&batch.shards) {
            self.pass(*cursor, *shard_read, now);
        }
    }

    /// How many records there is room for, if it is worth a read.
    fn room(&self) -> Option<usize> {
        // A part is kept for stored deliveries, so that a backlog in the log never locks them out.
        let queue = self.log_places();
        let waiting = self.queued - self.queued_stored;
        if waiting > queue / 2 || self.queued_bytes >= PREFETCH_BYTES {
            return None;
        }
        // What is to be stored is in memory until the store confirms it.
        let window = (self.settings.window as usize).saturating_sub(self.unsettled + self.puts);
        let room = (queue - waiting).min(window).min(READ_RECORDS);
        (room > 0).then_some(room)
    }

    fn log_places(&self) -> usize {
        (self.settings.prefetch as usize - self.stored_places()).max(1)
    }

    /// How many stored deliveries may wait in memory.
    pub(super) fn stored_places(&self) -> usize {
        (self.settings.prefetch as usize / 4).max(1)
    }

    fn take_in(&mut self, event: Event, now: Now) {
        let (shard, seq) = (event.shard, event.seq);
        let Some(state) = self.shard_mut(shard) else { return };
        state.moved = true;
        if !state.mark.read(seq) {
            self.pass_settled(shard, now);
            return;
        }
        if state.stored_above.remove(&seq) {
            // It was stored by an earlier owner: that row is the delivery.
            state.mark.settle(seq);
            self.pass_settled(shard, now);
            return;
        }
        let watched = state.trials.watches(seq);
        self.unsettled += 1;
        if event.key.is_none() {
            let id = self.items.insert(Item { watched, ..Item::from_log(event) });
            self.count_in(id);
            self.ready.push_back(Ready::Single(id));
            return;
        }
        let position = seq;
        let lane = self.lane_of(shard, Lane::of(&event));
        let id = self.items.insert(Item { lane, watched, ..Item::from_log(event) });
        self.count_in(id);
        let state = &mut self.lanes[lane];
        state.queue.push_back(&mut self.items, id);
        if state.is_held_by_store(&self.items, now.mono, position) {
            self.spill(lane, now);
        }
        self.evaluate(lane, now);
    }

    /// What an earlier owner settled was read again: the watermark that is stored can pass it, too, also if nothing
    /// else comes.
    fn pass_settled(&mut self, shard: Shard, now: Now) {
        let persist = self.persist;
        let Some(state) = self.shard_mut(shard).filter(|state| persist && !state.dirty) else { return };
        state.dirty = true;
        self.coalescer.handle_settled(1, now.mono);
    }

    /// The reader stands behind everything that a read saw of a shard.
    fn pass(&mut self, cursor: Cursor, read: ShardRead, now: Now) {
        let Some(state) = self.shard_mut(read.shard) else { return };
        let before = state.mark.position();
        state.mark.advance(read.through.max(read.floor));
        state.moved |= state.mark.position() > before;
        let shrunk = read.end < cursor.after && !state.warned_shrunk;
        state.warned_shrunk |= shrunk;
        if read.floor > cursor.after {
            self.notices.push_back(Notice::Gap { shard: read.shard, after: cursor.after, floor: read.floor });
        }
        if shrunk {
            self.notices.push_back(Notice::Shrunk { shard: read.shard, after: cursor.after, end: read.end });
        }
        self.release_behind(read.shard, now);
    }

    /// Lets lanes go on that waited for the reader.
    fn release_behind(&mut self, shard: Shard, now: Now) {
        loop {
            let Some(state) = self.shard_mut(shard) else { return };
            let position = state.mark.position();
            let Some((seq, lane)) = state.behind.first().copied().filter(|(seq, _)| *seq <= position) else {
                return;
            };
            state.behind.remove(&(seq, lane));
            self.evaluate(lane, now);
        }
    }

    /// Whether memory is full of deliveries of which none can run, while handlers could.
    fn is_stuck(&self) -> bool {
        self.persist
            && self.ready.is_empty()
            && self.running < self.settings.concurrency as usize
            && self.room().is_none()
            && self.queued > 0
            && !self.is_in_court()
            && !self.is_ahead()
    }

    /// Stores what waits in memory for a retry, or behind a delivery that has run for longer than `park_after`, to
    /// make room for others.
    fn relieve(&mut self, now: Now) {
        let patience = self.settings.park_after;
        self.relief_at = None;
        let mut held = Vec::new();
        for (id, lane) in &self.lanes {
            if lane.in_ready || lane.queue.first().is_none() {
                continue;
            }
            match lane.held_up_at(patience) {
                // A busy key is no reason to store what will run in a moment.
                Some(at) if at > now.mono => {
                    self.relief_at = Some(self.relief_at.map_or(at, |earlier| earlier.min(at)));
                }
                Some(_) if self.crowded.contains(&id) => {}
                _ => held.push(id),
            }
        }
        for lane in held {
            self.spill(lane, now);
            self.evaluate(lane, now);
        }
    }

    /// Stores everything that a lane has read from the log and not run.
    pub(super) fn spill(&mut self, lane: usize, now: Now) {
        let queue = std::mem::replace(&mut self.lanes[lane].queue, Queue::new());
        for id in self.empty_queue(queue) {
            self.count_out(id);
            let item = self.items.remove(id);
            self.store_waiting(lane, item, now);
        }
    }
}

/// Whether there is more though the limit was not reached, as where a store divides it among its shards. Only a read
/// that came on counts: the end of a log may hold nothing that is ever returned.
fn has_rest(read: &Read, batch: &ReadBatch) -> bool {
    let mut shards = read.cursors.iter().zip(&batch.shards);
    shards.any(|(cursor, read)| read.through > cursor.after)
        && batch.shards.iter().any(|read| read.through < read.end)
}
