//! The queue of one lane: what was read from the log and what is stored, merged by place.

use std::time::Duration;

use slab::Slab;

use crate::event::Event;
use crate::ids::{Seq, Shard};
use crate::planted::{Bug, is_planted};
use crate::store::{Failure, Lane};
use crate::time::Mono;

const NONE: usize = usize::MAX;

/// A delivery in memory.
#[derive(Debug)]
pub(super) struct Item {
    pub event: Event,
    /// Attempts that ended.
    pub attempts: u32,
    pub failure: Option<Box<Failure>>,
    /// It must not run before this time.
    pub not_before: Mono,
    pub origin: Origin,
    /// The lane it belongs to, [`Item::NO_LANE`] for a delivery without a key that never failed.
    pub lane: usize,
    pub running: bool,
    /// The shard was lost while it ran: what comes of it no longer counts.
    pub lost: bool,
    /// It may have been running when an owner ended: it does not run without a mark in the store.
    pub watched: bool,
    pub next: usize,
}

/// Where a delivery in memory came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Log,
    Stored { version: u64 },
}

impl Item {
    pub(super) const NO_LANE: usize = NONE;

    pub(super) fn from_log(event: Event) -> Self {
        Self {
            event,
            attempts: 0,
            failure: None,
            not_before: Mono(0),
            origin: Origin::Log,
            lane: NONE,
            running: false,
            lost: false,
            watched: false,
            next: NONE,
        }
    }

    pub(super) fn seq(&self) -> Seq {
        self.event.seq
    }
}

/// A list of items, linked through the arena that holds them, so that a lane allocates nothing.
#[derive(Debug)]
pub(super) struct Queue {
    head: usize,
    tail: usize,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { head: NONE, tail: NONE }
    }

    pub(super) fn first(&self) -> Option<usize> {
        (self.head != NONE).then_some(self.head)
    }

    pub(super) fn last(&self) -> Option<usize> {
        (self.head != NONE).then_some(self.tail)
    }

    pub(super) fn push_back(&mut self, items: &mut Slab<Item>, id: usize) {
        items[id].next = NONE;
        if self.head == NONE {
            self.head = id;
        } else {
            items[self.tail].next = id;
        }
        self.tail = id;
    }

    pub(super) fn push_front(&mut self, items: &mut Slab<Item>, id: usize) {
        items[id].next = self.head;
        if self.head == NONE {
            self.tail = id;
        }
        self.head = id;
    }

    pub(super) fn pop_front(&mut self, items: &Slab<Item>) -> Option<usize> {
        let id = self.first()?;
        self.head = items[id].next;
        Some(id)
    }
}

/// What is known of a lane's rows in the store that are not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// There are none.
    Nothing,
    /// The first one, which may run from `due` on.
    Head { seq: Seq, due: Mono },
    /// The first one is dead and holds up the lane.
    Dead { seq: Seq },
    /// There may be some: ask the store.
    Unknown,
}

/// One lane. It exists while it holds deliveries or anything of it is stored.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug)]
pub(super) struct LaneState {
    pub shard: Shard,
    pub lane: Lane,
    /// Read from the log.
    pub queue: Queue,
    /// Loaded from the store, all before [`rest`](Self::rest).
    pub loaded: Queue,
    pub rest: Rest,
    /// One of its deliveries runs.
    pub running: bool,
    /// When the one that runs began to.
    pub running_since: Mono,
    /// It stands in the list of lanes that can run.
    pub in_ready: bool,
    /// Its rows are being read from the store.
    pub loading: bool,
    /// The load that was asked for it; 0 while it waits to be asked for.
    pub load_number: u64,
    /// What is being read was changed meanwhile.
    pub stale: bool,
    /// Rows written or ended here that the store has not confirmed. Until it has, rows are not loaded, so that
    /// a load never brings back what ended.
    pub pending: u32,
    /// Those of them that ended.
    pub ending: u32,
    /// How many live rows it has in the store.
    pub rows: u64,
    /// What is stored of it may have been running when an owner ended.
    pub watched: bool,
    /// Nothing of it runs before the store has confirmed what ended before.
    pub strict: bool,
    /// When the earliest timer for it goes off.
    pub timer: Option<Mono>,
}

/// What a lane can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is at it already.
    Busy,
    /// Its first delivery can run.
    Ready,
    /// Its first delivery can run at this time.
    At(Mono),
    /// Its first delivery can run once the reader has passed this place.
    After(Seq),
    /// Its rows must be loaded.
    Load,
    /// It waits for somebody: a commit to be confirmed, or a redrive or discard.
    Blocked,
    /// It holds nothing.
    Empty,
}

/// The first delivery of a lane.
enum First {
    Log(usize),
    Loaded(usize),
}

