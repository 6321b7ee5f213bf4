//! The loop of one subscription: carries out what its machine decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use photon_core::error::{StoreError, chain};
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::machine::outage::Outage;
use photon_core::machine::subscription::{Notice, ShardStart, Subscription, Verdict};
use photon_core::planted::{Bug, is_planted};
use photon_core::store::{CommitOutcome, Fence, Lane, Member, Paused, ShardCommit, Wake};
use photon_core::time::{Mono, Now};
use tokio::sync::{mpsc, oneshot, watch};

use super::breaker::LoopBreaker;
use super::handlers::Handlers;
use super::plan::Plan;
use super::report::{SubscriptionReport, Tally};
use super::solitude::Place;
use super::work::{Asker, Begin, Done, Work};
use crate::coordinator::{Assignment, Membership, Ownership};
use crate::inner::Inner;
use crate::live::HeldUp;

/// How many deliveries the loop starts before it looks at everything else again.
const ROW: usize = 128;
/// How often the loop looks whether somebody redrove or discarded dead letters in another process.
const REVISION_INTERVAL: Duration = Duration::from_secs(1);
/// How often it looks for what nobody else can do.
const ALONE_INTERVAL: Duration = Duration::from_secs(3_600);
/// How long a broken-off drain tries to write its last checkpoint.
pub(super) const LAST_COMMIT: Duration = Duration::from_secs(2);

/// What the executor wants of its loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Work.
    Run,
    /// No new deliveries; end when those that run have ended.
    Drain,
    /// Break off what runs, and end.
    Abort,
}

/// Tell when everything up to these places is handled.
pub(super) struct QuietRequest {
    pub(super) ends: Vec<(Shard, Seq)>,
    pub(super) done: oneshot::Sender<()>,
}

/// Where the shards of a subscription come from.
pub(super) enum Shards {
    /// A coordinator tells which are this instance's.
    Owned { membership: Arc<Membership>, ownership: Ownership, wanted: Vec<Shard> },
    /// All of them, from their present ends, without a lease: ephemeral.
    Live { fence: Fence, ends: Vec<(Shard, Seq)> },
}

pub(super) struct Driver {
    inner: Arc<Inner>,
    pub(super) asker: Asker,
    pub(super) machine: Subscription,
    pub(super) handlers: Handlers,
    breaker: LoopBreaker,
    place: Place,
    membership: Option<Arc<Membership>>,
    pub(super) ownership: Option<Ownership>,
    wanted: Vec<Shard>,
    /// Shards that the coordinator gave, with their present fence.
    pub(super) held: HashMap<Shard, Fence>,
    /// Given, but handlers of an earlier ownership still run, or the store was not asked yet.
    to_start: Vec<(Shard, Fence)>,
    starting: bool,
    /// How often each shard had been reset when its work began.
    pub(super) resets: HashMap<Shard, u64>,
    /// Shards whose log ends before their position, with the end.
    pub(super) to_rewind: Vec<(Shard, Seq)>,
    pub(super) paused: Option<Paused>,
    pub(super) work: FuturesUnordered<Work>,
    wake: Box<dyn Wake>,
    /// Of the executor, and of this loop alone: the later one counts.
    phases: [watch::Receiver<Phase>; 2],
    quiet_requests: mpsc::UnboundedReceiver<QuietRequest>,
    quiet_waiting: Vec<(QuietRequest, bool)>,
    operator: watch::Receiver<u64>,
    reads: Outage,
    others: Outage,
    next_poll: Mono,
    next_revision: Mono,
    pub(super) revision: Option<u64>,
    revising: bool,
    abort_by: Option<Mono>,
    began: Mono,
    tally: Tally,
}

