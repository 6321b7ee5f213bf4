//! P11: what one engine accepts every engine accepts and gives back identical; what is refused is refused alike.

use bytes::Bytes;
use photon::headers::MAX_HEADERS_BYTES;
use photon::{DynamicTopic, Error, Photon, Publish, TopicName};

use crate::support::World;

on_every_engine!(
    p11_the_verdicts_are_the_same,
    p11_any_bytes_come_back_identical,
    p11_every_usable_name_is_usable_and_kept_apart,
    p11_a_topic_of_another_shape_is_refused,
    p11_the_limit_of_a_payload_can_be_set,
);

/// What an engine says: nothing, or the beginning of an error.
struct Verdict(&'static str, fn(&Photon) -> Publish, Option<&'static str>);

const KEY_LIMIT: usize = 64 * 1024;

static VERDICTS: &[Verdict] = &[
    Verdict("an empty payload", |p| p.publish_raw("raw", ""), None),
    Verdict("the largest payload", |p| p.publish_raw("raw", vec![0; 1 << 20]), None),
    Verdict(
        "one byte more",
        |p| p.publish_raw("raw", vec![0; (1 << 20) + 1]),
        Some(
            "the payload of an event of topic \"raw\" has 1048577 bytes, at most 1048576 are allowed: \
             store the large part elsewhere",
        ),
    ),
    Verdict("an empty key", |p| p.publish_raw("raw", "").key(""), None),
    Verdict("the longest key", |p| p.publish_raw("raw", "").key(vec![0xff; KEY_LIMIT]), None),
    Verdict(
        "a longer key",
        |p| p.publish_raw("raw", "").key(vec![0xff; KEY_LIMIT + 1]),
        Some(
            "the key of an event of topic \"raw\" has 65537 bytes, at most 65536 are allowed: use a hash of it",
        ),
    ),
    Verdict("an odd header", |p| p.publish_raw("raw", "").header("\0 é\n", [0, 0xff]), None),
    Verdict(
        "a header with no name",
        |p| p.publish_raw("raw", "").header("", "x"),
        Some("an event of topic \"raw\" is refused: "),
    ),
    Verdict(
        "too long a header name",
        |p| p.publish_raw("raw", "").header("x".repeat(257), ""),
        Some("an event of topic \"raw\" is refused: "),
    ),
    Verdict(
        "too many headers",
        |p| p.publish_raw("raw", "").header("big", vec![0; MAX_HEADERS_BYTES]).header("more", "x"),
        Some("an event of topic \"raw\" is refused: "),
    ),
    Verdict(
        "a header of Photon's own",
        |p| p.publish_raw("raw", "").header("Photon-Actor", "me"),
        Some("header \"Photon-Actor\" is refused: "),
    ),
    Verdict("the longest dedup id", |p| p.publish_raw("raw", "").dedup_id("é".repeat(128)), None),
    Verdict(
        "a longer dedup id",
        |p| p.publish_raw("raw", "").dedup_id("x".repeat(257)),
        Some("the dedup id of an event of topic \"raw\" has 257 bytes, at most 256 are allowed"),
    ),
    Verdict("an empty dedup id", |p| p.publish_raw("raw", "").dedup_id(""), Some("the dedup id is empty")),
    Verdict("an empty name", |p| p.publish_raw("", ""), Some("topic name \"\" is not usable: it is empty")),
    Verdict(
        "a name with a space",
        |p| p.publish_raw("a b", ""),
        Some("topic name \"a b\" is not usable: only ASCII letters, digits"),
    ),
    Verdict(
        "a name with two dots",
        |p| p.publish_raw("a..b", ""),
        Some("topic name \"a..b\" is not usable: it has two dots in a row"),
    ),
    Verdict(
        "a name that ends in a dot",
        |p| p.publish_raw("a.", ""),
        Some("topic name \"a.\" is not usable: it must start and end with"),
    ),
    Verdict("a wildcard", |p| p.publish_raw("a.*", ""), Some("topic name \"a.*\" is not usable: ")),
    Verdict("the longest name", |p| p.publish_raw("n".repeat(200), ""), None),
    Verdict("a longer name", |p| p.publish_raw("n".repeat(201), ""), Some("topic name \"nnnn")),
    Verdict(
        "no shards",
        |p| p.publish_raw(DynamicTopic::new("unsharded").unwrap().shards(0), ""),
        Some("topic \"unsharded\" has 0 shards, allowed are 1 to 1024"),
    ),
    Verdict("many shards", |p| p.publish_raw(DynamicTopic::new("many").unwrap().shards(1_024), ""), None),
    Verdict(
        "too many shards",
        |p| p.publish_raw(DynamicTopic::new("more").unwrap().shards(1_025), ""),
        Some("topic \"more\" has 1025 shards, allowed are 1 to 1024"),
    ),
];

