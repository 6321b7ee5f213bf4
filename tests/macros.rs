//! What the macros emit, run through the descriptors that they register.

use std::sync::Arc;
use std::time::Duration;

use photon::prelude::*;
use photon::testing::{TestPhoton, delivery};
use photon::{
    Backoff, BreakerPolicy, Classify, DeadReason, FailureClass, Mode, Needs, OnDead, Options, Registry,
    Start, Topic,
};

#[topic(name = "orders.placed", key = customer_id, shards = 16)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OrderPlaced {
    customer_id: String,
    cents: u64,
}

fn order() -> OrderPlaced {
    OrderPlaced { customer_id: "c-7".into(), cents: 1_250 }
}

#[derive(Clone)]
struct Cards(Arc<std::sync::Mutex<Vec<String>>>);

fn classify(error: &(dyn std::error::Error + 'static)) -> Option<FailureClass> {
    error.downcast_ref::<std::fmt::Error>().map(|_| FailureClass::Permanent)
}

const LINE_BEFORE_CHARGE: u32 = line!();
#[subscribe(
    topic = "orders.placed",
    group = "billing",
    durable,
    start = "at(2026-01-31T12:00:00Z)",
    concurrency = 64,
    prefetch = 100,
    window = 128,
    timeout = "30s",
    retry(max_attempts = 6, backoff = "exponential(200ms..30s)", jitter = 0.5, give_up_after = "1h"),
    park_after = "1m30s",
    max_defer_age = "2d",
    on_dead = "block_key",
    max_blocked = 500,
    classify = self::classify,
    checkpoint(every = 256, interval = "0.1s"),
    expire_after = "7d",
    breaker(failures = 5, of = 10, cool_down = "45s")
)]
async fn charge(order: OrderPlaced, cx: Context, State(cards): State<Cards>) -> Result<(), String> {
    if order.cents == 0 {
        return Err("nothing to charge".to_owned());
    }
    let line = format!("{} {} {}", order.customer_id, order.cents, cx.attempt());
    cards.0.lock().unwrap().push(line);
    Ok(())
}

#[subscribe]
async fn unnamed(_: OrderPlaced) {}

mod nested {
    use super::*;

    #[subscribe(topic = OrderPlaced, ephemeral)]
    pub(super) async fn r#unnamed(OrderPlaced { cents, .. }: OrderPlaced, mut key: Option<Key>) -> Outcome {
        match key.take() {
            Some(_) if cents > 0 => Outcome::ignored("has a key"),
            _ => Outcome::defer(Duration::from_secs(60), "no key"),
        }
    }
}

#[subscribe(topic = "raw.events", group = "raw", start = "latest", retry(backoff = "list(1s, 5m)"))]
#[subscribe(topic = "other.events", group = "raw", on_dead = "continue", retry(backoff = "fixed(0)"))]
async fn raw(
    event: Event,
    #[cfg(not(test))] _: Missing,
    #[cfg(test)] id: EventId,
) -> Result<Outcome, HandlerError> {
    assert_eq!(event.id, id);
    Ok(Outcome::Done)
}

fn handlers(group: &str) -> Vec<&'static photon::__private::HandlerDescriptor> {
    Registry::linked().handlers.into_iter().filter(|h| h.group_name() == group).collect()
}

#[photon::test]
async fn a_handler_runs_through_its_descriptor(_t: TestPhoton) {
    let lines = Cards(Arc::default());
    let given = delivery(&order()).attempt(2);
    let with_cards = given.clone().state(lines.clone());
    assert_eq!(with_cards.run("billing").await.unwrap(), Outcome::Done);
    assert_eq!(*lines.0.lock().unwrap(), ["c-7 1250 2"]);

    let free = delivery(&OrderPlaced { cents: 0, ..order() }).state(lines);
    let error = free.run("billing").await.unwrap_err();
    assert_eq!((error.class(), error.to_string()), (FailureClass::Retry, "nothing to charge".to_owned()));

    let error = given.run("billing").await.unwrap_err();
    assert!(error.to_string().contains("needs State<Cards>"), "{error}");

    let error = with_cards.payload("{\"customer_id\":").run("billing").await.unwrap_err();
    assert_eq!((error.class(), error.reason()), (FailureClass::Permanent, DeadReason::Undecodable));
}

#[photon::test]
async fn a_handler_stays_an_ordinary_function(_t: TestPhoton) {
    let outcome = nested::r#unnamed(order(), order().key()).await;
    assert_eq!(outcome, Outcome::ignored("has a key"));
    unnamed(order()).await;
}

#[photon::test]
async fn patterns_and_outcomes_go_through(_t: TestPhoton) {
    let outcome = delivery(&order()).key(None::<&str>).run("macros::nested::unnamed").await;
    assert_eq!(outcome.unwrap(), Outcome::defer(Duration::from_secs(60), "no key"));
}

#[photon::test]
async fn one_function_can_have_two_subscriptions(_t: TestPhoton) {
    let found = handlers("raw");
    let topics: Vec<_> = found.iter().map(|h| h.topic).collect();
    assert_eq!(topics.len(), 2);
    assert!(topics.contains(&"raw.events") && topics.contains(&"other.events"));
    for handler in found {
        assert!(handler.descriptor.is_none());
        let backoff = if handler.topic == "raw.events" {
            Backoff::List(vec![Duration::from_secs(1), Duration::from_secs(300)].into())
        } else {
            Backoff::Fixed(Duration::ZERO)
        };
        assert_eq!(handler.options.backoff, Some(backoff));
        delivery(&order()).run((handler.topic, "raw")).await.unwrap();
    }
}

