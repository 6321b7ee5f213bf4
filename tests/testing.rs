//! Tests as users write them, and what they say when they fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use photon::prelude::*;
use photon::testing::{TestPhoton, delivery};
use photon::{BoxError, DeadReason, FailureClass, Filter};

/// An order was placed in the shop.
#[topic(name = "orders.placed", key = customer, shards = 16)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: u64,
}

fn order() -> OrderPlaced {
    order_of("customer-7", 1_250)
}

fn order_of(customer: &str, cents: u64) -> OrderPlaced {
    OrderPlaced { customer: customer.to_owned(), cents }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error, Failure)]
enum ChargeError {
    #[error("card declined")]
    #[failure(permanent)]
    Declined,
    #[error("gateway timed out")]
    #[failure(retry)]
    Timeout,
    #[error("gateway asks to wait")]
    #[failure(retry_after = 0)]
    Busy(Duration),
    #[error("daily limit reached")]
    #[failure(defer = "1h")]
    Limit,
}

use ChargeError::{Busy, Declined, Limit, Timeout};

/// Stands in for the card gateway.
#[derive(Clone)]
struct Cards(Option<ChargeError>);

impl Cards {
    fn always(error: ChargeError) -> Self {
        Self(Some(error))
    }

    fn always_ok() -> Self {
        Self(None)
    }

    async fn charge(&self, _customer: &str, _cents: u64) -> Result<(), ChargeError> {
        tokio::task::yield_now().await;
        match &self.0 {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

/// Charges the customer's card.
#[subscribe(
    topic = "orders.placed",
    group = "billing",
    retry(max_attempts = 3, backoff = "fixed(1s)", jitter = 0)
)]
async fn charge(order: OrderPlaced, State(cards): State<Cards>) -> Result<(), ChargeError> {
    cards.charge(&order.customer, order.cents).await
}

#[photon::test]
async fn a_declined_card_is_dead_at_once(mut t: TestPhoton) {
    t.state(Cards::always(Declined));
    t.publish(&order()).await;
    t.run_until_quiet().await;
    t.subscription("billing").assert_attempts(1).assert_dead(1);

    t.state(Cards::always_ok());
    t.dead_letters("billing").redrive_all().await;
    t.run_until_quiet().await;
    t.subscription("billing").assert_handled(&[order()]);
}

/// What stands beside billing: what one test uses does not depend on it.
mod others {
    use super::*;

    #[derive(Clone)]
    pub(super) struct Mailer;

    #[subscribe(group = "mail")]
    pub(super) async fn mail(_: OrderPlaced, State(Mailer): State<Mailer>) {}

    #[subscribe(group = "twins")]
    async fn one(_: OrderPlaced) {}

    #[subscribe(group = "twins")]
    async fn two(_: OrderPlaced) {}

    #[topic("orders.placed")]
    #[derive(Serialize, Deserialize)]
    struct OrderOfAnotherModule;

    #[subscribe(group = "another-module")]
    async fn another(_: OrderOfAnotherModule) {}
}

#[subscribe(group = "latest", start = "latest")]
async fn latest(_: OrderPlaced) {}

#[subscribe(ephemeral)]
async fn live(order: OrderPlaced) -> Outcome {
    if order.cents == 0 { Outcome::ignored("it costs nothing") } else { Outcome::Done }
}

/// Sums up what was ordered, in an event of its own.
#[topic(name = "sums")]
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Sum {
    cents: u64,
}

#[subscribe(group = "sums")]
async fn sum(order: OrderPlaced, photon: Publisher) -> photon::Result<()> {
    photon.publish(&Sum { cents: order.cents }).await?;
    Ok(())
}

#[subscribe(group = "audit")]
async fn audit(_: Sum) {}

#[subscribe(group = "slow", timeout = "5s", retry(max_attempts = 2, backoff = "fixed(20s)", jitter = 0))]
async fn slow(order: OrderPlaced) {
    if order.cents == 0 {
        std::future::pending::<()>().await;
    }
    assert_ne!(order.cents, 13, "an unlucky number");
}

mod users {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    pub(super) struct User(pub(super) String);