async fn p11_the_verdicts_are_the_same(world: World) {
    let photon = world.publisher().await;
    for Verdict(what, publish, expected) in VERDICTS {
        let said = publish(&photon).await;
        match (said, expected) {
            (Ok(_), None) => {}
            (Err(error), Some(expected)) => {
                assert!(error.to_string().starts_with(expected), "{what}: {error}");
                assert!(matches!(error, Error::Refused { .. } | Error::TooLarge { .. }), "{what}: {error:?}");
            }
            (said, expected) => panic!("{what}: {said:?}, expected {expected:?}"),
        }
    }
    // What was refused left nothing behind: not an event, not a topic.
    let stored = VERDICTS.iter().filter(|verdict| verdict.2.is_none()).count() - 2;
    assert_eq!(world.events("raw").await.len(), stored);
    for refused in ["unsharded", "more"] {
        assert!(world.store.bounds(&TopicName::new(refused).unwrap()).await.is_err(), "{refused}");
    }
}

async fn p11_any_bytes_come_back_identical(world: World) {
    let photon = world.publisher().await;
    let all: Vec<u8> = (0..=255).collect();
    let pieces: Vec<Bytes> = [
        &b""[..],
        b"\0",
        b"\0\0",
        b"'; drop table events; --",
        b"\xff\xfe",
        "\u{0}é漢😀".as_bytes(),
        b"%s%n",
        &all,
    ]
    .into_iter()
    .map(Bytes::copy_from_slice)
    .collect();
    let mut sent = Vec::new();
    for payload in &pieces {
        for key in &pieces {
            let value = &pieces[(payload.len() + key.len()) % pieces.len()];
            let receipt = photon
                .publish_raw("bytes", payload.clone())
                .key(photon::Key::new(key.clone()))
                .header("a\0é", value)
                .header("B", key)
                .await
                .unwrap();
            sent.push((receipt.id, payload, key, value));
        }
    }
    let stored = world.events("bytes").await;
    assert_eq!(stored.len(), sent.len());
    for (id, payload, key, value) in sent {
        let event = stored.iter().find(|event| event.id == id).unwrap();
        assert_eq!((&event.payload, event.key.as_ref().unwrap().as_bytes()), (payload, &**key));
        let headers: Vec<_> = event.headers.iter().collect();
        assert_eq!(headers, [("a\0é", value), ("B", key)]);
    }
    // No key is something else than an empty one.
    let without = photon.publish_raw("bytes", "").await.unwrap();
    assert_eq!(world.events("bytes").await.iter().find(|e| e.id == without.id).unwrap().key, None);
}

async fn p11_every_usable_name_is_usable_and_kept_apart(world: World) {
    let photon = world.publisher().await;
    let long = "l".repeat(199);
    let names = ["a", "A", "0", "a.b", "a_b", "a-b", "a:b", "a::b", "select", "a.b.c-d_e:f"];
    let names: Vec<String> = names
        .iter()
        .map(|&name| name.to_owned())
        // Alike for longer than any engine's own names.
        .chain(["1", "2"].map(|end| format!("{long}{end}")))
        .collect();
    for name in &names {
        photon.publish_raw(name.as_str(), name.clone()).await.unwrap();
    }
    for name in &names {
        let stored: Vec<_> = world.events(name).await.into_iter().map(|event| event.payload).collect();
        assert_eq!(&stored[..], std::slice::from_ref(name));
    }
}

async fn p11_a_topic_of_another_shape_is_refused(world: World) {
    let photon = world.publisher().await;
    photon.publish_raw(DynamicTopic::new("shape").unwrap().shards(3), "x").await.unwrap();
    let other = world.publisher().await;
    let error = other.publish_raw(DynamicTopic::new("shape").unwrap().shards(5), "x").await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("\"shape\"") && text.contains('3') && text.contains('5'), "{text}");
    assert_eq!(world.events("shape").await.len(), 1);
}

async fn p11_the_limit_of_a_payload_can_be_set(world: World) {
    for limit in [1, 10, 3 << 20] {
        let photon = Photon::builder().store(world.store.clone()).max_payload(limit).build().await.unwrap();
        photon.publish_raw("sized", vec![7; limit]).await.unwrap();
        let error = photon.publish_raw("sized", vec![7; limit + 1]).await.unwrap_err();
        assert!(
            matches!(error, Error::TooLarge { bytes, limit: at, .. } if (bytes, at) == (limit + 1, limit)),
            "{error:?}"
        );
    }
    assert_eq!(world.events("sized").await.len(), 3);
}
