//! The world of a run: lets processes run in turn, and makes trouble in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use fastrand::Rng;
use futures::FutureExt;
use photon_backend::memory::MemoryStore;
use photon_backend::wrap::Wrapped;
use photon_core::ids::{GroupName, Key, Shard, SubscriptionId, TopicName};
use photon_core::store::{DeadLetterFilter, Sideline};
use photon_core::time::Timestamp;

use crate::event::{SHARDS, STEPS, Step};
use crate::handler::Probe;
use crate::history::{History, Place, What};
use crate::judge::{Judge, Shared, Stored};
use crate::process::{Process, Setup};
use crate::scenario::{Group, Scenario};
use crate::store::{Watch, alone, look};

/// The wall clock at the beginning: some day.
const WALL: i64 = 1_700_000_000_000_000;
/// How long everything may take to settle once nothing goes wrong any more, in milliseconds.
const PATIENCE: u64 = 300_000;
/// How soon an event is handled if nothing goes wrong and nothing else is to be done.
const PROMPT: u64 = 500;

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The scenario.
    pub scenario: Scenario,
    /// The promise that was broken, if one was.
    pub violation: Option<String>,
    /// What happened.
    pub history: History,
}

impl Outcome {
    /// For people: what was broken, how to see it again, and what happened.
    pub fn report(&self) -> String {
        let Self { scenario, violation, history } = self;
        let broken = violation.as_deref().unwrap_or("nothing was broken");
        format!(
            "{history}\n{scenario:?}\n\nseed {seed}: {broken}\nreplay: PHOTON_SIM_SEED={seed}",
            seed = scenario.seed
        )
    }
}

/// Plays one seed.
pub fn run(seed: u64) -> Outcome {
    let scenario = Scenario::of(seed);
    let mut world = World::new(scenario.clone());
    world.play();
    let (history, violation) = world.judge.lock().take();
    Outcome { scenario, violation, history }
}

struct World {
    scenario: Scenario,
    rng: Rng,
    now: u64,
    /// The wall clock of the store.
    wall: Arc<AtomicI64>,
    memory: MemoryStore,
    store: Arc<Wrapped<Watch>>,
    judge: Shared,
    processes: Vec<Process>,
    /// Where the power is gone: they hold what they hold, and never do anything again.
    dark: Vec<Process>,
    /// When the next process takes an empty place.
    restarts: BTreeMap<(&'static str, u32), u64>,
    spawned: usize,
    published: u32,
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let wall = Arc::new(AtomicI64::new(WALL));
        let clock = wall.clone();
        let memory = MemoryStore::with_clock(Arc::new(move || Timestamp(clock.load(Ordering::Relaxed))));
        let judge = Shared::new(Judge::new(&scenario));
        let store = Watch::over(&memory, judge.clone());
        Self {
            rng: Rng::with_seed(scenario.seed ^ 0x3011_d000),
            scenario,
            now: 0,
            wall,
            memory,
            store,
            judge,
            processes: Vec::new(),
            dark: Vec::new(),
            restarts: BTreeMap::new(),
            spawned: 0,
            published: 0,
        }
    }

    fn play(&mut self) {
        while self.now < self.scenario.trouble && !self.is_over() {
            self.fill_places(true);
            self.make_trouble();
            let quantum = self.rng.u64(1..=40);
            self.step(quantum);
        }
        if self.is_over() {
            return;
        }
        self.calm();
        self.settle();
        if !self.is_over() {
            self.be_prompt();
        }
        if !self.is_over() {
            self.end_in_the_middle();
        }
        if !self.is_over() {
            self.end_cleanly();
        }
        if !self.is_over() {
            self.judge.lock().conclude();
        }
    }

    fn is_over(&self) -> bool {
        self.judge.lock().violation().is_some()
    }

    fn note(&self, text: &'static str, number: impl TryInto<i64>) {
        self.judge.lock().note(What::Note(text, number.try_into().ok()));
    }

