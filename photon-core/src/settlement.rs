//! Settling a delivery together with the handler's own writes.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::ids::{Seq, Shard, SubscriptionId};
use crate::store::Fence;

/// What a store needs to know to settle a delivery within a transaction of its handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// The shard of the event.
    pub shard: Shard,
    /// The place of the event in it.
    pub seq: Seq,
    /// The right to work on the shard, which must still be good when the transaction commits.
    pub fence: Fence,
    /// The version of the stored delivery that was worked on; 0 for one that was read from the log.
    pub row: u64,
}

/// How far the transaction of one attempt got. The extractor of the transaction writes it, the executor reads it
/// when the attempt has ended.
#[derive(Debug)]
pub struct Settlement {
    row: u64,
    state: AtomicU8,
}

/// What became of the transaction of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Nothing is known to have been written: the end of the attempt counts as that of any other.
    No,
    /// It was begun and neither settled nor rolled back.
    Open,
    /// It committed, now or in an earlier attempt: the delivery is settled, whatever the handler returned.
    Yes,
    /// Somebody else redrove or discarded the delivery meanwhile: the attempt does not count.
    Overtaken,
}

impl Settlement {
    /// Of an attempt at a delivery whose row has this version; 0 for one that was read from the log.
    pub fn new(row: u64) -> Self {
        Self { row, state: AtomicU8::new(0) }
    }

    /// The version of the row.
    pub fn row(&self) -> u64 {
        self.row
    }

    /// Where it stands.
    pub fn get(&self) -> Settled {
        match self.state.load(Ordering::Acquire) {
            1 => Settled::Open,
            2 => Settled::Yes,
            3 => Settled::Overtaken,
            _ => Settled::No,
        }
    }

    /// Notes where it stands.
    pub fn set(&self, state: Settled) {
        let state = match state {
            Settled::No => 0,
            Settled::Open => 1,
            Settled::Yes => 2,
            Settled::Overtaken => 3,
        };
        self.state.store(state, Ordering::Release);
    }
}
