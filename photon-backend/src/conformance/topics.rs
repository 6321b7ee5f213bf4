//! Making topics.

use std::sync::Arc;

use futures::future::join_all;
use photon_core::ids::{Generation, Shard};
use photon_core::options::Start;
use photon_core::store::TopicSpec;
use uuid::Uuid;

use super::kit::{Kit, event, fresh_name, registration, spec, topic_name};
use super::verdict::Outcome;
use photon_core::ids::SubscriptionId;

pub(super) async fn ensuring_a_topic_again_finds_it(kit: Kit<'_>) -> Outcome {
    let name = topic_name(&fresh_name("topic"))?;
    let first = TopicSpec { key: Some("none".to_owned()), ..spec(&name, 3) };
    let made = kit.store.ensure_topic(&first).await?;
    ensure_eq!(made.shards, 3, "the shards of a new topic");
    ensure_eq!(made.generation, first.generation, "the generation of a new topic");
    let second = TopicSpec { generation: Generation(Uuid::new_v4()), ..first };
    let found = kit.store.ensure_topic(&second).await?;
    ensure_eq!(found, made, "the topic that was made before");
    Ok(())
}

pub(super) async fn another_shard_count_is_refused(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(3).await?;
    topic.fill(2, 2).await?;
    for shards in [1, 5] {
        let error = ensure_refused!(
            kit.store.ensure_topic(&spec(&topic.name, shards)).await,
            Refused,
            "another shard count"
        );
        let text = error.to_string();
        ensure!(
            text.contains('3') && text.contains(&shards.to_string()) && text.contains(topic.name.as_str()),
            "the error must name the topic, its shard count and the one that was asked for: {text}"
        );
    }
    ensure_eq!(kit.store.ensure_topic(&spec(&topic.name, 3)).await?.shards, 3, "the shards after a refusal");
    ensure_eq!(topic.read_all(2).await?.len(), 2, "the events after a refusal");
    Ok(())
}

pub(super) async fn another_key_is_refused(kit: Kit<'_>) -> Outcome {
    let name = topic_name(&fresh_name("topic"))?;
    let first = TopicSpec { key: Some("field:customer".to_owned()), ..spec(&name, 2) };
    let made = kit.store.ensure_topic(&first).await?;
    let other = TopicSpec { key: Some("field:order".to_owned()), ..first.clone() };
    let error = ensure_refused!(kit.store.ensure_topic(&other).await, Refused, "another key");
    let text = error.to_string();
    ensure!(
        text.contains("field:customer") && text.contains("field:order") && text.contains(name.as_str()),
        "the error must name the topic, its key and the one that was asked for: {text}"
    );
    let open = TopicSpec { key: None, ..first.clone() };
    ensure_eq!(kit.store.ensure_topic(&open).await?, made, "the topic, ensured with its key left open");
    ensure_refused!(kit.store.ensure_topic(&other).await, Refused, "another key after it was left open once");
    Ok(())
}

pub(super) async fn a_key_left_open_is_fixed_by_the_first_that_names_one(kit: Kit<'_>) -> Outcome {
    let name = topic_name(&fresh_name("topic"))?;
    let open = TopicSpec { key: None, ..spec(&name, 1) };
    kit.store.ensure_topic(&open).await?;
    let named = TopicSpec { key: Some("field:customer".to_owned()), ..open.clone() };
    kit.store.ensure_topic(&named).await?;
    let other = TopicSpec { key: Some("none".to_owned()), ..open.clone() };
    ensure_refused!(kit.store.ensure_topic(&other).await, Refused, "a second key for a topic that was open");
    kit.store.ensure_topic(&named).await?;
    kit.store.ensure_topic(&open).await?;
    Ok(())
}

pub(super) async fn many_ensure_one_topic_at_once(kit: Kit<'_>) -> Outcome {
    let name = topic_name(&fresh_name("topic"))?;
    let tasks = (0..16).map(|_| {
        let (store, spec) = (Arc::clone(&kit.store), spec(&name, 4));
        tokio::spawn(async move { store.ensure_topic(&spec).await })
    });
    let mut infos = Vec::new();
    for info in join_all(tasks).await {
        infos.push(info.map_err(super::Violation::new)??);
    }
    ensure!(infos.windows(2).all(|w| w[0] == w[1]), "processes got different topics: {infos:?}");
    Ok(())
}

pub(super) async fn an_unknown_topic_is_refused(kit: Kit<'_>) -> Outcome {
    let name = topic_name(&fresh_name("topic"))?;
    ensure_refused!(
        kit.store.append(&name, vec![event(0, 0)]).await,
        Refused,
        "an append to an unknown topic"
    );
    let group = super::kit::group_name("group")?;
    let registration = registration(SubscriptionId::new(name.clone(), group), Start::Earliest);
    ensure_refused!(kit.store.register(&registration).await, Refused, "a subscription to an unknown topic");
    ensure!(kit.store.bounds(&name).await.is_err(), "an unknown topic has bounds");
    Ok(())
}

pub(super) async fn bounds_tell_the_ends_of_every_shard(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(3).await?;
    let check = async |floors: [u64; 3], ends: [u64; 3]| -> Outcome {
        let bounds = kit.store.bounds(&topic.name).await?;
        let shards: Vec<Shard> = bounds.iter().map(|b| b.shard).collect();
        ensure_eq!(shards, [Shard(0), Shard(1), Shard(2)], "the shards in bounds");
        let seen: Vec<(u64, u64)> = bounds.iter().map(|b| (b.floor.0, b.end.0)).collect();
        let expected: Vec<(u64, u64)> = floors.into_iter().zip(ends).collect();
        ensure_eq!(seen, expected, "floor and end by shard");
        Ok(())
    };
    check([0; 3], [0; 3]).await?;
    let first = topic.fill(1, 3).await?;
    let second = topic.fill(2, 1).await?;
    check([0; 3], [0, first[2].0, second[0].0]).await?;
    kit.store.trim(&topic.name, Shard(1), first[1]).await?;
    check([0, first[1].0, 0], [0, first[2].0, second[0].0]).await?;
    kit.store.trim(&topic.name, Shard(2), second[0]).await?;
    check([0, first[1].0, second[0].0], [0, first[2].0, second[0].0]).await
}
