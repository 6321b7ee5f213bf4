//! Handlers: what they are given, what they may take from it, and what their answer means.

use std::any::{Any, TypeId, type_name};
use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{BoxError, DecodeError, chain};
use crate::event::Event;
use crate::failure::{self, Classify};
use crate::headers::Headers;
use crate::ids::{EventId, Key, Seq, Shard, SubscriptionId};
use crate::settlement::Settlement;
use crate::store::Fence;
use crate::time::Timestamp;

/// The result of running a handler once.
pub type HandlerResult = Result<Outcome, HandlerError>;

/// A running handler.
pub type HandlerFuture = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'static>>;

/// What a handler that did not fail says about the delivery.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    /// It is done.
    #[default]
    Done,
    /// It needs no work, for this reason.
    Ignored(Cow<'static, str>),
    /// Not now: offer it again after the delay. It costs no attempt.
    Defer(Duration, Cow<'static, str>),
}

impl Outcome {
    /// It needs no work, for this reason.
    pub fn ignored(reason: impl Into<Cow<'static, str>>) -> Self {
        Outcome::Ignored(reason.into())
    }

    /// Not now: offer it again after `delay`. It costs no attempt.
    pub fn defer(delay: Duration, reason: impl Into<Cow<'static, str>>) -> Self {
        Outcome::Defer(delay, reason.into())
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Outcome::Done
    }
}

/// What a failure asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureClass {
    /// Try again as the retry policy says.
    Retry,
    /// Try again after this delay, as long as attempts are left.
    RetryAfter(Duration),
    /// Trying again is of no use: a dead letter at once.
    Permanent,
    /// Not a failure: offer it again after this delay. It costs no attempt.
    Defer(Duration),
}

/// Why an attempt failed and what to do about it.
///
/// Every error type turns into one with `?`: it is then retried, unless `#[derive(Failure)]` on it or on one of
/// its causes says otherwise; the constructors say it outright. It is not itself a [`std::error::Error`].
pub struct HandlerError {
    class: FailureClass,
    /// Whether the class was said, by the error or its maker, or is only what holds when nothing is.
    said: bool,
    cause: Cause,
}

enum Cause {
    Message(Cow<'static, str>),
    Source(BoxError),
    /// Kept as it is: boxed, it would hide what it was made of.
    Anyhow(anyhow::Error),
    Decode(DecodeError),
    Identity(BoxError),
}

impl HandlerError {
    /// Try again as the retry policy says.
    pub fn retry(cause: impl Into<BoxError>) -> Self {
        Self::saying(FailureClass::Retry, Cause::Source(cause.into()))
    }

    /// Try again after `delay`, as long as attempts are left.
    pub fn retry_after(delay: Duration, cause: impl Into<BoxError>) -> Self {
        Self::saying(FailureClass::RetryAfter(delay), Cause::Source(cause.into()))
    }

    /// A dead letter at once: trying again is of no use.
    pub fn permanent(cause: impl Into<BoxError>) -> Self {
        Self::saying(FailureClass::Permanent, Cause::Source(cause.into()))
    }

    /// Not now: offer the delivery again after `delay`. It costs no attempt.
    pub fn defer(delay: Duration, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::saying(FailureClass::Defer(delay), Cause::Message(reason.into()))
    }

    /// The payload cannot be read; a dead letter at once.
    pub fn undecodable(error: DecodeError) -> Self {
        Self::saying(FailureClass::Permanent, Cause::Decode(error))
    }

    /// The publisher's identity cannot be rebuilt; a dead letter at once.
    pub fn identity(cause: impl Into<BoxError>) -> Self {
        Self::saying(FailureClass::Permanent, Cause::Identity(cause.into()))
    }

    fn saying(class: FailureClass, cause: Cause) -> Self {
        Self { class, said: true, cause }
    }

    /// The same error; if it does not say itself what it asks for, `classify` is asked.
    #[must_use]
    pub fn classified(mut self, classify: Classify) -> Self {
        let foreign = self.source().filter(|_| !self.said);
        self.class = foreign.and_then(|error| classify.class_of(error)).unwrap_or(self.class);
        self
    }

    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.cause {
            Cause::Message(_) => None,
            Cause::Decode(error) => Some(error),
            Cause::Source(error) | Cause::Identity(error) => Some(&**error),
            Cause::Anyhow(error) => Some(&**error),
        }
    }

    /// What it asks for.
    pub fn class(&self) -> FailureClass {
        self.class
    }

    /// Why a delivery that ends with this error is a dead letter.
    pub fn reason(&self) -> DeadReason {
        match self.cause {
            Cause::Decode(_) => DeadReason::Undecodable,
            Cause::Identity(_) => DeadReason::Identity,
            _ if self.class == FailureClass::Permanent => DeadReason::Permanent,
            _ => DeadReason::Exhausted,
        }
    }
}

