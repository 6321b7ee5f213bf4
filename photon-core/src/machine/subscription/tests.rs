//! The machine against a model of a store, through random histories with crashes, outages and operators.

mod found;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::handler::FailureClass;
use crate::headers::Headers;
use crate::ids::{EventId, Incarnation, Key, TopicName};
use crate::machine::retry::{Backoff, RetryPolicy};
use crate::machine::settlement::{Decision, Known, decide};
use crate::options::OnDead;
use crate::store::{Failure, ReadBatch, RowState, SeqRange, ShardCommit, ShardOutcome, ShardRead, Stage};
use crate::time::Timestamp;

const SHARD: Shard = Shard(0);

/// One shard of a store, in the simplest form that keeps the contract.
#[derive(Default)]
struct Store {
    log: Vec<Event>,
    end: u64,
    checkpoint: Checkpoint,
    rows: BTreeMap<Seq, StoredDelivery>,
    marks: BTreeSet<Seq>,
    epoch: u64,
    trials: Vec<Trial>,
}

impl Store {
    fn append(&mut self, key: Option<u8>, gap: u64) {
        self.end += gap;
        self.log.push(Event {
            id: EventId(Uuid::from_u128(u128::from(self.end))),
            topic: TopicName::new("t").unwrap(),
            shard: SHARD,
            seq: Seq(self.end),
            key: key.map(|key| Key::new(vec![key])),
            headers: Headers::new(),
            payload: bytes::Bytes::new(),
            time: Timestamp(0),
        });
    }

    fn read(&self, read: &Read) -> ReadBatch {
        let after = read.cursors[0].after;
        // As a store may that divides the limit among its shards: not all there is, and not all there is room for.
        let most = read.limit.records.min(1 + usize::try_from(self.end).unwrap() % 3);
        let records: Vec<Event> = self.log.iter().filter(|e| e.seq > after).take(most).cloned().collect();
        let rest = self.log.iter().filter(|e| e.seq > after).count() - records.len();
        let through =
            if rest > 0 { records.last().map_or(after, |e| e.seq) } else { Seq(self.end).max(after) };
        ReadBatch {
            records,
            shards: vec![ShardRead { shard: SHARD, through, floor: Seq(0), end: Seq(self.end) }],
        }
    }

    /// Carries out the first `steps` of: the puts, the checkpoint, the ends.
    fn commit(&mut self, commit: &ShardCommit, steps: u8) -> ShardOutcome {
        if commit.fence.epoch != self.epoch {
            return ShardOutcome::Fenced;
        }
        let mut conflicts = Vec::new();
        for put in &commit.puts {
            let version = self.rows.get(&put.event.seq).map_or(0, |row| row.version);
            if version == put.version || version == put.version + 1 {
                let row = StoredDelivery { version: put.version + 1, ..put.clone() };
                self.rows.insert(put.event.seq, row);
            } else {
                conflicts.push(put.event.seq);
            }
        }
        if steps < 2 {
            return ShardOutcome::Fenced;
        }
        assert!(commit.checkpoint.replaces(&self.checkpoint), "the checkpoint lost something");
        self.checkpoint = commit.checkpoint.clone();
        self.trials.clone_from(&commit.trials);
        for end in commit.ends.iter().filter(|_| steps == 3) {
            match self.rows.get(&end.seq) {
                Some(row) if row.version != end.version => conflicts.push(end.seq),
                Some(_) => self.end_row(end.seq),
                None => {}
            }
        }
        let watermark = self.checkpoint.watermark;
        self.marks.retain(|seq| *seq > watermark);
        ShardOutcome::Committed { conflicts }
    }

    fn end_row(&mut self, seq: Seq) {
        self.rows.remove(&seq);
        if !self.checkpoint.covers(seq) {
            self.marks.insert(seq);
        }
    }

    fn lane(&self, load: &Load) -> Vec<StoredDelivery> {
        let of_lane = |row: &&StoredDelivery| row.lane() == load.lane && row.state.is_live();
        self.rows.values().filter(of_lane).take(load.limit).cloned().collect()
    }

