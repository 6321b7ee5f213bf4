//! One subscription: which delivery runs next, what is settled, what must be written.

mod crowd;
mod drain;
mod reading;
mod rows;
#[cfg(test)]
mod tests;
mod trial;
mod verdict;
mod writing;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use slab::Slab;
use xxhash_rust::xxh3::xxh3_64;

pub use self::reading::Read;
pub use self::rows::Load;
use self::trial::{Court, Trials};
pub use self::verdict::Verdict;
pub use self::writing::CommitReport;
use super::checkpoint::Coalescer;
use super::lanes::{Item, LaneState, Origin, Queue, Turn};
use super::watermark::Watermark;
use crate::event::Event;
use crate::handler::DeadReason;
use crate::ids::{Seq, Shard};
use crate::options::Settings;
use crate::planted::{Bug, is_planted};
use crate::store::{Checkpoint, Fence, Head, Lane, RowEnd, StoredDelivery, Trial};
use crate::time::{Mono, Now};

/// How many bytes of payload a subscription holds in memory before it stops reading (8 MiB).
pub const PREFETCH_BYTES: usize = 8 * 1024 * 1024;

/// Decides everything about one subscription; carries out nothing.
///
/// The driver reports what happened (`handle_*`) and carries out what it is told (`poll_*`), each answer reported
/// back exactly once: a [`Read`] with [`handle_read`](Self::handle_read), a [`Dispatch`] with
/// [`handle_verdict`](Self::handle_verdict), a [`Load`] with [`handle_loaded`](Self::handle_loaded), a commit with
/// [`handle_commit`](Self::handle_commit). At [`next_timeout`](Self::next_timeout) it calls
/// [`handle_timeout`](Self::handle_timeout).
///
/// What it keeps to:
///
/// - A record is settled once its handler ended well, or once its stored delivery is part of the same commit.
/// - Every commit holds all that is settled at that moment, so that of two deliveries of a key the later one is
///   never durably ended before the earlier one.
/// - Of a lane one delivery runs at a time, the one with the smallest place first, stored ones included.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug)]
pub struct Subscription {
    settings: Settings,
    /// Ephemeral subscriptions write nothing.
    persist: bool,
    shards: Vec<Option<ShardState>>,
    items: Slab<Item>,
    lanes: Slab<LaneState>,
    lane_index: HashMap<(Shard, Lane), usize, BuildHasherDefault<LaneHasher>>,
    ready: VecDeque<Ready>,
    loads: VecDeque<usize>,
    loading: usize,
    /// How many loads were asked for.
    load_number: u64,
    timers: BinaryHeap<Reverse<(Mono, usize)>>,
    coalescer: Coalescer,
    /// The number of changes of the shards that are worked on; answers to older questions do not count.
    assignment: u64,
    read_in_flight: bool,
    /// There may be records that were not read yet.
    may_have_more: bool,
    running: usize,
    /// Deliveries in memory that do not run.
    queued: usize,
    queued_bytes: usize,
    /// Of the queued ones, those that came from the store.
    queued_stored: usize,
    unsettled: usize,
    /// Rows to be written that the store has not confirmed.
    puts: usize,
    court: Court,
    /// Lanes with as many rows as one may have, or more.
    crowded: BTreeSet<usize>,
    /// One of them cannot run: nothing more is read.
    held_up: bool,
    /// When there may be room because a delivery will have run for long.
    relief_at: Option<Mono>,
    draining: bool,
    paused: bool,
    notices: VecDeque<Notice>,
}

/// A delivery to run, or `Single` the only one of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Single(usize),
    Lane(usize),
}

/// What is known about one shard that is worked on.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug)]
struct ShardState {
    fence: Fence,
    mark: Watermark,
    /// Places above the checkpoint that belong to the sideline although the log holds them, too.
    stored_above: BTreeSet<Seq>,
    /// Lanes that wait until the reader has passed a place.
    behind: BTreeSet<(Seq, usize)>,
    puts: BTreeMap<Seq, Write<StoredDelivery>>,
    ends: BTreeMap<Seq, Write<RowEnd>>,
    /// Something ended or is to be stored that no commit under way holds.
    dirty: bool,
    /// Only the reader got on: to be written with the next commit, but no reason for one.
    moved: bool,
    in_flight: bool,
    /// What the store has confirmed.
    committed: Seq,
    warned_shrunk: bool,
    trials: Trials,
}

/// Something to write about a lane.
#[derive(Debug)]
struct Write<T> {
    what: T,
    lane: usize,
    in_flight: bool,
}

