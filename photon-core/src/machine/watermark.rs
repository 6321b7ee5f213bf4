//! What is settled in one shard, as a low-water mark with ranges above it.

use std::collections::VecDeque;

use crate::ids::Seq;
use crate::planted::{Bug, is_planted};
use crate::store::{Checkpoint, SeqRange};

/// Follows which records of a shard are settled.
///
/// Report every record that is read, in order, with [`read`](Self::read); each end of work with
/// [`settle`](Self::settle); and how far the reader got with [`advance`](Self::advance). The watermark then
/// never passes a record that is unsettled, and gaps in the places never hold it. Memory is bounded by the number of
/// unsettled records, not by what is settled behind the oldest of them.
#[derive(Debug, Clone)]
pub struct Watermark {
    /// Unsettled records and runs of settled ones, ascending. The first is always unsettled.
    runs: VecDeque<Run>,
    unsettled: usize,
    /// Everything before the first run is settled up to here.
    mark: Seq,
    /// Where the reader stands.
    position: Seq,
    /// What an earlier owner settled above the watermark, not yet read again; ascending.
    known: VecDeque<SeqRange>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    first: Seq,
    last: Seq,
    settled: bool,
}

impl Watermark {
    /// Goes on from a stored checkpoint: the next record to read is the one after its watermark.
    pub fn new(checkpoint: &Checkpoint) -> Self {
        Self {
            runs: VecDeque::new(),
            unsettled: 0,
            mark: checkpoint.watermark,
            position: checkpoint.watermark,
            known: checkpoint.ranges.iter().copied().filter(|_| !is_planted(Bug::RangesNotLoaded)).collect(),
        }
    }

    /// Where the reader stands: everything up to here was reported.
    pub fn position(&self) -> Seq {
        self.position
    }

    /// Everything up to here is settled.
    pub fn watermark(&self) -> Seq {
        self.mark
    }

    /// How many records are read and unsettled.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// The oldest unsettled record.
    pub fn oldest(&self) -> Option<Seq> {
        self.runs.front().map(|run| run.first)
    }

    /// Takes in the next record of the shard. Returns false if it needs no work, because it was read before or
    /// an earlier owner settled it.
    pub fn read(&mut self, seq: Seq) -> bool {
        if seq <= self.position {
            return false;
        }
        self.position = seq;
        while self.known.front().is_some_and(|range| range.last < seq) {
            self.known.pop_front();
        }
        let settled = self.known.front().is_some_and(|range| range.contains(seq));
        if settled {
            self.push_settled(seq);
        } else {
            self.unsettled += 1;
            self.runs.push_back(Run { first: seq, last: seq, settled: false });
        }
        !settled
    }

    /// The reader has seen that there is nothing more up to `through`.
    pub fn advance(&mut self, through: Seq) {
        self.position = self.position.max(through);
        if self.runs.is_empty() {
            self.mark = self.position;
        }
    }

    /// The record at `seq` needs no more work. One that is not unsettled is left alone.
    pub fn settle(&mut self, seq: Seq) {
        let Some(index) = self.find(seq) else { return };
        if self.runs[index].settled {
            return;
        }
        self.unsettled -= 1;
        if index == 0 {
            self.runs.pop_front();
            self.mark = seq;
            self.pop_settled();
            return;
        }
        self.runs[index].settled = true;
        // The amortised cost of merging is constant: each merge removes at least half of the runs.
        if self.runs.len() > 64 + 4 * self.unsettled {
            self.merge();
        }
    }

    /// The checkpoint of everything settled so far.
    pub fn checkpoint(&self) -> Checkpoint {
        if is_planted(Bug::WatermarkIsMaximum) {
            let last = self.runs.iter().rfind(|run| run.settled).map(|run| run.last);
            return Checkpoint { watermark: last.unwrap_or(self.mark), ranges: Vec::new() };
        }
        let mut ranges: Vec<SeqRange> = Vec::new();
        let mut open = false;
        for run in &self.runs {
            match ranges.last_mut() {
                Some(range) if open && run.settled => range.last = run.last,
                _ if run.settled => ranges.push(SeqRange { first: run.first, last: run.last }),
                _ => {}
            }
            open = run.settled;
        }
        // What an earlier owner settled beyond the records that were read stays true. Between those and the reader
        // there are no records.
        let read = self.runs.back().map_or(self.mark, |run| run.last);
        for range in self.known.iter().filter(|range| range.last > self.position) {
            match ranges.last_mut() {
                Some(open) if range.contains(read) && open.last == read => open.last = range.last,
                _ => ranges.push(SeqRange { first: range.first.max(Seq(read.0 + 1)), last: range.last }),
            }
        }
        Checkpoint { watermark: self.mark, ranges }
    }

