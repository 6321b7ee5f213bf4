//! What handlers did in a test.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use photon_core::descriptor::HandlerDescriptor;
use photon_core::event::Event;
use photon_core::handler::{
    Delivery, Extensions, FailureClass, HandlerFuture, HandlerResult, Outcome, Shared,
};
use photon_core::ids::SubscriptionId;
use photon_core::time::Mono;

use crate::check;
use crate::clock::Clock;
use crate::executor::panic_message;

/// Stands around the handlers of a test: gives them its present states, and writes down how each run ended.
pub(super) struct Recorder {
    clock: Clock,
    states: Mutex<Extensions>,
    runs: Mutex<Vec<Run>>,
    /// The subscriptions that an event went past, with what they missed.
    passed: Mutex<BTreeMap<SubscriptionId, String>>,
}

/// One run of a handler.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) subscription: SubscriptionId,
    pub(super) event: Event,
    pub(super) attempt: u32,
    /// When it began, since the test began.
    pub(super) at: Duration,
    pub(super) end: End,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub(super) enum End {
    Running,
    Done,
    Ignored(Cow<'static, str>),
    Deferred(Duration, Cow<'static, str>),
    Failed(FailureClass, String),
    Panicked(String),
    BrokenOff,
}

impl Recorder {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, states: Mutex::default(), runs: Mutex::default(), passed: Mutex::default() }
    }

    pub(super) fn give<T: Send + Sync + 'static>(&self, state: T) {
        lock(&self.states).insert(state);
    }

    /// The runs of a subscription so far, in the order in which they began.
    pub(super) fn runs(&self, subscription: &SubscriptionId) -> Vec<Run> {
        lock(&self.runs).iter().filter(|run| run.subscription == *subscription).cloned().collect()
    }

    /// What a subscription missed when an event went past it.
    pub(super) fn passed(&self, subscription: &SubscriptionId) -> Option<String> {
        lock(&self.passed).get(subscription).cloned()
    }

    /// Runs a handler once.
    pub(super) fn run(
        self: &Arc<Self>,
        handler: &'static HandlerDescriptor,
        delivery: Delivery,
    ) -> HandlerFuture {
        let delivery = self.with_states(delivery);
        if let Some(message) = check::missing(&delivery.shared.extensions, handler).into_iter().next() {
            lock(&self.passed).insert(delivery.shared.subscription.clone(), message);
            return Box::pin(ready(Ok(Outcome::Done)));
        }
        let entry = self.begin(&delivery);
        Box::pin(async move {
            // Called within, so that a panic before the handler's first await is written down, too.
            let run = AssertUnwindSafe(async { (handler.call)(delivery).await });
            match run.catch_unwind().await {
                Ok(result) => {
                    entry.end((&result).into());
                    result
                }
                Err(panic) => {
                    entry.end(End::Panicked(panic_message(&panic).to_owned()));
                    resume_unwind(panic)
                }
            }
        })
    }

    fn with_states(&self, mut delivery: Delivery) -> Delivery {
        let mut extensions = delivery.shared.extensions.clone();
        extensions.extend(&lock(&self.states));
        delivery.shared = Arc::new(Shared {
            subscription: delivery.shared.subscription.clone(),
            max_attempts: delivery.shared.max_attempts,
            timeout: delivery.shared.timeout,
            extensions,
        });
        delivery
    }

    fn begin(self: &Arc<Self>, delivery: &Delivery) -> Entry {
        let mut runs = lock(&self.runs);
        runs.push(Run {
            subscription: delivery.shared.subscription.clone(),
            event: delivery.event.clone(),
            attempt: delivery.attempt,
            at: self.clock.mono().since(Mono::default()),
            end: End::Running,
        });
        Entry { recorder: self.clone(), index: runs.len() - 1 }
    }
}

/// A run that has not ended. Dropped without an end it was broken off.
struct Entry {
    recorder: Arc<Recorder>,
    index: usize,
}

impl Entry {
    fn end(&self, end: End) {
        lock(&self.recorder.runs)[self.index].end = end;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let end = &mut lock(&self.recorder.runs)[self.index].end;
        if matches!(end, End::Running) {
            *end = End::BrokenOff;
        }
    }
}

/// A test that failed while it held the lock says more than a poisoned lock would.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<&HandlerResult> for End {
    fn from(result: &HandlerResult) -> Self {
        match result {
            Ok(Outcome::Done) => End::Done,
            Ok(Outcome::Ignored(reason)) => End::Ignored(reason.clone()),
            Ok(Outcome::Defer(delay, reason)) => End::Deferred(*delay, reason.clone()),
            Err(error) => match error.class() {
                FailureClass::Defer(delay) => End::Deferred(delay, error.to_string().into()),
                class => End::Failed(class, error.to_string()),
            },
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Running => f.write_str("still runs"),
            End::Done => f.write_str("done"),
            End::Ignored(reason) => write!(f, "ignored: {reason}"),
            End::Deferred(delay, reason) => write!(f, "deferred for {delay:?}: {reason}"),
            End::Failed(FailureClass::Permanent, error) => write!(f, "failed for good: {error}"),
            End::Failed(FailureClass::RetryAfter(delay), error) => {
                write!(f, "failed, again after {delay:?}: {error}")
            }
            End::Failed(_, error) => write!(f, "failed: {error}"),
            End::Panicked(message) => write!(f, "panicked: {message}"),
            End::BrokenOff => f.write_str("ran out of time, or was broken off"),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: attempt {} of shard {} seq {}",
            self.at, self.attempt, self.event.shard, self.event.seq
        )?;
        if let Some(key) = &self.event.key {
            write!(f, ", key {:?}", key.to_string())?;
        }
        write!(f, ": {}", self.end)
    }
}
