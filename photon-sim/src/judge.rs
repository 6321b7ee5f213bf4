//! Holds a run against the promises.
//!
//! The judge is told of everything at the moment it happens: of changes of the store by the
//! [watched store](crate::store), of runs by the handlers, of processes by the world. It stops at the first
//! promise that is broken.

mod ending;
mod order;
mod runs;
mod stored;
mod track;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use photon_core::ids::{Incarnation, Seq, Shard};
use photon_core::store::{Checkpoint, Fence, RowState};
use tokio::time::Instant;

use self::track::Track;
use crate::event::SHARDS;
use crate::history::{History, Place, WORLD, What};
use crate::scenario::{Group, Scenario};

/// A handle on the judge of a run.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Judge>>);

impl Shared {
    pub(crate) fn new(judge: Judge) -> Self {
        Self(Arc::new(Mutex::new(judge)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Judge> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judge")
    }
}

/// An event of the log.
#[derive(Debug, Clone, Copy)]
struct Logged {
    n: u32,
    key: Option<u8>,
}

/// A run of a handler.
#[derive(Debug, Clone, Copy)]
struct Run {
    group: usize,
    place: Place,
    key: Option<u8>,
    who: usize,
    attempt: u32,
    epoch: u64,
    /// Its process stood still while it ran, so that nobody could break it off in time.
    suspended: bool,
    ended: bool,
}

/// What is known of a group.
#[derive(Debug)]
struct GroupState {
    plan: Group,
    tracks: BTreeMap<Place, Track>,
    /// Who owns each shard, or did last.
    grants: [Option<Fence>; SHARDS as usize],
    /// Epochs that ended by being given back.
    given_back: BTreeSet<(u16, u64)>,
    /// What the store held after the last commit.
    stored: [Stored; SHARDS as usize],
    /// Events that were delivered again, by shard and epoch.
    again: BTreeMap<(u16, u64), BTreeSet<u64>>,
}

impl GroupState {
    /// Whether the store says that a delivery needs no more work.
    fn has_ended(&self, place: Place) -> bool {
        let Stored { checkpoint, rows } = &self.stored[usize::from(place.0)];
        match rows.get(&place.1) {
            Some(row) => row.is_none(),
            None => checkpoint.covers(Seq(place.1)),
        }
    }
}

/// What the store holds about one shard of a group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stored {
    pub(crate) checkpoint: Checkpoint,
    /// Rows by place; marks have no state.
    pub(crate) rows: BTreeMap<u64, Option<RowState>>,
}

/// Where the time comes from.
#[derive(Debug, Clone, Copy)]
struct Clock {
    who: usize,
    base: u64,
    origin: Option<Instant>,
}

/// The judge of one run.
#[derive(Debug)]
pub(crate) struct Judge {
    scenario: Scenario,
    history: History,
    clock: Clock,
    log: BTreeMap<Place, Logged>,
    acknowledged: BTreeMap<Place, u32>,
    groups: Vec<GroupState>,
    runs: Vec<Run>,
    running: BTreeMap<usize, BTreeSet<usize>>,
    /// Nothing goes wrong any more.
    calm: bool,
    /// The event that is to be handled soon.
    prompt: Option<u32>,
    violation: Option<String>,
    /// Who each process was to the store.
    incarnations: BTreeMap<Incarnation, usize>,
    /// Processes that ended in the middle of everything.
    crashed: BTreeSet<usize>,
}

impl Judge {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let group = |plan: &Group| GroupState {
            plan: *plan,
            tracks: BTreeMap::new(),
            grants: [None; SHARDS as usize],
            given_back: BTreeSet::new(),
            stored: Default::default(),
            again: BTreeMap::new(),
        };
        Self {
            groups: scenario.groups.iter().map(group).collect(),
            scenario: scenario.clone(),
            history: History::default(),
            clock: Clock { who: WORLD, base: 0, origin: None },
            log: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            runs: Vec::new(),
            running: BTreeMap::new(),
            calm: false,
            prompt: None,
            violation: None,
            incarnations: BTreeMap::new(),
            crashed: BTreeSet::new(),
        }
    }

