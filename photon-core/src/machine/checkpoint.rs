//! When the progress of a subscription is written down.

use std::time::Duration;

use super::outage::Outage;
use crate::time::Mono;

/// Decides when a commit is due. It counts; what a commit holds is the caller's.
///
/// Report what was settled with [`handle_settled`](Self::handle_settled), and what must not wait with
/// [`handle_urgent`](Self::handle_urgent). When [`poll_commit`](Self::poll_commit) says so, write all that was
/// reported until then, and report the end of that write exactly once, with
/// [`handle_committed`](Self::handle_committed) or [`handle_failed`](Self::handle_failed). One commit is in
/// flight at a time. What a failed one was to cover is due again.
#[derive(Debug, Clone)]
pub struct Coalescer {
    every: u64,
    interval: Duration,
    pending: Batch,
    in_flight: Option<Batch>,
    outage: Outage,
}

/// What one commit is to cover.
#[derive(Debug, Clone, Default)]
struct Batch {
    settled: u64,
    urgent: bool,
    /// When the first of it was reported; `None` if nothing was.
    since: Option<Mono>,
}

impl Coalescer {
    /// Commits after `every` settled deliveries, at least 1, or `interval` after the first of them, whichever
    /// comes first.
    pub fn new(every: u32, interval: Duration) -> Self {
        Self {
            every: u64::from(every.max(1)),
            interval,
            pending: Batch::default(),
            in_flight: None,
            outage: Outage::default(),
        }
    }

    /// So many more deliveries are settled.
    pub fn handle_settled(&mut self, count: u64, now: Mono) {
        if count > 0 {
            self.pending.settled = self.pending.settled.saturating_add(count);
            self.pending.since.get_or_insert(now);
        }
    }

    /// Something waits for the next commit, such as a delivery to park or a drain: write as soon as possible,
    /// even if nothing was settled.
    pub fn handle_urgent(&mut self, now: Mono) {
        self.pending.urgent = true;
        self.pending.since.get_or_insert(now);
    }

    /// Whether to start a commit now. If so, it counts as in flight, and covers all that was reported.
    #[must_use]
    pub fn poll_commit(&mut self, now: Mono) -> bool {
        let due = self.next_commit().is_some_and(|at| at <= now);
        if due {
            self.in_flight = Some(std::mem::take(&mut self.pending));
        }
        due
    }

    /// When [`poll_commit`](Self::poll_commit) will say yes if nothing more is reported; it may be past.
    /// `None` while a commit is in flight or nothing waits.
    pub fn next_commit(&self) -> Option<Mono> {
        if self.in_flight.is_some() {
            return None;
        }
        let since = self.pending.since?;
        let full = self.pending.urgent || self.pending.settled >= self.every;
        let due = if full { since } else { since + self.interval };
        Some(due.max(self.outage.retry_at()))
    }

    /// The store took the commit in flight. Returns how long commits had been failing, if they had.
    pub fn handle_committed(&mut self, now: Mono) -> Option<Duration> {
        self.in_flight.take()?;
        self.outage.handle_succeeded(now)
    }

    /// The commit in flight failed, or nobody knows; it is tried again, together with what came since. Returns
    /// whether the log should mention it.
    pub fn handle_failed(&mut self, now: Mono) -> bool {
        let Some(failed) = self.in_flight.take() else {
            return false;
        };
        self.pending.settled = self.pending.settled.saturating_add(failed.settled);
        self.pending.urgent |= failed.urgent;
        // Older than anything that came since.
        self.pending.since = failed.since;
        self.outage.handle_failed(now)
    }

    /// How many settled deliveries no acknowledged commit covers: what a crash would repeat.
    pub fn uncommitted(&self) -> u64 {
        self.pending.settled.saturating_add(self.in_flight.as_ref().map_or(0, |batch| batch.settled))
    }

