//! Running handlers: in the loop's own task while they end at once, in a task of their own when they wait.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use photon_core::function::HandlerCall;
use photon_core::handler::{DeadReason, Delivery, FailureClass, HandlerFuture, Shared};
use photon_core::machine::subscription::{Dispatch, Verdict};
use photon_core::settlement::{Settled, Settlement};
use tokio::task::{AbortHandle, Id, JoinSet};
use tracing::Span;

/// A handler whose first steps take longer than this on average is busy with the processor; it is then run
/// in tasks of its own, so that several run side by side.
const BUSY: Duration = Duration::from_micros(20);
/// A row that takes longer than this goes on in tasks at once: a handler may block its thread.
const ROW_TIME: Duration = Duration::from_millis(1);
/// How many deliveries of a busy handler go to tasks of their own before the loop tries again to run them itself: at
/// first, and at most, after it was found busy again and again.
const BUSY_FOR: (u32, u32) = (256, 65_536);

/// The handlers of one subscription that run.
pub(super) struct Handlers {
    call: HandlerCall,
    shared: Arc<Shared>,
    /// Whether the handler settles deliveries in transactions of its own.
    settles: bool,
    tasks: JoinSet<(usize, Verdict)>,
    /// Those that were not broken off.
    by_token: HashMap<usize, AbortHandle>,
    by_task: HashMap<Id, usize>,
    /// How many deliveries still go to tasks of their own.
    busy: u32,
    busy_for: u32,
    /// Whether busy handlers are noticed: not on a clock that tests control, where every run must be the same.
    measure: bool,
    started: Option<Instant>,
    inline: u32,
}

impl Handlers {
    pub(super) fn new(call: HandlerCall, shared: Arc<Shared>, settles: bool, measure: bool) -> Self {
        Self {
            call,
            shared,
            settles,
            tasks: JoinSet::new(),
            by_token: HashMap::new(),
            by_task: HashMap::new(),
            busy: 0,
            busy_for: BUSY_FOR.0,
            measure,
            started: None,
            inline: 0,
        }
    }

    /// Before a row of [`start`](Self::start)s.
    pub(super) fn begin_row(&mut self) {
        self.inline = 0;
        self.started = (self.measure && self.busy == 0).then(Instant::now);
    }

    /// After it.
    pub(super) fn end_row(&mut self) {
        let Some(started) = self.started.take().filter(|_| self.inline > 0) else { return };
        if started.elapsed() / self.inline > BUSY {
            self.found_busy();
        } else {
            self.busy_for = BUSY_FOR.0;
        }
    }

    fn found_busy(&mut self) {
        self.started = None;
        self.busy = self.busy_for;
        self.busy_for = BUSY_FOR.1.min(self.busy_for * 2);
    }

    /// Starts a handler. If it ended at once, returns how.
    pub(super) fn start(&mut self, dispatch: Dispatch) -> Option<Verdict> {
        let span = tracing::debug_span!(
            "deliver",
            topic = %self.shared.subscription.topic,
            group = %self.shared.subscription.group,
            shard = dispatch.event.shard.0,
            seq = dispatch.event.seq.0,
            event = %dispatch.event.id,
            attempt = dispatch.attempt,
        );
        let settlement = self.settles.then(|| Arc::new(Settlement::new(dispatch.row)));
        let delivery = Delivery {
            event: dispatch.event,
            attempt: dispatch.attempt,
            fence: dispatch.fence,
            settlement: settlement.clone(),
            shared: self.shared.clone(),
        };
        let mut run = Run { call: Some((self.call.clone(), delivery)), future: None, span };
        if self.busy > 0 {
            self.busy -= 1;
        } else {
            self.inline += 1;
            // What waits is polled again in its own task, with a waker that counts.
            let polled = Pin::new(&mut run).poll(&mut Context::from_waker(Waker::noop()));
            if self.started.is_some_and(|started| started.elapsed() > ROW_TIME) {
                self.found_busy();
            }
            if let Poll::Ready(verdict) = polled {
                return Some(with_settlement(verdict, settlement.as_deref()));
            }
        }
        self.spawn(dispatch.token, run, settlement);
        None
    }

