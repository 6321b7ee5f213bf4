//! The stored deliveries of one shard of one subscription.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Included, Unbounded};

use photon_core::ids::Seq;
use photon_core::store::{Head, Lane, RowEnd, RowRef, RowState, StoredDelivery};
use photon_core::time::Timestamp;

/// Rows, marks of ended rows that no checkpoint covers, and the order of the live rows in each lane.
#[derive(Default)]
pub(crate) struct ShardRows {
    rows: BTreeMap<Seq, StoredDelivery>,
    marks: BTreeSet<Seq>,
    lanes: HashMap<Lane, BTreeSet<Seq>>,
    /// The first place of each lane in `lanes`.
    heads: BTreeSet<Seq>,
}

/// What lies at a place.
#[cfg(feature = "nats")]
pub(crate) enum Place {
    Empty,
    Mark,
    Row(Box<StoredDelivery>),
}

/// For engines that write down what changed, and rebuild the rows from that.
#[cfg(feature = "nats")]
impl ShardRows {
    pub(crate) fn place(&self, seq: Seq) -> Place {
        match self.rows.get(&seq) {
            Some(row) => Place::Row(Box::new(row.clone())),
            None if self.marks.contains(&seq) => Place::Mark,
            None => Place::Empty,
        }
    }

    /// All places that are not empty, by seq.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Seq, Place)> {
        let seqs: BTreeSet<Seq> = self.rows.keys().chain(&self.marks).copied().collect();
        seqs.into_iter().map(|seq| (seq, self.place(seq)))
    }

    pub(crate) fn set_place(&mut self, seq: Seq, place: Place) {
        self.close(seq, true);
        self.marks.remove(&seq);
        match place {
            Place::Empty => {}
            Place::Mark => drop(self.marks.insert(seq)),
            Place::Row(row) => self.store(*row),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

impl ShardRows {
    /// Stores a delivery. `covered`: whether the checkpoint that was stored before counts it as settled.
    /// Returns whether the row is what the caller wanted; `false` if somebody else changed it.
    pub(crate) fn put(&mut self, row: &StoredDelivery, covered: bool) -> bool {
        let seq = row.event.seq;
        match self.rows.get(&seq) {
            Some(old) if old.version == row.version => {}
            Some(old) => return is_same_write(old, row),
            // A new row for a place that has a mark, or that is settled without a row, is the repetition of
            // a put whose row has come to an end since.
            None if row.version > 0 || covered || self.marks.contains(&seq) => return false,
            None => {}
        }
        self.store(StoredDelivery { version: row.version + 1, ..row.clone() });
        true
    }

    /// Ends a row. Returns `false` if it has another version.
    pub(crate) fn end(&mut self, end: RowEnd, covered: bool) -> bool {
        match self.rows.get(&end.seq) {
            None => true,
            Some(row) if row.version != end.version => false,
            Some(_) => {
                self.close(end.seq, covered);
                true
            }
        }
    }

    /// Removes the marks that the watermark has reached.
    pub(crate) fn sweep(&mut self, watermark: Seq) {
        self.marks = self.marks.split_off(&Seq(watermark.0.saturating_add(1)));
    }

    /// Removes a row, and leaves a mark if no checkpoint covers its place.
    pub(crate) fn close(&mut self, seq: Seq, covered: bool) {
        if let Some(row) = self.rows.remove(&seq) {
            self.unlink(&row);
            if !covered {
                self.marks.insert(seq);
            }
        }
    }

    /// Removes the rows and marks behind a place. Returns how many rows there were.
    pub(crate) fn remove_after(&mut self, seq: Seq) -> u64 {
        let next = Seq(seq.0.saturating_add(1));
        self.marks.split_off(&next);
        let gone = self.rows.split_off(&next);
        for row in gone.values() {
            self.unlink(row);
        }
        gone.len() as u64
    }

    /// Makes a dead row run again.
    pub(crate) fn redrive(&mut self, seq: Seq, now: Timestamp) {
        if let Some(mut row) = self.rows.get(&seq).cloned() {
            row.state = RowState::Parked { due: now };
            row.attempts = 0;
            row.failure.reason = None;
            row.failure.first_failed = None;
            row.failure.deferred_since = None;
            row.version += 1;
            self.store(row);
        }
    }

    pub(crate) fn heads(&self, after: Seq, limit: usize) -> Vec<Head> {
        let seqs = self.heads.range((Excluded(after), Unbounded)).take(limit);
        seqs.filter_map(|seq| self.head(&self.rows.get(seq)?.lane())).collect()
    }

    fn head(&self, lane: &Lane) -> Option<Head> {
        let seqs = self.lanes.get(lane)?;
        let row = self.rows.get(seqs.first()?)?;
        Some(Head {
            lane: lane.clone(),
            seq: row.event.seq,
            state: row.state,
            version: row.version,
            rows: seqs.len() as u64,
        })
    }

    pub(crate) fn lane(&self, lane: &Lane, limit: usize) -> Vec<StoredDelivery> {
        let seqs = self.lanes.get(lane).into_iter().flatten().take(limit);
        seqs.filter_map(|seq| self.rows.get(seq).cloned()).collect()
    }

    pub(crate) fn rows_in(&self, after: Seq, through: Seq) -> Vec<RowRef> {
        if after >= through {
            return Vec::new();
        }
        let range = (Excluded(after), Included(through));
        let rows = self.rows.range(range).map(|(seq, row)| RowRef { seq: *seq, state: Some(row.state) });
        let marks = self.marks.range(range).map(|seq| RowRef { seq: *seq, state: None });
        let mut all: Vec<RowRef> = rows.chain(marks).collect();
        all.sort_unstable_by_key(|row| row.seq);
        all
    }

    pub(crate) fn get(&self, seq: Seq) -> Option<&StoredDelivery> {
        self.rows.get(&seq)
    }

    pub(crate) fn after(&self, seq: Option<Seq>) -> impl Iterator<Item = &StoredDelivery> {
        let start = seq.map_or(Unbounded, Excluded);
        self.rows.range((start, Unbounded)).map(|(_, row)| row)
    }

    fn store(&mut self, row: StoredDelivery) {
        if let Some(old) = self.rows.remove(&row.event.seq) {
            self.unlink(&old);
        }
        self.link(&row);
        self.rows.insert(row.event.seq, row);
    }

    fn link(&mut self, row: &StoredDelivery) {
        if row.state.is_live() {
            self.change_lane(&row.lane(), |seqs| seqs.insert(row.event.seq));
        }
    }

    fn unlink(&mut self, row: &StoredDelivery) {
        if row.state.is_live() {
            self.change_lane(&row.lane(), |seqs| seqs.remove(&row.event.seq));
        }
    }

    fn change_lane(&mut self, lane: &Lane, change: impl FnOnce(&mut BTreeSet<Seq>) -> bool) {
        let seqs = self.lanes.entry(lane.clone()).or_default();
        let before = seqs.first().copied();
        change(seqs);
        let after = seqs.first().copied();
        if after.is_none() {
            self.lanes.remove(lane);
        }
        if before != after {
            before.map(|seq| self.heads.remove(&seq));
            after.map(|seq| self.heads.insert(seq));
        }
    }
}

/// Whether a stored row is what an earlier attempt of the same put left behind.
fn is_same_write(old: &StoredDelivery, put: &StoredDelivery) -> bool {
    old.version == put.version + 1
        && old.state == put.state
        && old.attempts == put.attempts
        && old.failure == put.failure
        && old.event == put.event
}