    fn heads(&self) -> Vec<Head> {
        let mut heads: BTreeMap<Lane, Head> = BTreeMap::new();
        for row in self.rows.values().filter(|row| row.state.is_live()) {
            let head = Head {
                lane: row.lane(),
                seq: row.event.seq,
                state: row.state,
                version: row.version,
                rows: 0,
            };
            heads.entry(row.lane()).or_insert(head).rows += 1;
        }
        heads.into_values().collect()
    }

    fn start(&mut self, crashed: bool) -> (Fence, ShardStart) {
        self.epoch += 1;
        let fence = Fence { epoch: self.epoch, token: Incarnation(Uuid::nil()) };
        let watermark = self.checkpoint.watermark;
        let rows_above =
            self.rows.keys().chain(&self.marks).copied().filter(|seq| *seq > watermark).collect();
        let open = |trial: &&Trial| {
            let live = self.rows.get(&trial.seq).is_some_and(|row| row.state.is_live());
            live || !self.checkpoint.covers(trial.seq) && !self.marks.contains(&trial.seq)
        };
        let trials = self.trials.iter().filter(open).copied().collect();
        (
            fence,
            ShardStart {
                checkpoint: self.checkpoint.clone(),
                rows_above,
                heads: self.heads(),
                trials,
                crashed,
            },
        )
    }
}

/// A service with one subscription on the store, and what its handlers saw.
struct World {
    settings: Settings,
    store: Store,
    machine: Subscription,
    now: Now,
    running: Vec<(usize, Event)>,
    /// Of what runs: the version of its row and the right under which it runs.
    rows: HashMap<usize, (u64, Fence)>,
    /// What transactions of handlers settled.
    settled: BTreeSet<u64>,
    read: Option<Read>,
    load: Option<Load>,
    commit: Option<Vec<ShardCommit>>,
    /// Places of the runs that ended well, in order.
    done: Vec<u64>,
    /// Those of this process.
    done_here: BTreeSet<u64>,
    ever_dead: BTreeSet<u64>,
    discarded: BTreeSet<u64>,
    /// Attempts that ended in failure since the last crash or redrive, by place.
    failed: HashMap<u64, u32>,
    /// What must not be delivered again, because a clean end came after it.
    never_again: BTreeSet<u64>,
    /// They end the process as soon as they run.
    killers: BTreeSet<u64>,
    /// What ran when the process last ended in a crash.
    suspects: BTreeSet<u64>,
    /// How often the process ended while a delivery had it for itself.
    alone: HashMap<u64, u32>,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Append { key: u8, gap: u8, kills: bool },
    Read { fails: bool },
    ReadEnds,
    Dispatch,
    Solitude,
    Finish { pick: u8, how: u8 },
    Load,
    LoadEnds { fails: bool },
    Commit,
    CommitEnds { how: u8 },
    Advance { millis: u16 },
    Operator { pick: u8, redrive: bool },
    Crash,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..4, 1u8..3, prop::bool::weighted(0.04))
            .prop_map(|(key, gap, kills)| Op::Append { key, gap, kills }),
        5 => prop::bool::weighted(0.1).prop_map(|fails| Op::Read { fails }),
        5 => Just(Op::ReadEnds),
        8 => Just(Op::Dispatch),
        2 => Just(Op::Solitude),
        8 => (any::<u8>(), 0u8..20).prop_map(|(pick, how)| Op::Finish { pick, how }),
        3 => Just(Op::Load),
        3 => prop::bool::weighted(0.1).prop_map(|fails| Op::LoadEnds { fails }),
        4 => Just(Op::Commit),
        4 => (0u8..9).prop_map(|how| Op::CommitEnds { how }),
        4 => (0u16..3_000).prop_map(|millis| Op::Advance { millis }),
        2 => any::<(u8, bool)>().prop_map(|(pick, redrive)| Op::Operator { pick, redrive }),
        1 => Just(Op::Crash),
        1 => Just(Op::Restart),
    ]
}