impl Driver {
    pub(super) fn new(
        inner: Arc<Inner>,
        plan: &Plan,
        shards: Shards,
        phases: [watch::Receiver<Phase>; 2],
        quiet_requests: mpsc::UnboundedReceiver<QuietRequest>,
    ) -> Self {
        let now = inner.clock.now();
        let persist = matches!(shards, Shards::Owned { .. });
        let mut machine = Subscription::new(plan.settings.clone(), persist);
        let (membership, ownership, wanted) = match shards {
            Shards::Owned { membership, ownership, wanted } => (Some(membership), Some(ownership), wanted),
            Shards::Live { fence, ends } => {
                for (shard, end) in ends {
                    let checkpoint = photon_core::store::Checkpoint { watermark: end, ranges: Vec::new() };
                    let start = ShardStart { checkpoint, ..ShardStart::default() };
                    machine.handle_assigned(shard, fence, start, now);
                }
                (None, None, Vec::new())
            }
        };
        // Whether it is paused must be known before anything runs.
        machine.handle_paused(persist);
        let id: Arc<SubscriptionId> = Arc::new(plan.shared.subscription.clone());
        Self {
            breaker: LoopBreaker::new(inner.clone(), id.clone(), plan.settings.breaker),
            place: Place::new(inner.process.clone()),
            wake: inner.store.wake(&id.topic),
            handlers: Handlers::new(
                plan.call.clone(),
                plan.shared.clone(),
                plan.settings.settles,
                !inner.clock.is_virtual(),
            ),
            asker: Asker { store: inner.store.clone(), id: id.clone(), clock: inner.clock },
            operator: inner.operator.subscribe(),
            tally: Tally::new((*id).clone()),
            inner,
            machine,
            membership,
            ownership,
            wanted,
            held: HashMap::new(),
            to_start: Vec::new(),
            resets: HashMap::new(),
            to_rewind: Vec::new(),
            paused: None,
            starting: false,
            work: FuturesUnordered::new(),
            phases,
            quiet_requests,
            quiet_waiting: Vec::new(),
            reads: Outage::default(),
            others: Outage::default(),
            next_poll: now.mono,
            next_revision: now.mono,
            revision: None,
            revising: false,
            abort_by: None,
            began: now.mono,
        }
    }

    /// Works until the executor ends it.
    pub(super) async fn run(mut self) -> SubscriptionReport {
        loop {
            let now = self.inner.clock.now();
            let more = self.turn(now);
            if self.is_over(now) {
                break;
            }
            self.wait(more, now).await;
        }
        let drained = self.machine.is_drained();
        if let Some(ownership) = &self.ownership {
            let shards: Vec<Shard> = self.held.keys().copied().collect();
            if let Err(error) = ownership.release(shards).await {
                tracing::warn!(subscription = %self.asker.id, error = chain(&error),
                    "shards could not be given back: the next owner waits for the lease to run out");
            }
        }
        self.tally.finish(drained, self.machine.figures())
    }

    /// Does everything that can be done now. Returns whether more can be done at once.
    fn turn(&mut self, now: Now) -> bool {
        self.follow_phase(now);
        if self.machine.next_timeout().is_some_and(|at| at <= now.mono) {
            self.machine.handle_timeout(now);
        }
        self.ask(now);
        let more = self.dispatch(now);
        if !self.quiet_waiting.is_empty() {
            self.machine.hurry(now);
        }
        // What just ended may be due to be written, and there may be room again.
        self.ask(now);
        while let Some(notice) = self.machine.poll_notice() {
            self.tell(&notice);
        }
        self.keep_place(now);
        self.answer_quiet(now);
        more
    }

    fn dispatch(&mut self, now: Now) -> bool {
        if !self.may_work() || !self.join_others() {
            return false;
        }
        self.handlers.begin_row();
        let mut more = true;
        for _ in 0..ROW {
            if !self.machine.in_solitude() && !self.breaker.may_start(now) {
                more = false;
                break;
            }
            let Some(dispatch) = self.machine.poll_dispatch(now) else {
                more = false;
                break;
            };
            let token = dispatch.token;
            self.breaker.handle_started(token);
            if let Some(verdict) = self.handlers.start(dispatch) {
                self.settle(token, verdict, now);
            }
        }
        self.handlers.end_row();
        more
    }

    /// Whether something may run in the process now, beside the others or alone.
    fn join_others(&mut self) -> bool {
        match self.place.join() {
            Ok(()) => true,
            Err(wait) => {
                self.work.extend(wait);
                false
            }
        }
    }

