//! The loops of an executor: begun, stopped one by one, and brought to their end together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::{FuturesUnordered, StreamExt};
use photon_core::error::chain;
use photon_core::ids::{Incarnation, InstanceId, SubscriptionId, TopicName};
use photon_core::machine::assignment::{StaticShare, spread_of};
use photon_core::options::Mode;
use photon_core::store::{Fence, Leases, Registration};
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::driver::{Driver, LAST_COMMIT, Phase, QuietRequest, Shards};
use super::housekeeping;
use super::plan::Plan;
use super::report::{DrainReport, SubscriptionReport};
use crate::coordinator::{Membership, StaticCoordinator};
use crate::error::{Error, Result};
use crate::inner::Inner;

/// The executor of a Photon, once it has one: at most one in its life.
pub(crate) type Running = tokio::sync::Mutex<Option<Arc<Crew>>>;

/// The tasks of loops that were begun.
pub(super) type Tasks = mpsc::UnboundedReceiver<JoinHandle<SubscriptionReport>>;

/// The loops of an executor and what they share.
pub(crate) struct Crew {
    phase: watch::Sender<Phase>,
    membership: OnceCell<Arc<Membership>>,
    book: Mutex<Book>,
    tasks: mpsc::UnboundedSender<JoinHandle<SubscriptionReport>>,
}

#[derive(Default)]
struct Book {
    loops: BTreeMap<SubscriptionId, Arc<Loop>>,
    /// The end has begun: no loop is begun any more.
    closed: bool,
}

/// How to talk to one loop.
pub(super) struct Loop {
    pub(super) topic: TopicName,
    registration: Option<Registration>,
    pub(super) quiet: mpsc::UnboundedSender<QuietRequest>,
    phase: watch::Sender<Phase>,
    ended: CancellationToken,
}