impl World {
    fn new(on_dead: OnDead, small: bool, settles: bool) -> Self {
        let settings = Settings {
            concurrency: if small { 1 } else { 3 },
            prefetch: if small { 2 } else { 6 },
            window: if small { 2 } else { 8 },
            max_blocked: if small { 2 } else { 5 },
            checkpoint_every: 2,
            checkpoint_interval: Duration::from_millis(200),
            park_after: Duration::from_secs(1),
            on_dead,
            retry: RetryPolicy {
                max_attempts: 3,
                backoff: Backoff::List(vec![Duration::from_millis(500), Duration::from_secs(2)].into()),
                jitter: 0.0,
                give_up_after: None,
            },
            settles,
            ..Settings::default()
        };
        let mut world = World {
            machine: Subscription::new(settings.clone(), true),
            settings,
            store: Store::default(),
            now: Now { mono: Mono(1_000_000), wall: Timestamp(50_000_000) },
            running: Vec::new(),
            rows: HashMap::new(),
            settled: BTreeSet::new(),
            read: None,
            load: None,
            commit: None,
            done: Vec::new(),
            done_here: BTreeSet::new(),
            ever_dead: BTreeSet::new(),
            discarded: BTreeSet::new(),
            failed: HashMap::new(),
            never_again: BTreeSet::new(),
            killers: BTreeSet::new(),
            suspects: BTreeSet::new(),
            alone: HashMap::new(),
        };
        world.start(false);
        world
    }

