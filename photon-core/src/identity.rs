//! The publisher's actor: who caused an event, and how handlers get it back.

use std::any::type_name;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::BoxError;
use crate::handler::{Delivery, FromDelivery, HandlerError, Needs};
use crate::headers;

/// Turns the identity of a publisher into bytes that travel with the event, and back for handlers.
///
/// Give one to the builder with `.identity(factory)`. What it writes is stored and readable by everybody
/// who reads the log: write an id, not a credential.
pub trait IdentityFactory: Send + Sync + 'static {
    /// The identity that handlers take as `Actor<Identity>`.
    type Identity: Send + Sync + 'static;

    /// The bytes that stand for `identity`.
    fn write(&self, identity: &Self::Identity) -> Result<Vec<u8>, BoxError>;

    /// The identity that `bytes` stand for. An error makes the delivery a dead letter, because a repetition
    /// would fail alike; load what can be away in the handler instead.
    fn rebuild(&self, bytes: &[u8]) -> Result<Self::Identity, BoxError>;
}

/// The factory for one type of identity, as an extension.
pub struct Identities<T>(Arc<dyn ErasedFactory<T>>);

trait ErasedFactory<T>: Send + Sync {
    fn write(&self, identity: &T) -> Result<Vec<u8>, BoxError>;
    fn rebuild(&self, bytes: &[u8]) -> Result<T, BoxError>;
}

impl<F: IdentityFactory> ErasedFactory<F::Identity> for F {
    fn write(&self, identity: &F::Identity) -> Result<Vec<u8>, BoxError> {
        IdentityFactory::write(self, identity)
    }

    fn rebuild(&self, bytes: &[u8]) -> Result<F::Identity, BoxError> {
        IdentityFactory::rebuild(self, bytes)
    }
}

impl<T> Identities<T> {
    /// Wraps the factory.
    pub fn new<F: IdentityFactory<Identity = T>>(factory: F) -> Self
    where
        T: Send + Sync + 'static,
    {
        Self(Arc::new(factory))
    }

    /// The bytes that stand for `identity`.
    pub fn write(&self, identity: &T) -> Result<Bytes, BoxError> {
        self.0.write(identity).map(Bytes::from)
    }
}

/// Who published the event, rebuilt by the service's [`IdentityFactory`].
///
/// An event without an actor, or with one that cannot be rebuilt, becomes a dead letter; take
/// `Option<Actor<T>>` where events without one are fine.
#[derive(Debug, Clone, Copy)]
pub struct Actor<T>(pub T);

fn rebuild<T: Send + Sync + 'static>(delivery: &Delivery) -> Result<Option<Actor<T>>, HandlerError> {
    let Some(bytes) = delivery.headers().get_bytes(headers::ACTOR) else {
        return Ok(None);
    };
    let Some(factory) = delivery.extension::<Identities<T>>() else {
        return Err(HandlerError::retry(missing_factory::<T>()));
    };
    factory.0.rebuild(bytes).map(|identity| Some(Actor(identity))).map_err(HandlerError::identity)
}

fn missing_factory<T>() -> String {
    format!(
        "needs Actor<{0}>, but no identity factory for {0} was given: add .identity(factory) to the builder",
        type_name::<T>()
    )
}

impl<T: Send + Sync + 'static> FromDelivery for Actor<T> {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        rebuild(delivery)?.ok_or_else(|| {
            HandlerError::identity(
                "the event carries no actor: publish with .actor(...), or take Option<Actor<_>>",
            )
        })
    }

    fn needs(needs: &mut Needs) {
        needs.extension::<Identities<T>>(missing_factory::<T>());
    }
}

impl<T: Send + Sync + 'static> FromDelivery for Option<Actor<T>> {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        rebuild(delivery)
    }

    fn needs(needs: &mut Needs) {
        needs.extension::<Identities<T>>(missing_factory::<T>());
    }
}
