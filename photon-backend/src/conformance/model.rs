//! What a store should hold, kept as naively as it can be.

use std::collections::{BTreeMap, BTreeSet};

use photon_core::event::Event;
use photon_core::ids::{Incarnation, Seq, Shard};
use photon_core::store::{
    Checkpoint, Claim, DeadLetterFilter, Fence, Head, Lane, RowRef, ShardCommit, StoredDelivery, Trial,
};

/// One shard of the log.
#[derive(Default)]
pub(super) struct ModelLog {
    /// Every event ever appended, the trimmed ones too.
    pub(super) events: Vec<Event>,
    pub(super) floor: Seq,
    pub(super) end: Seq,
    pub(super) dedup: BTreeMap<String, Seq>,
}

impl ModelLog {
    pub(super) fn after(&self, after: Seq) -> Vec<Event> {
        self.events.iter().filter(|e| e.seq > after && e.seq > self.floor).cloned().collect()
    }
}

/// One shard of one subscription.
#[derive(Default)]
pub(super) struct ModelShard {
    pub(super) checkpoint: Checkpoint,
    pub(super) rows: BTreeMap<Seq, StoredDelivery>,
    pub(super) marks: BTreeSet<Seq>,
    pub(super) epoch: u64,
    pub(super) holder: Option<Incarnation>,
    pub(super) trials: Vec<Trial>,
    /// Whose work did not end in order: the last owner's, and that of the one before the present one.
    pub(super) owner: Option<Incarnation>,
    pub(super) unended: Option<Incarnation>,
    pub(super) resets: u64,
}

impl ModelShard {
    pub(super) fn fence(&self) -> Option<Fence> {
        self.holder.map(|token| Fence { epoch: self.epoch, token })
    }

    /// Writes a commit. The places in conflict, or `None` if it is fenced. Versions of rows that were put
    /// are filled in later, from the store.
    pub(super) fn commit(&mut self, commit: &ShardCommit) -> Option<BTreeSet<Seq>> {
        if self.fence() != Some(commit.fence) {
            return None;
        }
        let mut conflicts = BTreeSet::new();
        for put in &commit.puts {
            let seq = put.event.seq;
            let fits = match self.rows.get(&seq) {
                Some(row) => row.version == put.version,
                None => put.version == 0 && !self.marks.contains(&seq) && !self.checkpoint.covers(seq),
            };
            if fits {
                self.rows.insert(seq, put.clone());
            } else {
                conflicts.insert(seq);
            }
        }
        if commit.checkpoint.replaces(&self.checkpoint) {
            self.checkpoint = commit.checkpoint.clone();
        }
        self.trials.clone_from(&commit.trials);
        for end in &commit.ends {
            match self.rows.get(&end.seq).map(|row| row.version) {
                Some(version) if version == end.version => self.close(end.seq),
                Some(_) => drop(conflicts.insert(end.seq)),
                None => {}
            }
        }
        let watermark = self.checkpoint.watermark;
        self.marks.retain(|seq| *seq > watermark);
        Some(conflicts)
    }

    /// Goes on after another place. Returns how many rows are gone.
    pub(super) fn reset(&mut self, after: Seq) -> u64 {
        let rows = self.rows.len();
        self.rows.retain(|seq, _| *seq <= after);
        self.marks.retain(|seq| *seq <= after);
        self.checkpoint = Checkpoint { watermark: after, ranges: Vec::new() };
        self.holder = None;
        self.trials.clear();
        self.owner = None;
        self.resets += 1;
        (rows - self.rows.len()) as u64
    }

    pub(super) fn close(&mut self, seq: Seq) {
        self.rows.remove(&seq);
        if !self.checkpoint.covers(seq) {
            self.marks.insert(seq);
        }
    }

    pub(super) fn dead(&self, filter: &DeadLetterFilter) -> Vec<Seq> {
        self.rows.values().filter(|row| filter.matches(row)).map(|row| row.event.seq).collect()
    }

    /// The places and versions of the first live rows of a lane.
    pub(super) fn lane(&self, lane: &Lane, limit: usize) -> Vec<(Seq, u64)> {
        let live = self.rows.values().filter(|row| row.state.is_live() && row.lane() == *lane);
        live.take(limit).map(|row| (row.event.seq, row.version)).collect()
    }

    pub(super) fn heads(&self) -> Vec<Head> {
        let mut lanes: BTreeMap<Lane, Vec<&StoredDelivery>> = BTreeMap::new();
        for row in self.rows.values().filter(|row| row.state.is_live()) {
            lanes.entry(row.lane()).or_default().push(row);
        }
        let mut heads: Vec<Head> = lanes
            .into_iter()
            .map(|(lane, rows)| Head {
                lane,
                seq: rows[0].event.seq,
                state: rows[0].state,
                version: rows[0].version,
                rows: rows.len() as u64,
            })
            .collect();
        heads.sort_by_key(|head| head.seq);
        heads
    }

    /// Rows, and the marks that the checkpoint does not cover: those in its ranges may be shown or not.
    pub(super) fn refs(&self) -> Vec<RowRef> {
        let rows = self.rows.values().map(|row| RowRef { seq: row.event.seq, state: Some(row.state) });
        let marks = self.marks.iter().map(|seq| RowRef { seq: *seq, state: None });
        let mut refs: Vec<RowRef> = rows.chain(marks).filter(|row| self.shows(*row)).collect();
        refs.sort_by_key(|row| row.seq);
        refs
    }

    pub(super) fn shows(&self, row: RowRef) -> bool {
        row.state.is_some() || !self.checkpoint.covers(row.seq)
    }
}

/// The log and the subscriptions to it, and the members with their heartbeats.
pub(super) struct Model {
    pub(super) log: Vec<ModelLog>,
    pub(super) subscriptions: Vec<Vec<ModelShard>>,
    pub(super) members: BTreeMap<Incarnation, u64>,
}

impl Model {
    pub(super) fn new(shards: u16, subscriptions: usize) -> Self {
        let position = || (0..shards).map(|_| ModelShard::default()).collect();
        Self {
            log: (0..shards).map(|_| ModelLog::default()).collect(),
            subscriptions: (0..subscriptions).map(|_| position()).collect(),
            members: BTreeMap::new(),
        }
    }

    /// Who is said to hold the shard; `None` if the claim is granted under a new epoch.
    pub(super) fn refuses(&self, subscription: usize, claim: &Claim) -> Option<Incarnation> {
        let holder = self.subscriptions[subscription][usize::from(claim.shard.shard.0)].holder?;
        let beat = *self.members.get(&holder)?;
        (claim.replace != Some((holder, beat))).then_some(holder)
    }

    pub(super) fn release(&mut self, incarnation: Incarnation, shard: Option<(usize, Shard)>) {
        for (number, shards) in self.subscriptions.iter_mut().enumerate() {
            for (index, position) in (0..).map(Shard).zip(shards) {
                if position.holder == Some(incarnation) && shard.is_none_or(|shard| shard == (number, index))
                {
                    position.holder = None;
                    if shard.is_some() {
                        position.owner = None;
                    }
                }
            }
        }
    }
}