    /// Lets time pass: every process runs for as long, in some order.
    fn step(&mut self, quantum: u64) {
        self.now += quantum;
        self.wall.fetch_add(i64::try_from(quantum).unwrap_or(0) * 1_000, Ordering::Relaxed);
        self.rng.shuffle(&mut self.processes);
        for process in &mut self.processes {
            if process.frozen_until.is_some_and(|until| until <= self.now) {
                process.thaw(self.now);
            }
            if process.frozen_until.is_none() {
                process.run_until(self.now);
            }
        }
        self.judge.lock().leave(self.now);
        while let Some(at) = self.processes.iter().position(Process::was_killed) {
            self.crash_at(at);
        }
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.processes).into_iter().partition(Process::has_joined);
        self.processes = left;
        for process in gone {
            self.judge.lock().gone(process.number);
        }
    }

    /// Starts a process wherever none is.
    fn fill_places(&mut self, may_wait: bool) {
        for group in self.scenario.groups.clone() {
            for index in 0..self.scenario.instances {
                let here = |process: &Process| {
                    process.group == group && process.index == index && !process.is_draining()
                };
                if self.processes.iter().any(here) {
                    continue;
                }
                let wait = if may_wait { self.rng.u64(0..400) } else { 0 };
                let at = *self.restarts.entry((group.name, index)).or_insert(self.now + wait);
                if at <= self.now || !may_wait {
                    self.restarts.remove(&(group.name, index));
                    self.spawn(group, index);
                }
            }
        }
    }

    fn spawn(&mut self, group: Group, index: u32) {
        let jumps = self.scenario.clock_jumps;
        let clock = self.rng.i64(-jumps..=jumps);
        let number = self.spawned;
        self.spawned += 1;
        let wall = Timestamp(self.wall.load(Ordering::Relaxed) + clock * 1_000);
        {
            let mut judge = self.judge.lock();
            judge.note(What::Begins { group: group.name, index, clock });
        }
        let probe = Probe {
            judge: self.judge.clone(),
            store: self.memory.clone(),
            seed: self.scenario.seed,
            unruly: self.scenario.unruly,
            killers: self.scenario.killers,
            kill: Arc::default(),
        };
        let setup = Setup { number, group, index, wall, store: self.store.clone(), probe };
        self.processes.push(Process::start(&self.scenario, setup, self.now));
    }

    // Trouble.

    fn make_trouble(&mut self) {
        let often = f64::from(self.scenario.processes) / 2.0;
        if self.chance(0.08) {
            self.publish_some();
        }
        if self.chance(0.005 * often) {
            self.crash();
        }
        // The worst moment: something is written, and its writer does not know.
        for at in (0..self.processes.len()).rev() {
            if self.processes[at].in_doubt && self.chance(0.3 * often) {
                self.crash_at(at);
            }
        }
        if self.chance(0.003 * often) {
            self.lose_power();
        }
        if self.chance(0.006 * often) {
            self.freeze();
        }
        if self.chance(0.006 * often) {
            self.drain();
        }
        if self.chance(0.006 * often) {
            self.cut_off();
        }
        if self.chance(0.004 * often) {
            self.mute();
        }
        if self.chance(0.003 * often) {
            // Somebody starts one too many.
            let group = self.scenario.groups[self.rng.usize(0..self.scenario.groups.len())];
            let index = self.rng.u32(0..self.scenario.instances);
            self.spawn(group, index);
        }
        let people = f64::from(self.scenario.people);
        if self.chance(0.01 * people) {
            self.people(true);
        }
        if self.chance(0.005 * people) {
            self.people(false);
        }
        if self.scenario.clock_jumps > 0 && self.chance(0.01) {
            let jump = self.rng.i64(-self.scenario.clock_jumps..=self.scenario.clock_jumps);
            self.note("the clock of the store jumps by", jump);
            self.wall.fetch_add(jump * 1_000, Ordering::Relaxed);
        }
    }

    fn chance(&mut self, of: f64) -> bool {
        self.rng.f64() < of
    }

    /// One of the processes that run.
    fn any(&mut self) -> Option<usize> {
        let running: Vec<usize> =
            (0..self.processes.len()).filter(|index| self.processes[*index].is_running()).collect();
        (!running.is_empty()).then(|| running[self.rng.usize(0..running.len())])
    }

    fn publish_some(&mut self) {
        let count = self.rng.u32(1..=6).min(self.scenario.events - self.published);
        let Some(by) = self.any().filter(|_| count > 0) else { return };
        let steps = (0..count).map(|_| self.next_step()).collect();
        let together = self.rng.bool();
        self.processes[by].publish(steps, together);
    }

    fn next_step(&mut self) -> Step {
        let n = self.published;
        self.published += 1;
        let key = self.rng.u8(0..=self.scenario.keys);
        Step { n, key: key.checked_sub(1) }
    }

    fn crash(&mut self) {
        if let Some(at) = self.any() {
            self.crash_at(at);
        }
    }

    fn crash_at(&mut self, at: usize) {
        let process = self.processes.remove(at);
        let number = process.number;
        self.note("crash of process", number);
        self.end_process(&process);
        drop(process);
    }

    fn lose_power(&mut self) {
        if let Some(at) = self.any() {
            let process = self.processes.remove(at);
            self.note("the power is gone for process", process.number);
            self.end_process(&process);
            self.dark.push(process);
        }
    }

    /// Tells the judge that a process ends in the middle of everything.
    fn end_process(&self, process: &Process) {
        let marks = alone(&self.memory, &subscription(process.group)).now_or_never();
        let marks = marks.and_then(Result::ok).unwrap_or_default();
        self.judge.lock().crashed(process.number, process.group.name, &marks);
    }

    fn freeze(&mut self) {
        if let Some(at) = self.any() {
            let until = self.now + self.rng.u64(50..2_000);
            let process = &mut self.processes[at];
            process.frozen_until = Some(until);
            let number = process.number;
            self.note("freezes: process", number);
            self.judge.lock().suspended(number);
        }
    }

    fn drain(&mut self) {
        if let Some(at) = self.any() {
            self.note("drains: process", self.processes[at].number);
            self.processes[at].drain();
        }
    }

    fn cut_off(&mut self) {
        if let Some(at) = self.any() {
            let end = self.now + self.rng.u64(20..1_500);
            self.note("loses the store: process", self.processes[at].number);
            self.processes[at].cut_off(end);
        }
    }

    fn mute(&mut self) {
        if let Some(at) = self.any() {
            let muted = self.rng.bool();
            self.note(
                if muted { "no wakes for process" } else { "wakes again for process" },
                self.processes[at].number,
            );
            self.processes[at].faults.mute_wakes(muted);
        }
    }

    /// People redrive or discard some dead letters.
    fn people(&mut self, redrive: bool) {
        let group = self.scenario.groups[self.rng.usize(0..self.scenario.groups.len())];
        let key = self.rng.u8(0..=self.scenario.keys).checked_sub(1);
        let filter =
            DeadLetterFilter { key: key.map(|key| Key::new(vec![key])), ..DeadLetterFilter::default() };
        let limit = self.rng.usize(1..5);
        self.act_on_dead(group, redrive, &filter, limit);
    }

    fn act_on_dead(&self, group: Group, redrive: bool, filter: &DeadLetterFilter, limit: usize) {
        let id = subscription(group);
        let act = async {
            if redrive {
                self.store.redrive(&id, filter, limit).await
            } else {
                self.store.discard(&id, filter, limit).await
            }
        };
        // Before the subscription is known there is nothing to do.
        let _ = act.now_or_never();
    }

    // The end.

    /// From here on everything works.
    fn calm(&mut self) {
        self.judge.lock().note(What::Note("calm", None));
        let now = self.now;
        for process in &mut self.processes {
            process.calm();
            if process.frozen_until.is_some() {
                process.thaw(now);
            }
        }
        // What is left to publish.
        let left = (self.scenario.events - self.published).min(4);
        if let Some(by) = self.any() {
            let steps = (0..left).map(|_| self.next_step()).collect();
            self.processes[by].publish(steps, false);
        }
    }

    fn calm_step(&mut self) {
        self.fill_places(false);
        for process in &mut self.processes {
            process.calm();
        }
        self.step(50);
    }

    /// Waits until all is settled; who is dead and blocks is redriven.
    fn settle(&mut self) {
        let end = self.now + PATIENCE;
        let mut redrive_at = self.now + 1_000;
        while !self.is_over() {
            self.calm_step();
            let open = self.open();
            if open.is_empty() {
                return;
            }
            if self.now >= redrive_at {
                redrive_at = self.now + 1_000;
                for group in self.scenario.groups.clone() {
                    self.act_on_dead(group, true, &DeadLetterFilter::default(), 100);
                }
            }
            if self.now >= end {
                self.judge
                    .lock()
                    .violate(format!("P1: not settled {PATIENCE} ms after the last trouble: {open:?}"));
            }
        }
    }

    fn stored(&self, group: Group) -> Vec<Stored> {
        let id = subscription(group);
        let shard = |shard| look(&self.memory, &id, Shard(shard)).now_or_never()?.ok();
        (0..SHARDS).filter_map(shard).collect()
    }

    fn open(&self) -> Vec<(&'static str, Place)> {
        let mut all = Vec::new();
        for group in &self.scenario.groups {
            let stored = self.stored(*group);
            if stored.len() < usize::from(SHARDS) {
                all.push((group.name, (0, 0)));
                continue;
            }
            all.extend(
                self.judge.lock().open(group.name, &stored).into_iter().map(|place| (group.name, place)),
            );
        }
        all
    }

    /// An event that comes while nothing else is to be done is handled soon: a wake does its work.
    fn be_prompt(&mut self) {
        // Whoever was away has come back by then.
        for _ in 0..40 {
            self.calm_step();
        }
        let Some(by) = self.any() else { return };
        let n = self.published;
        self.published += 1;
        self.note("an event for which nothing stands in the way", n);
        self.judge.lock().expect_prompt(n);
        self.processes[by].publish(vec![Step { n, key: None }], false);
        let end = self.now + PROMPT;
        while self.now < end {
            self.calm_step();
        }
        let late = self.judge.lock().late(n);
        if let Some(late) = late {
            self.judge.lock().violate(late);
        }
        self.settle();
    }

    /// All drain while there is work; the next ones go on with it.
    fn end_in_the_middle(&mut self) {
        let Some(by) = self.any() else { return };
        let steps = (0..6).map(|_| self.next_step()).collect();
        self.processes[by].publish(steps, false);
        for _ in 0..self.rng.u8(1..5) {
            let quantum = self.rng.u64(1..=40);
            self.step(quantum);
        }
        self.drain_all();
        self.settle();
    }

    fn drain_all(&mut self) {
        for process in &mut self.processes {
            process.drain();
        }
        self.judge.lock().note(What::Note("all drain", None));
        self.judge.lock().calm();
        let end = self.now + 5_000;
        while !self.processes.is_empty() && self.now < end && !self.is_over() {
            self.step(50);
        }
        if !self.processes.is_empty() {
            self.judge
                .lock()
                .violate("P8: a drain did not end within 5 s although nothing stands in its way");
        }
    }

    /// Everybody ends cleanly, and whoever starts then has nothing to do.
    fn end_cleanly(&mut self) {
        self.drain_all();
        if self.is_over() {
            return;
        }
        let runs = self.judge.lock().runs();
        for _ in 0..30 {
            self.fill_places(false);
            self.step(50);
        }
        if self.judge.lock().runs() > runs {
            self.judge.lock().violate("P4: something is delivered again although all had ended cleanly");
        }
    }
}

fn subscription(group: Group) -> SubscriptionId {
    let topic =
        TopicName::new(STEPS.name).unwrap_or_else(|error| panic!("the topic has a valid name: {error}"));
    let group =
        GroupName::new(group.name).unwrap_or_else(|error| panic!("the group has a valid name: {error}"));
    SubscriptionId::new(topic, group)
}