    /// Asks for the process to run a delivery alone, or gives up what is not needed of it.
    fn keep_place(&mut self, now: Now) {
        if self.machine.wants_solitude() && self.breaker.may_start(now) {
            self.work.extend(self.place.ask_solitude());
        }
        self.place.leave(self.machine.figures().running > 0, self.machine.in_solitude());
    }

    /// Whether the lease surely still holds: a process that was frozen finds out here, before anything runs.
    fn may_work(&self) -> bool {
        let fence = self.held.values().next();
        match (&self.membership, fence) {
            (Some(membership), Some(fence)) => {
                membership.may_work(fence.token) || is_planted(Bug::LostLeaseIgnored)
            }
            _ => true,
        }
    }

    fn settle(&mut self, token: usize, verdict: Verdict, now: Now) {
        self.tally.count(&verdict);
        self.breaker.handle_ended(token, &verdict, now);
        let random = self.inner.publisher.core().random.unit();
        self.machine.handle_verdict(token, verdict, now, random);
    }

    /// Asks the store for what the machine wants.
    fn ask(&mut self, now: Now) {
        if self.next_poll <= now.mono {
            self.machine.handle_wake();
            self.next_poll = now.mono + self.poll_interval();
        }
        if self.reads.retry_at() <= now.mono
            && let Some(read) = self.machine.poll_read(now)
        {
            self.work.push(self.asker.read(read));
        }
        if self.others.retry_at() <= now.mono {
            self.start_shards();
            self.ask_rewinds();
            while let Some(load) = self.machine.poll_load() {
                self.work.push(self.asker.load(load));
            }
            if self.ownership.is_some() && !self.revising && self.next_revision <= now.mono {
                self.revising = true;
                let shards = self.machine.assigned().map(|(shard, _)| shard).collect();
                self.work.push(self.asker.revise(self.revision, shards));
                self.quiet_waiting.iter_mut().for_each(|(_, asked)| *asked = true);
            }
        }
        if let Some(commit) = self.machine.poll_commit(now) {
            self.work.push(self.asker.commit(commit));
        }
    }

    fn poll_interval(&self) -> Duration {
        if self.inner.alone { ALONE_INTERVAL } else { self.inner.store.poll_interval() }
    }

    /// Asks for what is stored about shards that were given and whose former handlers have ended.
    fn start_shards(&mut self) {
        if self.starting || self.to_start.is_empty() {
            return;
        }
        let machine = &self.machine;
        let (ready, wait): (Vec<_>, Vec<_>) =
            self.to_start.drain(..).partition(|(shard, _)| machine.running_in(*shard).is_empty());
        self.to_start = wait;
        if !ready.is_empty() {
            self.starting = true;
            self.work.push(self.asker.start(ready));
        }
    }

    /// Waits for anything to happen, and takes it in.
    async fn wait(&mut self, more: bool, now: Now) {
        let at = if more { now.mono } else { self.next_time(now) };
        let aborting = self.abort_by.is_some();
        let [executor, own] = &mut self.phases;
        let sleep = self.inner.clock.sleep_until(at);
        tokio::select! {
            biased;
            Ok(()) = own.changed(), if !aborting => {}
            changed = executor.changed(), if !aborting => {
                // The executor is gone without a word: what is not written down is done again.
                if changed.is_err() {
                    self.begin_abort(self.inner.clock.now());
                }
            }
            assignment = next_assignment(&mut self.ownership) => self.take_assignment(assignment),
            Some((token, verdict)) = self.handlers.next(), if !self.handlers.is_empty() => {
                let now = self.inner.clock.now();
                self.settle(token, verdict, now);
                while let Some((token, verdict)) = self.handlers.try_next() {
                    self.settle(token, verdict, now);
                }
            }
            Some(done) = self.work.next(), if !self.work.is_empty() => {
                let now = self.inner.clock.now();
                self.take_in(done, now);
            }
            Some(request) = self.quiet_requests.recv() => {
                self.next_revision = Mono::default();
                self.quiet_waiting.push((request, self.ownership.is_none()));
            }
            Ok(()) = self.operator.changed() => self.next_revision = Mono::default(),
            () = self.wake.wait(), if !is_planted(Bug::DroppedWake) => {
                self.machine.handle_wake();
                self.next_poll = self.inner.clock.now().mono + self.poll_interval();
            }
            () = tokio::task::yield_now(), if more => {}
            () = sleep, if !more => {}
        }
    }

