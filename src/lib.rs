//! Durable pub/sub for Rust services.
//!
//! A service annotates async functions; Photon hands every event of a topic to them, at least once and in key
//! order, out of a durable log, and goes on where it stopped after a crash.

pub use photon_core::codec;
pub use photon_core::error::{BoxError, DecodeError, EncodeError, StoreError, StoreErrorKind};
pub use photon_core::event::{Event, NewEvent};
pub use photon_core::failure::{Classify, Failure};
pub use photon_core::handler::{
    Context, DeadReason, Delivery, Extensions, FailureClass, FromDelivery, HandlerError, HandlerFuture,
    HandlerResult, Need, Needs, Outcome, Reply, Shared, State,
};
pub use photon_core::headers::{self, Headers};
pub use photon_core::identity::{Actor, Identities, IdentityFactory};
pub use photon_core::ids::{
    EventId, Generation, GroupName, Incarnation, InstanceId, InvalidName, Key, Seq, Shard, SubscriptionId,
    ToKey, TopicName,
};
pub use photon_core::machine::retry::{Backoff, RetryPolicy};
pub use photon_core::options::{BreakerPolicy, Mode, OnDead, Options, Settings, Start};
pub use photon_core::registry::{Problem, Problems, Registry};
pub use photon_core::store;
pub use photon_core::store::{DeadLetterFilter as Filter, Page};
pub use photon_core::time::Timestamp;
pub use photon_core::topic::{EventParam, Topic, TopicDescriptor};
/// The body of such a test, with what stands around it:
///
/// ```
/// use photon::prelude::*;
/// use photon::testing::TestPhoton;
///
/// #[topic("greetings")]
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Greeting { who: String }
///
/// #[subscribe(group = "greeter")]
/// async fn greet(greeting: Greeting) {
///     println!("hello, {}", greeting.who);
/// }
///
/// # /*
/// #[photon::test]
/// # */
/// async fn everybody_is_greeted(mut t: TestPhoton) {
///     t.publish(&Greeting { who: "world".into() }).await;
///     t.run_until_quiet().await;
///     t.subscription("greeter").assert_handled(&[Greeting { who: "world".into() }]);
/// }
/// # photon::__private::testing::run(TestPhoton::new, everybody_is_greeted);
/// ```
#[cfg(feature = "testing")]
pub use photon_macros::test;
pub use photon_macros::{Failure, manifest, subscribe, topic};
pub use photon_runtime::*;

// What `photon.subscribe` takes.
pub use photon_core::function::{HandlerCall, HandlerFn};

#[cfg(feature = "testing")]
pub mod testing;

pub mod prelude {
    //! What a file with topics and handlers mostly needs: `use photon::prelude::*;`.
    //!
    //! It holds neither a `Result` nor a `test`. A `use anyhow::Context;` beside it wins over the `Context` in
    //! here; write `use anyhow::Context as _;` to have both.

    pub use serde::{Deserialize, Serialize};

    pub use crate::{
        Actor, Context, Delivery, Event, EventId, Failure, FromDelivery, HandlerError, Headers,
        IdentityFactory, Key, Outcome, Photon, Publisher, State, ToKey, subscribe, topic,
    };
}

/// What the macros refer to. No part of the interface: it changes without notice.
#[doc(hidden)]
pub mod __private {
    pub use photon_core::check;
    pub use photon_core::codec::{JSON, decode_json, encode_json};
    pub use photon_core::descriptor::{HandlerDescriptor, HandlerEntry, TopicEntry};
    pub use photon_core::error::{DecodeError, EncodeError};
    pub use photon_core::event::Event;
    pub use photon_core::failure::{AsStdError, Classify, Failure, FailureEntry, class_of};
    pub use photon_core::handler::{
        Delivery, FailureClass, FromDelivery, HandlerError, HandlerFuture, Needs, Reply,
    };
    pub use photon_core::ids::{Key, ToKey};
    pub use photon_core::machine::retry::Backoff;
    pub use photon_core::options::{BreakerPolicy, Mode, OnDead, Options, Start};
    pub use photon_core::time::Timestamp;
    pub use photon_core::topic::{EventParam, Topic, TopicDescriptor};
    #[cfg(feature = "testing")]
    pub use photon_runtime::testing;
    pub use {core, inventory, serde, std};
}

/// The program in the README, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