    fn spawn(&mut self, token: usize, run: Run, settlement: Option<Arc<Settlement>>) {
        let timeout = self.shared.timeout;
        let task = self.tasks.spawn(async move {
            let verdict = tokio::time::timeout(timeout, run).await.unwrap_or_else(|_| timed_out(timeout));
            (token, with_settlement(verdict, settlement.as_deref()))
        });
        self.by_task.insert(task.id(), token);
        self.by_token.insert(token, task);
    }

    /// Whether any runs.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next one that ended. Only while any runs.
    pub(super) async fn next(&mut self) -> Option<(usize, Verdict)> {
        let ended = self.tasks.join_next_with_id().await?;
        Some(self.ended(ended))
    }

    /// One that ended already, if there is one.
    pub(super) fn try_next(&mut self) -> Option<(usize, Verdict)> {
        let ended = self.tasks.try_join_next_with_id()?;
        Some(self.ended(ended))
    }

    fn ended(&mut self, ended: Result<(Id, (usize, Verdict)), tokio::task::JoinError>) -> (usize, Verdict) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let token = self.by_task.remove(&id).unwrap_or(usize::MAX);
        let broken_off = self.by_token.remove(&token).is_none();
        let verdict = match ended {
            Ok((_, (_, verdict))) => verdict,
            // Being broken off is no failure, also if it panicked while it was dropped for that.
            // `Run` catches panics; what is left is one while a future is dropped, when its time was over.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => {
                    let verdict = panicked(panic);
                    if broken_off { Verdict::Cancelled } else { verdict }
                }
                Err(_) => Verdict::Cancelled,
            },
        };
        (token, verdict)
    }

    /// Breaks handlers off; they are reported as cancelled.
    pub(super) fn cancel(&mut self, tokens: &[usize]) {
        for token in tokens {
            if let Some(task) = self.by_token.remove(token) {
                task.abort();
            }
        }
    }

    /// Breaks all handlers off.
    pub(super) fn cancel_all(&mut self) {
        self.by_token.clear();
        self.tasks.abort_all();
    }
}

/// One run of a handler. A panic of it is a failed attempt.
struct Run {
    call: Option<(HandlerCall, Delivery)>,
    future: Option<HandlerFuture>,
    span: Span,
}

impl Future for Run {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict> {
        let run = &mut *self;
        let _entered = run.span.enter();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            if let Some((call, delivery)) = run.call.take() {
                run.future = Some(call(delivery));
            }
            let polled = run.future.as_mut().map(|future| future.as_mut().poll(cx));
            if matches!(polled, Some(Poll::Ready(_))) {
                // Dropped here, so that a panic in a destructor is caught, too.
                run.future = None;
            }
            // Here as well, because the verdict holds the text of an error, and the service writes that text.
            polled.map(|polled| polled.map(Verdict::from))
        }));
        match polled {
            Ok(Some(polled)) => polled,
            Ok(None) => Poll::Ready(Verdict::Cancelled),
            Err(panic) => {
                // A future that panicked must not be polled again.
                let dropped = catch_unwind(AssertUnwindSafe(|| run.future = None));
                if let Err(again) = dropped {
                    discard(again);
                    tracing::error!("a handler panicked again while it was dropped");
                }
                Poll::Ready(panicked(panic))
            }
        }
    }
}

/// What an attempt comes to, given what became of its transaction.
fn with_settlement(verdict: Verdict, settlement: Option<&Settlement>) -> Verdict {
    match (settlement.map_or(Settled::No, Settlement::get), &verdict) {
        (Settled::Yes, _) => {
            if let Verdict::Failed { error, .. } = &verdict {
                tracing::warn!(%error, "an attempt failed after its transaction had settled the delivery: it counts as done");
            }
            Verdict::Settled
        }
        // The commit of its end finds out that the row was changed, and looks again.
        (Settled::Overtaken, _) => Verdict::Done,
        (Settled::Open, Verdict::Done) => Verdict::Failed {
            class: FailureClass::Retry,
            reason: DeadReason::Exhausted,
            error: "the handler returned without an error and left its transaction open, which was rolled back: call \
                    settle on it, or rollback if there was nothing to do"
                .to_owned(),
        },
        _ => verdict,
    }
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &Box<dyn Any + Send>) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with a value that is no text")
}