    pub(super) struct Users;

    impl IdentityFactory for Users {
        type Identity = User;

        fn write(&self, user: &User) -> Result<Vec<u8>, BoxError> {
            Ok(user.0.clone().into_bytes())
        }

        fn rebuild(&self, bytes: &[u8]) -> Result<User, BoxError> {
            Ok(User(String::from_utf8(bytes.to_vec())?))
        }
    }

    #[subscribe(group = "by-user")]
    async fn by_user(_: OrderPlaced, Actor(user): Actor<User>, headers: Headers) -> Outcome {
        Outcome::ignored(format!("{} from {}", user.0, headers.get("source").unwrap_or("nowhere")))
    }
}

#[photon::test]
async fn retries_in_memory_take_no_time(mut t: TestPhoton) {
    t.only(["billing"]).state(Cards::always(Timeout));
    let before = t.now();
    t.publish(&order()).await;
    t.run_until_quiet().await;
    let billing = t.subscription("billing");
    billing.assert_attempts(3).assert_retried(2).assert_failed(3).assert_failed_with("timed out");
    billing.assert_dead(1).assert_parked(0).assert_nothing_handled();
    // Two pauses of a second, on the clock of the test.
    let took = (t.now().0 - before.0) / 1_000_000;
    assert_eq!(took, 2);
    let letters = t.dead_letters("billing").filter(Filter::reason(DeadReason::Exhausted)).list().await;
    assert_eq!((letters.len(), letters[0].attempts), (1, 3));
    t.dead_letters("billing").key("customer-7").discard().await;
    t.subscription("billing").assert_dead(0);
}

#[photon::test]
async fn a_delivery_is_parked_until_the_clock_is_advanced(mut t: TestPhoton) {
    t.only(["billing"]).state(Cards::always(Busy(Duration::from_secs(60))));
    t.publish(&order()).await;
    t.run_until_quiet().await;
    t.subscription("billing").assert_attempts(1).assert_parked(1).assert_dead(0);

    t.advance(Duration::from_secs(59)).await;
    t.subscription("billing").assert_attempts(1).assert_parked(1);

    t.state(Cards::always_ok());
    t.advance(Duration::from_secs(1)).await;
    t.subscription("billing").assert_handled(&[order()]).assert_retried(1).assert_parked(0);
}

#[photon::test]
async fn a_deferral_costs_no_attempt(mut t: TestPhoton) {
    t.only(["billing"]).state(Cards::always(Limit));
    t.publish(&order()).await;
    t.run_until_quiet().await;
    t.advance(Duration::from_secs(3_600)).await;
    t.subscription("billing").assert_deferred(2).assert_attempts(0).assert_parked(1);
    t.state(Cards::always_ok());
    t.advance(Duration::from_secs(3_600)).await;
    t.subscription("billing").assert_handled(&[order()]).assert_attempts(1).assert_retried(0);
}

#[photon::test]
async fn panics_and_timeouts_are_failed_attempts(mut t: TestPhoton) {
    t.publish(&order_of("a", 0)).await;
    t.publish(&order_of("b", 13)).await;
    t.run_until_quiet().await;
    t.subscription("slow").assert_failed(2).assert_parked(2).assert_failed_with("an unlucky number");
    t.advance(Duration::from_secs(30)).await;
    t.subscription("slow").assert_dead(2).assert_failed_with("ran out of time");
}

#[photon::test]
async fn the_order_counts_within_a_key_only(mut t: TestPhoton) {
    t.only(["billing"]).state(Cards::always_ok());
    for n in 0..20 {
        t.publish(&order_of("a", n)).await;
        t.publish(&order_of("b", n)).await;
    }
    t.run_until_quiet().await;
    let orders = |customer| (0..20).map(move |n| order_of(customer, n));
    let one_after_the_other: Vec<_> = orders("b").chain(orders("a")).collect();
    t.subscription("billing").assert_handled(&one_after_the_other);
    assert_eq!(t.subscription("billing").handled::<OrderPlaced>().len(), 40);
}

#[photon::test]
async fn what_starts_late_sees_the_first_event_too(mut t: TestPhoton) {
    t.publish(&order()).await;
    t.publish(&order_of("a", 0)).await;
    t.run_until_quiet().await;
    t.subscription("latest").assert_attempts(2);
    let live = concat!(module_path!(), "::live");
    t.subscription(live).assert_handled(&[order()]).assert_ignored(1).assert_parked(0).assert_dead(0);
}

#[photon::test]
async fn what_handlers_publish_is_waited_for(mut t: TestPhoton) {
    t.publish(&order()).await;
    t.publish(&order()).await;
    t.run_until_quiet().await;
    t.subscription("audit").assert_handled(&[Sum { cents: 1_250 }, Sum { cents: 1_250 }]);
}

#[photon::test]
async fn bytes_that_do_not_decode_are_dead(mut t: TestPhoton) {
    t.only(["billing"]).state(Cards::always_ok());
    t.publish_raw("orders.placed", "{\"customer\":").await;
    t.run_until_quiet().await;
    t.subscription(("orders.placed", "billing")).assert_attempts(1).assert_dead(1);
    let letters = t.dead_letters("billing").list().await;
    assert_eq!(letters[0].reason, DeadReason::Undecodable);
}

#[photon::test]
async fn actors_and_headers_travel(mut t: TestPhoton) {
    t.identity(users::Users);
    t.publish(&order()).actor(&users::User("ada".into())).header("source", "web").await;
    t.run_until_quiet().await;
    t.subscription("by-user").assert_ignored(1);
}

#[photon::test]
async fn a_test_may_return_a_result(mut t: TestPhoton) -> Result<(), BoxError> {
    t.only(["billing"]).state(Cards::always_ok());
    let receipt = t.photon().publish(&order()).await?;
    assert!(!receipt.duplicate);
    t.publish(&order()).dedup_id(1).await;
    assert!(t.publish(&order()).dedup_id(1).await.duplicate);
    t.run_until_quiet().await;
    t.subscription("billing").assert_attempts(2);
    Ok(())
}

#[photon::test]
#[should_panic(expected = "it needs State<Mailer>")]
async fn a_subscription_that_is_used_needs_its_state(mut t: TestPhoton) {
    t.publish(&order()).await;
    t.run_until_quiet().await;
    let _ = t.subscription("mail");
}

#[photon::test]
#[should_panic(expected = "is also the subscription of two at tests/testing.rs")]
async fn a_conflict_is_told_when_it_matters(mut t: TestPhoton) {
    let _ = t.subscription("twins");
}

/// Runs what is to fail. Returns the message and the line that is to blame.
fn failure(test: impl FnOnce()) -> (String, u32) {
    use std::cell::Cell;
    use std::sync::Once;

    thread_local!(static LINE: Cell<u32> = const { Cell::new(0) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            LINE.set(
                panic.location().filter(|at| at.file() == file!()).map_or(0, std::panic::Location::line),
            );
            before(panic);
        }));
    });
    let panic = catch_unwind(AssertUnwindSafe(test)).expect_err("it is to fail");
    (*panic.downcast::<String>().expect("a text"), LINE.get())
}