    /// When the loop must look again although nothing happened.
    fn next_time(&self, now: Now) -> Mono {
        let mut at = self.next_poll;
        at = self.machine.next_timeout().map_or(at, |timeout| at.min(timeout));
        at = self.breaker.next_change().map_or(at, |change| at.min(change));
        at = self.abort_by.map_or(at, |abort| at.min(abort));
        if self.ownership.is_some() && !self.revising {
            at = at.min(self.next_revision.max(self.others.retry_at()));
        }
        for outage in [&self.reads, &self.others] {
            if outage.retry_at() > now.mono {
                at = at.min(outage.retry_at());
            }
        }
        // Never in the past: a turn that could do nothing about it must not spin.
        at.max(now.mono + Duration::from_millis(1))
    }

    fn take_in(&mut self, done: Done, now: Now) {
        match done {
            Done::Read(read, result) => {
                let result = self.heard(result, "read the log", now, true);
                self.machine.handle_read(&read, result, now);
            }
            Done::Loaded(load, result) => {
                let result = self.heard(result, "load stored deliveries", now, false);
                self.machine.handle_loaded(&load, result, now);
            }
            Done::Committed(shards, result) => self.committed(&shards, result, now),
            Done::Started(shards, result) => {
                self.starting = false;
                match self.heard(result, "load the checkpoint", now, false) {
                    None => self.to_start.extend(shards),
                    Some(starts) => self.begin_shards(shards, starts, now),
                }
            }
            Done::Revised(result) => {
                self.revising = false;
                let interval = if self.inner.alone { ALONE_INTERVAL } else { REVISION_INTERVAL };
                self.next_revision = now.mono + interval;
                match self.heard(result, "look for changes by others", now, false) {
                    None => self.quiet_waiting.iter_mut().for_each(|(_, asked)| *asked = false),
                    Some(_) if is_planted(Bug::RedriveNotNoticed) => {}
                    Some(revised) => self.take_revised(revised, now),
                }
            }
            Done::Rewound(place, result) => self.take_rewound(place, result, now),
            Done::Placed(granted) => {
                if self.place.take(granted) {
                    self.machine.handle_solitude(now);
                }
            }
        }
    }

    fn begin_shards(&mut self, shards: Vec<(Shard, Fence)>, starts: Vec<Begin>, now: Now) {
        for ((shard, fence), Begin { mut start, resets, unended }) in shards.into_iter().zip(starts) {
            if self.held.get(&shard) == Some(&fence) {
                self.resets.insert(shard, resets);
                let crash =
                    |before: &Member| self.membership.as_ref().is_some_and(|here| here.is_crash(before));
                start.crashed = unended.as_ref().is_some_and(crash);
                self.machine.handle_assigned(shard, fence, start, now);
            }
        }
    }

    fn committed(&mut self, shards: &[ShardCommit], result: Result<CommitOutcome, StoreError>, now: Now) {
        let (outcome, error) = match result {
            Ok(outcome) => (Some(outcome), None),
            Err(error) => (None, Some(error)),
        };
        let report = self.machine.handle_commit(shards, outcome.as_deref(), now);
        if let Some(error) = error.filter(|_| report.log_failure) {
            self.warn_failure(&error, "write the checkpoint");
        }
        if let Some(lasted) = report.outage {
            tracing::info!(subscription = %self.asker.id, ?lasted, "checkpoints are written again");
        }
    }

    /// Takes note of how the store is.
    pub(super) fn heard<T>(
        &mut self,
        result: Result<T, StoreError>,
        what: &str,
        now: Now,
        read: bool,
    ) -> Option<T> {
        let outage = if read { &mut self.reads } else { &mut self.others };
        match result {
            Ok(value) => {
                if let Some(lasted) = outage.handle_succeeded(now.mono) {
                    tracing::info!(subscription = %self.asker.id, ?lasted, "the store answers again");
                }
                Some(value)
            }
            Err(error) => {
                if outage.handle_failed(now.mono) {
                    self.warn_failure(&error, what);
                }
                None
            }
        }
    }