/// What the store holds about a shard when its owner begins.
#[derive(Debug, Clone, Default)]
pub struct ShardStart {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The places of all rows and marks above the watermark.
    pub rows_above: Vec<Seq>,
    /// The heads of all lanes with live rows.
    pub heads: Vec<Head>,
    /// The trials of deliveries that are not settled.
    pub trials: Vec<Trial>,
    /// The owner before ended in a crash.
    pub crashed: bool,
}

/// A delivery to run.
#[derive(Debug)]
pub struct Dispatch {
    /// To report back with.
    pub token: usize,
    /// The event.
    pub event: Event,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The right under which it runs.
    pub fence: Fence,
    /// The version of its row in the store; 0 if it was read from the log.
    pub row: u64,
}

/// Something that people should hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A delivery was given up on; it is stored with the next commit, or dropped if the subscription is
    /// ephemeral.
    Dead {
        /// The event, without its payload's meaning: for its id, shard, seq and key.
        event: Event,
        /// Attempts that ended.
        attempts: u32,
        /// Why.
        reason: DeadReason,
        /// The last error.
        error: String,
    },
    /// An attempt failed and another follows.
    Retry {
        /// The event.
        event: Event,
        /// Attempts that ended.
        attempts: u32,
        /// How long until the next one.
        delay: std::time::Duration,
        /// The error.
        error: String,
    },
    /// Records were trimmed before the subscription read them.
    Gap {
        /// The shard.
        shard: Shard,
        /// Where the reader stood.
        after: Seq,
        /// Where it goes on: everything up to here is gone.
        floor: Seq,
    },
    /// The log ends before the place where the reader stands: it lost its end.
    Shrunk {
        /// The shard.
        shard: Shard,
        /// Where the reader stood.
        after: Seq,
        /// Where the log ends.
        end: Seq,
    },
    /// A delivery that cannot run, or runs for long, has as many others of its key stored behind it as it may have: nothing more is
    /// read until it is out of the way.
    HeldUp {
        /// The shard.
        shard: Shard,
        /// Its lane.
        lane: Lane,
        /// How many deliveries of the lane are stored.
        rows: u64,
        /// Whether it is dead: then somebody must redrive or discard it. Else it waits for its time, or runs for
        /// long.
        dead: bool,
    },
    /// No delivery holds up the reading any more.
    GoesOn,
    /// Another owner works on the shard; nothing more of it is written. Cancel its running handlers.
    Fenced {
        /// The shard.
        shard: Shard,
    },
}

/// Figures of a subscription at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Handlers that run.
    pub running: usize,
    /// Deliveries in memory that do not run.
    pub queued: usize,
    /// Records that were read and are not settled.
    pub unsettled: usize,
    /// Settled deliveries that no confirmed checkpoint covers.
    pub uncommitted: u64,
}

impl Subscription {
    /// A subscription that works on nothing yet. Without `persist` it writes nothing: ephemeral.
    pub fn new(settings: Settings, persist: bool) -> Self {
        Self {
            coalescer: Coalescer::new(settings.checkpoint_every, settings.checkpoint_interval),
            settings,
            persist,
            shards: Vec::new(),
            items: Slab::new(),
            lanes: Slab::new(),
            lane_index: HashMap::default(),
            ready: VecDeque::new(),
            loads: VecDeque::new(),
            loading: 0,
            load_number: 0,
            timers: BinaryHeap::new(),
            assignment: 0,
            read_in_flight: false,
            may_have_more: true,
            running: 0,
            queued: 0,
            queued_bytes: 0,
            queued_stored: 0,
            unsettled: 0,
            puts: 0,
            court: Court::default(),
            crowded: BTreeSet::new(),
            held_up: false,
            relief_at: None,
            draining: false,
            paused: false,
            notices: VecDeque::new(),
        }
    }

    /// Starts to work on a shard under `fence`, from what the store holds. A shard that is worked on already
    /// is given up first.
    pub fn handle_assigned(&mut self, shard: Shard, fence: Fence, start: ShardStart, now: Now) {
        self.handle_lost(shard);
        self.assignment += 1;
        let trials = Trials::new(start.trials, start.crashed, &self.settings);
        let says_alone = trials.says_alone();
        let index = usize::from(shard.0);
        if self.shards.len() <= index {
            self.shards.resize_with(index + 1, || None);
        }
        self.shards[index] = Some(ShardState {
            fence,
            mark: Watermark::new(&start.checkpoint),
            stored_above: start
                .rows_above
                .into_iter()
                .filter(|_| !is_planted(Bug::StoredRecordRunsToo))
                .collect(),
            behind: BTreeSet::new(),
            puts: BTreeMap::new(),
            ends: BTreeMap::new(),
            // What an owner before said of a delivery that ran alone is out of date, and counts against it in a crash.
            dirty: says_alone,
            // What is known about the trials now is written with the first commit.
            moved: trials.knows_any(),
            in_flight: false,
            committed: start.checkpoint.watermark,
            warned_shrunk: false,
            trials,
        });
        self.may_have_more = true;
        if says_alone {
            self.coalescer.handle_urgent(now.mono);
        }
        self.handle_heads(shard, start.heads, now);
        if start.crashed {
            self.watch_lanes(shard, now);
        }
    }

