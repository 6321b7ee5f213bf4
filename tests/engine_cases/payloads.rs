//! Cases of payloads and names.

use photon::prelude::*;
use photon::{DeadReason, DynamicTopic, Error, Page};

use crate::journal::{Journal, bare};
use crate::support::{Probe, What, World};

on_every_engine!(case_unreadable_json, case_big_and_long);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Nest {
    inner: Option<Box<Nest>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Large {
    number: u128,
}

/// Serialises to what does not read back, if one wants to.
#[topic(name = "odd", key = name, shards = 1)]
#[derive(Debug, Default, Serialize, Deserialize)]
struct Odd {
    name: String,
    ratio: f64,
    nest: Nest,
}

/// Never reads back.
#[topic(name = "flat", shards = 1)]
#[derive(Debug, Default, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    large: Large,
}

#[subscribe(group = "odd")]
async fn odd(odd: Odd, cx: Context, State(probe): State<Probe>) {
    probe.begin("odd", &odd.name, cx.seq().0, cx.attempt()).end(What::Done);
}

#[subscribe(group = "flat")]
async fn flat(_: Flat) {}

fn nest(depth: usize) -> Nest {
    (0..depth).fold(Nest::default(), |inner, _| Nest { inner: Some(Box::new(inner)) })
}

async fn case_unreadable_json(world: World) {
    let mut odds = vec![
        Odd { ratio: f64::NAN, ..Odd::default() },
        Odd { ratio: f64::INFINITY, ..Odd::default() },
        Odd { ratio: f64::NEG_INFINITY, ..Odd::default() },
    ];
    // Around the depth at which the reader gives up, and far beyond.
    odds.extend(
        [120, 125, 126, 127, 128, 129, 200, 2_000].map(|depth| Odd { nest: nest(depth), ..Odd::default() }),
    );
    let count = odds.len();
    let instance = world.start(["odd", "flat"]).await;
    let photon = instance.photon.clone();
    let mut accepted = Vec::new();
    let mut take = |said: photon::Result<photon::Receipt>, payload: Vec<u8>| match said {
        Ok(receipt) => accepted.push((receipt, payload)),
        Err(error) => assert!(matches!(error, Error::Encode(_)), "{error:?}"),
    };
    for odd in odds {
        take(photon.publish(&odd).await, serde_json::to_vec(&odd).unwrap());
        photon.publish(&Odd { name: "good".to_owned(), ..Odd::default() }).await.unwrap();
    }
    for number in [1, u128::MAX] {
        let flat = Flat { large: Large { number } };
        take(photon.publish(&flat).await, serde_json::to_vec(&flat).unwrap());
    }
    instance.drain().await.unwrap();
    let mut letters = photon.dead_letters("odd").list(Page::first(100)).await.unwrap();
    letters.extend(photon.dead_letters("flat").list(Page::first(100)).await.unwrap());
    // What does not read back is refused or a dead letter; the three least deep ones may well be read.
    accepted.retain(|(_, payload)| serde_json::from_slice::<Odd>(payload).is_err());
    assert_eq!(letters.len(), accepted.len());
    for (receipt, payload) in accepted {
        let letter = letters.iter().find(|letter| letter.event_id == receipt.id).unwrap();
        assert_eq!((letter.reason, &*letter.payload), (DeadReason::Undecodable, &*payload));
    }
    assert_eq!(world.probe.done("odd")["good"].len(), count);
}

/// 1 MiB, and no two parts alike.
fn large(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..1 << 20).map(|_| next()).collect()
}

/// A name of 70 bytes that is like the others in its first 63, where Postgres cuts names.
fn long(end: &str) -> String {
    format!("{}{end}", "n".repeat(70 - end.len()))
}

async fn case_big_and_long(world: World) {
    let instance = bare(&world).await;
    let photon = instance.photon.clone();
    let (topics, groups) = ([long("left"), long("right")], [long("a"), long("b")]);
    let mut journals = Vec::new();
    for topic in &topics {
        for group in &groups {
            let journal = Journal::default();
            journal.subscribe(&photon, topic, group).await;
            journals.push((topic, journal));
        }
    }
    for round in 0..3 {
        for topic in &topics {
            let topic = DynamicTopic::new(topic.as_str()).unwrap().shards(1);
            photon.publish_raw(&topic, format!("{round} of {}", topic.name())).key("k").await.unwrap();
        }
    }
    let payloads = [large(1), large(2)];
    for (topic, payload) in topics.iter().zip(&payloads) {
        let topic = DynamicTopic::new(topic.as_str()).unwrap().shards(1);
        photon
            .publish_raw(&topic, payload.clone())
            .key(long("key"))
            .header("h", long("header"))
            .await
            .unwrap();
    }
    // Each of the four got what is of its topic, and nothing else.
    instance.drain().await.unwrap();
    for (topic, journal) in journals {
        let of = topics.iter().position(|name| name == topic).unwrap();
        let mut expected: Vec<String> = (0..3).map(|round| format!("{round} of {topic}")).collect();
        expected.push(String::from_utf8_lossy(&payloads[of]).into_owned());
        let mut seen = journal.seen();
        seen.sort_unstable();
        expected.sort_unstable();
        assert!(seen == expected, "{topic} got {:?}", seen.iter().map(String::len).collect::<Vec<_>>());
    }
    for (topic, payload) in topics.iter().zip(&payloads) {
        let stored = world.events(topic).await;
        assert_eq!(stored.len(), 4);
        let large = stored.iter().find(|event| event.payload.len() > 1_000).unwrap();
        assert!(large.payload == *payload && large.key == Some(Key::new(long("key"))));
        assert_eq!(large.headers.get("h"), Some(&*long("header")));
    }
}
