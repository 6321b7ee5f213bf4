//! Making calls fail: a store that behaves as engines do on a bad day, but keeps the contract.
//!
//! ```
//! # use std::sync::Arc;
//! # use photon_backend::memory::MemoryStore;
//! use photon_backend::wrap::Op;
//! use photon_backend::wrap::fault::{Fault, Faults, Rule};
//! use photon_core::error::StoreErrorKind;
//!
//! let faults = Faults::seeded(7);
//! let store = faults.wrap(Arc::new(MemoryStore::new()));
//! // One commit in a hundred is written, but its answer gets lost.
//! faults.add(Rule::new(Fault::LoseAnswer).on([Op::Commit]).chance(10_000));
//! // An outage, and its end.
//! let outage = faults.add(Rule::new(Fault::Fail(StoreErrorKind::Unavailable)));
//! faults.remove(outage);
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::ids::{Shard, TopicName};
use photon_core::store::{Appended, Commit, CommitOutcome, ShardOutcome, Store, Wake};

use super::{Call, Intercept, Op, Pending, Wrapped};
use crate::rng::Rng;

/// A store whose calls can be made to fail, see [`Faults`].
pub type FaultStore = Wrapped<Faults>;

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It is not made, and fails with an error of this kind.
    Fail(StoreErrorKind),
    /// It is made, but the answer gets lost: an error of kind `Unknown`, or `Unavailable` if it only reads.
    LoseAnswer,
    /// It is made later. Rules that follow may add another fault.
    Delay(Duration),
    /// It is made, and the answer comes later. Rules that follow may add another fault.
    DelayAnswer(Duration),
    /// It is not made, and never returns.
    Hang,
    /// A part of it is made, how much is left to chance, and the answer gets lost. Of an append, the first events of
    /// each shard; of a commit, shard by shard the puts, then the checkpoint, then the ends, one after another,
    /// as an engine without transactions writes them. Never matches other calls.
    PartialBatch,
    /// It is not made, because the lease is said to be lost: a commit is fenced in every shard; a claim or
    /// heartbeat fails with that kind. Never matches other calls.
    Fenced,
}

impl Fault {
    fn fits(self, op: Op) -> bool {
        match self {
            Fault::PartialBatch => matches!(op, Op::Append | Op::Commit),
            Fault::Fenced => matches!(op, Op::Commit | Op::Claim | Op::Heartbeat),
            _ => true,
        }
    }
}

