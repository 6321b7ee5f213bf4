//! A Photon for one test.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use photon_core::identity::IdentityFactory;
use photon_core::options::Options;
use photon_core::registry::Registry;
use photon_core::time::Timestamp;
use photon_core::topic::{Topic, TopicDescriptor};

use super::assertions::TestSubscription;
use super::calls::{Asked, TestDeadLetters, TestPublish};
use super::recorder::Recorder;
use super::selection::{Selection, Wanted};
use crate::builder::PhotonBuilder;
use crate::clock::Clock;
use crate::error::Error;
use crate::executor::Executor;
use crate::photon::Photon;
use crate::subscriptions::SubscriptionRef;
use crate::topics::DynamicTopic;

/// When every test begins: 2026-01-01T00:00:00Z.
const BEGINNING: Timestamp = Timestamp(1_767_225_600_000_000);

/// How far the clock moves so that what has just become due begins.
const STEP: Duration = Duration::from_millis(2);

/// A Photon in memory whose clock stands still, with the handlers that are linked into the test.
///
/// Its executor starts with the first [`publish`](Self::publish), [`run_until_quiet`](Self::run_until_quiet) or
/// [`advance`](Self::advance). From then on handlers run whenever the test waits, so give them their states before.
///
/// A test runs every subscription of its binary that it can run. One that cannot run, because it needs a state that
/// the test does not give or stands in conflict with another one, lets events pass and does not disturb; naming it in
/// [`subscription`](Self::subscription) tells what is missing. Where two types declare one topic, the test runs the
/// handlers of the one that it publishes first. [`only`](Self::only) picks some.
///
/// Random numbers (the jitter of retries, event ids) are the same in every run.
pub struct TestPhoton {
    recorder: Arc<Recorder>,
    clock: Clock,
    only: Option<Vec<SubscriptionRef>>,
    /// Until it is built.
    builder: Option<PhotonBuilder>,
    built: Option<Built>,
    executor: Option<Executor>,
}

struct Built {
    photon: Photon,
    selection: Selection,
}

impl TestPhoton {
    /// A new one, with nothing in it. `#[photon::test]` calls it; elsewhere call it within a tokio runtime of one
    /// thread whose time is paused.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[expect(clippy::new_without_default, reason = "it must be made within a runtime")]
    pub fn new() -> Self {
        // Asked for here, so that the panic says what is missing.
        let _ = tokio::runtime::Handle::current();
        let clock = Clock::starting_at(BEGINNING);
        let recorder = Arc::new(Recorder::new(clock));
        let around = recorder.clone();
        let builder = Photon::builder()
            .memory()
            .clock(clock)
            .seed(0)
            .instance("test")
            .allow_no_handlers()
            .alone()
            .around(Arc::new(move |handler, delivery| around.run(handler, delivery)));
        Self { recorder, clock, only: None, builder: Some(builder), built: None, executor: None }
    }

