//! Subscriptions that are added and removed while the program runs.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use photon_core::function::HandlerFn;
use photon_core::handler::Needs;
use photon_core::ids::SubscriptionId;
use photon_core::machine::retry::Backoff;
use photon_core::options::{BreakerPolicy, Mode, OnDead, Options, Start};
use photon_core::topic::Topic;

use crate::deadletters::DeadLetters;
use crate::error::Result;
use crate::executor;
use crate::inner::Inner;
use crate::photon::Photon;
use crate::position::{Position, ShardReset};
use crate::spec::{Place, Spec, Target};
use crate::status::{SubscriptionHandle, SubscriptionStatus};
use crate::topics::DynamicTopic;

/// What to subscribe to and how, for a handler that is given at run time. See [`Photon::subscribe`].
///
/// It has the settings of the attribute `#[subscribe]`; each that is not set has the default of the attribute. What
/// the builder or the environment sets for all subscriptions wins over it.
#[derive(Debug, Clone)]
#[must_use = "give it to photon.subscribe(...)"]
pub struct Subscription {
    target: Target,
    group: Option<String>,
    mode: Mode,
    options: Options,
}

impl Subscription {
    /// To a topic named at run time: `Subscription::to(DynamicTopic::new("wf.acme.events")?)`. If it is not there it is
    /// made. The handler takes the raw [`Event`](photon_core::event::Event), or the type of the topic.
    pub fn to(topic: impl Into<DynamicTopic>) -> Self {
        Self::new(Target::Named(topic.into()))
    }

    /// To the topic of an event type: `Subscription::of::<OrderPlaced>()`.
    pub fn of<E: Topic>() -> Self {
        Self::new(Target::Typed(E::DESCRIPTOR))
    }

    fn new(target: Target) -> Self {
        Self { target, group: None, mode: Mode::Group, options: Options::NONE }
    }

    /// Names the group; needed. Topic and group are the identity of the subscription: its position is found again
    /// under them.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets who gets the events. Default: the instances of the group share them.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets where it starts if it is new. Default: with the oldest event that is kept.
    pub fn start(self, start: Start) -> Self {
        self.options(Options { start: Some(start), ..Options::NONE })
    }

    /// Sets how many deliveries run at a time. Default 16.
    pub fn concurrency(self, concurrency: u32) -> Self {
        self.options(Options { concurrency: Some(concurrency), ..Options::NONE })
    }

    /// Sets how long one attempt may take. Default 30 s.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.options(Options { timeout: Some(timeout), ..Options::NONE })
    }

    /// Sets how many attempts a delivery has.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.options(Options { max_attempts: Some(attempts), ..Options::NONE })
    }

    /// Sets how long to wait between attempts.
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.options(Options { backoff: Some(backoff), ..Options::NONE })
    }

    /// Sets what the later events of a key do after a dead letter. Default: they go on.
    pub fn on_dead(self, on_dead: OnDead) -> Self {
        self.options(Options { on_dead: Some(on_dead), ..Options::NONE })
    }

    /// Sets when it stops for a while because its attempts fail. Default: never.
    pub fn breaker(self, breaker: BreakerPolicy) -> Self {
        self.options(Options { breaker: Some(breaker), ..Options::NONE })
    }

    /// Sets any options; what was set before and is not set here stays.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options.over(self.options);
        self
    }
}

impl Photon {
    /// Subscribes a function or closure while the program runs, before or after the start of the executor.
    ///
    /// ```
    /// # use photon_runtime::{Photon, DynamicTopic, Subscription};
    /// # use photon_core::event::Event;
    /// # async fn example(photon: Photon) -> photon_runtime::Result<()> {
    /// let spec = Subscription::to(DynamicTopic::new("wf.acme.events")?).group("workflow-17").concurrency(1);
    /// let handle = photon.subscribe(spec, |event: Event| async move { println!("{}", event.id) }).await?;
    /// handle.remove().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// When the future ends, the store knows the subscription: it gets every event from its start on. Its handler runs
    /// as long as an executor does. Dropping the handle changes nothing; [`remove`](Subscribed::remove) ends it.
    ///
    /// # Errors
    /// [`Error::Start`](crate::Error::Start) with everything that is wrong with it, as at the start of an executor;
    /// [`Error::Closed`](crate::Error::Closed) after the shutdown; and what the store says.
    #[track_caller]
    pub fn subscribe<H, Args>(
        &self,
        subscription: Subscription,
        handler: H,
    ) -> impl Future<Output = Result<Subscribed>> + Send + 'static
    where
        H: HandlerFn<Args>,
    {
        let caller = Location::caller();
        let place = Place { at: format!("{}:{}", caller.file(), caller.line()), name: String::new() };
        let mut needs = Needs::default();
        H::needs(&mut needs);
        let Subscription { target, group, mode, options } = subscription;
        let takes = H::topic();
        let (inner, call) = (self.inner.clone(), handler.into_call());
        async move {
            let spec = Spec::dynamic(place, target, group, mode, options, takes, needs, call);
            let id = executor::add(&inner, spec?).await?;
            Ok(Subscribed { handle: SubscriptionHandle::new(inner.clone(), (&id).into()), inner, id })
        }
    }
}

