//! Case lints-and-docs: what `cargo clippy` says about a program with every strict lint on.
#![forbid(missing_docs, unsafe_code)]
#![deny(warnings, clippy::all, clippy::pedantic, clippy::nursery)]

use std::fmt;
use std::time::Duration;

use photon::prelude::*;

/// An order was placed.
#[topic(name = "orders.placed", key = customer, shards = 16)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderPlaced {
    /// Who placed it.
    pub customer: String,
    /// What it costs.
    pub cents: u64,
}

/// An order changed.
#[topic(name = "orders.changed", key = Self::id)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrderChanged {
    /// It was paid.
    Paid {
        /// Which one.
        id: u64,
    },
    /// It was sent.
    Sent {
        /// Which one.
        id: u64,
    },
}

impl OrderChanged {
    const fn id(&self) -> u64 {
        match self {
            Self::Paid { id } | Self::Sent { id } => *id,
        }
    }
}

/// Events that come in two kinds with one key.
#[topic(name = "stock", key = article)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stock {
    /// It came in.
    In {
        /// Which one.
        article: String,
    },
    /// It went out.
    Out {
        /// Which one.
        article: u32,
    },
}

/// Why a charge failed.
#[derive(Debug, Failure)]
pub enum ChargeError {
    /// Never.
    #[failure(permanent)]
    Declined,
    /// Soon.
    #[failure(retry)]
    Timeout(fmt::Error),
    /// Later.
    #[failure(retry_after = wait)]
    Busy {
        /// How much later.
        wait: Duration,
    },
    /// What the error says.
    #[failure(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the charge failed")
    }
}

impl std::error::Error for ChargeError {}

/// Cards.
#[derive(Debug, Clone)]
pub struct Cards;

impl Cards {
    async fn charge(&self, cents: u64) -> Result<(), ChargeError> {
        std::future::ready(()).await;
        if cents == 0 { Err(ChargeError::Declined) } else { Ok(()) }
    }
}

/// Charges the customer's card.
///
/// # Errors
/// If the card is declined.
#[subscribe(
    topic = "orders.placed",
    group = "billing",
    concurrency = 64,
    timeout = "30s",
    retry(max_attempts = 6, backoff = "exponential(200ms..30s)", jitter = 0.2),
    on_dead = "block_key"
)]
pub async fn charge(order: OrderPlaced, cx: Context, State(cards): State<Cards>) -> Result<(), ChargeError> {
    if cx.is_last_attempt() {
        return Err(ChargeError::Timeout(fmt::Error));
    }
    cards.charge(order.cents).await
}

/// Takes the event and leaves it.
#[subscribe]
pub async fn notice(order: OrderPlaced) {
    println!("{} {}", order.customer, order.cents);
}

/// Takes everything apart, with attributes on parameters.
#[subscribe(ephemeral)]
pub async fn watch(
    OrderPlaced { customer, cents }: OrderPlaced,
    #[cfg(test)] key: Option<Key>,
    #[cfg(not(test))] headers: Headers,
    #[allow(unused_mut)] mut cx: Context,
) -> Outcome {
    #[cfg(test)]
    drop(key);
    #[cfg(not(test))]
    drop(headers);
    if cents == u64::from(cx.attempt()) { Outcome::Done } else { Outcome::ignored(customer) }
}

/// Takes the raw event.
#[subscribe(topic = "anything", durable, expire_after = "7d", start = "latest")]
pub async fn raw(event: Event) {
    println!("{} bytes", event.payload.len());
}

#[cfg(test)]
mod tests {
    use photon::testing::{TestPhoton, delivery};

    use super::{Cards, OrderPlaced, notice};

    fn order() -> OrderPlaced {
        OrderPlaced { customer: "c".into(), cents: 1 }
    }

    #[test]
    fn lints_and_docs_leave_the_function_callable() {
        let mut handler = std::pin::pin!(notice(order()));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(handler.as_mut().poll(&mut cx).is_ready());
    }

    /// Without tokio among the dependencies.
    #[photon::test]
    async fn lints_and_docs_of_tests(mut t: TestPhoton) -> photon::Result<()> {
        t.state(Cards);
        t.publish(&order()).await;
        t.run_until_quiet().await;
        t.subscription("billing").assert_handled(&[order()]);
        assert_eq!(t.photon().dead_letters("billing").count().await?, 0);
        Ok(())
    }

    #[photon::test]
    #[should_panic(expected = "another number of dead letters")]
    async fn a_claim_that_is_wrong(mut t: TestPhoton) {
        t.state(Cards);
        t.publish(&order()).await;
        t.subscription("billing").assert_dead(1);
    }

    #[photon::test]
    async fn a_handler_alone(_t: TestPhoton) {
        let given = delivery(&order()).state(Cards);
        assert!(given.run("billing").await.is_ok());
        assert_eq!(given.context().attempt(), 1);
    }
}
