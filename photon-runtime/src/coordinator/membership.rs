//! This process as a member: one heartbeat for all of its subscriptions.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind, chain};
use photon_core::ids::{Incarnation, InstanceId};
use photon_core::machine::lease::{self, Holder};
use photon_core::machine::outage::Outage;
use photon_core::machine::throttle::Throttle;
use photon_core::store::{Leases, Member};
use photon_core::time::Mono;
use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::housekeeping;
use super::process::{self, Life};
use crate::caught::caught;
use crate::clock::Clock;

/// The membership of this process, kept alive in the background.
///
/// It renews in time whatever the handlers do. If it cannot, [`standing`](Self::standing) says so before others
/// may take over, and the process joins again as a new incarnation as soon as the store lets it. Dropping it
/// ends it without a word to the store; [`leave`](Self::leave) gives everything back.
pub(crate) struct Membership {
    shared: Arc<Shared>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// What the handle and the task in the background share.
pub(super) struct Shared {
    pub(super) leases: Arc<dyn Leases>,
    pub(super) clock: Clock,
    pub(super) ttl: Duration,
    instance: InstanceId,
    standing: watch::Sender<Option<Incarnation>>,
    /// The deadline of the current incarnation.
    deadline: AtomicU64,
    doubt: Notify,
}

impl Membership {
    /// Joins, and keeps the membership alive in a task of the current runtime. Only this first call to the store
    /// is not repeated.
    ///
    /// # Errors
    /// Those of the store; `Unavailable` if it does not answer for a third of the ttl.
    pub(crate) async fn join(
        leases: Arc<dyn Leases>,
        instance: InstanceId,
        ttl: Duration,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let (life, sent) = (Life::begin(), clock.mono());
        let (standing, _) = watch::channel(None);
        let deadline = AtomicU64::new(0);
        let shared =
            Arc::new(Shared { leases, clock, ttl, instance, standing, deadline, doubt: Notify::new() });
        shared.join_as(&life).await?;
        let stop = CancellationToken::new();
        shared.begin(&life, sent, &stop);
        tokio::spawn(keep_alive(shared.clone(), stop.clone(), life, sent));
        Ok(Self { shared, _stop_on_drop: stop.clone().drop_guard(), stop })
    }

    /// The current incarnation; `None` while the process is no member and must not work. A change from one
    /// incarnation to another means that everything was lost in between.
    pub(crate) fn standing(&self) -> watch::Receiver<Option<Incarnation>> {
        self.shared.standing.subscribe()
    }

    /// Whether work under this incarnation may start now. Ask before each delivery: a process that was frozen
    /// learns here, before anything else runs, that its time is over.
    pub(crate) fn may_work(&self, incarnation: Incarnation) -> bool {
        *self.shared.standing.borrow() == Some(incarnation)
            && self.shared.clock.mono() < Mono(self.shared.deadline.load(Ordering::Acquire))
    }

    /// Whether an owner of a shard that did not release it ended in a crash, as far as can be known here.
    pub(crate) fn is_crash(&self, before: &Member) -> bool {
        lease::is_crash(before, process::fate(before), &self.shared.instance)
    }

    /// The store refused a call because it does not know the member: find out at once.
    pub(crate) fn doubt(&self) {
        self.shared.doubt.notify_one();
    }

    /// Leaves, and gives everything back. To be called after all work has ended. Leaving again is a no-op.
    ///
    /// # Errors
    /// Those of the store. Others then take over once they see that the process is gone or silent.
    pub(crate) async fn leave(&self) -> Result<(), StoreError> {
        self.stop.cancel();
        match self.shared.standing.send_replace(None) {
            Some(incarnation) => {
                let leave = self.shared.leases.leave(incarnation);
                in_time(self.shared.clock, self.shared.ttl, "leave", leave).await
            }
            None => Ok(()),
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("instance", &self.shared.instance)
            .field("standing", &*self.shared.standing.borrow())
            .finish_non_exhaustive()
    }
}

/// Waits for an answer of the store for a third of the ttl.
pub(super) async fn in_time<T>(
    clock: Clock,
    ttl: Duration,
    call: &str,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let patience = ttl / 3;
    match timeout_at(clock.instant(clock.mono() + patience), caught(answer)).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "the store did not answer to `{call}` for {patience:?}: check that it is up and not overloaded"
            ),
        )),
    }
}

/// What was said to people of late, by all incarnations: a store that comes and goes ends many.
struct Lines {
    renewals: Outage,
    losses: Throttle,
    joins: Outage,
}

