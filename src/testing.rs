//! Tests of handlers: a Photon in memory on a clock that stands still, and deliveries made by hand.
//!
//! Needs the feature `testing`, which belongs among the dev-dependencies only:
//!
//! ```toml
//! [dev-dependencies]
//! photon = { version = "0.1", features = ["testing"] }
//! ```
//!
//! A test is an async function under [`#[photon::test]`](macro@crate::test) that takes a [`TestPhoton`]. It runs in a
//! runtime of its own whose time is paused: time moves only when everything waits, and then at once to the next moment
//! at which something happens. So a retry in an hour takes no time, and a test ends the same way each time. What
//! waits for the world outside (a socket, a file) is not seen as waiting: give handlers a stand-in.
//!
//! # What a handler made of its events
//!
//! States may be replaced while the Photon runs, and dead letters be redriven:
//!
//! ```
//! use photon::prelude::*;
//! use photon::testing::TestPhoton;
//!
//! # #[topic(name = "orders.placed", key = customer)]
//! # #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
//! # struct OrderPlaced { customer: String }
//! # fn order() -> OrderPlaced { OrderPlaced { customer: "customer-7".into() } }
//! #[derive(Clone)]
//! struct Cards { declined: bool }
//!
//! #[subscribe(group = "billing")]
//! async fn charge(order: OrderPlaced, State(cards): State<Cards>) -> Result<(), HandlerError> {
//!     if cards.declined { Err(HandlerError::permanent("card declined")) } else { Ok(()) }
//! }
//!
//! # /*
//! #[photon::test]
//! # */
//! async fn a_declined_card_is_dead_at_once(mut t: TestPhoton) {
//!     t.state(Cards { declined: true });
//!     t.publish(&order()).await;
//!     t.run_until_quiet().await;
//!     t.subscription("billing").assert_attempts(1).assert_dead(1).assert_failed_with("declined");
//!
//!     t.state(Cards { declined: false });
//!     t.dead_letters("billing").redrive_all().await;
//!     t.run_until_quiet().await;
//!     t.subscription("billing").assert_handled(&[order()]).assert_dead(0);
//! }
//! # photon::__private::testing::run(TestPhoton::new, a_declined_card_is_dead_at_once);
//! ```
//!
//! # Time
//!
//! [`run_until_quiet`](TestPhoton::run_until_quiet) passes through the pauses of retries that wait in memory. What is
//! parked waits for [`advance`](TestPhoton::advance):
//!
//! ```
//! # use photon::prelude::*;
//! # use photon::testing::TestPhoton;
//! # #[topic("reports")]
//! # #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! # struct ReportDue;
//! use std::time::Duration;
//!
//! #[subscribe(group = "reports")]
//! async fn report(_: ReportDue, State(open): State<bool>) -> Outcome {
//!     if open { Outcome::Done } else { Outcome::defer(Duration::from_secs(3600), "the shop is closed") }
//! }
//!
//! # /*
//! #[photon::test]
//! # */
//! async fn a_report_waits_for_the_shop_to_open(mut t: TestPhoton) {
//!     t.state(false);
//!     t.publish(&ReportDue).await;
//!     t.run_until_quiet().await;
//!     t.subscription("reports").assert_deferred(1).assert_parked(1);
//!
//!     t.state(true);
//!     t.advance(Duration::from_secs(3600)).await;
//!     t.subscription("reports").assert_handled(&[ReportDue]).assert_parked(0);
//! }
//! # photon::__private::testing::run(TestPhoton::new, a_report_waits_for_the_shop_to_open);
//! ```
//!
//! # One handler alone
//!
//! A handler is an ordinary function and can be called. [`delivery`] makes what extractors read, and runs one
//! handler with its decoding and its extractors:
//!
//! ```
//! # use photon::prelude::*;
//! # use photon::testing::TestPhoton;
//! # #[topic("orders.placed")]
//! # #[derive(Serialize, Deserialize)]
//! # struct OrderPlaced;
//! use photon::testing::delivery;
//!
//! #[subscribe(group = "audit")]
//! async fn audit(_: OrderPlaced, cx: Context) -> Outcome {
//!     if cx.headers().get("source") == Some("test") { Outcome::ignored("a test") } else { Outcome::Done }
//! }
//!
//! # /*
//! #[photon::test]
//! # */
//! async fn tests_are_not_audited(_t: TestPhoton) {
//!     let from_test = delivery(&OrderPlaced).header("source", "test");
//!     assert_eq!(audit(OrderPlaced, from_test.context()).await, Outcome::ignored("a test"));
//!     assert_eq!(from_test.run("audit").await.unwrap(), Outcome::ignored("a test"));
//!     assert_eq!(delivery(&OrderPlaced).run("audit").await.unwrap(), Outcome::Done);
//! }
//! # photon::__private::testing::run(TestPhoton::new, tests_are_not_audited);
//! ```

pub use photon_runtime::testing::{
    TestDeadLetters, TestDelivery, TestPhoton, TestPublish, TestSubscription, delivery,
};
