//! Stops a subscription whose attempts keep failing, and tries it again with one delivery.

use std::collections::VecDeque;
use std::time::Duration;

use crate::options::BreakerPolicy;
use crate::time::Mono;

/// Decides whether attempts may start, by how the last ones ended.
///
/// Ask [`may_start`](Self::may_start) before each attempt, and report those that start with
/// [`handle_started`](Self::handle_started) and every end with [`handle_ended`](Self::handle_ended). While it is
/// open nothing starts; at [`next_change`](Self::next_change) one attempt may, and its end closes the breaker or
/// opens it again.
#[derive(Debug, Clone)]
pub struct Breaker {
    policy: BreakerPolicy,
    /// How the last attempts ended, the oldest first: whether they failed.
    recent: VecDeque<bool>,
    failures: u32,
    state: BreakerState,
    /// The attempt that decides, while the breaker is half open.
    probe: Option<usize>,
    /// When it opened, and did not close since.
    open_since: Mono,
}

/// What a breaker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Attempts run.
    Closed,
    /// No attempt starts.
    Open {
        /// Until then.
        until: Mono,
    },
    /// One attempt runs, or may start, and decides.
    HalfOpen,
}

/// How an attempt ended, for the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The handler did its work.
    Well,
    /// The attempt failed.
    Failed,
    /// It says nothing: it was deferred or broken off.
    Neither,
}

/// That the breaker opened or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerChange {
    /// So many of the last attempts failed: nothing starts for a while.
    Opened {
        /// How many failed.
        failures: u32,
    },
    /// The attempt that was to decide failed, too.
    Reopened {
        /// How long it has been open.
        lasted: Duration,
    },
    /// The attempt that was to decide ended well.
    Closed {
        /// How long it had been open.
        lasted: Duration,
    },
}

