//! The executor: one loop for each subscription of the program, started and ended together.

mod breaker;
mod control;
mod crew;
mod driver;
mod handlers;
mod housekeeping;
mod plan;
mod report;
mod solitude;
mod work;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use photon_core::descriptor::HandlerDescriptor;
use photon_core::error::StoreError;
use photon_core::handler::{Delivery, HandlerFuture};
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::machine::outage::Outage;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::crew::Running;
use self::crew::{Crew, Loop};
use self::driver::{Phase, QuietRequest};
#[cfg(feature = "testing")]
pub(crate) use self::handlers::panic_message;
pub use self::report::{DrainReport, SubscriptionReport};
pub(crate) use self::solitude::Process;
use crate::ambient;
use crate::error::{Error, Result};
use crate::inner::Inner;
use crate::photon::Photon;
use crate::spec::Spec;

/// Runs a handler in place of its own function, for what stands around handlers.
pub(crate) type Around = Arc<dyn Fn(&'static HandlerDescriptor, Delivery) -> HandlerFuture + Send + Sync>;

impl Photon {
    /// Starts to hand events to the handlers of the program: one loop for each subscription, from where it stopped.
    ///
    /// Before anything runs, everything that can be wrong is looked for, and all of it is reported at once. When
    /// this returns, every subscription is known to the store.
    ///
    /// Must be called within a tokio runtime with time enabled; the loops run there.
    ///
    /// # Errors
    /// [`Error::Start`] with all problems, each with the place of its handler or topic; [`Error::Conflict`] on a
    /// second call; [`Error::Refused`] where there is no such runtime; [`Error::Closed`] after the shutdown; and what
    /// the store says.
    pub async fn start_executor(&self) -> Result<Executor> {
        ambient::check("the executor")?;
        let mut running = self.inner.running.lock().await;
        if running.is_some() {
            return Err(Error::Conflict(
                "this Photon has an executor already, and has at most one in its life: \
                 use the first one, or build another Photon"
                    .to_owned(),
            ));
        }
        let executor = start(self.inner.clone()).await?;
        *running = Some(executor.crew.clone());
        Ok(executor)
    }
}

/// The running loops of a program.
///
/// Made by [`Photon::start_executor`]. Dropping it asks for a shutdown and does not wait for it.
#[must_use = "dropping the executor shuts it down: join it, or keep it"]
pub struct Executor {
    inner: Arc<Inner>,
    crew: Arc<Crew>,
    ended: JoinHandle<DrainReport>,
}

impl Executor {
    /// Asks for the end: no new deliveries; handlers that run may end, up to the drain timeout; then the checkpoints
    /// are written, and the shards are given back. Returns at once; [`join`](Self::join) waits for the end. Calling
    /// it again changes nothing.
    pub fn shutdown(&self) {
        self.crew.advance(Phase::Drain);
    }

    /// Waits for the end that [`shutdown`](Self::shutdown) asked for, and tells how it went. Without a shutdown it
    /// waits until somebody else asks for one.
    ///
    /// After a clean end nothing that was settled will be delivered again. Publishing ends last: after this,
    /// [`publish`](Photon::publish) gives [`Error::Closed`].
    pub async fn join(mut self) -> DrainReport {
        match (&mut self.ended).await {
            Ok(report) => report,
            // The runtime is going down: nobody can say more.
            Err(_) => DrainReport { subscriptions: Vec::new(), took: Duration::ZERO },
        }
    }

    /// Waits until everything that was published so far is handled, and what its handlers published; then shuts down
    /// and joins.
    ///
    /// Deliveries that are parked for later, or held up by a dead letter, are not waited for: they go on at the next
    /// start. Nor are shards that belong to other instances of the group, or that another process keeps from this one
    /// for longer than two lease times.
    ///
    /// # Errors
    /// What the store says when it is asked how far the topics go; an outage is waited out, as the loops do. The
    /// executor is then shut down all the same.
    pub async fn drain(self) -> Result<DrainReport> {
        let quiet = self.quiet().await;
        self.shutdown();
        let report = self.join().await;
        quiet.map(|()| report)
    }

    /// Waits until everything that was published so far is handled, and what its handlers published. The executor goes
    /// on. See [`drain`](Self::drain) for what is not waited for.
    ///
    /// # Errors
    /// What the store says when it is asked how far the topics go; an outage is waited out, as the loops do.
    pub async fn quiet(&self) -> Result<()> {
        let mut before = Vec::new();
        let loops = self.crew.loops();
        // An event can cause one in another topic, and so on: at most as often as there are subscriptions, unless
        // they go round in circles.
        for _ in 0..=loops.len() {
            let ends = self.ends(&loops).await?;
            if ends == before {
                return Ok(());
            }
            let mut waits = Vec::new();
            for (of, ends) in loops.iter().zip(&ends) {
                let (done, wait) = oneshot::channel();
                // A loop that ended waits for nothing more.
                if of.quiet.send(QuietRequest { ends: ends.clone(), done }).is_ok() {
                    waits.push(wait);
                }
            }
            for wait in waits {
                let _ = wait.await;
            }
            before = ends;
        }
        Ok(())
    }

    /// Runs until the process is told to end, by SIGINT (Ctrl-C) or SIGTERM; then shuts down and joins. A second signal
    /// breaks off what still runs.
    ///
    /// # Errors
    /// [`Error::Refused`] if the signals cannot be listened to.
    pub async fn run_until_signal(self) -> Result<DrainReport> {
        let mut signals = Signals::listen()?;
        signals.next().await;
        tracing::info!("shutting down: waiting for running handlers, a second signal breaks them off");
        self.shutdown();
        let crew = self.crew.clone();
        let join = self.join();
        tokio::pin!(join);
        tokio::select! {
            report = &mut join => return Ok(report),
            () = signals.next() => {}
        }
        crew.advance(Phase::Abort);
        Ok(join.await)
    }

    /// Where the topics of all loops end, in the order of the loops, with what was committed in transactions.
    async fn ends(&self, loops: &[Arc<Loop>]) -> Result<Vec<Vec<(Shard, Seq)>>> {
        if let Some(outbox) = self.inner.store.as_outbox() {
            self.answer(|| outbox.flush()).await?;
        }
        let mut ends = Vec::new();
        for of in loops {
            let bounds = self.answer(|| self.inner.store.bounds(&of.topic)).await?;
            ends.push(bounds.into_iter().map(|bounds| (bounds.shard, bounds.end)).collect());
        }
        Ok(ends)
    }

    /// What the store answers, which is asked again through an outage.
    async fn answer<T, A>(&self, ask: impl Fn() -> A) -> Result<T>
    where
        A: Future<Output = std::result::Result<T, StoreError>>,
    {
        let mut outage = Outage::default();
        loop {
            match work::answer(self.inner.clock, ask()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_transient() => {
                    outage.handle_failed(self.inner.clock.mono());
                    self.inner.clock.sleep_until(outage.retry_at()).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("phase", &self.crew.phase())
            .field("subscriptions", &self.crew.loops().len())
            .finish_non_exhaustive()
    }
}

async fn start(inner: Arc<Inner>) -> Result<Executor> {
    if inner.publisher.core().gate.is_closed() {
        return Err(Error::Closed);
    }
    let plans = plan::plans(&inner).await?;
    let (crew, tasks) = Crew::new();
    for plan in plans {
        if let Err(error) = crew.begin(&inner, plan).await {
            crew.advance(Phase::Abort);
            return Err(error);
        }
    }
    let ended = tokio::spawn(crew::end(inner.clone(), crew.clone(), tasks));
    Ok(Executor { inner, crew, ended })
}

/// Adds a subscription: to those that a later start begins with, or to those that run.
pub(crate) async fn add(inner: &Arc<Inner>, spec: Spec) -> Result<SubscriptionId> {
    // Neither a start nor another subscription comes in between.
    let running = inner.running.lock().await;
    if inner.publisher.core().gate.is_closed() {
        return Err(Error::Closed);
    }
    let plan = plan::plan_one(inner, &spec).await?;
    let id = plan.shared.subscription.clone();
    if let Some(crew) = &*running {
        crew.begin(inner, plan).await?;
    }
    inner.dynamic.insert(Arc::new(spec));
    Ok(id)
}

/// Removes a subscription that was added, and waits for the end of its loop. None of that name: nothing happens.
pub(crate) async fn remove(inner: &Inner, id: &SubscriptionId) {
    let crew = inner.running.lock().await.clone();
    if let Some(crew) = crew {
        crew.stop(inner, id).await;
    }
    inner.dynamic.remove(id);
}

/// The signals that ask a process to end.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| {
            signal(kind).map_err(|error| Error::Refused {
                message: "the signals SIGTERM and SIGINT cannot be listened to".to_owned(),
                source: Some(error.into()),
            })
        };
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn listen() -> Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
