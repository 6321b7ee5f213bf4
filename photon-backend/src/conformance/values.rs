//! Any bytes and any names: the same verdict everywhere, and identical back.

use bytes::Bytes;
use photon_core::event::{Event, NewEvent};
use photon_core::handler::DeadReason;
use photon_core::headers::Headers;
use photon_core::ids::{InstanceId, Key, MAX_KEY_BYTES, MAX_NAME_BYTES, Seq, Shard};
use photon_core::options::Start;
use photon_core::store::{Failure, RowState, StoredDelivery};
use photon_core::time::Timestamp;

use super::fixture::{DEAD, Owned, Write, any_dead};
use super::kit::{Kit, event, fresh_name, registration, seqs};
use super::verdict::{Outcome, Violation};

fn same(event: &Event, new: &NewEvent) -> Outcome {
    ensure_eq!(event.id, new.id, "the id");
    ensure_eq!(event.key.is_some(), new.key.is_some(), "whether there is a key");
    ensure!(event.key == new.key, "the key came back changed: {:?} for {:?}", event.key, new.key);
    ensure!(event.headers == new.headers, "the headers came back changed: {:?}", event.headers);
    ensure!(event.payload == new.payload, "the payload of {} bytes came back changed", new.payload.len());
    Ok(())
}

async fn round_trip(kit: &Kit<'_>, batch: Vec<NewEvent>) -> Outcome {
    let topic = kit.topic(1).await?;
    topic.append(batch.clone()).await?;
    let events = topic.read_all(0).await?;
    ensure_eq!(events.len(), batch.len(), "records");
    for (number, (event, new)) in events.iter().zip(&batch).enumerate() {
        same(event, new).map_err(|v| v.context(format!("event number {number}")))?;
    }
    Ok(())
}

/// Bytes that text columns, separators and escapes stumble over.
fn odd_bytes() -> Vec<Vec<u8>> {
    let mut all = vec![
        Vec::new(),
        vec![0],
        vec![0, 0],
        vec![0xff],
        b"a\0b".to_vec(),
        b"'\"\\;--%_*".to_vec(),
        b"line\r\nline\t ".to_vec(),
        "h\u{e9} \u{1f980} \u{feff}".as_bytes().to_vec(),
        vec![0xc3, 0x28, 0xed, 0xa0, 0x80],
    ];
    all.push((0..=255).collect());
    all
}

pub(super) async fn p11_any_payload_comes_back(kit: Kit<'_>) -> Outcome {
    let batch = odd_bytes().into_iter().map(|payload| NewEvent { payload: payload.into(), ..event(0, 0) });
    round_trip(&kit, batch.collect()).await
}

pub(super) async fn p11_any_key_comes_back(kit: Kit<'_>) -> Outcome {
    let batch = odd_bytes().into_iter().map(|key| NewEvent { key: Some(Key::new(key)), ..event(0, 0) });
    round_trip(&kit, batch.collect()).await
}

pub(super) async fn p11_the_empty_key_is_not_no_key(kit: Kit<'_>) -> Outcome {
    let empty = NewEvent { key: Some(Key::new(Bytes::new())), ..event(0, 0) };
    round_trip(&kit, vec![event(0, 1), empty.clone(), event(0, 2), empty]).await
}

pub(super) async fn p11_any_headers_come_back(kit: Kit<'_>) -> Outcome {
    let values: Headers = odd_bytes()
        .into_iter()
        .enumerate()
        .map(|(number, value)| (format!("header-{number}"), value))
        .collect();
    let names: Headers = ["a", "A", "a b", "x=y&z", "h\u{e9}", ":", "\n", "zzz", "aaa", &"n".repeat(256)]
        .into_iter()
        .map(|name| (name, "value"))
        .collect();
    let many: Headers = (0..500).map(|number| (format!("{number}"), vec![0u8; 8])).collect();
    let batch = [Headers::new(), values, names, many].map(|headers| NewEvent { headers, ..event(0, 0) });
    round_trip(&kit, batch.into()).await
}

pub(super) async fn p11_large_events_come_back(kit: Kit<'_>) -> Outcome {
    let bytes = |len: usize| -> Vec<u8> { (0u8..=255).cycle().take(len).collect() };
    let large = NewEvent { payload: bytes(1 << 20).into(), ..event(0, 0) };
    let key = NewEvent { key: Some(Key::new(bytes(MAX_KEY_BYTES))), ..event(0, 0) };
    let headers = [("blob", bytes(60 * 1024))].into_iter().collect();
    let headers = NewEvent { headers, ..event(0, 0) };
    let all = NewEvent { key: key.key.clone(), headers: headers.headers.clone(), ..large.clone() };
    round_trip(&kit, vec![large, key, headers, all]).await
}

