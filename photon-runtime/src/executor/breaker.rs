//! The breaker of one loop: tells people what its machine decides.

use std::sync::Arc;

use photon_core::ids::SubscriptionId;
use photon_core::machine::breaker::{Breaker, BreakerChange, BreakerState, Ending};
use photon_core::machine::subscription::Verdict;
use photon_core::machine::throttle::Throttle;
use photon_core::options::BreakerPolicy;
use photon_core::time::{Mono, Now, Timestamp};

use crate::inner::Inner;
use crate::live::BreakerStatus;

/// The breaker of a loop, or that it has none.
pub(super) struct LoopBreaker {
    inner: Arc<Inner>,
    subscription: Arc<SubscriptionId>,
    breaker: Option<Breaker>,
    shown: Option<BreakerState>,
    open_since: Timestamp,
    lines: Throttle,
}

impl LoopBreaker {
    pub(super) fn new(
        inner: Arc<Inner>,
        subscription: Arc<SubscriptionId>,
        policy: Option<BreakerPolicy>,
    ) -> Self {
        let breaker = policy.map(Breaker::new);
        inner.live.set(&subscription, breaker.is_some().then_some(BreakerStatus::Closed));
        let (shown, open_since) = (None, Timestamp::default());
        Self { inner, subscription, breaker, shown, open_since, lines: Throttle::default() }
    }

    /// Whether a handler may be started now.
    pub(super) fn may_start(&mut self, now: Now) -> bool {
        let Some(breaker) = &mut self.breaker else { return true };
        let may = breaker.may_start(now.mono);
        self.show(now);
        may
    }

    pub(super) fn handle_started(&mut self, token: usize) {
        if let Some(breaker) = &mut self.breaker {
            breaker.handle_started(token);
        }
    }

    pub(super) fn handle_ended(&mut self, token: usize, verdict: &Verdict, now: Now) {
        let Some(breaker) = &mut self.breaker else { return };
        let ending = match verdict {
            Verdict::Done | Verdict::Settled => Ending::Well,
            Verdict::Failed { .. } => Ending::Failed,
            Verdict::Deferred { .. } | Verdict::Cancelled => Ending::Neither,
        };
        if let Some(change) = breaker.handle_ended(token, ending, now.mono) {
            if matches!(change, BreakerChange::Opened { .. }) {
                self.open_since = now.wall;
            }
            self.show(now);
            self.tell(change, now.mono);
        }
    }

    /// When a handler may be started again that may not now.
    pub(super) fn next_change(&self) -> Option<Mono> {
        self.breaker.as_ref()?.next_change()
    }

    fn show(&mut self, now: Now) {
        let state = self.breaker.as_ref().map(Breaker::state);
        if state == self.shown {
            return;
        }
        self.shown = state;
        let since = self.open_since;
        let status = state.map(|state| match state {
            BreakerState::Closed => BreakerStatus::Closed,
            BreakerState::HalfOpen => BreakerStatus::HalfOpen { since },
            BreakerState::Open { until } => {
                BreakerStatus::Open { since, until: now.wall.saturating_add(until.since(now.mono)) }
            }
        });
        self.inner.live.set(&self.subscription, status);
    }

    fn tell(&mut self, change: BreakerChange, now: Mono) {
        let Some(unsaid) = self.lines.allow(now) else { return };
        let subscription = &self.subscription;
        match change {
            BreakerChange::Opened { failures } => tracing::warn!(
                %subscription, failures, unsaid,
                "breaker open: too many attempts failed, nothing is handed out until it has cooled down",
            ),
            BreakerChange::Reopened { lasted } => tracing::warn!(
                %subscription, ?lasted, unsaid, "breaker open again: the one delivery that was tried failed, too",
            ),
            BreakerChange::Closed { lasted } => tracing::info!(
                %subscription, ?lasted, unsaid, "breaker closed: deliveries run again",
            ),
        }
    }
}

impl Drop for LoopBreaker {
    fn drop(&mut self) {
        self.inner.live.remove(&self.subscription);
    }
}