impl fmt::Display for HandlerError {
    /// The error and its causes in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cause, self.source()) {
            (Cause::Message(message), _) => f.write_str(message),
            (_, Some(error)) => f.write_str(&chain(error)),
            (_, None) => Ok(()),
        }
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerError({:?}: {self})", self.class)
    }
}

impl<E: Into<BoxError> + 'static> From<E> for HandlerError {
    /// A [`Failure`](crate::failure::Failure) in the error's chain says what it asks for; other errors are
    /// retried.
    fn from(error: E) -> Self {
        let (said, cause) = match failure::into_anyhow(error) {
            Ok(error) => (failure::class_in_anyhow(&error), Cause::Anyhow(error)),
            Err(error) => {
                let source: BoxError = error.into();
                (failure::class_of(&*source), Cause::Source(source))
            }
        };
        Self { class: said.unwrap_or(FailureClass::Retry), said: said.is_some(), cause }
    }
}

/// Why a delivery was given up on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadReason {
    /// The last attempt that the policy allows failed.
    Exhausted,
    /// The last attempt that the policy allows ran out of time.
    Timeout,
    /// The last attempt that the policy allows panicked.
    Panic,
    /// The handler said that trying again is of no use.
    Permanent,
    /// The payload cannot be read.
    Undecodable,
    /// The publisher's identity cannot be rebuilt.
    Identity,
    /// It was deferred for longer than `max_defer_age`.
    Deferred,
    /// It ended the process each time it ran.
    Crash,
}

impl DeadReason {
    /// Every reason with its stored name.
    pub const ALL: [(DeadReason, &'static str); 8] = [
        (DeadReason::Exhausted, "exhausted"),
        (DeadReason::Timeout, "timeout"),
        (DeadReason::Panic, "panic"),
        (DeadReason::Permanent, "permanent"),
        (DeadReason::Undecodable, "undecodable"),
        (DeadReason::Identity, "identity"),
        (DeadReason::Deferred, "deferred"),
        (DeadReason::Crash, "crash"),
    ];

    /// The name that stores write.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(reason, _)| *reason == self).map_or("exhausted", |(_, name)| name)
    }

    /// Reads back what [`as_str`](Self::as_str) wrote.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(reason, _)| *reason)
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a handler may return: `()`, [`Outcome`], or a `Result` of one of them with any error.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not a reply",
    note = "return `()`, `Outcome`, `Result<(), E>` or `Result<Outcome, E>`, where `E` is an error type, `anyhow::Error` or `HandlerError`"
)]
pub trait Reply {
    /// The result of the attempt.
    fn into_result(self) -> HandlerResult;
}

impl Reply for () {
    fn into_result(self) -> HandlerResult {
        Ok(Outcome::Done)
    }
}

impl Reply for Outcome {
    fn into_result(self) -> HandlerResult {
        Ok(self)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Into<Outcome>, E: Into<HandlerError>> Reply for Result<T, E> {
    fn into_result(self) -> HandlerResult {
        self.map(Into::into).map_err(Into::into)
    }
}

/// Things of different types, one a type: the states of a service and Photon's own services.
#[derive(Clone, Default)]
pub struct Extensions(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl Extensions {
    /// Sets the value of type `T`; an earlier one is replaced.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// Takes over all values of `others`; where both have one of a type, the other one wins.
    pub fn extend(&mut self, others: &Extensions) {
        self.0.extend(others.0.iter().map(|(id, value)| (*id, value.clone())));
    }

    /// The value of type `T`.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// Whether a value of the type with this id is there.
    pub fn has(&self, id: TypeId) -> bool {
        self.0.contains_key(&id)
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({})", self.0.len())
    }
}

/// One event offered to one subscription. Extractors read it.
#[derive(Debug)]
pub struct Delivery {
    /// The event.
    pub event: Event,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The right under which the shard is worked: for conditional writes to other systems.
    pub fence: Fence,
    /// Where a handler that settles the delivery with its own writes notes how far it got; there if its
    /// [`Needs`] say so.
    pub settlement: Option<Arc<Settlement>>,
    /// What is the same for all deliveries of a subscription.
    pub shared: Arc<Shared>,
}

/// What is the same for all deliveries of a subscription.
#[derive(Debug)]
pub struct Shared {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// How many attempts a delivery has.
    pub max_attempts: u32,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// States and services.
    pub extensions: Extensions,
}

impl Delivery {
    /// The headers of the event.
    pub fn headers(&self) -> &Headers {
        &self.event.headers
    }

    /// The value of type `T` that the service gave to the builder, or that Photon provides.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.shared.extensions.get()
    }
}

/// What a handler needs to run, for the check at start.
#[derive(Debug, Default)]
pub struct Needs {
    extensions: Vec<Need>,
    settles: bool,
}

/// One thing that a handler needs.
#[derive(Debug, Clone)]
pub struct Need {
    /// The type that must be among the extensions.
    pub id: TypeId,
    /// What to say when it is missing: the need and the way to fill it.
    pub message: String,
}

impl Needs {
    /// The handler needs an extension of type `T`; `message` says what it is for and how to give it.
    pub fn extension<T: Send + Sync + 'static>(&mut self, message: impl Into<String>) {
        self.extensions.push(Need { id: TypeId::of::<T>(), message: message.into() });
    }

    /// What was asked for.
    pub fn iter(&self) -> impl Iterator<Item = &Need> {
        self.extensions.iter()
    }

    /// The handler settles its deliveries in transactions of its own. Of one key the next delivery then waits until
    /// the end of the one before is stored.
    pub fn settlement(&mut self) {
        self.settles = true;
    }

    /// Whether it does.
    pub fn settles(&self) -> bool {
        self.settles
    }
}

/// What a handler can take as a parameter after the event.
///
/// An error here is a failed attempt, as if the handler had returned it.
#[diagnostic::on_unimplemented(
    message = "a handler cannot take `{Self}` as a parameter",
    label = "not an extractor",
    note = "only the first parameter is the event; the others are extractors such as `Context`, `State<T>`, `Headers`, `Option<Key>`, `Publisher`, or a type with `impl FromDelivery`"
)]
pub trait FromDelivery: Sized + Send {
    /// Takes the value out of the delivery.
    fn from_delivery(delivery: &Delivery) -> impl Future<Output = Result<Self, HandlerError>> + Send;