    /// Stops to work on a shard: its deliveries are forgotten, nothing of it is written. Returns the tokens of
    /// its running handlers, which the driver cancels; what comes of them does not count.
    pub fn handle_lost(&mut self, shard: Shard) -> Vec<usize> {
        let Some(state) = self.shards.get_mut(usize::from(shard.0)).and_then(Option::take) else {
            return self.running_in(shard);
        };
        self.assignment += 1;
        self.unsettled -= state.mark.unsettled();
        self.puts -= state.puts.len();
        let gone: Vec<usize> =
            self.items.iter().filter(|(_, item)| item.event.shard == shard).map(|(id, _)| id).collect();
        for id in gone {
            if self.items[id].running {
                self.items[id].lost = true;
                self.items[id].lane = Item::NO_LANE;
            } else {
                self.forget_queued(id);
            }
        }
        self.lanes.retain(|_, lane| {
            if lane.shard == shard {
                self.loading -= usize::from(lane.loading);
            }
            lane.shard != shard
        });
        self.lane_index.retain(|(of, _), _| *of != shard);
        let (items, lanes) = (&self.items, &self.lanes);
        self.ready.retain(|ready| match *ready {
            Ready::Single(id) => items.contains(id),
            Ready::Lane(id) => lanes.contains(id),
        });
        self.loads.retain(|id| lanes.contains(*id));
        self.timers.retain(|Reverse((_, id))| lanes.contains(*id));
        self.crowded.retain(|id| lanes.contains(*id));
        self.leave_court();
        self.running_in(shard)
    }

    /// The tokens of the handlers of a shard that run, also of one that was lost.
    pub fn running_in(&self, shard: Shard) -> Vec<usize> {
        let of_shard = |item: &Item| item.running && item.event.shard == shard;
        self.items.iter().filter(|(_, item)| of_shard(item)).map(|(id, _)| id).collect()
    }

    /// The shards that are worked on, with their fences.
    pub fn assigned(&self) -> impl Iterator<Item = (Shard, Fence)> {
        (0u16..).zip(&self.shards).filter_map(|(n, state)| Some((Shard(n), state.as_ref()?.fence)))
    }

    /// The confirmed watermark and the reader's place of a shard.
    pub fn position(&self, shard: Shard) -> Option<(Seq, Seq)> {
        let state = self.shard(shard)?;
        Some((state.committed, state.mark.position()))
    }

    /// The next delivery to run, if one can.
    ///
    /// Never more than `concurrency` run, and never more than a bounded number are settled without a confirmed
    /// checkpoint, so that a crash repeats a bounded number of deliveries also while the store is away.
    pub fn poll_dispatch(&mut self, now: Now) -> Option<Dispatch> {
        if self.draining || self.running >= self.settings.concurrency as usize {
            return None;
        }
        // What is marked runs, or it would keep what waits for it from going on.
        if let Some(id) = self.next_marked() {
            return self.start(id);
        }
        if self.paused || self.is_ahead() {
            return None;
        }
        loop {
            if self.court_is_busy() {
                return None;
            }
            let id = match self.ready.pop_front()? {
                Ready::Single(id) => id,
                Ready::Lane(lane) => match self.take_from(lane, now) {
                    Some(id) => id,
                    None => continue,
                },
            };
            if self.items[id].watched {
                self.try_watched(id, now);
            } else {
                return self.start(id);
            }
        }
    }

    fn start(&mut self, id: usize) -> Option<Dispatch> {
        let fence = self.shard(self.items[id].event.shard)?.fence;
        self.count_out(id);
        let item = &mut self.items[id];
        item.running = true;
        self.running += 1;
        let row = match item.origin {
            Origin::Log => 0,
            Origin::Stored { version } => version,
        };
        Some(Dispatch { token: id, event: item.event.clone(), attempt: item.attempts + 1, fence, row })
    }

    /// Whether to hand out nothing new and read no further for the time being. What runs ends and is written
    /// down.
    pub fn handle_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn take_from(&mut self, lane: usize, now: Now) -> Option<usize> {
        let state = self.lanes.get_mut(lane).filter(|state| state.in_ready)?;
        state.in_ready = false;
        let position = self.shards.get(usize::from(state.shard.0))?.as_ref()?.mark.position();
        if state.turn(&self.items, now.mono, position) != Turn::Ready {
            self.evaluate(lane, now);
            return None;
        }
        let id = state.take(&self.items)?;
        state.running = !is_planted(Bug::LaneReleasedEarly);
        state.running_since = now.mono;
        Some(id)
    }