    fn find(&self, seq: Seq) -> Option<usize> {
        // In-order work settles the front: skip the search.
        if self.runs.front()?.first == seq {
            return Some(0);
        }
        let index = self.runs.partition_point(|run| run.last < seq);
        self.runs.get(index).filter(|run| run.first <= seq).map(|_| index)
    }

    fn push_settled(&mut self, seq: Seq) {
        match self.runs.back_mut() {
            None => self.mark = seq,
            Some(run) if run.settled => run.last = seq,
            Some(_) => self.runs.push_back(Run { first: seq, last: seq, settled: true }),
        }
    }

    fn pop_settled(&mut self) {
        while let Some(run) = self.runs.front().copied().filter(|run| run.settled) {
            self.mark = run.last;
            self.runs.pop_front();
        }
        if self.runs.is_empty() {
            self.mark = self.position;
        }
    }

    fn merge(&mut self) {
        let mut merged: VecDeque<Run> = VecDeque::with_capacity(2 * self.unsettled + 1);
        for run in &self.runs {
            match merged.back_mut() {
                Some(last) if last.settled && run.settled => last.last = run.last,
                _ => merged.push_back(*run),
            }
        }
        self.runs = merged;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Op {
        Read(u64),
        Advance(u64),
        Settle(usize),
        Restart,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1u64..4).prop_map(Op::Read),
            1 => (0u64..3).prop_map(Op::Advance),
            4 => any::<usize>().prop_map(Op::Settle),
            1 => Just(Op::Restart),
        ]
    }

    proptest! {
        #[test]
        fn p02_the_watermark_is_a_low_water_mark(ops in proptest::collection::vec(op(), 0..400)) {
            // The naive oracle: every record and whether it is settled, for ever.
            let mut oracle: BTreeMap<u64, bool> = BTreeMap::new();
            let mut mark = Watermark::new(&Checkpoint::default());
            let mut log: Vec<u64> = Vec::new();
            let mut last = Checkpoint::default();
            for op in ops {
                match op {
                    Op::Read(gap) => {
                        // After a restart the log is read again before it grows.
                        let next = log.iter().copied().find(|seq| *seq > mark.position().0);
                        let seq = next.unwrap_or_else(|| {
                            let seq = log.last().copied().unwrap_or(0).max(mark.position().0) + gap;
                            log.push(seq);
                            seq
                        });
                        let needs_work = mark.read(Seq(seq));
                        let settled = oracle.entry(seq).or_insert(false);
                        prop_assert_eq!(needs_work, !*settled, "record {}", seq);
                    }
                    Op::Advance(by) => {
                        // Never past a record that was not read.
                        let next = log.iter().copied().find(|seq| *seq > mark.position().0);
                        let through = (mark.position().0 + by).min(next.map_or(u64::MAX, |next| next - 1));
                        mark.advance(Seq(through));
                    }
                    Op::Settle(pick) => {
                        let read: Vec<u64> =
                            oracle.keys().copied().filter(|seq| *seq <= mark.position().0).collect();
                        if !read.is_empty() {
                            let seq = read[pick % read.len()];
                            mark.settle(Seq(seq));
                            oracle.insert(seq, true);
                        }
                    }
                    Op::Restart => {
                        let checkpoint = mark.checkpoint();
                        for pair in checkpoint.ranges.windows(2) {
                            prop_assert!(pair[0].last < pair[1].first);
                        }
                        for (seq, settled) in &oracle {
                            prop_assert_eq!(checkpoint.covers(Seq(*seq)), *settled, "record {}", seq);
                        }
                        mark = Watermark::new(&checkpoint);
                    }
                }
                let checkpoint = mark.checkpoint();
                prop_assert!(checkpoint.replaces(&last), "{:?} after {:?}", checkpoint, last);
                for (seq, settled) in &oracle {
                    prop_assert_eq!(checkpoint.covers(Seq(*seq)), *settled, "record {}", seq);
                }
                let open = oracle.range(..=mark.position().0).filter(|(_, settled)| !**settled).count();
                prop_assert_eq!(mark.unsettled(), open);
                last = checkpoint;
            }
        }
    }

    #[test]
    fn p05_memory_follows_the_unsettled_records_only() {
        let mut mark = Watermark::new(&Checkpoint::default());
        for seq in 1..=1_000_000 {
            mark.read(Seq(seq));
            if seq != 1 {
                mark.settle(Seq(seq));
            }
        }
        assert!(mark.runs.len() < 200, "{} runs for one unsettled record", mark.runs.len());
        assert_eq!(mark.checkpoint().ranges.len(), 1);
        mark.settle(Seq(1));
        assert_eq!(mark.watermark(), Seq(1_000_000));
    }
}