    /// A new process on the same store.
    fn start(&mut self, crashed: bool) {
        self.machine = Subscription::new(self.settings.clone(), true);
        let (fence, start) = self.store.start(crashed);
        self.machine.handle_assigned(SHARD, fence, start, self.now);
        self.running.clear();
        (self.read, self.load, self.commit) = (None, None, None);
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Append { key, gap, kills } => {
                self.store.append((key > 0).then_some(key), u64::from(gap));
                self.killers.extend(kills.then_some(self.store.end));
                self.machine.handle_wake();
            }
            Op::Read { fails } => {
                if let Some(read) = self.machine.poll_read(self.now) {
                    if fails {
                        self.machine.handle_read(&read, None, self.now);
                    } else {
                        self.read = Some(read);
                    }
                }
            }
            Op::ReadEnds => {
                if let Some(read) = self.read.take() {
                    let batch = self.store.read(&read);
                    self.machine.handle_read(&read, Some(batch), self.now);
                }
            }
            Op::Dispatch => self.dispatch(),
            Op::Solitude => {
                if self.machine.wants_solitude() {
                    assert!(self.running.is_empty());
                    self.machine.handle_solitude(self.now);
                }
            }
            Op::Finish { pick, how } => self.finish(pick, how),
            Op::Load => {
                if self.load.is_none() {
                    self.load = self.machine.poll_load();
                }
            }
            Op::LoadEnds { fails } => {
                if let Some(load) = self.load.take() {
                    let rows = (!fails).then(|| self.store.lane(&load));
                    self.machine.handle_loaded(&load, rows, self.now);
                }
            }
            Op::Commit => {
                if self.commit.is_none() {
                    self.commit = self.machine.poll_commit(self.now);
                }
            }
            Op::CommitEnds { how } => self.commit_ends(how),
            Op::Advance { millis } => self.advance(Duration::from_millis(millis.into())),
            Op::Operator { pick, redrive } => self.operator(pick, redrive),
            Op::Crash => self.crash(),
            Op::Restart => self.restart(),
        }
        self.check_limits();
        self.listen();
    }

    fn dispatch(&mut self) {
        let Some(dispatch) = self.machine.poll_dispatch(self.now) else { return };
        let seq = dispatch.event.seq.0;
        assert!(!self.never_again.contains(&seq), "p04: {seq} is delivered again after a clean end");
        if let Some(key) = &dispatch.event.key {
            let same = self.running.iter().find(|(_, event)| event.key.as_ref() == Some(key));
            assert!(same.is_none(), "p03: {seq} runs beside {same:?}");
        }
        if self.suspects.contains(&seq) {
            let mark = self.store.trials.iter().find(|trial| trial.seq.0 == seq).map(|trial| trial.stage);
            let marked = matches!(mark, Some(Stage::Among | Stage::Alone));
            assert!(marked, "{seq} runs after a crash without a mark in the store");
        }
        if self.machine.in_solitude() {
            assert!(self.running.is_empty(), "{seq} does not run alone");
        }
        self.rows.insert(dispatch.token, (dispatch.row, dispatch.fence));
        self.running.push((dispatch.token, dispatch.event));
        if self.killers.contains(&seq) {
            self.crash();
        }
    }

    fn crash(&mut self) {
        if self.machine.in_solitude() {
            for trial in self.store.trials.iter().filter(|trial| trial.stage == Stage::Alone) {
                *self.alone.entry(trial.seq.0).or_default() += 1;
            }
        }
        self.suspects = self.running.iter().map(|(_, event)| event.seq.0).collect();
        self.failed.clear();
        self.done_here.clear();
        self.start(true);
    }

    /// Listens to the machine.
    fn listen(&mut self) {
        while let Some(notice) = self.machine.poll_notice() {
            if let Notice::Dead { event, reason, .. } = notice {
                let seq = event.seq.0;
                self.ever_dead.insert(seq);
                self.suspects.remove(&seq);
                if reason == DeadReason::Crash {
                    let alone = self.alone.get(&seq).copied().unwrap_or_default();
                    assert!(alone >= 3, "{seq} is dead after {alone} crashes while it ran alone");
                }
            }
        }
    }

    fn finish(&mut self, pick: u8, how: u8) {
        if self.running.is_empty() {
            return;
        }
        let (token, event) = self.running.remove(usize::from(pick) % self.running.len());
        let seq = event.seq.0;
        self.suspects.remove(&seq);
        let fails = |class| Verdict::Failed { class, reason: DeadReason::Exhausted, error: "no".to_owned() };
        let verdict = match how {
            0..=7 if self.settings.settles => match self.settle_in_store(token, &event) {
                Some(verdict) if how < 7 => verdict,
                // The process ends before it hears of it.
                _ => return self.crash(),
            },
            0..=9 => Verdict::Done,
            10..=13 => fails(FailureClass::Retry),
            14 => fails(FailureClass::RetryAfter(Duration::from_secs(5))),
            15..=16 => fails(FailureClass::Permanent),
            17 => Verdict::Deferred { delay: Duration::from_secs(2), reason: "later".into() },
            18 => Verdict::Deferred { delay: Duration::from_millis(300), reason: "soon".into() },
            _ => Verdict::Cancelled,
        };
        match &verdict {
            Verdict::Done if self.settings.settles && how <= 7 => {}
            Verdict::Done => {
                self.done.push(seq);
                self.done_here.insert(seq);
            }
            Verdict::Failed { class, .. } => {
                let failed = self.failed.entry(seq).or_default();
                *failed += 1;
                assert!(*failed <= 3, "{seq} ran more often than max_attempts");
                if *failed == 3 || *class == FailureClass::Permanent {
                    self.failed.remove(&seq);
                }
            }
            _ => {}
        }
        self.machine.handle_verdict(token, verdict, self.now, 0.5);
        self.listen();
    }

    /// A transaction of the handler settles the delivery, if it may. What the attempt then comes to; `None` if its
    /// owner is one no more.
    fn settle_in_store(&mut self, token: usize, event: &Event) -> Option<Verdict> {
        let (row, fence) = self.rows[&token];
        let (seq, store) = (event.seq, &mut self.store);
        if fence.epoch != store.epoch {
            return None;
        }
        let known = match store.rows.get(&seq) {
            None if store.marks.contains(&seq) => Known::Mark,
            None => Known::Nothing,
            Some(row) if matches!(row.state, RowState::Dead { .. }) => Known::Dead,
            Some(row) => Known::Live(row.version),
        };
        match decide(row, store.checkpoint.covers(seq), known) {
            Decision::AlreadySettled => return Some(Verdict::Settled),
            Decision::Overtaken => return Some(Verdict::Done),
            Decision::Mark => {
                store.marks.insert(seq);
            }
            Decision::End => store.end_row(seq),
        }
        assert!(self.settled.insert(seq.0), "p04: the effect of {seq} happens twice");
        self.done.push(seq.0);
        self.done_here.insert(seq.0);
        self.failed.remove(&seq.0);
        Some(Verdict::Settled)
    }

    fn commit_ends(&mut self, how: u8) {
        let Some(commit) = self.commit.take() else { return };
        let outcome = match how {
            0 => None,
            // The answer got lost, after all or a part was written.
            1..=3 => {
                self.store.commit(&commit[0], how);
                None
            }
            _ => Some(vec![self.store.commit(&commit[0], 3)]),
        };
        self.machine.handle_commit(&commit, outcome.as_deref(), self.now);
    }

    fn advance(&mut self, by: Duration) {
        self.now.mono = self.now.mono + by;
        self.now.wall = self.now.wall.saturating_add(by);
        if self.machine.next_timeout().is_some_and(|at| at <= self.now.mono) {
            self.machine.handle_timeout(self.now);
        }
    }

    fn operator(&mut self, pick: u8, redrive: bool) {
        let dead: Vec<Seq> = self
            .store
            .rows
            .values()
            .filter(|row| matches!(row.state, RowState::Dead { .. }))
            .map(|row| row.event.seq)
            .collect();
        if dead.is_empty() {
            return;
        }
        let seq = dead[usize::from(pick) % dead.len()];
        if redrive {
            let row = self.store.rows.get_mut(&seq).unwrap();
            row.state = RowState::Parked { due: Timestamp(0) };
            row.attempts = 0;
            row.version += 1;
            self.failed.remove(&seq.0);
            self.killers.remove(&seq.0);
            self.alone.remove(&seq.0);
        } else {
            self.store.end_row(seq);
            self.discarded.insert(seq.0);
        }
        self.machine.handle_heads(SHARD, self.store.heads(), self.now);
    }

    /// A clean end: drain, and a new process.
    fn restart(&mut self) {
        self.machine.begin_drain(self.now);
        if let Some(read) = self.read.take() {
            let batch = self.store.read(&read);
            self.machine.handle_read(&read, Some(batch), self.now);
        }
        while !self.running.is_empty() {
            self.finish(0, 0);
        }
        for _ in 0..20 {
            assert!(self.machine.poll_dispatch(self.now).is_none(), "a drain delivers nothing");
            if self.machine.is_drained() {
                for seq in std::mem::take(&mut self.done_here) {
                    let stored = self.store.rows.contains_key(&Seq(seq));
                    assert!(
                        self.store.checkpoint.covers(Seq(seq)) && !stored,
                        "p04: {seq} is not written down"
                    );
                    self.never_again.insert(seq);
                }
                self.suspects.clear();
                return self.start(false);
            }
            if let Some(commit) = self.commit.take().or_else(|| self.machine.poll_commit(self.now)) {
                self.commit = Some(commit);
                self.commit_ends(7);
            }
            self.advance(Duration::from_secs(1));
        }
        panic!("the drain does not end");
    }

    fn check_limits(&self) {
        let figures = self.machine.figures();
        assert!(figures.running <= self.settings.concurrency as usize);
        // What ran and waits for a retry was taken out of `prefetch` when it was dispatched.
        let places = self.settings.prefetch + self.settings.concurrency;
        assert!(figures.queued <= places as usize, "p05: {figures:?}");
        assert!(figures.unsettled <= self.settings.window as usize, "p05: {figures:?}");
        // What was in memory when the bound was reached may come to be stored, too.
        let most = self.settings.max_blocked + self.settings.prefetch + self.settings.window + 1;
        for head in self.store.heads() {
            assert!(head.rows <= u64::from(most), "{} deliveries behind {:?}", head.rows, head.lane);
        }
        let runs = 4 * self.settings.checkpoint_every + self.settings.concurrency;
        let bound = u64::from(runs + self.settings.window);
        assert!(figures.uncommitted <= bound, "p04: {figures:?}");
    }

    /// From here on everything works; whoever is dead and blocks is redriven.
    fn settle_down(&mut self) {
        for _ in 0..3_000 {
            if self.is_settled() {
                return;
            }
            self.apply(Op::Read { fails: false });
            self.apply(Op::ReadEnds);
            self.apply(Op::Solitude);
            self.apply(Op::Dispatch);
            self.apply(Op::Finish { pick: 0, how: 0 });
            self.apply(Op::Load);
            self.apply(Op::LoadEnds { fails: false });
            self.apply(Op::Commit);
            self.apply(Op::CommitEnds { how: 7 });
            self.advance(Duration::from_secs(1));
            if self.settings.on_dead == OnDead::BlockKey {
                self.apply(Op::Operator { pick: 0, redrive: true });
            }
        }
    }

    /// Whether nothing happens any more.
    fn is_settled(&self) -> bool {
        let is_dead = |row: &StoredDelivery| matches!(row.state, RowState::Dead { .. });
        let all_dead = self.store.rows.values().all(is_dead);
        let blocks = self.settings.on_dead == OnDead::BlockKey;
        let done = all_dead && (!blocks || self.store.rows.is_empty());
        done && self.all_covered() && self.machine.is_quiet(&[(SHARD, Seq(self.end()))])
    }

    /// What the reader alone passed is written with the next commit: it may still be a range above the watermark.
    fn all_covered(&self) -> bool {
        self.store.log.iter().all(|event| self.store.checkpoint.covers(event.seq))
    }

    fn end(&self) -> u64 {
        self.store.log.last().map_or(0, |event| event.seq.0)
    }

    fn check_end(&self) {
        let end = self.end();
        assert!(self.machine.is_quiet(&[(SHARD, Seq(end))]), "not quiet: {:?}", self.machine);
        assert!(self.all_covered(), "p02: the watermark stays at {:?} of {end}", self.store.checkpoint);
        let mut last: BTreeMap<u64, usize> = BTreeMap::new();
        for (at, seq) in self.done.iter().enumerate() {
            last.insert(*seq, at);
        }
        for event in &self.store.log {
            let seq = event.seq.0;
            let dead =
                self.store.rows.get(&event.seq).is_some_and(|r| matches!(r.state, RowState::Dead { .. }));
            assert!(last.contains_key(&seq) || dead || self.discarded.contains(&seq), "p01: {seq} is lost");
        }
        let blocks = self.settings.on_dead == OnDead::BlockKey;
        for (a, b) in self.store.log.iter().flat_map(|a| self.store.log.iter().map(move |b| (a, b))) {
            let (sa, sb) = (a.seq.0, b.seq.0);
            if sa >= sb || a.key.is_none() || a.key != b.key {
                continue;
            }
            // A rerun that ends dead or discarded, and a redrive under `continue`, are excepted.
            if self.ever_dead.contains(&sb)
                || self.discarded.contains(&sa)
                || !blocks && self.ever_dead.contains(&sa)
            {
                continue;
            }
            if let (Some(ra), Some(rb)) = (last.get(&sa), last.get(&sb)) {
                assert!(ra < rb, "p03: the last run of {sa} comes after the last run of {sb}");
            }
        }
    }
}

