//! A delivery made by hand, for a handler or an extractor alone.

use std::sync::Arc;

use bytes::Bytes;
use photon_core::error::BoxError;
use photon_core::event::Event;
use photon_core::handler::{
    Context, Delivery, Extensions, FromDelivery, HandlerError, HandlerResult, Shared,
};
use photon_core::headers::{ACTOR, CONTENT_TYPE, Headers};
use photon_core::identity::{Identities, IdentityFactory};
use photon_core::ids::{GroupName, Incarnation, Seq, SubscriptionId, ToKey, TopicName};
use photon_core::machine::shards::shard_of;
use photon_core::options::Settings;
use photon_core::registry::Registry;
use photon_core::store::Fence;
use photon_core::time::Timestamp;
use photon_core::topic::Topic;

use crate::random::{EventIds, Random};
use crate::subscriptions::SubscriptionRef;

/// A delivery of an event, as if it came out of the log for the first time.
///
/// For an extractor, or a handler together with its decoding and its extractors:
///
/// ```
/// # use photon_core::{error::{DecodeError, EncodeError}, event::Event, ids::Key, topic::*};
/// # struct OrderPlaced;
/// # impl Topic for OrderPlaced {
/// #     const DESCRIPTOR: &'static TopicDescriptor = &TopicDescriptor {
/// #         name: "orders.placed", shards: 8, key: "none", type_name: "OrderPlaced", file: "", line: 0 };
/// #     const CONTENT_TYPE: &'static str = "application/json";
/// #     fn key(&self) -> Option<Key> { None }
/// #     fn encode(&self, _: &mut Vec<u8>) -> Result<(), EncodeError> { Ok(()) }
/// # }
/// use photon_core::headers::Headers;
/// use photon_runtime::testing::delivery;
///
/// let given = delivery(&OrderPlaced).key("customer-7").header("source", "web").attempt(2);
/// assert_eq!(given.context().attempt(), 2);
/// assert_eq!(given.build().headers().get("source"), Some("web"));
/// ```
///
/// # Panics
/// If the event cannot be encoded.
#[track_caller]
pub fn delivery<E: Topic>(event: &E) -> TestDelivery {
    let mut payload = Vec::new();
    if let Err(error) = event.encode(&mut payload) {
        panic!("the event cannot be encoded: {error}");
    }
    let topic = match TopicName::new(E::DESCRIPTOR.name) {
        Ok(topic) => topic,
        Err(error) => panic!("{error}"),
    };
    let mut headers = Headers::new();
    headers.insert(CONTENT_TYPE, Bytes::from_static(E::CONTENT_TYPE.as_bytes()));
    let time = Timestamp::from(std::time::SystemTime::now());
    let id = EventIds::default().next(time, &Random::from_system());
    let key = event.key();
    let shard = shard_of(key.as_ref(), id, E::DESCRIPTOR.shards);
    let event = Event { id, topic, shard, seq: Seq(1), key, headers, payload: payload.into(), time };
    TestDelivery {
        event,
        shards: E::DESCRIPTOR.shards,
        attempt: 1,
        group: GroupName::new("test").expect("a plain word is a name"),
        extensions: Extensions::default(),
    }
}

/// A delivery in the making. Made by [`delivery`].
#[derive(Debug, Clone)]
#[must_use = "end with .build(), .context(), .extract() or .run(...)"]
pub struct TestDelivery {
    event: Event,
    shards: u16,
    attempt: u32,
    group: GroupName,
    extensions: Extensions,
}

impl TestDelivery {
    /// Sets the ordering key, in place of the event's own; the shard follows.
    pub fn key(mut self, key: impl ToKey) -> Self {
        self.event.key = key.to_key();
        self.event.shard = shard_of(self.event.key.as_ref(), self.event.id, self.shards);
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<Box<str>>, value: impl AsRef<[u8]>) -> Self {
        self.event.headers.insert(name, Bytes::copy_from_slice(value.as_ref()));
        self
    }