type Condition = Box<dyn Fn(&Call<'_>) -> bool + Send + Sync>;

/// Which calls go wrong, and how.
pub struct Rule {
    fault: Fault,
    ops: Option<Vec<Op>>,
    condition: Option<Condition>,
    skip: u64,
    times: u64,
    per_million: u32,
}

impl Rule {
    /// Every call, until the rule is removed.
    pub fn new(fault: Fault) -> Self {
        Self { fault, ops: None, condition: None, skip: 0, times: u64::MAX, per_million: 1_000_000 }
    }

    /// Only calls of these methods.
    #[must_use]
    pub fn on(mut self, ops: impl IntoIterator<Item = Op>) -> Self {
        self.ops = Some(ops.into_iter().collect());
        self
    }

    /// Only calls that fulfil this.
    #[must_use]
    pub fn when(mut self, condition: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.condition = Some(Box::new(condition));
        self
    }

    /// Lets the first `calls` that match pass.
    #[must_use]
    pub fn after(mut self, calls: u64) -> Self {
        self.skip = calls;
        self
    }

    /// At most so many times.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Only so many of a million calls that match, at random.
    #[must_use]
    pub fn chance(mut self, per_million: u32) -> Self {
        self.per_million = per_million;
        self
    }

    fn strikes(&mut self, call: &Call<'_>, rng: &mut Rng) -> bool {
        let matches = self.fault.fits(call.op)
            && self.ops.as_ref().is_none_or(|ops| ops.contains(&call.op))
            && self.condition.as_ref().is_none_or(|condition| condition(call));
        if !matches {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let strikes = self.times > 0 && rng.chance(self.per_million);
        self.times -= u64::from(strikes);
        strikes
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("fault", &self.fault)
            .field("ops", &self.ops)
            .field("after", &self.skip)
            .field("times", &self.times)
            .field("per_million", &self.per_million)
            .finish_non_exhaustive()
    }
}

/// Names a rule that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleId(u64);

/// Decides which calls of a store go wrong. A clone is another handle on the same rules.
///
/// Rules are asked in the order they were added. Delays add up; the first rule with another fault decides.
/// With the same seed and the same rules, the same calls fail, counted for each method and subscription by
/// itself: what others do in between changes nothing, unless a rule counts calls.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<State>>);

struct State {
    seed: u64,
    /// A source for each method and subscription, so that chance does not depend on how they interleave.
    chance: HashMap<u64, Rng>,
    rules: Vec<(RuleId, Rule)>,
    next_id: u64,
    wakes_muted: bool,
    struck: Vec<(Op, Fault)>,
}

/// What was decided about one call.
#[derive(Default)]
struct Plan {
    delay: Duration,
    answer_delay: Duration,
    fault: Option<Fault>,
}

impl Faults {
    /// No rules yet; chance starts from this seed.
    pub fn seeded(seed: u64) -> Self {
        let state = State {
            seed,
            chance: HashMap::new(),
            rules: Vec::new(),
            next_id: 0,
            wakes_muted: false,
            struck: Vec::new(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// A store that goes through these rules.
    pub fn wrap(&self, store: Arc<dyn Store>) -> FaultStore {
        Wrapped::new(store, self.clone())
    }

    /// Adds a rule after those that are there.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut state = self.state();
        let id = RuleId(state.next_id);
        state.next_id += 1;
        state.rules.push((id, rule));
        id
    }

    /// Removes a rule. Removed already: a no-op.
    pub fn remove(&self, id: RuleId) {
        self.state().rules.retain(|(known, _)| *known != id);
    }

    /// Removes every rule, and lets wakes through again.
    pub fn clear(&self) {
        let mut state = self.state();
        state.rules.clear();
        state.wakes_muted = false;
    }

    /// Whether wakes get lost, as hints may. It concerns listeners that were made before, too.
    pub fn mute_wakes(&self, muted: bool) {
        self.state().wakes_muted = muted;
    }

    /// What went wrong since the last call of this, in order.
    pub fn take_struck(&self) -> Vec<(Op, Fault)> {
        std::mem::take(&mut self.state().struck)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Only a condition of the user can panic under it, before anything changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, call: &Call<'_>) -> Plan {
        let mut state = self.state();
        let State { seed, chance, rules, struck, .. } = &mut *state;
        let of = stream(call);
        let rng = chance.entry(of).or_insert_with(|| Rng::new(*seed ^ of));
        let mut plan = Plan::default();
        for (_, rule) in rules {
            if !rule.strikes(call, rng) {
                continue;
            }
            struck.push((call.op, rule.fault));
            match rule.fault {
                Fault::Delay(delay) => plan.delay += delay,
                Fault::DelayAnswer(delay) => plan.answer_delay += delay,
                fault => {
                    plan.fault = Some(fault);
                    break;
                }
            }
        }
        plan
    }

    /// Makes a call, or not. `fenced` is the answer to a call whose lease is said to be lost.
    async fn carry_out<T>(
        &self,
        op: Op,
        plan: Plan,
        run: Pending<'_, T>,
        fenced: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        pause(plan.delay).await;
        let answer = match plan.fault {
            Some(Fault::Fail(kind)) => Err(injected(op, kind)),
            Some(Fault::Fenced) => fenced(),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::LoseAnswer | Fault::PartialBatch) => run.await.and_then(|_| Err(lost(op))),
            Some(Fault::Delay(_) | Fault::DelayAnswer(_)) | None => run.await,
        };
        pause(plan.answer_delay).await;
        answer
    }

    /// What an engine without transactions has written of a commit when it fails in the middle.
    async fn part_of(&self, inner: &dyn Store, commit: &Commit) -> Result<Commit, StoreError> {
        let stored = inner.load(&commit.subscription).await?;
        let mut part = commit.clone();
        let (whole, step, puts, ends) = self.chance(|rng| {
            let whole = rng.below(part.shards.len());
            let (puts, ends) =
                part.shards.get(whole).map_or((0, 0), |shard| (shard.puts.len(), shard.ends.len()));
            (whole, rng.below(3), rng.below(puts + 1), rng.below(ends + 1))
        });
        part.shards.truncate(whole + 1);
        if let Some(last) = part.shards.last_mut() {
            last.ends.truncate(ends);
            if step < 2 {
                last.ends.clear();
                let of_shard = stored.into_iter().find(|stored| stored.shard == last.shard);
                last.checkpoint = of_shard.map(|stored| stored.checkpoint).unwrap_or_default();
            }
            if step < 1 {
                last.puts.truncate(puts);
            }
        }
        Ok(part)
    }

    /// Asks the source of chance for how much of something is left.
    fn chance<T>(&self, ask: impl FnOnce(&mut Rng) -> T) -> T {
        let mut state = self.state();
        let seed = state.seed;
        ask(state.chance.entry(CUT).or_insert_with(|| Rng::new(seed ^ CUT)))
    }

    /// The first events of each shard, as many as chance leaves.
    fn cut(&self, events: Vec<NewEvent>) -> Vec<NewEvent> {
        let mut counts: HashMap<Shard, usize> = HashMap::new();
        for event in &events {
            *counts.entry(event.shard).or_default() += 1;
        }
        let mut shards: Vec<Shard> = counts.keys().copied().collect();
        // A map has no order of its own that repeats.
        shards.sort_unstable();
        for shard in shards {
            let left = |count: &mut usize| *count = self.chance(|rng| rng.below(*count + 1));
            counts.entry(shard).and_modify(left);
        }
        let kept = events.into_iter().filter(|event| {
            let left = counts.entry(event.shard).or_default();
            let keep = *left > 0;
            *left = left.saturating_sub(1);
            keep
        });
        kept.collect()
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Faults")
            .field("rules", &state.rules)
            .field("wakes_muted", &state.wakes_muted)
            .finish_non_exhaustive()
    }
}

/// The source of chance for how much of a batch is left.
const CUT: u64 = 0x6375_7400;

/// Which source of chance decides about a call: FNV-1a of what it is about.
fn stream(call: &Call<'_>) -> u64 {
    let topic = call.topic.map(TopicName::as_str).unwrap_or_default();
    let group = call.subscription.map(|subscription| subscription.group.as_str()).unwrap_or_default();
    let bytes = [call.op.name(), topic, group].into_iter().flat_map(|text| text.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

async fn pause(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

fn injected(op: Op, kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, format!("{op} failed by an injected fault of kind {kind:?}: remove its rule"))
}

fn lost(op: Op) -> StoreError {
    injected(op, if op.writes() { StoreErrorKind::Unknown } else { StoreErrorKind::Unavailable })
}

#[async_trait]
impl Intercept for Faults {
    async fn around<T: Send>(&self, call: Call<'_>, run: Pending<'_, T>) -> Result<T, StoreError> {
        let fenced = || Err(injected(call.op, StoreErrorKind::Fenced));
        self.carry_out(call.op, self.plan(&call), run, fenced).await
    }

    async fn append(
        &self,
        inner: &dyn Store,
        topic: &TopicName,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Appended>, StoreError> {
        let plan = self.plan(&Call::topic(Op::Append, topic).items(events.len()));
        let events = if plan.fault == Some(Fault::PartialBatch) { self.cut(events) } else { events };
        let fenced = || Err(injected(Op::Append, StoreErrorKind::Fenced));
        self.carry_out(Op::Append, plan, inner.append(topic, events), fenced).await
    }

    async fn commit(&self, inner: &dyn Store, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let plan =
            self.plan(&Call::subscription(Op::Commit, &commit.subscription).items(commit.shards.len()));
        let fenced = || Ok(vec![ShardOutcome::Fenced; commit.shards.len()]);
        if plan.fault == Some(Fault::PartialBatch) {
            let part = self.part_of(inner, commit).await?;
            return self.carry_out(Op::Commit, plan, inner.commit(&part), fenced).await;
        }
        self.carry_out(Op::Commit, plan, inner.commit(commit), fenced).await
    }

    fn wake(&self, inner: &dyn Store, topic: &TopicName) -> Box<dyn Wake> {
        Box::new(MutableWake { inner: inner.wake(topic), faults: self.clone() })
    }
}

struct MutableWake {
    inner: Box<dyn Wake>,
    faults: Faults,
}

#[async_trait]
impl Wake for MutableWake {
    async fn wait(&mut self) {
        loop {
            self.inner.wait().await;
            if !self.faults.state().wakes_muted {
                return;
            }
        }
    }
}