/// One key has far more events than there is room for, and its first delivery does not end.
#[test]
fn p06_a_delivery_that_runs_for_long_makes_room_for_other_keys() {
    let mut world = World::new(OnDead::Continue, false, false);
    for _ in 0..40 {
        world.store.append(Some(0), 1);
    }
    world.store.append(Some(1), 1);
    let go_on = |world: &mut World| {
        for _ in 0..30 {
            world.apply(Op::Read { fails: false });
            world.apply(Op::ReadEnds);
            world.apply(Op::Dispatch);
            world.apply(Op::Commit);
            world.apply(Op::CommitEnds { how: 7 });
        }
    };
    go_on(&mut world);
    assert_eq!(world.running.len(), 1);
    assert!(world.store.rows.is_empty(), "a key that is busy for a moment is stored");
    let at = world.machine.next_timeout().expect("it waits for the delivery to run for long");
    assert_eq!(at, Mono(1_000_000) + world.settings.park_after);
    world.advance(world.settings.park_after);
    go_on(&mut world);
    assert!(world.store.rows.len() > 5 && world.machine.held_up, "max_blocked is not a bound for it");

    // With room behind one key it is only that key that waits.
    let mut world = World::new(OnDead::Continue, false, false);
    world.settings.max_blocked = 1_000;
    world.start(false);
    for _ in 0..40 {
        world.store.append(Some(0), 1);
    }
    world.store.append(Some(1), 1);
    go_on(&mut world);
    world.advance(world.settings.park_after);
    go_on(&mut world);
    let keys: Vec<_> = world.running.iter().map(|(_, event)| event.seq.0).collect();
    assert_eq!(keys, [1, 41], "the other key does not run");
    assert_eq!(world.store.rows.len(), 39);
    world.settle_down();
    world.check_end();
}