pub(super) async fn p11_long_and_similar_names_are_apart(kit: Kit<'_>) -> Outcome {
    let stem = fresh_name("n");
    let long = format!("{stem}{}", "x".repeat(MAX_NAME_BYTES - 1 - stem.len()));
    let mut names: Vec<String> = ["a", "b", "A", "B"].iter().map(|end| format!("{long}{end}")).collect();
    names.extend([":", "-", "_", "."].map(|separator| format!("{stem}{separator}x")));
    let mut topics = Vec::new();
    for (count, name) in (1..).zip(&names) {
        let topic = kit.topic_named(name, 1).await?;
        topic.fill(0, count).await?;
        topics.push(topic);
    }
    for (count, topic) in (1..).zip(&topics) {
        ensure_eq!(topic.read_all(0).await?.len(), count, "records of topic {}", topic.name);
    }
    // The same names as groups of one topic, and once more as instances of one group.
    let topic = &topics[3];
    let places = seqs(&topic.read_all(0).await?);
    let mut subscriptions = Vec::new();
    for name in &names {
        let group = topic.subscription(name)?;
        let mut durable = topic.subscription("g")?;
        durable.instance = Some(InstanceId::new(name).map_err(Violation::new)?);
        subscriptions.extend([group, durable]);
    }
    for subscription in &subscriptions {
        let new = kit.store.register(&registration(subscription.clone(), Start::Earliest)).await?.new;
        ensure!(new, "{subscription} was taken for another subscription");
    }
    let first = Owned::new(topic.clone(), 0, &names[0]).await?;
    first.commit(Write::to(places[1])).await?;
    for subscription in &subscriptions {
        let expected = if *subscription == first.subscription { places[1] } else { Seq::ZERO };
        let watermark = kit.store.load(subscription).await?[0].checkpoint.watermark;
        ensure_eq!(watermark, expected, "the watermark of {subscription}");
    }
    Ok(())
}

pub(super) async fn p11_stored_deliveries_come_back_whole(kit: Kit<'_>) -> Outcome {
    let headers: Headers = odd_bytes().into_iter().enumerate().map(|(n, v)| (format!("h{n}"), v)).collect();
    let mut events = Vec::new();
    for bytes in odd_bytes() {
        let key = Some(Key::new(bytes.clone()));
        events.push(NewEvent { key, headers: headers.clone(), payload: bytes.into(), ..event(0, 0) });
    }
    events.push(NewEvent { payload: vec![7; 1 << 20].into(), ..event(0, 0) });
    let owned = kit.owned_events(events).await?;
    let mut rows = Vec::new();
    for (index, (reason, _)) in (0..owned.events.len()).zip(DeadReason::ALL.into_iter().cycle()) {
        let mut row = owned.row(index, DEAD);
        row.failure.reason = Some(reason);
        row.attempts = u32::MAX >> (index % 2);
        row.failure.error = format!("\0 'quoted' \u{1f980} {}", "e".repeat(index * 700));
        row.failure.deferred_since = (index % 2 == 0).then_some(Timestamp(-5));
        rows.push(row);
    }
    rows[0].failure = Failure::default();
    rows[1].state = RowState::Parked { due: Timestamp(i64::MIN) };
    rows[2].state = RowState::Parked { due: Timestamp::MAX };
    rows[3].state = RowState::Waiting;
    rows[4].state = RowState::Dead { blocks: true };
    owned.commit(rows.iter().cloned().fold(Write::to(owned.last_seq()), Write::put)).await?;
    let places = seqs(&owned.events);
    let stored = kit.store.get(&owned.subscription, Shard(0), &places).await?;
    ensure_eq!(stored.len(), rows.len(), "rows");
    for (number, (stored, row)) in stored.into_iter().zip(rows).enumerate() {
        ensure!(stored.version > 0, "row number {number} has version 0");
        let stored = StoredDelivery { version: row.version, ..stored };
        ensure!(stored == row, "row number {number} came back changed: {stored:?} for {row:?}");
    }
    ensure_eq!(owned.discard(&any_dead()).await?, places.len() as u64 - 3, "dead rows");
    Ok(())
}
