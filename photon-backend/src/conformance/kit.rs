//! What checks are made of: topics and events with names and values of their own.

use std::sync::Arc;

use bytes::Bytes;
use photon_core::event::{Event, NewEvent};
use photon_core::headers::Headers;
use photon_core::ids::{
    EventId, Generation, GroupName, Incarnation, InstanceId, Key, Seq, Shard, SubscriptionId, TopicName,
};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Appended, Claim, ClaimResult, Cursor, Fence, Member, MemberInfo, ReadLimit, Registered, Registration,
    ShardClaim, ShardRead, Store, TopicSpec,
};
use uuid::Uuid;

use super::Harness;
use super::verdict::{Outcome, Violation};

/// A limit that no check reaches.
pub(super) const NO_LIMIT: ReadLimit = ReadLimit { records: 1 << 20, bytes: 1 << 30 };

/// What a check gets.
pub(super) struct Kit<'a> {
    pub(super) store: Arc<dyn Store>,
    pub(super) harness: &'a dyn Harness,
    pub(super) seed: u64,
    pub(super) rounds: u32,
}

/// A name that nobody used before.
pub(super) fn fresh_name(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::new_v4().simple())
}

/// A valid topic name.
pub(super) fn topic_name(name: &str) -> Outcome<TopicName> {
    TopicName::new(name).map_err(Violation::new)
}

/// A valid group name.
pub(super) fn group_name(name: &str) -> Outcome<GroupName> {
    GroupName::new(name).map_err(Violation::new)
}

pub(super) fn spec(name: &TopicName, shards: u16) -> TopicSpec {
    TopicSpec {
        name: name.clone(),
        shards,
        key: Some("field:customer_id".to_owned()),
        generation: Generation(Uuid::new_v4()),
    }
}

/// An event whose payload is its number.
pub(super) fn event(shard: u16, number: u64) -> NewEvent {
    NewEvent {
        id: EventId(Uuid::now_v7()),
        shard: Shard(shard),
        key: None,
        headers: Headers::new(),
        payload: Bytes::from(number.to_string()),
        dedup_id: None,
    }
}

pub(super) fn keyed(shard: u16, number: u64, key: &str) -> NewEvent {
    NewEvent { key: Some(Key::new(key.to_owned())), ..event(shard, number) }
}

pub(super) fn with_dedup(shard: u16, id: &str) -> NewEvent {
    NewEvent { dedup_id: Some(id.to_owned()), ..event(shard, 0) }
}

pub(super) fn seqs<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<Seq> {
    events.into_iter().map(|event| event.seq).collect()
}

/// A topic of the check.
#[derive(Clone)]
pub(super) struct Topic {
    pub(super) store: Arc<dyn Store>,
    pub(super) name: TopicName,
}

impl Kit<'_> {
    /// A new topic.
    pub(super) async fn topic(&self, shards: u16) -> Outcome<Topic> {
        self.topic_named(&fresh_name("topic"), shards).await
    }

    pub(super) async fn topic_named(&self, name: &str, shards: u16) -> Outcome<Topic> {
        let name = topic_name(name)?;
        self.store.ensure_topic(&spec(&name, shards)).await?;
        Ok(Topic { store: Arc::clone(&self.store), name })
    }

    /// A new member.
    pub(super) async fn member(&self) -> Outcome<Incarnation> {
        join(&*self.store).await
    }
}

/// Joins as a new member.
pub(super) async fn join(store: &dyn Store) -> Outcome<Incarnation> {
    let member = new_member()?;
    store.join(&member).await?;
    Ok(member.incarnation)
}

pub(super) fn new_member() -> Outcome<Member> {
    Ok(Member {
        incarnation: Incarnation(Uuid::new_v4()),
        instance: InstanceId::new(fresh_name("pod")).map_err(Violation::new)?,
        host: "host of the check".to_owned(),
        pid: 4_242,
        process_start: "17".to_owned(),
    })
}