    /// Sets the payload, in place of the encoded event: to see what a handler makes of bytes that do not decode.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.event.payload = payload.into();
        self
    }

    /// Sets the number of the attempt. Default 1.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// Sets the place in the shard. Default 1.
    pub fn seq(mut self, seq: Seq) -> Self {
        self.event.seq = seq;
        self
    }

    /// Sets when the store took the event in. Default now.
    pub fn time(mut self, time: Timestamp) -> Self {
        self.event.time = time;
        self
    }

    /// Names the group of the subscription. Default `"test"`.
    ///
    /// # Panics
    /// If it is no name for a group.
    #[track_caller]
    pub fn group(mut self, group: &str) -> Self {
        self.group = match GroupName::new(group) {
            Ok(group) => group,
            Err(error) => panic!("{error}"),
        };
        self
    }

    /// Gives a value that is taken as `State<T>`.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }

    /// Says who caused the event, and how that is written and rebuilt.
    ///
    /// # Panics
    /// If the factory cannot write the identity.
    #[track_caller]
    pub fn actor<F: IdentityFactory>(mut self, factory: F, identity: &F::Identity) -> Self {
        let identities: Identities<F::Identity> = Identities::new(factory);
        let written: Result<Bytes, BoxError> = identities.write(identity);
        match written {
            Ok(bytes) => self.event.headers.insert(ACTOR, bytes),
            Err(error) => panic!("the identity factory could not write the actor: {error}"),
        }
        self.extensions.insert(identities);
        self
    }

    /// The delivery.
    pub fn build(&self) -> Delivery {
        let settings = Settings::default();
        Delivery {
            event: self.event.clone(),
            attempt: self.attempt,
            fence: Fence { epoch: 1, token: Incarnation(uuid::Uuid::nil()) },
            settlement: None,
            shared: Arc::new(Shared {
                subscription: SubscriptionId::new(self.event.topic.clone(), self.group.clone()),
                max_attempts: settings.retry.max_attempts,
                timeout: settings.timeout,
                extensions: self.extensions.clone(),
            }),
        }
    }

    /// What a handler that is called by hand takes as its `Context`.
    pub fn context(&self) -> Context {
        Context::of(&self.build())
    }

    /// What an extractor takes out of the delivery.
    pub async fn extract<T: FromDelivery>(&self) -> Result<T, HandlerError> {
        T::from_delivery(&self.build()).await
    }

    /// Runs the handler of a subscription once: decodes the event, takes out its parameters and calls it. Named by
    /// group, `"billing"`, or by topic and group. Nothing else happens: no timeout, no retry, no dead letter.
    ///
    /// # Panics
    /// If no handler of the program has that subscription, or several.
    #[track_caller]
    pub fn run(&self, subscription: impl Into<SubscriptionRef>) -> impl Future<Output = HandlerResult> {
        let (name, linked) = (subscription.into(), Registry::linked());
        let id = |handler| Registry::subscription(handler).ok();
        let mut named =
            linked.handlers.iter().filter(|handler| id(handler).is_some_and(|id| name.names(&id)));
        let handler = match (named.next(), named.next()) {
            (Some(handler), None) => *handler,
            (Some(_), Some(_)) => {
                panic!("several handlers have the subscription \"{name}\": give topic and group")
            }
            (None, _) => {
                let known: Vec<_> = linked
                    .handlers
                    .iter()
                    .filter_map(|handler| id(handler))
                    .map(|id| id.to_string())
                    .collect();
                panic!("no handler has the subscription \"{name}\": there are {}", known.join(", "))
            }
        };
        let mut given = self.clone();
        let SubscriptionId { topic, group, .. } = id(handler).expect("it was found by its subscription");
        (given.event.topic, given.group) = (topic, group);
        (handler.call)(given.build())
    }
}
