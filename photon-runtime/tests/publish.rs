//! Publishing on a store that works.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::{Note, Order, events, memory, note, numbers_of, order};
use photon_backend::memory::MemoryStore;
use photon_core::codec;
use photon_core::error::{BoxError, EncodeError};
use photon_core::handler::{Delivery, FromDelivery, Shared};
use photon_core::headers::{ACTOR, CONTENT_TYPE, MAX_HEADERS_BYTES};
use photon_core::identity::IdentityFactory;
use photon_core::ids::{
    GroupName, Incarnation, Key, MAX_KEY_BYTES, Seq, Shard, SubscriptionId, ToKey, TopicName,
};
use photon_core::machine::shards::shard_of;
use photon_core::store::Fence;
use photon_core::topic::{Topic, TopicDescriptor};
use photon_runtime::{DynamicTopic, Error, Photon, Publisher};
use uuid::Uuid;

#[tokio::test]
async fn a_receipt_tells_where_the_event_is() {
    let photon = memory().build().await.unwrap();
    let sent = order("ann", 7);
    let receipt = photon.publish(&sent).header("source", "web").await.unwrap();
    let stored = events(&**photon.store(), "orders.placed").await;
    assert_eq!(stored.len(), 1);
    let event = &stored[0];
    assert_eq!((event.id, event.shard, event.seq), (receipt.id, receipt.shard, receipt.seq));
    assert_eq!(event.shard, shard_of("ann".to_key().as_ref(), receipt.id, 4));
    assert_eq!(event.key, "ann".to_key());
    assert_eq!(event.headers.get("source"), Some("web"));
    assert_eq!(event.headers.get(CONTENT_TYPE), Some(codec::JSON));
    assert_eq!(codec::decode_json::<Order>(event).unwrap(), sent);
    assert!(!receipt.duplicate);
}

#[tokio::test]
async fn the_key_can_be_replaced_and_taken_away() {
    let photon = memory().build().await.unwrap();
    photon.publish(&order("ann", 1)).key("bob").await.unwrap();
    photon.publish(&order("ann", 2)).key(None::<String>).await.unwrap();
    photon.publish(&note("x")).key(7u32).await.unwrap();
    photon.publish(&note("y")).key("").await.unwrap();
    let mut keys: Vec<_> =
        events(&**photon.store(), "orders.placed").await.into_iter().map(|e| e.key).collect();
    keys.sort();
    assert_eq!(keys, [None, "bob".to_key()]);
    let mut keys: Vec<_> = events(&**photon.store(), "notes").await.into_iter().map(|e| e.key).collect();
    keys.sort();
    assert_eq!(keys, ["".to_key(), "7".to_key()]);
}

#[tokio::test]
async fn p03_awaited_publishes_and_publish_all_ascend_per_key() {
    let photon = memory().build().await.unwrap();
    let mut n = 0;
    for round in 0..20 {
        for customer in ["ann", "bob", "eve"] {
            photon.publish(&order(customer, n)).await.unwrap();
            n += 1;
        }
        let batch: Vec<_> = (n..n + 700).map(|n| order(["ann", "bob", "eve"][(n % 3) as usize], n)).collect();
        let receipts = photon.publish_all(batch).await.unwrap();
        assert_eq!(receipts.len(), 700, "round {round}");
        n += 700;
    }
    let stored = events(&**photon.store(), "orders.placed").await;
    assert_eq!(stored.len(), 20 * 703);
    for customer in ["ann", "bob", "eve"] {
        assert!(numbers_of(&stored, customer).is_sorted());
    }
}

#[tokio::test]
async fn publish_all_gives_a_receipt_for_each_event_in_order() {
    let photon = memory().build().await.unwrap();
    let sent: Vec<_> = (0..5_000).map(|n| order(&format!("customer-{}", n % 50), n)).collect();
    let receipts = photon.publish_all(sent.clone()).header("source", "import").await.unwrap();
    let stored = events(&**photon.store(), "orders.placed").await;
    let by_place: HashMap<_, _> = stored.iter().map(|event| ((event.shard, event.seq), event)).collect();
    assert_eq!((receipts.len(), by_place.len()), (5_000, 5_000));
    for (sent, receipt) in sent.iter().zip(&receipts) {
        let event = by_place[&(receipt.shard, receipt.seq)];
        assert_eq!(event.id, receipt.id);
        assert_eq!(event.headers.get("source"), Some("import"));
        assert_eq!(&codec::decode_json::<Order>(event).unwrap(), sent);
    }
    assert!(receipts.is_sorted_by_key(|receipt| receipt.id));
    assert_eq!(photon.publish_all(Vec::<Order>::new()).await.unwrap(), []);
}

