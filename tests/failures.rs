//! Errors that say what they ask for are found, however they are wrapped.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use photon::prelude::*;
use photon::{BoxError, FailureClass};

#[derive(Debug, thiserror::Error, Failure)]
enum ChargeError {
    #[error("card declined")]
    #[failure(permanent)]
    Declined,
    #[error("gateway timed out")]
    #[failure(retry)]
    Timeout(#[from] fmt::Error),
    #[error("gateway asks to wait")]
    #[failure(retry_after = wait)]
    Busy { wait: Duration },
    #[error("gateway asks to wait for {0:?}")]
    #[failure(defer = 0)]
    Later(Duration, u8),
    #[error("gateway is slow")]
    #[failure(retry_after = "1m30s")]
    Slow,
    #[error("daily limit reached")]
    #[failure(defer = "1h")]
    Limit,
    #[error(transparent)]
    #[failure(transparent)]
    Shop(#[from] ShopError),
    #[error("other")]
    #[failure(transparent)]
    Any(#[from] anyhow::Error),
    #[error("boxed {code}")]
    #[failure(transparent)]
    Boxed { code: u8, source: BoxError },
    #[error("shared")]
    #[failure(transparent)]
    Shared(Arc<ShopError>),
    #[error("foreign")]
    #[failure(transparent)]
    Foreign(#[source] fmt::Error, #[allow(dead_code)] u8),
}

#[derive(Debug, thiserror::Error, Failure)]
#[error("the shop is closed")]
#[failure(defer = opens_in)]
struct ShopError {
    opens_in: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("a layer that says nothing")]
struct Layer(#[source] BoxError);

const HOUR: Duration = Duration::from_secs(3_600);

fn closed() -> ShopError {
    ShopError { opens_in: HOUR }
}

fn class(error: impl Into<HandlerError>) -> FailureClass {
    error.into().class()
}

#[test]
fn each_variant_asks_for_what_it_says() {
    assert_eq!(class(ChargeError::Declined), FailureClass::Permanent);
    assert_eq!(class(ChargeError::Timeout(fmt::Error)), FailureClass::Retry);
    assert_eq!(class(ChargeError::Busy { wait: HOUR }), FailureClass::RetryAfter(HOUR));
    assert_eq!(class(ChargeError::Later(HOUR, 0)), FailureClass::Defer(HOUR));
    assert_eq!(class(ChargeError::Slow), FailureClass::RetryAfter(Duration::from_secs(90)));
    assert_eq!(class(ChargeError::Limit), FailureClass::Defer(HOUR));
    assert_eq!(class(closed()), FailureClass::Defer(HOUR));
}

#[test]
fn a_transparent_variant_asks_for_what_is_inside() {
    assert_eq!(class(ChargeError::Shop(closed())), FailureClass::Defer(HOUR));
    assert_eq!(class(ChargeError::Any(closed().into())), FailureClass::Defer(HOUR));
    let boxed = ChargeError::Boxed { code: 7, source: Box::new(Layer(closed().into())) };
    assert_eq!(class(boxed), FailureClass::Defer(HOUR));
    assert_eq!(class(ChargeError::Shared(Arc::new(closed()))), FailureClass::Defer(HOUR));
    assert_eq!(class(ChargeError::Foreign(fmt::Error, 0)), FailureClass::Retry);
    assert_eq!(class(ChargeError::Any(anyhow::anyhow!("unknown"))), FailureClass::Retry);
}

#[test]
fn other_errors_are_retried() {
    assert_eq!(class(fmt::Error), FailureClass::Retry);
    assert_eq!(class("text"), FailureClass::Retry);
    assert_eq!(class(anyhow::anyhow!("text")), FailureClass::Retry);
    assert_eq!(class(Layer(Box::new(fmt::Error))), FailureClass::Retry);
}

#[test]
fn a_failure_is_found_in_the_chain_and_the_outermost_counts() {
    assert_eq!(class(Layer(ChargeError::Declined.into())), FailureClass::Permanent);
    assert_eq!(class(Layer(Box::new(Layer(closed().into())))), FailureClass::Defer(HOUR));
    let boxed: BoxError = ChargeError::Declined.into();
    assert_eq!(class(boxed), FailureClass::Permanent);
    assert_eq!(class(Box::new(ChargeError::Declined)), FailureClass::Permanent);
    assert_eq!(class(Layer(Box::new(Arc::new(closed())))), FailureClass::Defer(HOUR));
    let outer = ChargeError::Boxed { code: 1, source: Box::new(ChargeError::Declined) };
    assert_eq!(class(Layer(outer.into())), FailureClass::Permanent);
}

#[test]
fn a_failure_is_found_in_anyhow() {
    use anyhow::Context as _;

    assert_eq!(class(anyhow::Error::from(ChargeError::Declined)), FailureClass::Permanent);
    let with_context =
        Err::<(), _>(ChargeError::Declined).context("charging").context("order 7").unwrap_err();
    assert_eq!(class(with_context), FailureClass::Permanent);
    let inner = anyhow::Error::from(Layer(closed().into())).context("opening");
    assert_eq!(class(inner), FailureClass::Defer(HOUR));
    let boxed: BoxError = Box::new(ChargeError::Limit);
    assert_eq!(class(anyhow::Error::from_boxed(boxed)), FailureClass::Defer(HOUR));
}

#[test]
fn a_failure_given_as_context_wins_over_what_it_wraps() {
    let error = anyhow::Error::from(closed()).context(ChargeError::Declined).context("order 7");
    assert_eq!(class(error), FailureClass::Permanent);
    let error = anyhow::Error::from(fmt::Error).context(ChargeError::Limit);
    assert_eq!(class(error), FailureClass::Defer(HOUR));
}

#[test]
fn the_question_mark_keeps_class_and_causes() {
    fn handler() -> Result<(), HandlerError> {
        let inner: Result<(), Layer> = Err(Layer(ChargeError::Declined.into()));
        inner?;
        Ok(())
    }
    let error = handler().unwrap_err();
    assert_eq!(error.class(), FailureClass::Permanent);
    assert_eq!(error.to_string(), "a layer that says nothing: card declined");
    assert_eq!(HandlerError::retry(ChargeError::Declined).class(), FailureClass::Retry, "said outright");
}

#[test]
fn the_trait_gives_the_class_without_a_handler() {
    let error: &dyn Error = &ChargeError::Limit;
    let failure = error.downcast_ref::<ChargeError>().unwrap();
    assert_eq!(Failure::class(failure), FailureClass::Defer(HOUR));
}