/// What is known about a member.
pub(super) async fn member_info(store: &dyn Store, incarnation: Incarnation) -> Outcome<Option<MemberInfo>> {
    let members = store.members().await?;
    Ok(members.into_iter().find(|info| info.member.incarnation == incarnation))
}

/// Claims one shard.
pub(super) async fn claim(
    store: &dyn Store,
    incarnation: Incarnation,
    shard: &ShardClaim,
    replace: Option<(Incarnation, u64)>,
) -> Outcome<ClaimResult> {
    let results = store.claim(incarnation, &[Claim { shard: shard.clone(), replace }]).await?;
    let [result] = <[ClaimResult; 1]>::try_from(results).map_err(|results| {
        Violation::new(format!("one claim must have one answer, it has {}", results.len()))
    })?;
    Ok(result)
}

/// Claims a shard that is free.
pub(super) async fn take(store: &dyn Store, incarnation: Incarnation, shard: &ShardClaim) -> Outcome<Fence> {
    match claim(store, incarnation, shard, None).await? {
        ClaimResult::Granted(fence) => Ok(fence),
        ClaimResult::Held(by) => {
            Err(Violation::new(format!("a claim of a free shard failed: it is said to be held by {by:?}")))
        }
    }
}

impl Topic {
    /// Appends; every event must be new.
    pub(super) async fn append(&self, events: Vec<NewEvent>) -> Outcome<Vec<Seq>> {
        let appended = self.append_any(events).await?;
        ensure!(appended.iter().all(|a| !a.duplicate), "an event that is new was taken for a duplicate");
        Ok(appended.iter().map(|appended| appended.seq).collect())
    }

    /// Appends events that may be duplicates.
    pub(super) async fn append_any(&self, events: Vec<NewEvent>) -> Outcome<Vec<Appended>> {
        let count = events.len();
        let appended = self.store.append(&self.name, events).await?;
        ensure_eq!(appended.len(), count, "the number of receipts of a batch");
        Ok(appended)
    }

    /// Appends one batch with the payloads "0", "1", ... to a shard.
    pub(super) async fn fill(&self, shard: u16, count: u64) -> Outcome<Vec<Seq>> {
        self.append((0..count).map(|number| event(shard, number)).collect()).await
    }

    /// Reads one shard once.
    pub(super) async fn read(
        &self,
        shard: u16,
        after: Seq,
        limit: ReadLimit,
    ) -> Outcome<(Vec<Event>, ShardRead)> {
        let cursor = Cursor { shard: Shard(shard), after };
        let batch = self.store.read(&self.name, &[cursor], limit).await?;
        let [read] = <[ShardRead; 1]>::try_from(batch.shards).map_err(|reads| {
            Violation::new(format!("one cursor must have one answer, it has {}", reads.len()))
        })?;
        Ok((batch.records, read))
    }

    /// Everything after a place.
    pub(super) async fn read_after(&self, shard: u16, after: Seq) -> Outcome<Vec<Event>> {
        Ok(self.read(shard, after, NO_LIMIT).await?.0)
    }

    /// Everything that is kept of a shard.
    pub(super) async fn read_all(&self, shard: u16) -> Outcome<Vec<Event>> {
        self.read_after(shard, Seq::ZERO).await
    }

    pub(super) fn subscription(&self, group: &str) -> Outcome<SubscriptionId> {
        Ok(SubscriptionId::new(self.name.clone(), group_name(group)?))
    }

    /// Registers a group.
    pub(super) async fn register(&self, group: &str, start: Start) -> Outcome<(SubscriptionId, Registered)> {
        let registration = registration(self.subscription(group)?, start);
        let registered = self.store.register(&registration).await?;
        Ok((registration.subscription, registered))
    }
}

pub(super) fn registration(subscription: SubscriptionId, start: Start) -> Registration {
    Registration { subscription, start, mode: Mode::Group, expire_after: None }
}

pub(super) fn shard_claim(subscription: &SubscriptionId, shard: u16) -> ShardClaim {
    ShardClaim { subscription: subscription.clone(), shard: Shard(shard) }
}
