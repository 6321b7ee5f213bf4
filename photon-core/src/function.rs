//! Functions and closures as handlers that are given at run time.

use std::future::Future;
use std::sync::Arc;

use crate::handler::{Delivery, FromDelivery, HandlerError, HandlerFuture, Needs, Reply};
use crate::topic::{EventParam, TopicDescriptor};

/// A handler in the form in which it is called.
pub type HandlerCall = Arc<dyn Fn(Delivery) -> HandlerFuture + Send + Sync>;

/// An async function or a closure that can handle events: it takes the event, then up to eight extractors, by
/// value, and returns what a handler may return.
///
/// A closure that uses something of its surroundings clones it for each call:
/// `move |event: Event, cx: Context| { let runs = runs.clone(); async move { ... } }`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle events",
    label = "not a handler",
    note = "a handler is an async function, or a closure that returns a future: it takes the event, by value and with its type written out, then up to eight extractors such as `Context` or `State<T>`, and returns `()`, `Outcome` or a `Result` of one of them"
)]
pub trait HandlerFn<Args>: Send + Sync + 'static {
    /// The topic of the event that it takes; `None` if it takes the raw event.
    fn topic() -> Option<&'static TopicDescriptor>;

    /// Collects what its parameters need.
    fn needs(needs: &mut Needs);

    /// Makes it callable.
    fn into_call(self) -> HandlerCall;
}

macro_rules! handler_fn {
    ($($extractor:ident)*) => {
        impl<F, E, Fut, $($extractor,)*> HandlerFn<(E, $($extractor,)*)> for F
        where
            F: Fn(E, $($extractor,)*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output: Reply> + Send + 'static,
            E: EventParam + 'static,
            $($extractor: FromDelivery + 'static,)*
        {
            fn topic() -> Option<&'static TopicDescriptor> {
                E::TOPIC
            }

            fn needs(needs: &mut Needs) {
                let _ = &needs;
                $($extractor::needs(needs);)*
            }

            #[allow(non_snake_case, reason = "a value is named after its type")]
            fn into_call(self) -> HandlerCall {
                let function = Arc::new(self);
                Arc::new(move |delivery: Delivery| {
                    let function = function.clone();
                    Box::pin(async move {
                        let event = E::decode(&delivery.event).map_err(HandlerError::undecodable)?;
                        $(let $extractor = $extractor::from_delivery(&delivery).await?;)*
                        // The handler may run for long; what it did not take need not stay.
                        drop(delivery);
                        function(event, $($extractor,)*).await.into_result()
                    })
                })
            }
        }
    };
}

handler_fn!();
handler_fn!(A);
handler_fn!(A B);
handler_fn!(A B C);
handler_fn!(A B C D);
handler_fn!(A B C D G);
handler_fn!(A B C D G H);
handler_fn!(A B C D G H I);
handler_fn!(A B C D G H I J);
