//! The macros of Photon. Use them through the crate `photon`, which documents them with examples.
//!
//! Each goes the same way: attribute and item are read into a *model*, *validated* as a whole, so that all
//! mistakes are reported at once, each at its word, and *expanded* into one plain static and a small shim.
//! When there are mistakes, the *fallback* keeps the item and adds empty implementations, so that a mistake is
//! not reported again where the item is used.

mod args;
mod failure;
mod fallback;
mod function;
mod manifest;
mod paths;
mod spans;
mod subscribe;
mod test;
mod topic;

use proc_macro::TokenStream;

/// Makes a struct or enum the event type of a topic.
///
/// ```ignore
/// #[topic(name = "orders.placed", key = customer_id, shards = 16)]
/// #[derive(Serialize, Deserialize)]
/// pub struct OrderPlaced { pub order_id: Uuid, pub customer_id: String, pub cents: u64 }
/// ```
///
/// The type needs serde's `Serialize` and `Deserialize`; payloads are JSON. Derives that stand below the
/// attribute take serde from Photon, so that it need not be among your dependencies.
///
/// | argument | default | meaning |
/// | --- | --- | --- |
/// | `name = "..."`, or just `"..."` | none: must be given | The name of the topic. 1 to 200 bytes: ASCII letters, digits, `.`, `_`, `-` and `:`, a letter or digit first and last. It must stay the same while events are stored. |
/// | `key = field` | no key | The field that orders events: equal keys are handled one after another. Also `field.inner`, the number of a field, or the path of a function `fn(&T) -> impl ToKey`, of at least two words: `self::key_of`, `Self::customer`. |
/// | `shards = 16` | 8 | Into how many parts the topic is split, 1 to 1 024; it bounds how many instances can share the work. |
/// | `crate = path` | `::photon` | Where Photon is, if it has another name or comes through another crate. |
///
/// Key and number of shards are remembered by the store and cannot change while the topic has events.
#[proc_macro_attribute]
pub fn topic(args: TokenStream, item: TokenStream) -> TokenStream {
    topic::run(args.into(), &item.into()).into()
}

/// Makes an async function a handler of the events of a topic.
///
/// ```ignore
/// #[subscribe(group = "billing", concurrency = 64, timeout = "30s", retry(max_attempts = 6))]
/// async fn charge(order: OrderPlaced, State(cards): State<Cards>) -> Result<(), ChargeError> { ... }
/// ```
///
/// The first parameter is the event: a type with `#[topic]`, or `Event` for the undecoded one. The others are
/// extractors (`FromDelivery`). The function returns `()`, `Outcome`, or a `Result` of one of them. It stays an
/// ordinary function and can be called, for instance in tests.
///
/// | argument | default | meaning |
/// | --- | --- | --- |
/// | `topic = "..."` or a type | the topic of the event type | Which topic. Must be given for `Event`; otherwise it is compared with the event type. |
/// | `group = "..."` | `module::function` | Instances with the same group share one position. It stays when the function moves, so name one in production. |
/// | `mode = "group"`, `"durable"`, `"ephemeral"`; also the bare words `durable`, `ephemeral` | `group` | Each event to one instance of the group; to every instance, with a position of its own; to every running instance, without one. |
/// | `start = "earliest"`, `"latest"`, `"at(2026-01-31T12:00:00Z)"` | `earliest` | Where a new subscription starts. |
/// | `concurrency = 64` | 16 | How many deliveries run at a time, 1 to 65 536. |
/// | `prefetch = 1024` | 1 024 | How many deliveries wait in memory at most, 2 to 1 048 576; a quarter of the places is kept for those that come back from the store. Their payloads together: at most 8 MiB. |
/// | `window = 4096` | 4 096 | How many deliveries may be unsettled in memory, at least `concurrency`. |
/// | `timeout = "30s"` | 30 s | How long an attempt may take, up to a day, and no longer than a drain waits (30 s unless set). |
/// | `retry(max_attempts = 5)` | 5 | Attempts in all, the first included, 1 to 1 000. Deferrals, and attempts that a shutdown or a lost lease broke off, do not count. |
/// | `retry(backoff = "exponential(200ms..30s)")` | as shown | The delays: also `"fixed(1s)"`, `"linear(1s..30s)"`, `"list(1s, 10s, 5m)"`. |
/// | `retry(jitter = 0.2)` | 0.2 | How much longer a delay may become at random, as a share, 0 to 1. It never shortens one. |
/// | `retry(give_up_after = "1h")` | never | Dead when the next attempt would start later than this after the first failure. At least the first delay of the backoff. |
/// | `park_after = "10s"` | 10 s | Longer waits are stored and leave the memory, as does what waits behind a handler that runs for longer. |
/// | `max_defer_age = "7d"` | 7 days | How long a delivery may be deferred in a row; it is dead when the next offer would come later. |
/// | `on_dead = "continue"`, `"block_key"` | `continue` | What becomes of the later events of a key behind a dead letter. |
/// | `max_blocked = 10000` | 10 000 | How many deliveries of one key may be stored behind one that holds it up, 1 to 1 048 576. With so many the subscription reads nothing more until that one is out of the way; nothing is dropped. |
/// | `classify = path` | none | A function `fn(&(dyn Error + 'static)) -> Option<FailureClass>` for errors that do not say what they ask for. It is asked about the error, then about each of its causes. |
/// | `checkpoint(every = 512, interval = "200ms")` | as shown | How often the position is written. |
/// | `breaker(failures = 5, of = 10, cool_down = "30s")` | never | After how many failures of how many last attempts this instance hands out nothing for a while (30 s unless it says), then one delivery to find out. |
/// | `expire_after = "7d"` | never | After how long without its instance a `durable` position may be forgotten. |
/// | `crate = path` | `::photon` | Where Photon is, if it has another name or comes through another crate. |
///
/// Durations are numbers with a unit: `us`, `ms`, `s`, `m`, `h`, `d`, as in `1m30s`. The builder and the
/// environment can override what the attribute sets.
#[proc_macro_attribute]
pub fn subscribe(args: TokenStream, item: TokenStream) -> TokenStream {
    subscribe::run(args.into(), &item.into()).into()
}