    /// Says what must be given to the builder; the start refuses to go on without.
    fn needs(needs: &mut Needs) {
        let _ = needs;
    }
}

/// What a handler can know about its delivery.
#[derive(Debug, Clone)]
pub struct Context {
    event: Event,
    attempt: u32,
    fence: Fence,
    shared: Arc<Shared>,
}

impl Context {
    /// What a handler can know about this delivery.
    pub fn of(delivery: &Delivery) -> Self {
        Self {
            event: delivery.event.clone(),
            attempt: delivery.attempt,
            fence: delivery.fence,
            shared: delivery.shared.clone(),
        }
    }

    /// The id of the event.
    pub fn event_id(&self) -> EventId {
        self.event.id
    }

    /// The undecoded event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The shard of the event.
    pub fn shard(&self) -> Shard {
        self.event.shard
    }

    /// The place of the event in its shard.
    pub fn seq(&self) -> Seq {
        self.event.seq
    }

    /// The ordering key of the event.
    pub fn key(&self) -> Option<&Key> {
        self.event.key.as_ref()
    }

    /// The headers of the event.
    pub fn headers(&self) -> &Headers {
        &self.event.headers
    }

    /// When the store took the event in.
    pub fn time(&self) -> Timestamp {
        self.event.time
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether no attempt is left after this one.
    pub fn is_last_attempt(&self) -> bool {
        self.attempt >= self.shared.max_attempts
    }

    /// The subscription that the delivery belongs to.
    pub fn subscription(&self) -> &SubscriptionId {
        &self.shared.subscription
    }

    /// A text that is the same for every attempt of this delivery and different for any other: give it to
    /// the systems you call, so that they can recognise a repetition.
    pub fn delivery_id(&self) -> String {
        format!("{}:{}", self.shared.subscription.position_name(), self.event.id)
    }

    /// The right under which the shard is worked. A later owner has a greater epoch: a system that
    /// remembers the greatest (shard, epoch) it saw can refuse an owner that came too late.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

impl FromDelivery for Context {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(Context::of(delivery))
    }
}

/// A value that the service gave to the builder with `.state(value)`. Each delivery gets a clone.
#[derive(Debug, Clone, Copy)]
pub struct State<T>(pub T);

impl<T: Clone + Send + Sync + 'static> FromDelivery for State<T> {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        match delivery.extension::<T>() {
            Some(value) => Ok(State(value.clone())),
            None => Err(HandlerError::retry(missing_state::<T>())),
        }
    }

    fn needs(needs: &mut Needs) {
        needs.extension::<T>(missing_state::<T>());
    }
}

fn missing_state<T>() -> String {
    let name = type_name::<T>();
    let short = name.rsplit("::").next().unwrap_or(name);
    format!("needs State<{short}>, but no state of type {name} was given: add .state(...) to the builder")
}

impl FromDelivery for Headers {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(delivery.event.headers.clone())
    }
}

impl FromDelivery for Key {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        delivery.event.key.clone().ok_or_else(|| {
            HandlerError::permanent("the handler takes `Key`, but the event has none: take `Option<Key>`")
        })
    }
}

impl FromDelivery for Option<Key> {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(delivery.event.key.clone())
    }
}

impl FromDelivery for EventId {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(delivery.event.id)
    }
}

impl FromDelivery for SubscriptionId {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(delivery.shared.subscription.clone())
    }
}
