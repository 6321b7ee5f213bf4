//! The record of what handlers did, and the gates that they wait at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

/// What happened to a run of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Begun,
    Done,
    Failed,
    Deferred,
    Panicked,
    /// Dropped in the middle: by a timeout, a lost lease, a drain that took too long.
    BrokenOff,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub group: &'static str,
    pub key: String,
    pub n: u64,
    pub attempt: u32,
    pub what: What,
    /// The number of the instance that ran it.
    pub by: u32,
    /// When, for distances.
    pub at: tokio::time::Instant,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    open: BTreeSet<String>,
    running: BTreeMap<&'static str, usize>,
    most_running: BTreeMap<&'static str, usize>,
}

/// A handle on the record. Each instance has its own: after a crash, what a dead instance says no longer counts.
#[derive(Debug, Clone)]
pub struct Probe {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<u64>>,
    alive: Arc<AtomicBool>,
    by: u32,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::new(watch::Sender::new(0)),
            alive: Arc::new(AtomicBool::new(true)),
            by: 0,
        }
    }
}

impl Probe {
    /// The handle of another instance.
    pub fn of_instance(&self, by: u32) -> Self {
        Self { alive: Arc::new(AtomicBool::new(true)), by, ..self.clone() }
    }

    /// The instance is dead: nothing that it still does counts.
    pub fn kill(&self) {
        self.alive.store(false, Ordering::SeqCst);
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    /// A run begins; it is recorded as broken off unless it ends.
    pub fn begin(&self, group: &'static str, key: &str, n: u64, attempt: u32) -> Run {
        let entry = Entry {
            group,
            key: key.to_owned(),
            n,
            attempt,
            what: What::Begun,
            by: self.by,
            at: tokio::time::Instant::now(),
        };
        if self.alive.load(Ordering::SeqCst) {
            self.change(|state| {
                state.entries.push(entry.clone());
                let running = state.running.entry(group).or_default();
                *running += 1;
                let most = state.most_running.entry(group).or_default();
                *most = (*most).max(*running);
            });
        }
        Run { probe: self.clone(), entry, ended: false }
    }

    /// Opens a gate for good.
    pub fn open(&self, gate: &str) {
        self.change(|state| state.open.insert(gate.to_owned()));
    }

    /// Whether a gate is open.
    pub fn is_open(&self, gate: &str) -> bool {
        self.state.lock().unwrap().open.contains(gate)
    }

    /// Waits at a gate.
    pub async fn pass(&self, gate: &str) {
        let mut changed = self.changed.subscribe();
        while !self.is_open(gate) {
            changed.changed().await.unwrap();
        }
    }

    /// Waits until the record fulfils a condition, which must not ask the probe itself.
    ///
    /// # Panics
    /// With the record, when that takes too long.
    pub async fn until(&self, what: &str, condition: impl Fn(&[Entry]) -> bool) {
        let mut changed = self.changed.subscribe();
        let wait = async {
            while !condition(&self.state.lock().unwrap().entries) {
                changed.changed().await.unwrap();
            }
        };
        // Much on a paused clock, enough on a slow machine.
        let ended = tokio::time::timeout(Duration::from_secs(60), wait).await;
        assert!(ended.is_ok(), "it never came to this: {what}; seen were {:#?}", self.short());
    }

    /// Waits until `count` runs of a group ended well.
    pub async fn until_done(&self, group: &str, count: usize) {
        let done = |entries: &[Entry]| {
            entries.iter().filter(|entry| entry.group == group && entry.what == What::Done).count() >= count
        };
        self.until(&format!("{count} done in {group}"), done).await;
    }

    /// How many entries of all groups say this.
    pub fn count(&self, what: What) -> usize {
        self.state.lock().unwrap().entries.iter().filter(|entry| entry.what == what).count()
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.state.lock().unwrap().entries.clone()
    }

    /// The entries of one event of a group.
    pub fn of(&self, group: &str, key: &str, n: u64) -> Vec<Entry> {
        let state = self.state.lock().unwrap();
        let of = |entry: &&Entry| entry.group == group && entry.key == key && entry.n == n;
        state.entries.iter().filter(of).cloned().collect()
    }

    /// What happened to one event of a group, without the begins.
    pub fn ends_of(&self, group: &str, key: &str, n: u64) -> Vec<(u32, What)> {
        let entries = self.of(group, key, n);
        entries.iter().filter(|e| e.what != What::Begun).map(|e| (e.attempt, e.what)).collect()
    }

    /// The numbers of a group that ended well, by key, in the order in which they did.
    pub fn done(&self, group: &str) -> BTreeMap<String, Vec<u64>> {
        let mut done = BTreeMap::<_, Vec<_>>::new();
        for entry in self.entries() {
            if entry.group == group && entry.what == What::Done {
                done.entry(entry.key).or_default().push(entry.n);
            }
        }
        done
    }

    /// How many runs of a group ended well.
    pub fn done_count(&self, group: &str) -> usize {
        self.done(group).values().map(Vec::len).sum()
    }

    /// The most runs of a group at the same time.
    pub fn most_running(&self, group: &str) -> usize {
        self.state.lock().unwrap().most_running.get(group).copied().unwrap_or_default()
    }

    /// Holds P3 against the whole record of a group: runs of a key never overlap, and of the last completed runs
    /// of a key the later number is the later one.
    pub fn assert_key_order(&self, group: &str) {
        let mut running: BTreeMap<String, (u64, u32)> = BTreeMap::new();
        let mut last_done: BTreeMap<String, BTreeMap<u64, usize>> = BTreeMap::new();
        for (place, entry) in self.entries().into_iter().enumerate().filter(|(_, e)| e.group == group) {
            let Entry { key, n, by, what, .. } = entry;
            if what == What::Begun {
                // What a crashed instance was at never ends in the record.
                if let Some((other, of)) = running.insert(key.clone(), (n, by)) {
                    assert_ne!(
                        of,
                        by,
                        "{other} and {n} of key {key:?} ran at the same time: {:#?}",
                        self.short()
                    );
                }
                continue;
            }
            running.remove(&key);
            if what == What::Done {
                last_done.entry(key).or_default().insert(n, place);
            }
        }
        for (key, places) in last_done {
            let sorted = places.values().is_sorted();
            assert!(sorted, "the last runs of key {key:?} are out of order: {:#?}", self.short());
        }
    }

    fn short(&self) -> Vec<String> {
        let line =
            |e: &Entry| format!("{}#{} {}:{} attempt {} {:?}", e.group, e.by, e.key, e.n, e.attempt, e.what);
        let entries = self.entries();
        let skipped = entries.len().saturating_sub(200);
        entries.iter().skip(skipped).map(line).collect()
    }
}

/// A run under way.
pub struct Run {
    probe: Probe,
    entry: Entry,
    ended: bool,
}

impl Run {
    pub fn end(mut self, what: What) {
        self.record(what);
    }

    fn record(&mut self, what: What) {
        self.ended = true;
        if !self.probe.alive.load(Ordering::SeqCst) {
            return;
        }
        let entry = Entry { what, at: tokio::time::Instant::now(), ..self.entry.clone() };
        self.probe.change(|state| {
            *state.running.entry(entry.group).or_default() -= 1;
            state.entries.push(entry);
        });
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.ended {
            self.record(if std::thread::panicking() { What::Panicked } else { What::BrokenOff });
        }
    }
}
