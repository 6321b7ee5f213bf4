//! A queue between async callers and threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Work that waits for a thread. Once closed it takes nothing more in, but what is in it still comes out.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    more: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    idle: usize,
    closed: bool,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        let state = State { items: VecDeque::new(), idle: 0, closed: false };
        Self { state: Mutex::new(state), more: Condvar::new() }
    }

    /// Adds an item; gives it back if the queue is closed. Says whether more items wait than threads do.
    pub(super) fn push(&self, item: T) -> Result<bool, T> {
        let mut state = self.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        let behind = state.items.len() > state.idle;
        drop(state);
        self.more.notify_one();
        Ok(behind)
    }

    /// Waits for an item; `None` once the queue is closed and empty.
    pub(super) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// An item if one is there.
    pub(super) fn try_pop(&self) -> Option<T> {
        self.lock().items.pop_front()
    }

    /// Everything that is there.
    pub(super) fn take_all(&self) -> VecDeque<T> {
        std::mem::take(&mut self.lock().items)
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing that runs under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