    /// Whether too much is settled without a confirmed checkpoint.
    fn is_ahead(&self) -> bool {
        let limit = 4 * u64::from(self.settings.checkpoint_every);
        self.persist
            && self.uncommitted() + self.running as u64 >= limit + u64::from(self.settings.concurrency)
    }

    fn uncommitted(&self) -> u64 {
        self.coalescer.uncommitted()
    }

    /// What people should hear of, once each.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Figures for people and tests.
    pub fn figures(&self) -> Figures {
        Figures {
            running: self.running,
            queued: self.queued,
            unsettled: self.unsettled,
            uncommitted: self.uncommitted(),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called next.
    pub fn next_timeout(&self) -> Option<Mono> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let commit = self.coalescer.next_commit().filter(|_| self.persist);
        timer.into_iter().chain(commit).chain(self.relief_at).min()
    }

    /// Lets go on what waited for this time.
    pub fn handle_timeout(&mut self, now: Now) {
        // The next read sees to it.
        self.relief_at = self.relief_at.filter(|at| *at > now.mono);
        while let Some(Reverse((at, lane))) = self.timers.peek().copied() {
            if at > now.mono {
                break;
            }
            self.timers.pop();
            if let Some(state) = self.lanes.get_mut(lane) {
                state.timer = state.timer.filter(|timer| *timer > at);
            }
            self.evaluate(lane, now);
        }
    }

    /// Finds out what a lane can do and puts it where that is done.
    fn evaluate(&mut self, lane: usize, now: Now) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        let Some(shard) = self.shards.get_mut(usize::from(state.shard.0)).and_then(Option::as_mut) else {
            return;
        };
        match state.turn(&self.items, now.mono, shard.mark.position()) {
            Turn::Busy | Turn::Blocked => {}
            Turn::Ready => {
                state.in_ready = true;
                self.ready.push_back(Ready::Lane(lane));
            }
            // One timer a lane, or those of a hundred thousand would pile up with each look at them.
            Turn::At(at) if state.timer.is_some_and(|timer| timer <= at) => {}
            Turn::At(at) => {
                state.timer = Some(at);
                self.timers.push(Reverse((at, lane)));
            }
            Turn::After(seq) => {
                shard.behind.insert((seq, lane));
            }
            Turn::Load => {
                state.loading = true;
                state.load_number = 0;
                self.loading += 1;
                self.loads.push_back(lane);
            }
            Turn::Empty => {
                let state = self.lanes.remove(lane);
                self.crowded.remove(&lane);
                self.lane_index.remove(&(state.shard, state.lane));
            }
        }
    }

    /// The lane of an event, made if it is not there.
    fn lane_of(&mut self, shard: Shard, lane: Lane) -> usize {
        let strict = self.settings.settles;
        *self.lane_index.entry((shard, lane)).or_insert_with_key(|(shard, lane)| {
            self.lanes.insert(LaneState::new(*shard, lane.clone(), strict))
        })
    }

    fn shard(&self, shard: Shard) -> Option<&ShardState> {
        self.shards.get(usize::from(shard.0))?.as_ref()
    }

    fn shard_mut(&mut self, shard: Shard) -> Option<&mut ShardState> {
        self.shards.get_mut(usize::from(shard.0))?.as_mut()
    }

    /// Counts a delivery that waits in memory.
    fn count_in(&mut self, id: usize) {
        let item = &self.items[id];
        self.queued += 1;
        self.queued_bytes += item.event.payload.len();
        self.queued_stored += usize::from(item.origin != Origin::Log);
    }

    fn count_out(&mut self, id: usize) {
        let item = &self.items[id];
        self.queued -= 1;
        self.queued_bytes -= item.event.payload.len();
        self.queued_stored -= usize::from(item.origin != Origin::Log);
    }

    fn forget_queued(&mut self, id: usize) {
        self.count_out(id);
        self.items.remove(id);
    }

    /// Takes every delivery out of a queue.
    fn empty_queue(&mut self, mut queue: Queue) -> Vec<usize> {
        let mut ids = Vec::new();
        while let Some(id) = queue.pop_front(&self.items) {
            ids.push(id);
        }
        ids
    }
}

/// Passes a hash through that is one already.
#[derive(Debug, Default)]
struct LaneHasher(u64);

impl Hasher for LaneHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(5) ^ xxh3_64(bytes);
    }

    fn write_u16(&mut self, number: u16) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, _length: usize) {}

    fn write_isize(&mut self, _discriminant: isize) {}
}