/// The second of three was running when its owner crashed, and what is before and behind it was stored.
#[test]
fn p03_what_is_stored_late_goes_before_what_was_loaded_behind_it() {
    let mut world = World::new(OnDead::Continue, false, false);
    for _ in 0..3 {
        world.store.append(Some(0), 1);
    }
    for seq in [1, 3] {
        let event = world.store.log[seq - 1].clone();
        let state = RowState::Waiting;
        let row = StoredDelivery { event, state, attempts: 0, failure: Failure::default(), version: 1 };
        world.store.rows.insert(Seq(seq as u64), row);
        world.store.checkpoint.ranges.push(SeqRange { first: Seq(seq as u64), last: Seq(seq as u64) });
    }
    world.start(false);
    let go_on = |world: &mut World| {
        for op in [Op::Read { fails: false }, Op::ReadEnds, Op::Load, Op::LoadEnds { fails: false }] {
            world.apply(op);
        }
        world.apply(Op::Commit);
        world.apply(Op::CommitEnds { how: 7 });
        world.apply(Op::Load);
        world.apply(Op::LoadEnds { fails: false });
        world.apply(Op::Dispatch);
    };
    go_on(&mut world);
    assert_eq!(world.running[0].1.seq, Seq(1));
    let (token, _) = world.running.pop().unwrap();
    let failed =
        Verdict::Failed { class: FailureClass::Retry, reason: DeadReason::Exhausted, error: String::new() };
    world.machine.handle_verdict(token, failed, world.now, 0.0);
    let (lane, _) = world.machine.lanes.iter().next().expect("there is one lane");
    world.machine.spill(lane, world.now);
    let mut ran = Vec::new();
    for _ in 0..12 {
        world.advance(Duration::from_millis(500));
        go_on(&mut world);
        if let Some((token, event)) = world.running.pop() {
            ran.push(event.seq.0);
            world.machine.handle_verdict(token, Verdict::Done, world.now, 0.0);
        }
    }
    assert_eq!(ran, [1, 2, 3]);
}

fn run(on_dead: OnDead, small: bool, settles: bool, ops: &[Op]) {
    let mut world = World::new(on_dead, small, settles);
    for op in ops {
        world.apply(*op);
    }
    world.settle_down();
    world.check_end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn p01_to_p05_hold_through_any_history_when_the_dead_let_others_go_on(
        ops in proptest::collection::vec(op(), 0..160), small: bool, settles: bool,
    ) {
        run(OnDead::Continue, small, settles, &ops);
    }

    #[test]
    fn p01_to_p05_hold_through_any_history_when_the_dead_block_their_key(
        ops in proptest::collection::vec(op(), 0..160), small: bool, settles: bool,
    ) {
        run(OnDead::BlockKey, small, settles, &ops);
    }
}