fn panicked(panic: Box<dyn Any + Send>) -> Verdict {
    let error = format!("the handler panicked: {}", panic_message(&panic));
    discard(panic);
    Verdict::Failed { class: FailureClass::Retry, reason: DeadReason::Panic, error }
}

/// Lets go of what a panic carried. It may be a value of the service that panics when it is dropped.
fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Nobody misses it, and this could go on for ever.
        std::mem::forget(again);
    }
}

fn timed_out(timeout: Duration) -> Verdict {
    Verdict::Failed {
        class: FailureClass::Retry,
        reason: DeadReason::Timeout,
        error: format!("the handler did not end within its timeout of {timeout:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use photon_core::event::Event;
    use photon_core::handler::{Extensions, Outcome};
    use photon_core::headers::Headers;
    use photon_core::ids::{EventId, GroupName, Incarnation, Seq, Shard, SubscriptionId, TopicName};
    use photon_core::store::Fence;
    use photon_core::time::Timestamp;

    #[tokio::test]
    async fn p06_a_handler_that_blocks_its_thread_leaves_the_loop() {
        let call: HandlerCall = Arc::new(|_| {
            let began = Instant::now();
            while began.elapsed() <= ROW_TIME {}
            Box::pin(std::future::ready(Ok(Outcome::Done)))
        });
        let mut handlers = Handlers::new(call, Arc::new(shared()), false, true);
        handlers.begin_row();
        assert!(handlers.start(dispatch(1)).is_some(), "the first one runs in the loop");
        for token in 2..=4 {
            assert!(handlers.start(dispatch(token)).is_none(), "the others do not");
        }
        handlers.end_row();
        let mut ended = Vec::new();
        while let Some((token, _)) = handlers.next().await {
            ended.push(token);
        }
        ended.sort_unstable();
        assert_eq!(ended, [2, 3, 4]);
    }

    /// What panics when it is told, and when it is dropped.
    #[derive(Debug)]
    struct Grenade;

    impl std::fmt::Display for Grenade {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("told")
        }
    }

    impl std::error::Error for Grenade {}

    struct DropsBadly;

    impl Drop for DropsBadly {
        fn drop(&mut self) {
            panic!("dropped")
        }
    }

    async fn wait_if(waits: bool) {
        if waits {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn p06_a_panic_that_the_handler_leaves_behind_stays_in_its_attempt() {
        let fails: fn(bool) -> HandlerFuture = |waits| {
            Box::pin(async move {
                wait_if(waits).await;
                Err(Grenade.into())
            })
        };
        let throws: fn(bool) -> HandlerFuture = |waits| {
            Box::pin(async move {
                wait_if(waits).await;
                std::panic::panic_any(DropsBadly)
            })
        };
        for run in [fails, throws] {
            for waits in [false, true] {
                let call: HandlerCall = Arc::new(move |_| run(waits));
                let mut handlers = Handlers::new(call, Arc::new(shared()), false, false);
                let verdict = match handlers.start(dispatch(1)) {
                    Some(verdict) => verdict,
                    None => handlers.next().await.expect("it runs").1,
                };
                let Verdict::Failed { reason, .. } = verdict else { panic!("{verdict:?}") };
                assert_eq!(reason, DeadReason::Panic, "after an await: {waits}");
            }
        }
    }

    fn shared() -> Shared {
        let topic = TopicName::new("busy").expect("a good name");
        let group = GroupName::new("g").expect("a good name");
        Shared {
            subscription: SubscriptionId::new(topic, group),
            max_attempts: 1,
            timeout: Duration::from_secs(60),
            extensions: Extensions::default(),
        }
    }

    fn dispatch(token: usize) -> Dispatch {
        let event = Event {
            id: EventId(uuid::Uuid::nil()),
            topic: TopicName::new("busy").expect("a good name"),
            shard: Shard(0),
            seq: Seq(1),
            key: None,
            headers: Headers::default(),
            payload: bytes::Bytes::new(),
            time: Timestamp::default(),
        };
        let fence = Fence { epoch: 1, token: Incarnation(uuid::Uuid::nil()) };
        Dispatch { token, event, attempt: 1, fence, row: 0 }
    }
}
