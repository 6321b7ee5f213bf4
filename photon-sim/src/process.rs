//! One process: a Photon with its executor on a runtime of its own, whose clock only moves when the world lets it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use photon_backend::wrap::Op;
use photon_backend::wrap::fault::{Fault, Faults, Rule, RuleId};
use photon_core::error::StoreErrorKind;
use photon_core::options::{OnDead, Options};
use photon_core::registry::Registry;
use photon_core::store::Store;
use photon_core::time::Timestamp;
use photon_runtime::{Clock, Error, Photon};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::event::{STEPS, Step};
use crate::handler::{HANDLERS, Probe};
use crate::history::What;
use crate::judge::Shared;
use crate::scenario::{Group, LEASE, Scenario};

/// What a process is made of.
pub(crate) struct Setup {
    pub(crate) number: usize,
    pub(crate) group: Group,
    /// Its number in the group.
    pub(crate) index: u32,
    /// Its wall clock at its beginning.
    pub(crate) wall: Timestamp,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) probe: Probe,
}

pub(crate) struct Process {
    pub(crate) number: usize,
    pub(crate) group: Group,
    pub(crate) index: u32,
    runtime: Runtime,
    /// When it began, in milliseconds of the run, and on its own clock.
    born: u64,
    origin: Instant,
    judge: Shared,
    pub(crate) faults: Faults,
    outage: Option<(RuleId, u64)>,
    /// A commit of it was written, or a part of it, and it does not know.
    pub(crate) in_doubt: bool,
    photon: Arc<OnceLock<Photon>>,
    stop: Option<oneshot::Sender<()>>,
    joined: Arc<AtomicBool>,
    kill: Arc<Notify>,
    killed: bool,
    /// Until when it stands still; for ever if the power is gone.
    pub(crate) frozen_until: Option<u64>,
}

impl Process {
    /// Starts a process at `now`.
    pub(crate) fn start(scenario: &Scenario, setup: Setup, now: u64) -> Self {
        // Seeded runs need no I/O driver and no threads.
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.unwrap_or_else(|error| panic!("a runtime without I/O: {error}"));
        let faults = Faults::seeded(scenario.seed.wrapping_mul(1_000_003).wrapping_add(setup.number as u64));
        trouble(&faults, scenario);
        let (stop, stopped) = oneshot::channel();
        let (photon, joined) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
        let Setup { number, group, index, wall, store, probe } = setup;
        let (judge, kill) = (probe.judge.clone(), probe.kill.clone());
        let options = Options { on_dead: Some(group.on_dead), ..scenario.options.clone() };
        debug_assert!(matches!(group.on_dead, OnDead::Continue | OnDead::BlockKey));
        let origin = runtime.block_on(async { Instant::now() });
        let life = Life {
            store: Arc::new(faults.wrap(store)),
            seed: scenario.seed ^ (number as u64) << 48,
            instances: scenario.instances,
            group,
            index,
            wall,
            options,
            drain_timeout: Duration::from_millis(scenario.drain_timeout),
            probe,
            photon: photon.clone(),
            joined: joined.clone(),
        };
        runtime.spawn(life.live(stopped));
        Self {
            number,
            group,
            index,
            runtime,
            born: now,
            origin,
            judge,
            faults,
            outage: None,
            in_doubt: false,
            photon,
            stop: Some(stop),
            joined,
            kill,
            killed: false,
            frozen_until: None,
        }
    }