/// Links the crates that hold handlers: `photon::manifest![billing_handlers, mail_handlers];`.
///
/// A crate that only stands in `Cargo.toml` and is named nowhere is not linked, and its handlers do not
/// exist. Write this once in the binary.
#[proc_macro]
pub fn manifest(crates: TokenStream) -> TokenStream {
    manifest::run(crates.into()).into()
}

/// Lets an error say what it asks for, so that `?` in a handler is enough.
///
/// ```ignore
/// #[derive(Debug, thiserror::Error, Failure)]
/// enum ChargeError {
///     #[error("card declined")]        #[failure(permanent)]          Declined,
///     #[error("gateway timed out")]    #[failure(retry)]              Timeout(#[from] GatewayError),
///     #[error("gateway is busy")]      #[failure(retry_after = wait)] Busy { wait: Duration },
///     #[error("daily limit reached")]  #[failure(defer = "1h")]       Limit,
///     #[error(transparent)]            #[failure(transparent)]        Other(#[from] anyhow::Error),
/// }
/// ```
///
/// Every variant says one of these, a struct says it above itself:
///
/// | attribute | meaning |
/// | --- | --- |
/// | `retry` | Try again as the retry policy says. |
/// | `retry_after = "5s"` or a field of type `Duration` | Try again after this delay, as long as attempts are left. |
/// | `permanent` | A dead letter at once. |
/// | `defer = "1h"` or a field of type `Duration` | Not a failure: offer the delivery again later. It costs no attempt. |
/// | `transparent` | What the inner error asks for: the only field, or the one with `#[source]` or `#[from]`. An inner error that does not say is retried. |
///
/// `#[failure(crate = path)]` above the type says where Photon is, as in `#[subscribe]`.
#[proc_macro_derive(Failure, attributes(failure))]
pub fn failure(item: TokenStream) -> TokenStream {
    failure::run(item.into()).into()
}

/// Makes an async function a test that has a Photon of its own: in memory, on a clock that stands still.
///
/// ```ignore
/// #[photon::test]
/// async fn a_declined_card_is_dead_at_once(mut t: TestPhoton) {
///     t.state(Cards::always(Declined));
///     t.publish(&order()).await;
///     t.run_until_quiet().await;
///     t.subscription("billing").assert_attempts(1).assert_dead(1);
/// }
/// ```
///
/// It takes a `TestPhoton` and returns what a test may return: `()` or a `Result`. Other attributes of tests stay:
/// `#[should_panic]`, `#[ignore]`. It needs the feature `testing` of Photon, and neither tokio among the dependencies
/// nor a runtime around it. `crate = path` says where Photon is, if it has another name.
#[proc_macro_attribute]
pub fn test(args: TokenStream, item: TokenStream) -> TokenStream {
    test::run(args.into(), &item.into()).into()
}