impl LaneState {
    pub(super) fn new(shard: Shard, lane: Lane, strict: bool) -> Self {
        Self {
            shard,
            lane,
            queue: Queue::new(),
            loaded: Queue::new(),
            rest: Rest::Nothing,
            running: false,
            running_since: Mono(0),
            in_ready: false,
            loading: false,
            load_number: 0,
            stale: false,
            pending: 0,
            ending: 0,
            rows: 0,
            watched: false,
            strict,
            timer: None,
        }
    }

    /// What the lane can do, where the reader of its shard stands at `position`.
    ///
    /// The delivery with the smallest place goes first, stored ones among those read from the log. A stored
    /// one waits until the reader has passed its place: what an earlier owner settled without writing it down
    /// is read again, and comes before it.
    pub(super) fn turn(&self, items: &Slab<Item>, now: Mono, position: Seq) -> Turn {
        if self.running || self.in_ready || self.loading {
            return Turn::Busy;
        }
        if self.strict && self.pending > 0 {
            return Turn::Blocked;
        }
        let position = if is_planted(Bug::StoredRunsBeforeTheReader) { Seq(u64::MAX) } else { position };
        match self.first(items) {
            Ok(Some(First::Loaded(id))) if items[id].seq() > position => Turn::After(items[id].seq()),
            // Its end is written with a checkpoint, and an engine may write that before the ends of rows.
            Ok(Some(First::Log(_))) if self.ending > 0 => Turn::Blocked,
            Ok(Some(First::Log(id) | First::Loaded(id))) => ready_at(items[id].not_before, now),
            Ok(None) if self.pending > 0 => Turn::Blocked,
            Ok(None) => Turn::Empty,
            Err(turn) => self.turn_of_rest(turn, now, position),
        }
    }

    fn turn_of_rest(&self, rest: Rest, now: Mono, position: Seq) -> Turn {
        match rest {
            Rest::Head { seq, .. } if seq > position => Turn::After(seq),
            Rest::Head { due, .. } if due > now => Turn::At(due),
            Rest::Head { .. } | Rest::Unknown if self.pending == 0 => Turn::Load,
            _ => Turn::Blocked,
        }
    }

    /// Takes the first delivery out. Only after [`turn`](Self::turn) said that it can run.
    pub(super) fn take(&mut self, items: &Slab<Item>) -> Option<usize> {
        match self.first(items) {
            Ok(Some(First::Log(_))) => self.queue.pop_front(items),
            Ok(Some(First::Loaded(_))) => self.loaded.pop_front(items),
            _ => None,
        }
    }

    /// Puts a delivery that ran back to where [`take`](Self::take) took it from.
    pub(super) fn put_back(&mut self, items: &mut Slab<Item>, id: usize) {
        match items[id].origin {
            Origin::Log => self.queue.push_front(items, id),
            Origin::Stored { .. } => self.loaded.push_front(items, id),
        }
    }

    /// When a delivery that runs counts as one that holds up its lane; `None` where none runs.
    pub(super) fn held_up_at(&self, patience: Duration) -> Option<Mono> {
        self.running.then(|| self.running_since + patience)
    }

    /// Whether the first of what is stored can run, as far as is known.
    pub(super) fn is_due(&self, now: Mono) -> bool {
        match self.rest {
            Rest::Head { due, .. } => due <= now,
            Rest::Unknown => true,
            Rest::Nothing | Rest::Dead { .. } => false,
        }
    }

    /// Whether something stored keeps the lane from running for now, so that what is read for it had better
    /// be stored behind.
    pub(super) fn is_held_by_store(&self, items: &Slab<Item>, now: Mono, position: Seq) -> bool {
        if self.running || self.rest == Rest::Nothing && self.loaded.first().is_none() {
            return false;
        }
        match self.first(items) {
            Ok(Some(First::Loaded(id))) => items[id].not_before > now,
            Err(Rest::Dead { .. }) => true,
            Err(Rest::Head { due, seq }) => due > now && seq <= position,
            _ => false,
        }
    }

    /// The first delivery if it is in memory, or what is known of it if it is not.
    fn first(&self, items: &Slab<Item>) -> Result<Option<First>, Rest> {
        let log = self.queue.first();
        let before_log = |seq: Seq| log.is_none_or(|id| seq < items[id].seq());
        if let Some(id) = self.loaded.first() {
            let first = if before_log(items[id].seq()) { Some(id) } else { None };
            return Ok(first.map(First::Loaded).or(log.map(First::Log)));
        }
        match self.rest {
            Rest::Nothing => Ok(log.map(First::Log)),
            Rest::Head { seq, .. } | Rest::Dead { seq } if !before_log(seq) => Ok(log.map(First::Log)),
            rest => Err(rest),
        }
    }
}

fn ready_at(not_before: Mono, now: Mono) -> Turn {
    if not_before <= now { Turn::Ready } else { Turn::At(not_before) }
}

/// How long from `now` a delivery has to wait.
pub(super) fn wait(not_before: Mono, now: Mono) -> Duration {
    not_before.since(now)
}