    /// From here on a process runs, whose clock shows `origin` at `base` milliseconds of the run.
    pub(crate) fn enter(&mut self, who: usize, base: u64, origin: Instant) {
        self.clock = Clock { who, base, origin: Some(origin) };
    }

    /// The process that runs stands still at `now`.
    pub(crate) fn stop(&mut self, now: u64) {
        self.clock = Clock { base: now, origin: None, ..self.clock };
    }

    /// From here on the world acts, at `now`.
    pub(crate) fn leave(&mut self, now: u64) {
        self.clock = Clock { who: WORLD, base: now, origin: None };
    }

    fn at(&self) -> u64 {
        let since = self.clock.origin.map_or(0, |origin| origin.elapsed().as_millis());
        self.clock.base + u64::try_from(since).unwrap_or(0)
    }

    /// The time of the run, in milliseconds.
    pub(crate) fn time(&self) -> u64 {
        self.at()
    }

    pub(crate) fn note(&mut self, what: What) {
        let (at, who) = (self.at(), self.clock.who);
        self.history.push(at, who, what);
    }

    pub(crate) fn violate(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.note(What::Failed(format!("VIOLATION {text}")));
        self.violation.get_or_insert(text);
    }

    /// The promise that was broken first.
    pub(crate) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub(crate) fn take(&mut self) -> (History, Option<String>) {
        (std::mem::take(&mut self.history), self.violation.take())
    }

    fn group(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.plan.name == name)
    }

    // Publishing.

    pub(crate) fn appended(&mut self, n: u32, key: Option<u8>, place: Place) {
        self.note(What::Appended(n, key, place));
        self.log.insert(place, Logged { n, key });
    }

    pub(crate) fn published(&mut self, n: u32, key: Option<u8>, place: Place) {
        self.note(What::Published(n, key, place));
        self.acknowledged.insert(place, n);
        if self.log.get(&place).is_none_or(|logged| logged.n != n) {
            self.violate(format!(
                "P1: #{n} was acknowledged at {place:?}, but the log has another event there"
            ));
        }
    }

    // Ownership.

    /// The process that runs becomes a member.
    pub(crate) fn joins(&mut self, incarnation: Incarnation) {
        self.incarnations.insert(incarnation, self.clock.who);
    }

    /// Whether an incarnation ended in a crash of its process.
    pub(crate) fn has_crashed(&self, incarnation: Incarnation) -> bool {
        self.incarnations.get(&incarnation).is_some_and(|who| self.crashed.contains(who))
    }

    pub(crate) fn granted(&mut self, group: &str, shard: Shard, fence: Fence) {
        let Some(group) = self.group(group) else { return };
        let state = &mut self.groups[group];
        let grant = &mut state.grants[usize::from(shard.0)];
        if *grant == Some(fence) {
            return;
        }
        let before = grant.replace(fence);
        let name = state.plan.name;
        self.note(What::Granted(name, shard.0, fence.epoch));
        if before.is_some_and(|before| before.epoch >= fence.epoch) {
            self.violate(format!("P9: epoch {} of {name} shard {shard} was given out twice", fence.epoch));
        }
    }

    /// A member gives a shard back at the end of its work.
    pub(crate) fn released(&mut self, who: Incarnation, group: &str, shard: Shard) {
        let Some(group) = self.group(group) else { return };
        let state = &mut self.groups[group];
        if let Some(fence) = state.grants[usize::from(shard.0)].filter(|fence| fence.token == who) {
            state.given_back.insert((shard.0, fence.epoch));
        }
    }

    /// Somebody reads so many records at most.
    pub(crate) fn reads(&mut self, records: usize) {
        let prefetch = self.scenario.options.prefetch.unwrap_or_default() as usize;
        if records > prefetch {
            self.violate(format!("P5: {records} records are read where prefetch is {prefetch}"));
        }
    }
}