#[test]
fn every_option_reaches_the_descriptor() {
    let handler = handlers("billing")[0];
    assert_eq!(
        handler.options,
        Options {
            start: Some(Start::At("2026-01-31T12:00:00Z".parse().unwrap())),
            concurrency: Some(64),
            prefetch: Some(100),
            window: Some(128),
            timeout: Some(Duration::from_secs(30)),
            max_attempts: Some(6),
            backoff: Some(Backoff::Exponential {
                first: Duration::from_millis(200),
                max: Duration::from_secs(30),
            }),
            jitter: Some(0.5),
            give_up_after: Some(Duration::from_secs(3_600)),
            park_after: Some(Duration::from_secs(90)),
            max_defer_age: Some(Duration::from_secs(2 * 86_400)),
            on_dead: Some(OnDead::BlockKey),
            max_blocked: Some(500),
            classify: Some(Classify(classify)),
            checkpoint_every: Some(256),
            checkpoint_interval: Some(Duration::from_millis(100)),
            expire_after: Some(Duration::from_secs(7 * 86_400)),
            breaker: Some(BreakerPolicy { failures: 5, of: 10, cool_down: Duration::from_secs(45) }),
        }
    );
    assert_eq!((handler.name, handler.module, handler.mode), ("charge", "macros", Mode::Durable));
    assert_eq!(handler.file, file!());
    assert_eq!(handler.line, LINE_BEFORE_CHARGE + 1);
    let topic = handler.descriptor.unwrap();
    assert!(std::ptr::eq(topic, OrderPlaced::DESCRIPTOR), "one static a topic");
    assert_eq!(handlers("macros::unnamed")[0].options, Options::NONE);
}

#[test]
fn an_unnamed_group_has_the_module_path() {
    assert_eq!(handlers("macros::unnamed").len(), 1);
    assert_eq!(handlers("macros::nested::unnamed")[0].mode, Mode::Ephemeral);
    assert_eq!(Registry::linked().problems(), []);
}

#[test]
fn needs_are_those_of_the_extractors() {
    let needs_of = |group: &str| {
        let mut needs = Needs::default();
        (handlers(group)[0].needs)(&mut needs);
        needs.iter().map(|need| need.message.clone()).collect::<Vec<_>>()
    };
    let needs = needs_of("billing");
    assert_eq!(needs.len(), 1);
    assert!(needs[0].contains("needs State<Cards>"), "{needs:?}");
    assert!(needs_of("macros::unnamed").is_empty());
}

#[test]
fn topics_describe_themselves() {
    let topic = OrderPlaced::DESCRIPTOR;
    assert_eq!((topic.name, topic.shards, topic.key), ("orders.placed", 16, "field:customer_id"));
    assert_eq!((topic.type_name, topic.file), ("OrderPlaced", file!()));
    assert_eq!(OrderPlaced::CONTENT_TYPE, "application/json");
    let linked = Registry::linked().topics;
    assert!(linked.iter().any(|linked| std::ptr::eq(*linked, topic)));
}

mod keys {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Customer {
        pub(super) id: u32,
        pub(super) names: (String, u8),
    }

    #[topic(name = "keys.nested", key = customer.id)]
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Nested {
        pub(super) customer: Customer,
    }

    #[topic(name = "keys.tuple", key = 0.names.1)]
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Tuple(pub(super) Customer);

    #[topic(name = "keys.pair", key = 0.1)]
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Pair(pub(super) (u8, i8));

    #[topic(name = "keys.raw", key = r#type)]
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Raw {
        pub(super) r#type: Option<String>,
    }

    #[topic(name = "keys.variant", key = id)]
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) enum Variant {
        Number {
            id: u64,
        },
        Text {
            id: String,
            rest: u8,
        },
        #[cfg(any())]
        Gone {
            id: Missing,
        },
    }

    #[topic(name = "keys.function", key = self::key_of)]
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Function(pub(super) String);

    fn key_of(event: &Function) -> &str {
        &event.0[..1]
    }

    #[topic(name = "keys.method", key = Self::both, shards = 1)]
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Method(pub(super) u8, pub(super) u8);

    impl Method {
        fn both(&self) -> String {
            format!("{}-{}", self.0, self.1)
        }
    }

    #[topic("keys.none")]
    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct None;
}

#[test]
fn keys_come_from_fields_and_functions() {
    fn check<T: Topic>(event: &T, text: &str, key: Option<&str>) {
        assert_eq!(T::DESCRIPTOR.key, text);
        assert_eq!(event.key().as_ref().and_then(|key| key.as_str()), key, "{text}");
    }
    let customer = || keys::Customer { id: 5, names: ("n".into(), 6) };
    check(&keys::Nested { customer: customer() }, "field:customer.id", Some("5"));
    check(&keys::Tuple(customer()), "field:0.names.1", Some("6"));
    check(&keys::Pair((1, -2)), "field:0.1", Some("-2"));
    check(&keys::Raw { r#type: None }, "field:type", None);
    check(&keys::Raw { r#type: Some(String::new()) }, "field:type", Some(""));
    check(&keys::Variant::Number { id: 8 }, "field:id", Some("8"));
    check(&keys::Variant::Text { id: "t".into(), rest: 0 }, "field:id", Some("t"));
    check(&keys::Function("xyz".into()), "fn:self::key_of", Some("x"));
    check(&keys::Method(1, 2), "fn:Self::both", Some("1-2"));
    check(&keys::None, "none", None);
    assert_eq!(keys::None::DESCRIPTOR.shards, 8);
}