    /// Lets it run until `now`, or until one of its handlers ends it.
    pub(crate) fn run_until(&mut self, now: u64) {
        self.judge.lock().enter(self.number, self.born, self.origin);
        let until = self.origin + Duration::from_millis(now - self.born);
        self.killed |= self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.kill.notified() => true,
                () = tokio::time::sleep_until(until) => false,
            }
        });
        self.judge.lock().stop(now);
        self.struck();
        self.judge.lock().leave(now);
        if self.outage.is_some_and(|(_, end)| end <= now) {
            self.mend();
        }
    }

    /// It wakes from having stood still: its clock shows `now` at once.
    pub(crate) fn thaw(&mut self, now: u64) {
        self.frozen_until = None;
        self.judge.lock().enter(self.number, self.born, self.origin);
        self.runtime.block_on(async {
            let gap = (self.origin + Duration::from_millis(now - self.born))
                .saturating_duration_since(Instant::now());
            tokio::time::advance(gap).await;
        });
        self.judge.lock().stop(now);
        self.struck();
        self.judge.lock().leave(now);
    }

    fn struck(&mut self) {
        self.in_doubt = false;
        for (op, fault) in self.faults.take_struck() {
            self.in_doubt |= op == Op::Commit && matches!(fault, Fault::PartialBatch | Fault::LoseAnswer);
            // Delays are too many to tell.
            if !matches!(fault, Fault::Delay(_) | Fault::DelayAnswer(_)) {
                self.judge.lock().note(What::Struck(op.name(), format!("{fault:?}")));
            }
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.frozen_until.is_none() && !self.has_joined()
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// A handler ended it.
    pub(crate) fn was_killed(&self) -> bool {
        self.killed
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.stop.is_none()
    }

    /// Asks for the end.
    pub(crate) fn drain(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Cuts it off from the store until `end`.
    pub(crate) fn cut_off(&mut self, end: u64) {
        if self.outage.is_none() {
            let rule = Rule::new(Fault::Fail(StoreErrorKind::Unavailable));
            self.outage = Some((self.faults.add(rule), end));
        }
    }

    fn mend(&mut self) {
        if let Some((rule, _)) = self.outage.take() {
            self.faults.remove(rule);
        }
    }

    /// From here on the store works for it.
    pub(crate) fn calm(&mut self) {
        self.outage = None;
        self.faults.clear();
    }

    /// Publishes events, one after another; one whose fate is unknown once more.
    pub(crate) fn publish(&self, steps: Vec<Step>, together: bool) {
        let Some(photon) = self.photon.get().cloned() else { return };
        let judge = self.judge.clone();
        let one = move |photon: Photon, judge: Shared, step: Step| async move {
            for _ in 0..3 {
                match photon.publish(&step).dedup_id(step.n.to_string()).await {
                    Ok(receipt) => {
                        let place = (receipt.shard.0, receipt.seq.0);
                        judge.lock().published(step.n, step.key, place);
                        return;
                    }
                    Err(Error::Unknown { .. }) => {}
                    Err(error) => {
                        judge.lock().note(What::Failed(format!("publish #{}: {error}", step.n)));
                        return;
                    }
                }
            }
        };
        if together {
            for step in steps {
                self.runtime.spawn(one(photon.clone(), judge.clone(), step));
            }
        } else {
            self.runtime.spawn(async move {
                for step in steps {
                    one(photon.clone(), judge.clone(), step).await;
                }
            });
        }
    }
}

/// The rules by which the store fails for a process.
fn trouble(faults: &Faults, scenario: &Scenario) {
    let store = scenario.store;
    let ms = Duration::from_millis;
    for (number, delay) in [1, 7, 23, 90].into_iter().enumerate() {
        let chance = store.slow / 4;
        faults.add(Rule::new(Fault::Delay(ms(delay + number as u64))).chance(chance));
        faults.add(Rule::new(Fault::DelayAnswer(ms(delay))).chance(chance));
    }
    // Late enough for the lease to be gone.
    faults.add(Rule::new(Fault::Delay(ms(900))).on([Op::Commit]).chance(store.slow / 50));
    // What is stored is loaded long before the reader comes to its place.
    faults.add(Rule::new(Fault::Delay(ms(150))).on([Op::Read]).chance(scenario.slow_reads));
    faults.add(Rule::new(Fault::Fenced).chance(store.fenced));
    faults.add(Rule::new(Fault::PartialBatch).on([Op::Append]).chance(store.part));
    faults.add(Rule::new(Fault::PartialBatch).on([Op::Commit]).chance(3 * store.part));
    faults.add(Rule::new(Fault::LoseAnswer).chance(store.lose));
    faults.add(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)).chance(store.fail));
}

/// The main program of a process.
struct Life {
    store: Arc<dyn Store>,
    seed: u64,
    instances: u32,
    group: Group,
    index: u32,
    wall: Timestamp,
    options: Options,
    drain_timeout: Duration,
    probe: Probe,
    photon: Arc<OnceLock<Photon>>,
    joined: Arc<AtomicBool>,
}

impl Life {
    async fn live(self, stopped: oneshot::Receiver<()>) {
        let judge = self.probe.judge.clone();
        let built = Photon::builder()
            .store(self.store)
            .registry(Registry::new(HANDLERS.iter().collect(), vec![&STEPS]))
            .only([self.group.name])
            // A place in a group is an instance: whoever takes it runs anew what ran there before.
            .instance(format!("{}-{}", self.group.name, self.index))
            .options(self.options)
            .group(self.index, self.instances)
            .lease_ttl(LEASE)
            .drain_timeout(self.drain_timeout)
            .clock(Clock::starting_at(self.wall))
            .seed(self.seed)
            .state(self.probe)
            .build()
            .await;
        let photon = match built {
            Ok(photon) => photon,
            Err(error) => return judge.lock().violate(format!("a Photon cannot be built: {error}")),
        };
        let _ = self.photon.set(photon.clone());
        tokio::pin!(stopped);
        let executor = loop {
            tokio::select! {
                biased;
                _ = &mut stopped => {
                    judge.lock().note(What::Note("stopped before it started", None));
                    return self.joined.store(true, Ordering::Relaxed);
                }
                started = photon.start_executor() => match started {
                    Ok(executor) => break executor,
                    Err(error) => judge.lock().note(What::Failed(format!("start: {error}"))),
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        judge.lock().note(What::Started);
        if stopped.await.is_err() {
            // The world ended without a word.
            return std::future::pending().await;
        }
        executor.shutdown();
        let report = executor.join().await;
        judge.lock().joined(report.is_clean());
        self.joined.store(true, Ordering::Relaxed);
    }
}