#[photon::test]
async fn a_failure_shows_what_differs_at_the_line_of_the_test(mut t: TestPhoton) {
    t.only(["billing"]).state(Cards::always_ok());
    t.publish(&order_of("a", 1)).await;
    t.publish(&order_of("a", 2)).await;
    t.run_until_quiet().await;
    t.state(Cards::always(Declined));
    t.publish(&order_of("b", 3)).await;
    t.run_until_quiet().await;
    let billing = t.subscription("billing");

    let (message, line) = failure(|| {
        billing.assert_handled(&[order_of("a", 2), order_of("a", 1), order_of("b", 3)]);
    });
    assert_eq!(line, line!() - 2);
    let expected = r#"subscription orders.placed/billing did not handle what was expected (-), but other events (+):
  key "a":
  - OrderPlaced { customer: "a", cents: 2 }
    OrderPlaced { customer: "a", cents: 1 }
  + OrderPlaced { customer: "a", cents: 2 }
  key "b":
  - OrderPlaced { customer: "b", cents: 3 }
what ran in it:
  0ns: attempt 1 of shard 14 seq 1, key "a": done
  0ns: attempt 1 of shard 14 seq 2, key "a": done
  0ns: attempt 1 of shard 5 seq 1, key "b": failed for good: card declined
dead is shard 5 seq 1, after attempt 1: card declined"#;
    assert_eq!(message, expected);

    let (message, line) = failure(|| {
        billing.assert_attempts(3).assert_dead(0);
    });
    assert_eq!(line, line!() - 2);
    let start = "subscription orders.placed/billing has another number of dead letters\n  - expected 0\n  + found 1\n";
    assert!(message.starts_with(start), "{message}");
}