#[tokio::test]
async fn publish_all_tells_what_is_stored_when_an_event_is_refused() {
    let photon = memory().max_payload(100).build().await.unwrap();
    let mut notes: Vec<_> = (0..1_500).map(|n| note(&n.to_string())).collect();
    notes[1_200].broken = true;
    notes[1_300].text = "x".repeat(200);
    let error = photon.publish_all(notes.clone()).await.unwrap_err();
    assert_eq!(error.stored().len(), 1_200);
    assert!(
        matches!(&error, Error::Partial { source, .. } if matches!(**source, Error::Encode(_))),
        "{error:?}"
    );
    assert_eq!(events(&**photon.store(), "notes").await.len(), 1_200);

    // What follows can be tried again behind the event that was refused.
    let error = photon.publish_all(notes.drain(1_201..)).await.unwrap_err();
    assert_eq!(error.stored().len(), 99);
    assert!(format!("{error:?}").contains("at most 100 are allowed"), "{error:?}");

    // The first event refused: nothing is stored, and the error is the event's own.
    let error = photon.publish_all([Note { text: String::new(), broken: true }]).await.unwrap_err();
    assert!(matches!(error, Error::Encode(_)) && error.stored().is_empty());
}

#[tokio::test]
async fn p11_what_no_engine_takes_is_refused_at_publish() {
    let photon = memory().max_payload(64).build().await.unwrap();
    let fine = note("fine");
    let mut refused = vec![
        photon.publish(&note(&"x".repeat(64))).await,
        photon.publish_raw("notes", vec![0; 65]).await,
        photon.publish_raw("no tes", "x").await,
        photon.publish_raw("", "x").await,
        photon.publish(&fine).key("k".repeat(MAX_KEY_BYTES + 1)).await,
        photon.publish(&fine).header("", "x").await,
        photon.publish(&fine).header("n".repeat(257), "x").await,
        photon.publish(&fine).header("big", vec![0; MAX_HEADERS_BYTES]).await,
        photon.publish(&fine).header("photon-actor", "me").await,
        photon.publish(&fine).header("Photon-X", "me").await,
        photon.publish(&fine).header("content-type", "text/plain").await,
        photon.publish(&fine).dedup_id("").await,
        photon.publish(&fine).dedup_id("d".repeat(257)).await,
        photon.publish(&fine).actor(&7u32).await,
        photon.publish(&Note { text: String::new(), broken: true }).await,
        photon.publish_raw(DynamicTopic::new("raw").unwrap().shards(0), "x").await,
        photon.publish_raw(DynamicTopic::new("raw").unwrap().shards(2_000), "x").await,
    ];
    let error = photon.publish_all([fine.clone()]).header("photon-x", "1").await.unwrap_err();
    refused.push(Err(error));
    for (case, result) in refused.into_iter().enumerate() {
        let error = result.expect_err(&format!("case {case}"));
        let fits = matches!(error, Error::Refused { .. } | Error::TooLarge { .. } | Error::Encode(_));
        assert!(fits, "case {case}: {error:?}");
    }
    assert_eq!(events(&**photon.store(), "notes").await, []);
    assert_eq!(events(&**photon.store(), "raw").await, []);
}

#[tokio::test]
async fn p11_the_limits_themselves_are_allowed() {
    let photon = memory().max_payload(64).build().await.unwrap();
    let fill = MAX_HEADERS_BYTES - CONTENT_TYPE.len() - codec::JSON.len() - 1;
    let receipt = photon
        .publish(&note("fine"))
        .key("k".repeat(MAX_KEY_BYTES))
        .header("h", vec![0xff; fill])
        .dedup_id("d".repeat(256))
        .await
        .unwrap();
    let raw = photon
        .publish_raw("raw", vec![0xff; 64])
        .header("content-type", "x/y")
        .key([0u8, 255])
        .await
        .unwrap();
    let stored = events(&**photon.store(), "notes").await;
    assert_eq!(stored[0].id, receipt.id);
    assert_eq!(stored[0].headers.get_bytes("h").unwrap().len(), fill);
    let stored = events(&**photon.store(), "raw").await;
    assert_eq!((stored[0].id, &stored[0].payload[..]), (raw.id, &[0xff; 64][..]));
    assert_eq!(stored[0].headers.get(CONTENT_TYPE), Some("x/y"));
    assert_eq!(stored[0].key, Some(Key::new(vec![0, 255])));
}