impl Crew {
    pub(super) fn new() -> (Arc<Self>, Tasks) {
        let (tasks, begun) = mpsc::unbounded_channel();
        let (phase, membership, book) = (watch::Sender::new(Phase::Run), OnceCell::new(), Mutex::default());
        (Arc::new(Self { phase, membership, book, tasks }), begun)
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Goes on to a later phase; never back.
    pub(super) fn advance(&self, to: Phase) {
        advance(&self.phase, to);
    }

    /// The loops that run, by subscription.
    pub(super) fn loops(&self) -> Vec<Arc<Loop>> {
        self.book().loops.values().cloned().collect()
    }

    /// How the subscriptions whose loops run are known to the store.
    pub(super) fn registrations(&self) -> Vec<Registration> {
        self.book().loops.values().filter_map(|of| of.registration.clone()).collect()
    }

    /// Begins the loop of a subscription.
    ///
    /// # Errors
    /// `Closed` once the end has begun; what the store says.
    pub(super) async fn begin(&self, inner: &Arc<Inner>, plan: Plan) -> Result<()> {
        let shards = self.shards_of(inner, &plan).await?;
        let id = plan.shared.subscription.clone();
        let (quiet, requests) = mpsc::unbounded_channel();
        let (phase, ended) = (watch::Sender::new(Phase::Run), CancellationToken::new());
        let phases = [self.phase.subscribe(), phase.subscribe()];
        let driver = Driver::new(inner.clone(), &plan, shards, phases, requests);
        let guard = ended.clone().drop_guard();
        let registration = plan.registration();
        let mut book = self.book();
        if book.closed {
            return Err(Error::Closed);
        }
        let task = tokio::spawn(async move {
            let _ended = guard;
            driver.run().await
        });
        // Not heard: the executor is gone, and the loop sees it.
        let _ = self.tasks.send(task);
        book.loops.insert(id.clone(), Arc::new(Loop { topic: id.topic, registration, quiet, phase, ended }));
        Ok(())
    }

    /// Lets one loop drain, breaks off what takes too long, and waits for its end.
    pub(super) async fn stop(&self, inner: &Inner, id: &SubscriptionId) {
        let Some(of) = self.book().loops.get(id).cloned() else { return };
        advance(&of.phase, Phase::Drain);
        let deadline = inner.clock.instant(inner.clock.mono() + inner.config.drain_timeout);
        if tokio::time::timeout_at(deadline, of.ended.cancelled()).await.is_err() {
            tracing::warn!(subscription = %id, "its removal takes too long: running handlers are broken off");
            advance(&of.phase, Phase::Abort);
            if tokio::time::timeout_at(last_word(inner), of.ended.cancelled()).await.is_err() {
                tracing::error!(subscription = %id, "its removal goes on without its end: {STUCK}");
            }
        }
        self.book().loops.remove(id);
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A map stays whole when a thread that held the lock panicked.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn shards_of(&self, inner: &Inner, plan: &Plan) -> Result<Shards> {
        let id = &plan.shared.subscription;
        if plan.mode == Mode::Ephemeral {
            let bounds = inner.store.bounds(&id.topic).await?;
            let ends = bounds.into_iter().map(|bounds| (bounds.shard, bounds.end)).collect();
            let fence = Fence { epoch: 0, token: Incarnation(inner.publisher.core().random.uuid()) };
            return Ok(Shards::Live { fence, ends });
        }
        let join = || async { join_members(inner).await.map(Arc::new) };
        let membership = self.membership.get_or_try_init(join).await?;
        let share = match plan.mode {
            // Each instance has all the shards of its own position.
            Mode::Durable => StaticShare::default(),
            _ => inner.config.share(),
        };
        let wanted =
            share.shards_of(plan.shards, spread_of(id)).map_err(|error| Error::refused(error.to_string()))?;
        let (coordinator, ownership) = StaticCoordinator::new(membership.clone(), id.clone(), wanted.clone());
        tokio::spawn(coordinator.run());
        Ok(Shards::Owned { membership: membership.clone(), ownership, wanted })
    }
}

fn advance(phase: &watch::Sender<Phase>, to: Phase) {
    phase.send_if_modified(|phase| {
        let later = *phase < to;
        if later {
            *phase = to;
        }
        later
    });
}

async fn join_members(inner: &Inner) -> Result<Membership> {
    let instance = match &inner.config.instance {
        Some(instance) => instance.clone(),
        None => InstanceId::new(format!("instance-{}", inner.config.group.index))?,
    };
    let leases: Arc<dyn Leases> = inner.store.clone();
    Ok(Membership::join(leases, instance, inner.config.lease_ttl, inner.clock).await?)
}

/// Waits for the shutdown and brings everything to its end: the loops, the membership, publishing.
pub(super) async fn end(inner: Arc<Inner>, crew: Arc<Crew>, mut begun: Tasks) -> DrainReport {
    let (mut tasks, mut reports) = (FuturesUnordered::new(), Vec::new());
    let mut phase = crew.phase.subscribe();
    let housekeeping = housekeeping::keep_house(inner.clone(), crew.clone());
    tokio::pin!(housekeeping);
    loop {
        tokio::select! {
            // A loop that ended because of the shutdown has a report to give: see the shutdown first.
            biased;
            // The sender is held here: it cannot be gone.
            _ = phase.wait_for(|phase| *phase > Phase::Run) => break,
            Some(task) = begun.recv() => tasks.push(task),
            never = &mut housekeeping => match never {},
            // Either it was removed, and whoever removed it knows; or the shutdown came just after it was looked for,
            // and the report counts.
            Some(ended) = tasks.next(), if !tasks.is_empty() => {
                if crew.phase() > Phase::Run {
                    reports.extend(ended.ok());
                }
            }
        }
    }
    crew.book().closed = true;
    while let Ok(task) = begun.try_recv() {
        tasks.push(task);
    }
    let began = inner.clock.mono();
    let deadline = inner.clock.instant(began + inner.config.drain_timeout);
    if tokio::time::timeout_at(deadline, gather(&mut tasks, &mut reports)).await.is_err() {
        tracing::warn!(timeout = ?inner.config.drain_timeout, "the drain takes too long: running handlers are broken off");
        crew.advance(Phase::Abort);
        // Not for ever: a handler that blocks the thread of its loop cannot be broken off.
        let _ = tokio::time::timeout_at(last_word(&inner), gather(&mut tasks, &mut reports)).await;
    }
    add_unheard(&crew, &mut reports);
    if let Some(membership) = crew.membership.get()
        && let Err(error) = membership.leave().await
    {
        tracing::warn!(
            error = chain(&error),
            "could not leave: the next owner waits for the lease to run out"
        );
    }
    inner.publisher.close(inner.config.drain_timeout).await;
    reports.sort_by(|a, b| a.subscription.cmp(&b.subscription));
    DrainReport { subscriptions: reports, took: inner.clock.mono().since(began) }
}

/// Why a loop gives no report.
pub(super) const STUCK: &str = "a handler blocks its thread and cannot be broken off, or its loop panicked";

/// Until when a loop that is broken off can be waited for: it writes its last checkpoint and gives its shards back.
fn last_word(inner: &Inner) -> Instant {
    inner.clock.instant(inner.clock.mono() + LAST_COMMIT + inner.config.lease_ttl)
}

/// Tells of the loops that gave no report, too.
fn add_unheard(crew: &Crew, reports: &mut Vec<SubscriptionReport>) {
    let heard: BTreeSet<_> = reports.iter().map(|report| report.subscription.clone()).collect();
    let removed = |of: &Loop| of.ended.is_cancelled() && *of.phase.borrow() > Phase::Run;
    for (id, of) in &crew.book().loops {
        if heard.contains(id) || removed(of) {
            continue;
        }
        tracing::error!(subscription = %id, "it did not end: {STUCK}");
        reports.push(SubscriptionReport::unheard(id.clone()));
    }
}

async fn gather(
    tasks: &mut FuturesUnordered<JoinHandle<SubscriptionReport>>,
    reports: &mut Vec<SubscriptionReport>,
) {
    while let Some(task) = tasks.next().await {
        // A loop that panicked is a fault of Photon, and said so by the panic itself.
        reports.extend(task.ok());
    }
}