#[photon::test]
async fn a_name_that_is_none_lists_those_that_are(mut t: TestPhoton) {
    t.only(["billing", "audit"]);
    t.run_until_quiet().await;
    let (message, line) = failure(|| {
        let _ = t.subscription("biling");
    });
    assert_eq!(line, line!() - 2);
    assert!(message.contains("no subscription \"biling\""), "{message}");
    assert!(message.contains("orders.placed/billing, ") && message.contains("sums/audit"), "{message}");
    let (message, _) = failure(|| {
        let _ = t.subscription("latest");
    });
    assert!(message.contains("is left out by .only(...)"), "{message}");
    let (message, _) = failure(|| {
        t.identity(users::Users);
    });
    assert!(message.contains("comes too late"), "{message}");
}

#[photon::test]
async fn a_handler_is_called_alone(_t: TestPhoton) {
    assert_eq!(charge(order(), State(Cards::always(Timeout))).await, Err(Timeout));
    assert_eq!(live(order_of("a", 1)).await, Outcome::Done);

    let given = delivery(&order()).key("customer-8").header("source", "web").attempt(2);
    assert_eq!(given.context().attempt(), 2);
    assert_eq!(given.extract::<Key>().await.unwrap().to_string(), "customer-8");

    let declined = given.clone().state(Cards::always(Declined)).run("orders.placed/billing").await;
    assert_eq!(declined.unwrap_err().class(), FailureClass::Permanent);
    assert_eq!(given.clone().state(Cards::always_ok()).run("billing").await.unwrap(), Outcome::Done);
    let unreadable = given.clone().payload("{").state(Cards::always_ok()).run("billing").await;
    assert_eq!(unreadable.unwrap_err().reason(), DeadReason::Undecodable);
    let by_user = given.actor(users::Users, &users::User("ada".into())).run("by-user").await;
    assert_eq!(by_user.unwrap(), Outcome::ignored("ada from web"));
}

#[photon::test]
async fn days_pass_in_no_time(mut t: TestPhoton) {
    t.only(["billing"]).state(Cards::always(Limit));
    t.publish(&order()).await;
    t.advance(Duration::from_secs(8 * 86_400)).await;
    t.subscription("billing").assert_attempts(0).assert_dead(1);
    let letters = t.dead_letters("billing").filter(Filter::reason(DeadReason::Deferred)).list().await;
    assert_eq!(letters.len(), 1);
}

#[photon::test]
async fn a_paused_subscription_waits(mut t: TestPhoton) -> photon::Result<()> {
    t.only(["billing"]).state(Cards::always_ok());
    t.run_until_quiet().await;
    t.photon().subscription("billing").pause("maintenance").await?;
    t.advance(Duration::ZERO).await;
    t.publish(&order()).await;
    t.run_until_quiet().await;
    t.subscription("billing").assert_nothing_handled();
    t.photon().subscription("billing").resume().await?;
    t.run_until_quiet().await;
    t.subscription("billing").assert_handled(&[order()]);
    Ok(())
}