#[tokio::test]
async fn an_error_shows_no_payload() {
    let photon = memory().max_payload(10).build().await.unwrap();
    let publish = photon.publish(&note("hunter2")).header("password", "hunter2");
    assert!(!format!("{publish:?}").contains("hunter2"));
    assert!(!format!("{:?}", publish.await.unwrap_err()).contains("hunter2"));
    let fits = memory().build().await.unwrap();
    let publish = fits.publish(&note("hunter2")).header("password", "hunter2");
    assert!(!format!("{publish:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_dedup_id_makes_repetitions_one_event() {
    let photon = memory().build().await.unwrap();
    let id = Uuid::from_u128(7);
    let first = photon.publish(&order("ann", 1)).dedup_id(id).await.unwrap();
    let again = photon.publish(&order("ann", 1)).dedup_id(id).await.unwrap();
    assert!(!first.duplicate && again.duplicate);
    assert_eq!((first.shard, first.seq), (again.shard, again.seq));
    assert_eq!(events(&**photon.store(), "orders.placed").await.len(), 1);
}

/// Its shard cannot follow from the id of the event, which is another one each time.
#[tokio::test]
async fn a_dedup_id_makes_repetitions_without_a_key_one_event() {
    let photon = memory().build().await.unwrap();
    for n in 0..50 {
        let first = photon.publish(&note("hello")).dedup_id(format!("id {n}")).await.unwrap();
        let again = photon.publish(&note("hello")).dedup_id(format!("id {n}")).await.unwrap();
        assert!(!first.duplicate && again.duplicate);
        assert_eq!((first.shard, first.seq), (again.shard, again.seq));
    }
    let notes = events(&**photon.store(), "notes").await;
    assert_eq!(notes.len(), 50);
    assert!(notes.iter().any(|event| event.shard != notes[0].shard), "they spread over the shards");
}

#[tokio::test]
async fn twin_events_are_two() {
    let photon = memory().build().await.unwrap();
    let a = photon.publish(&order("ann", 1)).await.unwrap();
    let b = photon.publish(&order("ann", 1)).await.unwrap();
    assert!(b.id > a.id && b.seq > a.seq);
}

/// Another type for the topic of `Order`, with another number of shards and another key.
struct Other;

impl Topic for Other {
    const DESCRIPTOR: &'static TopicDescriptor = &TopicDescriptor {
        name: "orders.placed",
        shards: 5,
        key: "none",
        type_name: "Other",
        file: file!(),
        line: line!(),
    };
    const CONTENT_TYPE: &'static str = codec::JSON;

    fn key(&self) -> Option<Key> {
        None
    }

    fn encode(&self, _: &mut Vec<u8>) -> Result<(), EncodeError> {
        Ok(())
    }
}

#[tokio::test]
async fn another_shape_of_a_topic_is_refused_and_both_are_named() {
    let store = MemoryStore::new();
    let on_store = || Photon::builder().store(Arc::new(store.clone())).build();
    let photon = on_store().await.unwrap();
    photon.publish(&order("ann", 1)).await.unwrap();

    // In this process: two types for one topic.
    let text = photon.publish(&Other).await.unwrap_err().to_string();
    assert!(text.contains("`Order`") && text.contains("`Other`"), "{text}");
    // In another process: the store refuses.
    let text = on_store().await.unwrap().publish(&Other).await.unwrap_err().to_string();
    assert!(text.contains('4') && text.contains('5'), "{text}");
    // Without a type: the number of shards.
    let topic = DynamicTopic::new("orders.placed").unwrap().shards(6);
    let text = photon.publish_raw(topic, "x").await.unwrap_err().to_string();
    assert!(text.contains('4') && text.contains('6'), "{text}");
    let four = DynamicTopic::new("orders.placed").unwrap().shards(4);
    let text = photon.publish_raw(four.clone(), "x").await.unwrap_err().to_string();
    assert!(text.contains("name one number everywhere"), "{text}");
    on_store().await.unwrap().publish_raw(four, "x").await.unwrap();
}

#[tokio::test]
async fn after_the_close_publishing_is_refused() {
    let photon = memory().build().await.unwrap();
    let publisher = photon.publisher();
    photon.publish(&order("ann", 1)).await.unwrap();
    photon.close().await;
    photon.close().await;
    assert!(matches!(photon.publish(&order("ann", 2)).await, Err(Error::Closed)));
    assert!(matches!(photon.publish(&order("ann", 2)).wait().await, Err(Error::Closed)));
    assert!(matches!(publisher.publish_all([order("ann", 3)]).await, Err(Error::Closed)));
    drop(photon);
    assert!(matches!(publisher.publish_raw("orders.placed", "x").await, Err(Error::Closed)));
}

struct Users;

impl IdentityFactory for Users {
    type Identity = u32;

    fn write(&self, identity: &u32) -> Result<Vec<u8>, BoxError> {
        if *identity == 0 {
            Err("user 0 does not exist".into())
        } else {
            Ok(identity.to_string().into_bytes())
        }
    }

    fn rebuild(&self, bytes: &[u8]) -> Result<u32, BoxError> {
        Ok(std::str::from_utf8(bytes)?.parse()?)
    }
}

#[tokio::test]
async fn the_actor_travels_with_the_event() {
    let photon = memory().identity(Users).build().await.unwrap();
    photon.publish(&order("ann", 1)).actor(&7u32).await.unwrap();
    photon.publish_all([order("bob", 1)]).actor(&8u32).await.unwrap();
    let mut actors: Vec<_> = events(&**photon.store(), "orders.placed")
        .await
        .iter()
        .map(|event| event.headers.get(ACTOR).unwrap().to_owned())
        .collect();
    actors.sort();
    assert_eq!(actors, ["7", "8"]);
    let error = photon.publish(&order("ann", 1)).actor(&0u32).await.unwrap_err();
    assert!(format!("{error:?}").contains("user 0 does not exist"));
}

#[tokio::test]
async fn a_handler_can_take_the_publisher() {
    let photon = memory().build().await.unwrap();
    photon.publish(&order("ann", 1)).await.unwrap();
    let event = events(&**photon.store(), "orders.placed").await.remove(0);
    let mut extensions = photon_core::handler::Extensions::default();
    extensions.insert(photon.publisher());
    let delivery = Delivery {
        attempt: 1,
        fence: Fence { epoch: 1, token: Incarnation(Uuid::nil()) },
        settlement: None,
        shared: Arc::new(Shared {
            subscription: SubscriptionId::new(event.topic.clone(), GroupName::new("g").unwrap()),
            max_attempts: 5,
            timeout: std::time::Duration::from_secs(30),
            extensions,
        }),
        event,
    };
    let publisher = Publisher::from_delivery(&delivery).await.unwrap();
    // It outlives the handle that it came from.
    let store = photon.store().clone();
    drop(photon);
    publisher.publish(&order("ann", 2)).await.unwrap();
    assert_eq!(numbers_of(&events(&*store, "orders.placed").await, "ann"), [1, 2]);
}

#[test]
fn runtime_dropped_publish_works_on_any_executor() {
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = build();
    let photon = first.block_on(memory().build()).unwrap();
    first.block_on(async { photon.publish(&order("ann", 1)).await.unwrap() });
    drop(first);
    build().block_on(async { photon.publish(&order("ann", 2)).await.unwrap() });
    // Without tokio at all.
    futures::executor::block_on(async {
        photon.publish(&order("ann", 3)).await.unwrap();
        photon.publish_all([order("ann", 4)]).await.unwrap();
        assert_eq!(numbers_of(&events(&**photon.store(), "orders.placed").await, "ann"), [1, 2, 3, 4]);
    });
}

#[tokio::test]
async fn a_seed_repeats_the_ids() {
    let start = photon_core::time::Timestamp(1_700_000_000_000_000);
    let mut ids = Vec::new();
    for _ in 0..2 {
        tokio::time::pause();
        let clock = photon_runtime::Clock::starting_at(start);
        let photon = memory().clock(clock).seed(7).build().await.unwrap();
        ids.push(photon.publish(&note("x")).await.unwrap().id);
        let event = events(&**photon.store(), "notes").await.remove(0);
        assert_eq!(event.time, start);
        tokio::time::resume();
    }
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_publishes_all_get_their_own_place() {
    let photon = memory().build().await.unwrap();
    let mut running = Vec::new();
    for task in 0..32u64 {
        let photon = photon.clone();
        running.push(tokio::spawn(async move {
            let customer = format!("customer-{task}");
            let mut receipts = Vec::new();
            for n in 0..200 {
                receipts.push(photon.publish(&order(&customer, n)).await.unwrap());
            }
            receipts
        }));
    }
    let mut receipts = Vec::new();
    for task in running {
        receipts.extend(task.await.unwrap());
    }
    let stored = events(&**photon.store(), "orders.placed").await;
    let places: HashMap<_, (Shard, Seq)> =
        stored.iter().map(|event| (event.id, (event.shard, event.seq))).collect();
    assert_eq!(places.len(), 32 * 200);
    assert!(receipts.iter().all(|receipt| places[&receipt.id] == (receipt.shard, receipt.seq)));
    for task in 0..32 {
        assert_eq!(numbers_of(&stored, &format!("customer-{task}")), (0..200).collect::<Vec<_>>());
    }
    assert_eq!(TopicName::new("orders.placed").unwrap(), stored[0].topic);
}