/// A subscription that was added at run time. Clones are the same subscription; dropping all of them changes nothing.
#[derive(Clone)]
pub struct Subscribed {
    inner: Arc<Inner>,
    id: SubscriptionId,
    handle: SubscriptionHandle,
}

impl Subscribed {
    /// Its topic, group and, if it is durable, instance.
    pub fn id(&self) -> &SubscriptionId {
        &self.id
    }

    /// See [`SubscriptionHandle::status`].
    pub async fn status(&self) -> Result<SubscriptionStatus> {
        self.handle.status().await
    }

    /// See [`SubscriptionHandle::pause`].
    pub async fn pause(&self, reason: impl AsRef<str>) -> Result<()> {
        self.handle.pause(reason).await
    }

    /// See [`SubscriptionHandle::resume`].
    pub async fn resume(&self) -> Result<()> {
        self.handle.resume().await
    }

    /// See [`SubscriptionHandle::reset_to`].
    pub async fn reset_to(&self, position: Position) -> Result<Vec<ShardReset>> {
        self.handle.reset_to(position).await
    }

    /// Its dead letters.
    pub fn dead_letters(&self) -> DeadLetters<'_> {
        self.handle.dead_letters()
    }

    /// Ends it in this process: `handle.remove().await?`. It takes no new deliveries, those that run may end, up to the
    /// drain timeout, and its progress is written down. The position stays, so that a later subscription of the same
    /// name goes on there, and the log keeps what it has not settled; [`forget`](Remove::forget) changes that.
    ///
    /// # Errors
    /// What the store says to the forgetting. Removing it again is fine.
    pub fn remove(&self) -> Remove {
        Remove { inner: self.inner.clone(), id: self.id.clone(), forget: false }
    }
}

impl fmt::Debug for Subscribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscribed").field(&self.id).finish()
    }
}

/// The end of a subscription. Made by [`Subscribed::remove`]; nothing happens until it is awaited.
#[must_use = "await it"]
pub struct Remove {
    inner: Arc<Inner>,
    id: SubscriptionId,
    forget: bool,
}

impl Remove {
    /// Forgets the position, too, with its parked deliveries and dead letters, for all processes.
    pub fn forget(mut self) -> Self {
        self.forget = true;
        self
    }
}

impl IntoFuture for Remove {
    type Output = Result<()>;
    type IntoFuture = BoxFuture<'static, Result<()>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            executor::remove(&self.inner, &self.id).await;
            if self.forget {
                self.inner.store.forget(&self.id).await?;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for Remove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remove")
            .field("subscription", &self.id)
            .field("forget", &self.forget)
            .finish_non_exhaustive()
    }
}

/// The subscriptions that were added at run time and not removed.
#[derive(Default)]
pub(crate) struct Dynamic(Mutex<BTreeMap<SubscriptionId, Arc<Spec>>>);

impl Dynamic {
    pub(crate) fn insert(&self, spec: Arc<Spec>) {
        self.specs().insert(spec.subscription.clone(), spec);
    }

    pub(crate) fn remove(&self, subscription: &SubscriptionId) {
        self.specs().remove(subscription);
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Spec>> {
        self.specs().values().cloned().collect()
    }

    fn specs(&self) -> MutexGuard<'_, BTreeMap<SubscriptionId, Arc<Spec>>> {
        // A map stays whole when a thread that held the lock panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