    /// Whether a commit is in flight.
    pub fn is_committing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether everything reported is covered by acknowledged commits.
    pub fn is_clean(&self) -> bool {
        self.in_flight.is_none() && self.pending.since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What can happen between two polls.
    #[derive(Debug, Clone)]
    enum Op {
        Settle(u64),
        Urgent,
        Advance(u64),
        Succeed,
        Fail,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u64..20).prop_map(Op::Settle),
            1 => Just(Op::Urgent),
            4 => (0u64..300_000).prop_map(Op::Advance),
            3 => Just(Op::Succeed),
            2 => Just(Op::Fail),
        ]
    }

    /// Everything that was ever reported, one entry each, with the time and what became of it.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fate {
        Waits,
        InFlight,
        Written,
    }

    #[derive(Debug, Clone, Copy)]
    struct Item {
        at: Mono,
        urgent: bool,
        fate: Fate,
    }

    #[derive(Default)]
    struct Oracle {
        items: Vec<Item>,
        flying: bool,
        retry_at: Mono,
        wait: u64,
    }

    impl Oracle {
        fn with(&self, fate: Fate) -> impl Iterator<Item = &Item> {
            self.items.iter().filter(move |item| item.fate == fate)
        }

        fn move_all(&mut self, from: Fate, to: Fate) {
            self.items.iter_mut().filter(|item| item.fate == from).for_each(|item| item.fate = to);
        }

        fn is_due(&self, every: usize, interval: Duration, now: Mono) -> bool {
            let waiting: Vec<_> = self.with(Fate::Waits).collect();
            !self.flying
                && now >= self.retry_at
                && (waiting.iter().filter(|item| !item.urgent).count() >= every
                    || waiting.iter().any(|item| item.urgent || now.since(item.at) >= interval))
        }

        fn uncommitted(&self) -> usize {
            self.items.iter().filter(|item| !item.urgent && item.fate != Fate::Written).count()
        }
    }

    proptest! {
        #[test]
        fn p04_the_coalescer_is_due_when_a_naive_one_is_and_drops_nothing(
            every in 1u32..30,
            interval_ms in 0u64..400,
            ops in proptest::collection::vec(op(), 1..200),
        ) {
            let interval = Duration::from_millis(interval_ms);
            let mut coalescer = Coalescer::new(every, interval);
            let mut oracle = Oracle::default();
            let mut now = Mono(7);
            for op in ops {
                match op {
                    Op::Settle(count) => {
                        coalescer.handle_settled(count, now);
                        for _ in 0..count {
                            oracle.items.push(Item { at: now, urgent: false, fate: Fate::Waits });
                        }
                    }
                    Op::Urgent => {
                        coalescer.handle_urgent(now);
                        oracle.items.push(Item { at: now, urgent: true, fate: Fate::Waits });
                    }
                    Op::Advance(micros) => now = now + Duration::from_micros(micros),
                    Op::Succeed if oracle.flying => {
                        coalescer.handle_committed(now);
                        oracle.move_all(Fate::InFlight, Fate::Written);
                        (oracle.flying, oracle.retry_at, oracle.wait) = (false, Mono(0), 0);
                    }
                    Op::Fail if oracle.flying => {
                        coalescer.handle_failed(now);
                        oracle.move_all(Fate::InFlight, Fate::Waits);
                        oracle.flying = false;
                        oracle.wait = if oracle.wait == 0 { 100 } else { (oracle.wait * 2).min(5_000) };
                        oracle.retry_at = now + Duration::from_millis(oracle.wait);
                    }
                    // Nothing is in flight: the report is a mistake and changes nothing.
                    Op::Succeed => prop_assert_eq!(coalescer.handle_committed(now), None),
                    Op::Fail => prop_assert!(!coalescer.handle_failed(now)),
                }
                let due = oracle.is_due(every as usize, interval, now);
                prop_assert_eq!(coalescer.next_commit().is_some_and(|at| at <= now), due);
                if let Some(at) = coalescer.next_commit().filter(|at| *at > now) {
                    prop_assert!(oracle.is_due(every as usize, interval, at));
                    prop_assert!(!oracle.is_due(every as usize, interval, at - Duration::from_micros(1)));
                }
                prop_assert_eq!(coalescer.poll_commit(now), due);
                if due {
                    oracle.move_all(Fate::Waits, Fate::InFlight);
                    oracle.flying = true;
                }
                prop_assert_eq!(coalescer.is_committing(), oracle.flying);
                prop_assert_eq!(coalescer.uncommitted(), oracle.uncommitted() as u64);
                let clean = oracle.with(Fate::Written).count() == oracle.items.len() && !oracle.flying;
                prop_assert_eq!(coalescer.is_clean(), clean);
            }
        }
    }

    #[test]
    fn p10_an_urgent_commit_waits_out_the_outage_too() {
        let mut coalescer = Coalescer::new(10, Duration::from_secs(1));
        coalescer.handle_urgent(Mono(0));
        assert!(coalescer.poll_commit(Mono(0)));
        assert!(coalescer.handle_failed(Mono(0)), "the first failure is said");
        coalescer.handle_urgent(Mono(1));
        assert!(!coalescer.poll_commit(Mono(99_999)));
        assert!(coalescer.poll_commit(Mono(100_000)));
        assert_eq!(coalescer.handle_committed(Mono(120_000)), Some(Duration::from_millis(120)));
        assert!(coalescer.is_clean());
    }
}