    fn warn_failure(&self, error: &StoreError, what: &str) {
        let hint =
            if error.is_transient() { "trying again" } else { "trying again, but somebody has to look" };
        tracing::warn!(subscription = %self.asker.id, error = chain(error), "cannot {what}: {hint}");
    }

    fn take_assignment(&mut self, assignment: Option<Assignment>) {
        match assignment {
            None => self.ownership = None,
            Some(Assignment::Assigned(shards)) => {
                if self.phases.iter().all(|phase| *phase.borrow() == Phase::Run) {
                    self.held.extend(shards.iter().copied());
                    self.to_start.extend(shards);
                }
            }
            Some(Assignment::Lost(_)) if is_planted(Bug::LostLeaseIgnored) => {}
            Some(Assignment::Lost(shards)) => {
                for shard in shards {
                    self.held.remove(&shard);
                    self.to_start.retain(|(waiting, _)| *waiting != shard);
                    let running = self.machine.handle_lost(shard);
                    self.handlers.cancel(&running);
                }
            }
        }
    }

    fn tell(&mut self, notice: &Notice) {
        if let Notice::Fenced { shard } = notice {
            self.handlers.cancel(&self.machine.running_in(*shard));
            if let (Some(ownership), Some(fence)) = (&self.ownership, self.held.remove(shard)) {
                ownership.fenced(*shard, fence);
            }
        }
        if let Notice::Shrunk { shard, end, .. } = notice {
            self.begin_rewind(*shard, *end, self.inner.clock.now());
        }
        match notice {
            Notice::HeldUp { shard, lane, rows, dead } => {
                let key = match lane {
                    Lane::Key(key) => Some(key.clone()),
                    Lane::Single(_) => None,
                };
                let held_up = HeldUp { shard: *shard, key, stored: *rows, dead: *dead };
                self.inner.live.hold_up(&self.asker.id, Some(held_up));
            }
            Notice::GoesOn => self.inner.live.hold_up(&self.asker.id, None),
            _ => {}
        }
        self.tally.tell(notice, self.inner.clock.now().mono);
    }

    fn follow_phase(&mut self, now: Now) {
        let [executor, own] = &mut self.phases;
        let phase = (*executor.borrow_and_update()).max(*own.borrow_and_update());
        if phase >= Phase::Drain {
            self.machine.begin_drain(now);
        }
        if phase == Phase::Abort {
            self.begin_abort(now);
        }
    }

    fn begin_abort(&mut self, now: Now) {
        if self.abort_by.is_none() {
            self.machine.begin_drain(now);
            self.handlers.cancel_all();
            self.abort_by = Some(now.mono + LAST_COMMIT);
        }
    }

    fn is_over(&self, now: Now) -> bool {
        self.machine.is_drained() || self.abort_by.is_some_and(|by| by <= now.mono)
    }

    fn answer_quiet(&mut self, now: Now) {
        if self.quiet_waiting.is_empty() || self.revising || self.starting || !self.to_start.is_empty() {
            return;
        }
        // A shard that somebody else keeps is not waited for for ever.
        let patience = self.began + 2 * self.inner.config.lease_ttl;
        let is_here = |shard: &Shard| self.machine.position(*shard).is_some();
        if !self.wanted.iter().all(is_here) && now.mono < patience {
            return;
        }
        let machine = &self.machine;
        let is_quiet =
            |(request, asked): &mut (QuietRequest, bool)| *asked && machine.is_quiet(&request.ends);
        for (request, _) in self.quiet_waiting.extract_if(.., is_quiet) {
            // Nobody waits any more: fine.
            let _ = request.done.send(());
        }
    }
}

async fn next_assignment(ownership: &mut Option<Ownership>) -> Option<Assignment> {
    match ownership {
        Some(ownership) => ownership.next().await,
        None => std::future::pending().await,
    }
}