impl Lines {
    fn new() -> Self {
        Self { renewals: Outage::default(), losses: Throttle::new(2), joins: Outage::default() }
    }
}

/// Why an incarnation ended.
enum End {
    /// No renewal succeeded in time.
    Silent,
    /// The store does not know it any more.
    Unknown,
}

async fn keep_alive(shared: Arc<Shared>, stop: CancellationToken, mut life: Life, mut sent: Mono) {
    let begins = stop.clone();
    let living = async move {
        let mut lines = Lines::new();
        loop {
            let me = life.incarnation();
            let end = tokio::select! {
                biased;
                end = shared.renew(me, sent, &mut lines.renewals) => end,
                never = housekeeping::forget_the_dead(&shared, me) => match never {},
            };
            // Whoever left in the meantime has the last word, here and in `begin`.
            shared.standing.send_if_modified(|standing| standing.take().is_some());
            let reason = match end {
                End::Silent => "no renewal succeeded in time",
                End::Unknown => "the store does not know it any more",
            };
            let unsaid = lines.losses.allow(shared.clock.mono());
            if let Some(unsaid) = unsaid {
                tracing::warn!(
                    instance = %shared.instance, incarnation = %me, reason, unsaid, "membership lost: all work stops"
                );
            }
            (life, sent) = shared.rejoin(life, &mut lines.joins).await;
            shared.begin(&life, sent, &begins);
            if unsaid.is_some() {
                tracing::info!(instance = %shared.instance, incarnation = %life.incarnation(), "joined again");
            }
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        never = living => never,
    }
}

impl Shared {
    fn begin(&self, life: &Life, sent: Mono, stop: &CancellationToken) {
        self.deadline.store(Holder::new(self.ttl, sent).deadline().0, Ordering::Release);
        // Checked under the lock that `leave` takes after it has cancelled: it sees this incarnation, or this
        // sees the cancellation.
        self.standing.send_if_modified(|standing| {
            let begins = !stop.is_cancelled();
            if begins {
                *standing = Some(life.incarnation());
            }
            begins
        });
    }

    async fn renew(&self, me: Incarnation, sent: Mono, outage: &mut Outage) -> End {
        let mut holder = Holder::new(self.ttl, sent);
        loop {
            tokio::select! {
                biased;
                () = self.clock.sleep_until(holder.next_heartbeat().min(holder.deadline())) => {}
                () = self.doubt.notified() => {}
            }
            let sent = self.clock.mono();
            if holder.must_stop(sent) {
                return End::Silent;
            }
            let call = in_time(self.clock, self.ttl, "heartbeat", self.leases.heartbeat(me));
            let answer = timeout_at(self.clock.instant(holder.deadline()), call).await;
            let now = self.clock.mono();
            match answer {
                Ok(Ok(())) => {
                    holder.handle_renewed(sent, now);
                    self.deadline.store(holder.deadline().0, Ordering::Release);
                    outage.handle_succeeded(now);
                }
                Ok(Err(error)) if error.kind() == StoreErrorKind::Fenced => return End::Unknown,
                Ok(Err(error)) => {
                    holder.handle_failed(now);
                    if outage.handle_failed(now) {
                        let left = holder.deadline().since(now);
                        let error = chain(&error);
                        tracing::warn!(instance = %self.instance, error, ?left, "renewal failed, trying again");
                    }
                }
                // The deadline; the loop sees it.
                Err(_) => {}
            }
        }
    }

    /// Replaces the life that was lost by a new one, as soon as the store lets it.
    async fn rejoin(&self, lost: Life, outage: &mut Outage) -> (Life, Mono) {
        let old = lost.incarnation();
        // From here on it is dead for everybody in this process.
        drop(lost);
        loop {
            let (next, sent) = (Life::begin(), self.clock.mono());
            let attempt = async {
                in_time(self.clock, self.ttl, "leave", self.leases.leave(old)).await?;
                self.join_as(&next).await
            };
            match attempt.await {
                Ok(()) => {
                    outage.handle_succeeded(self.clock.mono());
                    return (next, sent);
                }
                Err(error) => {
                    let now = self.clock.mono();
                    if outage.handle_failed(now) {
                        let error = chain(&error);
                        tracing::warn!(instance = %self.instance, error, "cannot join again yet, trying on");
                    }
                    self.clock.sleep_until(outage.retry_at()).await;
                }
            }
        }
    }

    async fn join_as(&self, life: &Life) -> Result<(), StoreError> {
        let member = life.member(self.instance.clone());
        in_time(self.clock, self.ttl, "join", self.leases.join(&member)).await
    }
}