impl Breaker {
    /// A closed breaker that has seen nothing.
    pub fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            recent: VecDeque::new(),
            failures: 0,
            state: BreakerState::Closed,
            probe: None,
            open_since: Mono::default(),
        }
    }

    /// Whether an attempt may start now.
    pub fn may_start(&mut self, now: Mono) -> bool {
        if let BreakerState::Open { until } = self.state
            && until <= now
        {
            self.state = BreakerState::HalfOpen;
        }
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open { .. } => false,
            BreakerState::HalfOpen => self.probe.is_none(),
        }
    }

    /// An attempt starts. No other one that runs has the same token.
    pub fn handle_started(&mut self, token: usize) {
        if self.state == BreakerState::HalfOpen {
            self.probe.get_or_insert(token);
        }
    }

    /// An attempt ended. Those that were running when the breaker opened do not count while it is open.
    pub fn handle_ended(&mut self, token: usize, ending: Ending, now: Mono) -> Option<BreakerChange> {
        match self.state {
            BreakerState::Closed => self.count(ending, now),
            BreakerState::HalfOpen if self.probe == Some(token) => self.decide(ending, now),
            BreakerState::Open { .. } | BreakerState::HalfOpen => None,
        }
    }

    /// When an attempt may start again, while none may for the time being.
    pub fn next_change(&self) -> Option<Mono> {
        match self.state {
            BreakerState::Open { until } => Some(until),
            BreakerState::Closed | BreakerState::HalfOpen => None,
        }
    }

    /// What it does now.
    pub fn state(&self) -> BreakerState {
        self.state
    }

    fn count(&mut self, ending: Ending, now: Mono) -> Option<BreakerChange> {
        let failed = match ending {
            Ending::Neither => return None,
            Ending::Well => false,
            Ending::Failed => true,
        };
        self.recent.push_back(failed);
        self.failures += u32::from(failed);
        if self.recent.len() > self.policy.of as usize {
            self.failures -= u32::from(self.recent.pop_front() == Some(true));
        }
        if self.failures < self.policy.failures {
            return None;
        }
        self.open_since = now;
        self.state = BreakerState::Open { until: now + self.policy.cool_down };
        Some(BreakerChange::Opened { failures: self.failures })
    }

    fn decide(&mut self, ending: Ending, now: Mono) -> Option<BreakerChange> {
        self.probe = None;
        let lasted = now.since(self.open_since);
        match ending {
            Ending::Neither => None,
            Ending::Failed => {
                self.state = BreakerState::Open { until: now + self.policy.cool_down };
                Some(BreakerChange::Reopened { lasted })
            }
            Ending::Well => {
                *self = Self::new(self.policy);
                Some(BreakerChange::Closed { lasted })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Start,
        /// The attempt with this index among those that run ends.
        End(usize, Ending),
        Advance(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let ending =
            prop_oneof![4 => Just(Ending::Well), 4 => Just(Ending::Failed), 1 => Just(Ending::Neither)];
        prop_oneof![
            4 => Just(Op::Start),
            4 => (0usize..8, ending).prop_map(|(index, ending)| Op::End(index, ending)),
            2 => (0u64..150).prop_map(Op::Advance),
        ]
    }

    /// Everything that happened, looked at from the beginning each time.
    #[derive(Default)]
    struct Oracle {
        /// Ends of attempts that count, since the breaker last closed.
        counted: Vec<bool>,
        /// When it opened, or opened again, since it last closed.
        opened: Vec<Mono>,
        probe: Option<usize>,
    }

    impl Oracle {
        fn may_start(&self, policy: BreakerPolicy, now: Mono) -> bool {
            match self.opened.last() {
                None => true,
                Some(at) => now >= *at + policy.cool_down && self.probe.is_none(),
            }
        }

        fn start(&mut self, token: usize) {
            if !self.opened.is_empty() {
                self.probe = Some(token);
            }
        }

        fn end(&mut self, policy: BreakerPolicy, token: usize, ending: Ending, now: Mono) {
            if self.opened.is_empty() {
                if ending != Ending::Neither {
                    self.counted.push(ending == Ending::Failed);
                }
                let last = self.counted.iter().rev().take(policy.of as usize);
                if last.filter(|failed| **failed).count() >= policy.failures as usize {
                    self.opened.push(now);
                }
            } else if self.probe == Some(token) {
                self.probe = None;
                match ending {
                    Ending::Well => *self = Self::default(),
                    Ending::Failed => self.opened.push(now),
                    Ending::Neither => {}
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_breaker_does_what_a_naive_one_does(
            failures in 1u32..5,
            more in 0u32..5,
            ops in proptest::collection::vec(op(), 1..300),
        ) {
            let cool_down = Duration::from_micros(100);
            let policy = BreakerPolicy { failures, of: failures + more, cool_down };
            let (mut breaker, mut oracle) = (Breaker::new(policy), Oracle::default());
            let (mut running, mut next, mut now) = (Vec::new(), 0, Mono(5));
            for op in ops {
                match op {
                    Op::Start => {
                        let may = breaker.may_start(now);
                        prop_assert_eq!(may, oracle.may_start(policy, now));
                        if may {
                            breaker.handle_started(next);
                            oracle.start(next);
                            running.push(next);
                            next += 1;
                        }
                    }
                    Op::End(index, ending) if !running.is_empty() => {
                        let token = running.remove(index % running.len());
                        let was = (oracle.opened.len(), oracle.opened.is_empty());
                        let change = breaker.handle_ended(token, ending, now);
                        oracle.end(policy, token, ending, now);
                        let is = (oracle.opened.len(), oracle.opened.is_empty());
                        let expected = match (was, is) {
                            ((_, true), (1, false)) => "opened",
                            ((before, false), (after, false)) if after > before => "reopened",
                            ((_, false), (_, true)) => "closed",
                            _ => "nothing",
                        };
                        let told = match change {
                            Some(BreakerChange::Opened { .. }) => "opened",
                            Some(BreakerChange::Reopened { .. }) => "reopened",
                            Some(BreakerChange::Closed { .. }) => "closed",
                            None => "nothing",
                        };
                        prop_assert_eq!(told, expected);
                    }
                    Op::End(..) => {}
                    Op::Advance(micros) => now = now + Duration::from_micros(micros),
                }
                // Whoever sleeps until `next_change` can start then, and not before.
                if let Some(at) = breaker.next_change() {
                    prop_assert!(!oracle.may_start(policy, at - Duration::from_micros(1)));
                    prop_assert!(breaker.clone().may_start(at));
                } else if !breaker.clone().may_start(now) {
                    prop_assert!(oracle.probe.is_some(), "nothing runs that could end the wait");
                }
            }
        }
    }

    #[test]
    fn one_attempt_decides() {
        let policy = BreakerPolicy { failures: 2, of: 3, cool_down: Duration::from_micros(10) };
        let mut breaker = Breaker::new(policy);
        for (token, ending) in [(1, Ending::Failed), (2, Ending::Well), (3, Ending::Neither)] {
            assert!(breaker.may_start(Mono(0)));
            breaker.handle_started(token);
            assert_eq!(breaker.handle_ended(token, ending, Mono(0)), None);
        }
        breaker.handle_started(4);
        breaker.handle_started(5);
        let opened = breaker.handle_ended(4, Ending::Failed, Mono(1));
        assert_eq!(opened, Some(BreakerChange::Opened { failures: 2 }));
        assert_eq!(breaker.handle_ended(5, Ending::Well, Mono(2)), None, "it ran before the breaker opened");
        assert!(!breaker.may_start(Mono(10)));
        assert!(breaker.may_start(Mono(11)));
        breaker.handle_started(6);
        assert!(!breaker.may_start(Mono(11)), "one at a time");
        let lasted = Duration::from_micros(14);
        assert_eq!(breaker.handle_ended(6, Ending::Well, Mono(15)), Some(BreakerChange::Closed { lasted }));
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