    /// Gives handlers a value, which they take as `State<T>`. A second one of the same type takes the place of the
    /// first, also while handlers run: a run that has begun keeps what it had.
    pub fn state<T: Clone + Send + Sync + 'static>(&mut self, value: T) -> &mut Self {
        self.recorder.give(value);
        self
    }

    /// Says how actors are written and rebuilt, as on the builder of a Photon.
    ///
    /// # Panics
    /// After the first publish.
    #[track_caller]
    pub fn identity<F: IdentityFactory>(&mut self, factory: F) -> &mut Self {
        self.configure("identity", |builder| builder.identity(factory))
    }

    /// Sets options of all subscriptions, over what their attributes say.
    ///
    /// # Panics
    /// After the first publish.
    #[track_caller]
    pub fn options(&mut self, options: Options) -> &mut Self {
        self.configure("options", |builder| builder.options(options))
    }

    /// Runs these subscriptions and no others: `t.only(["billing"])`.
    ///
    /// # Panics
    /// After the first publish.
    #[track_caller]
    pub fn only<S: Into<SubscriptionRef>>(
        &mut self,
        subscriptions: impl IntoIterator<Item = S>,
    ) -> &mut Self {
        let names = subscriptions.into_iter().map(Into::into);
        self.only.get_or_insert_default().extend(names);
        self.configure("only", |builder| builder)
    }

    #[track_caller]
    fn configure(&mut self, call: &str, change: impl FnOnce(PhotonBuilder) -> PhotonBuilder) -> &mut Self {
        let Some(builder) = self.builder.take() else {
            panic!("`.{call}(...)` comes too late: give it before the first publish")
        };
        self.builder = Some(change(builder));
        self
    }

    /// The Photon itself, for what this interface does not offer.
    ///
    /// # Panics
    /// If the test has set something that no Photon can run with.
    #[track_caller]
    pub fn photon(&mut self) -> &Photon {
        &self.built(None).photon
    }

    /// `topic` is the one that the test begins with: of two types with its name this one is meant.
    #[track_caller]
    fn built(&mut self, topic: Option<&'static TopicDescriptor>) -> &Built {
        if let Some(builder) = self.builder.take() {
            let wanted = Wanted { only: self.only.take(), topic };
            self.built = Some(build(builder, &wanted));
        }
        self.built.as_ref().expect("it has a builder until it is built")
    }

    /// Publishes one event: `t.publish(&order).await`.
    ///
    /// # Panics
    /// The await panics if the event is refused.
    #[track_caller]
    pub fn publish<E: Topic>(&mut self, event: &E) -> TestPublish<'_> {
        let publish = self.built(Some(E::DESCRIPTOR)).photon.publish(event);
        TestPublish::new(self, publish, Asked::here())
    }

    /// Publishes bytes, which need not be what the handlers expect: `t.publish_raw("orders.placed", "{").await`.
    ///
    /// # Panics
    /// The await panics if the event is refused.
    #[track_caller]
    pub fn publish_raw<T>(&mut self, topic: T, payload: impl Into<Bytes>) -> TestPublish<'_>
    where
        T: TryInto<DynamicTopic>,
        Error: From<T::Error>,
    {
        let publish = self.photon().publish_raw(topic, payload);
        TestPublish::new(self, publish, Asked::here())
    }

    /// Runs until everything that was published is handled, and what its handlers published. The clock moves on
    /// through retries that wait in memory; deliveries that are parked, or held up by a dead letter, are not waited
    /// for: [`advance`](Self::advance) the clock for the former.
    ///
    /// # Panics
    /// If Photon cannot start.
    #[track_caller]
    pub fn run_until_quiet(&mut self) -> impl Future<Output = ()> {
        let asked = Asked::here();
        async move {
            let executor = self.start(asked).await;
            asked.expect(executor.quiet().await);
        }
    }

    /// Lets time pass: everything that becomes due meanwhile happens at its time. When this returns, what is due has
    /// begun; it has also ended, unless it waits itself. The clock may stand some milliseconds later than asked for.
    ///
    /// # Panics
    /// If Photon cannot start.
    #[track_caller]
    pub fn advance(&mut self, duration: Duration) -> impl Future<Output = ()> {
        let asked = Asked::here();
        async move {
            self.start(asked).await;
            tokio::time::sleep(duration).await;
            // A paused clock moves only when nothing else can: what became due at the end has begun after this.
            tokio::time::sleep(STEP).await;
        }
    }

    /// The time by the clock of the test. It begins at 2026-01-01T00:00:00Z.
    pub fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    /// What happened in a subscription, named by its group, `"billing"`, or by topic and group,
    /// `("orders.placed", "billing")`.
    ///
    /// # Panics
    /// If there is none or several of that name, or if it could not run: with the reason.
    #[track_caller]
    pub fn subscription(&mut self, name: impl Into<SubscriptionRef>) -> TestSubscription {
        let recorder = self.recorder.clone();
        let Built { photon, selection } = self.built(None);
        let name = name.into();
        if let Some(left_out) = selection.left_out.iter().find(|out| name.names(&out.subscription)) {
            panic!(
                "subscription {} does not run in this test: it {}",
                left_out.subscription, left_out.reason
            );
        }
        let mut named = selection.runs.iter().filter(|id| name.names(id));
        match (named.next(), named.next()) {
            (Some(id), None) => {
                if let Some(missing) = recorder.passed(id) {
                    panic!(
                        "an event went past subscription {id}: it {missing}, here `t.state(...)` before the publish"
                    );
                }
                TestSubscription::new(id.clone(), photon.clone(), recorder)
            }
            (first, _) => {
                let number = if first.is_none() { "no" } else { "more than one" };
                panic!(
                    "there is {number} subscription \"{name}\": this test has {}",
                    selection.names().join(", ")
                )
            }
        }
    }

    /// The dead letters of a subscription, named as in [`subscription`](Self::subscription).
    #[track_caller]
    pub fn dead_letters(&mut self, name: impl Into<SubscriptionRef>) -> TestDeadLetters<'_> {
        TestDeadLetters::new(self.photon().dead_letters(name), Asked::here())
    }

    pub(super) async fn start(&mut self, asked: Asked) -> &Executor {
        if self.executor.is_none() {
            let photon = self.photon().clone();
            self.executor = Some(asked.expect(photon.start_executor().await));
        }
        self.executor.as_ref().expect("it was just started")
    }
}

/// The memory engine answers at once.
#[track_caller]
fn build(builder: PhotonBuilder, wanted: &Wanted) -> Built {
    let (selection, registry) = Selection::of(&Registry::linked(), wanted, builder.config());
    match builder.registry(registry).build().now_or_never() {
        Some(Ok(photon)) => Built { photon, selection },
        Some(Err(error)) => panic!("{error}"),
        None => panic!("the memory engine is there at once"),
    }
}

impl fmt::Debug for TestPhoton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestPhoton").field("runs", &self.executor.is_some()).finish_non_exhaustive()
    }
}
