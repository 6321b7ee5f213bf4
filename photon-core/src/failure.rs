//! Errors that say what they ask for: `#[derive(Failure)]`, and how they are found again.
//!
//! Handlers return errors of any type, mostly wrapped in others. The derive registers its type, and
//! [`HandlerError`](crate::handler::HandlerError)'s conversion looks for registered types in the error and
//! along its chain of causes.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::error::BoxError;
use crate::handler::FailureClass;

/// An error that says what it asks for. Derive it: an implementation by hand is not registered, so it
/// counts only where the error is converted by hand, too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what its failures ask for",
    label = "not a `Failure`",
    note = "write `#[derive(Failure)]` on the type and `#[failure(...)]` on each variant"
)]
pub trait Failure: StdError + 'static {
    /// What this value asks for.
    fn class(&self) -> FailureClass;
}

/// A type with `#[derive(Failure)]`, in the form that `inventory` collects.
pub struct FailureEntry {
    in_std: fn(&(dyn StdError + 'static)) -> Option<FailureClass>,
    in_anyhow: fn(&anyhow::Error) -> Option<FailureClass>,
}

impl FailureEntry {
    /// The entry of `T`.
    pub const fn of<T: Failure + Send + Sync>() -> Self {
        Self {
            in_std: |error| find::<T>(error).map(Failure::class),
            in_anyhow: |error| error.downcast_ref::<T>().map(Failure::class),
        }
    }
}

inventory::collect!(FailureEntry);

/// Boxes and `Arc`s of errors are errors themselves and hide what they hold.
fn find<'a, T: Failure>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let plain = error.downcast_ref::<T>();
    let boxed = || error.downcast_ref::<Box<T>>().map(|error| &**error);
    let shared = || error.downcast_ref::<Arc<T>>().map(|error| &**error);
    plain.or_else(boxed).or_else(shared)
}

/// What an error asks for, if it or one of its causes is a registered [`Failure`]; the outermost counts.
pub fn class_of(error: &(dyn StdError + 'static)) -> Option<FailureClass> {
    first_in_chain(error, registered)
}

fn first_in_chain(
    error: &(dyn StdError + 'static),
    class: impl Fn(&(dyn StdError + 'static)) -> Option<FailureClass>,
) -> Option<FailureClass> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(class) = class(error) {
            return Some(class);
        }
        next = error.source();
    }
    None
}

/// Like [`class_of`], for an `anyhow::Error`. It needs its own way in: turned into a boxed standard error, it
/// shows only its causes and hides what it was made of.
pub(crate) fn class_in_anyhow(error: &anyhow::Error) -> Option<FailureClass> {
    let boxed = || error.downcast_ref::<BoxError>().and_then(|boxed| class_of(&**boxed));
    attached(error).or_else(|| class_of(&**error)).or_else(boxed)
}

fn registered(error: &(dyn StdError + 'static)) -> Option<FailureClass> {
    inventory::iter::<FailureEntry>.into_iter().find_map(|entry| (entry.in_std)(error))
}

/// A failure that was given to `.context(...)`: it wraps the error, but is no part of the chain.
fn attached(error: &anyhow::Error) -> Option<FailureClass> {
    let in_chain = |entry: &FailureEntry| error.chain().any(|cause| (entry.in_std)(cause).is_some());
    inventory::iter::<FailureEntry>
        .into_iter()
        .filter(|entry| !in_chain(entry))
        .find_map(|entry| (entry.in_anyhow)(error))
}

/// The error as the `anyhow::Error` that it is, or itself if it is none.
pub(crate) fn into_anyhow<E: 'static>(error: E) -> Result<anyhow::Error, E> {
    let mut slot = Some(error);
    let found = (&mut slot as &mut dyn Any).downcast_mut::<Option<anyhow::Error>>().and_then(Option::take);
    match found {
        Some(found) => Ok(found),
        None => Err(slot.expect("only an anyhow::Error is taken out")),
    }
}

/// Says what the errors of other crates ask for, in one subscription: `#[subscribe(classify = path)]`, or
/// [`Options::classify`](crate::options::Options::classify).
///
/// It is asked about an error that does not say itself, by `#[derive(Failure)]` or a constructor of
/// [`HandlerError`](crate::handler::HandlerError); first about the error, then about each of its causes, until it
/// answers. What it never answers about is retried. A panic in it is a failed attempt, as one of the handler is.
///
/// ```
/// use std::error::Error;
/// use std::io;
///
/// use photon_core::failure::Classify;
/// use photon_core::handler::{FailureClass, HandlerError};
///
/// fn classify(error: &(dyn Error + 'static)) -> Option<FailureClass> {
///     let io = error.downcast_ref::<io::Error>()?;
///     (io.kind() == io::ErrorKind::NotFound).then_some(FailureClass::Permanent)
/// }
///
/// let error = HandlerError::from(io::Error::from(io::ErrorKind::NotFound));
/// assert_eq!(error.class(), FailureClass::Retry);
/// assert_eq!(error.classified(Classify(classify)).class(), FailureClass::Permanent);
/// ```
#[derive(Clone, Copy)]
pub struct Classify(pub fn(&(dyn StdError + 'static)) -> Option<FailureClass>);

impl Classify {
    /// What it says about the error or one of its causes; the outermost counts.
    pub fn class_of(self, error: &(dyn StdError + 'static)) -> Option<FailureClass> {
        first_in_chain(error, self.0)
    }
}

impl PartialEq for Classify {
    /// Whether it is the same function. Two functions with equal code may count as one.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl fmt::Debug for Classify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Classify(fn)")
    }
}

/// What is, or leads to, a standard error: error types themselves, boxed errors, `anyhow::Error`. For
/// `#[failure(transparent)]`, which calls it as a method, so that smart pointers are looked through.
pub trait AsStdError {
    /// The error.
    fn as_std_error(&self) -> &(dyn StdError + 'static);
}

impl<T: StdError + 'static> AsStdError for T {
    fn as_std_error(&self) -> &(dyn StdError + 'static) {
        self
    }
}

macro_rules! erased {
    ($($erased:ty),*) => { $(
        impl AsStdError for $erased {
            fn as_std_error(&self) -> &(dyn StdError + 'static) {
                self
            }
        }
    )* };
}
erased!(dyn StdError + 'static, dyn StdError + Send + 'static, dyn StdError + Send + Sync + 'static);

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::*;
    use crate::handler::HandlerError;

    fn about_io(error: &(dyn StdError + 'static)) -> Option<FailureClass> {
        Some(match error.downcast_ref::<io::Error>()?.kind() {
            io::ErrorKind::NotFound => FailureClass::Permanent,
            io::ErrorKind::TimedOut => FailureClass::RetryAfter(Duration::from_secs(5)),
            _ => return None,
        })
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the file of the order")]
    struct Wrapped(#[source] io::Error);

    fn class(error: impl Into<HandlerError>) -> FailureClass {
        error.into().classified(Classify(about_io)).class()
    }

    #[test]
    fn foreign_errors_are_found_however_they_are_wrapped() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(class(missing()), FailureClass::Permanent);
        assert_eq!(class(Wrapped(missing())), FailureClass::Permanent);
        assert_eq!(class(Box::<dyn StdError + Send + Sync>::from(missing())), FailureClass::Permanent);
        assert_eq!(class(anyhow::Error::from(missing())), FailureClass::Permanent);
        assert_eq!(
            class(anyhow::Error::from(missing()).context("reading").context("order 7")),
            FailureClass::Permanent
        );
        assert_eq!(class(anyhow::Error::from(Wrapped(missing()))), FailureClass::Permanent);
        let late = io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(class(late), FailureClass::RetryAfter(Duration::from_secs(5)));
    }

    #[test]
    fn what_it_does_not_know_is_retried() {
        assert_eq!(class(io::Error::from(io::ErrorKind::BrokenPipe)), FailureClass::Retry);
        assert_eq!(class("no type at all"), FailureClass::Retry);
        assert_eq!(class(anyhow::anyhow!("nor here")), FailureClass::Retry);
    }

    #[test]
    fn what_the_handler_said_itself_wins() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(class(HandlerError::retry(missing())), FailureClass::Retry);
        let wait = Duration::from_secs(60);
        assert_eq!(class(HandlerError::retry_after(wait, missing())), FailureClass::RetryAfter(wait));
        assert_eq!(class(HandlerError::defer(wait, "later")), FailureClass::Defer(wait));
    }

    #[test]
    fn errors_read_the_same_as_before() {
        let error = anyhow::Error::from(Wrapped(io::Error::other("gone"))).context("order 7");
        assert_eq!(HandlerError::from(error).to_string(), "order 7: the file of the order: gone");
    }
}
