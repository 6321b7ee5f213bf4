//! What an executor does beside its loops: removes old events, keeps its durable positions alive, and forgets those
//! that expired.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind, chain};
use photon_core::ids::{Seq, SubscriptionId, TopicName};
use photon_core::machine::outage::Outage;
use photon_core::machine::retention::{Keep, Reader, is_expired, trim_overdue, trim_through};
use photon_core::options::Mode;
use photon_core::store::{Bounds, Registration, SubscriptionInfo};
use photon_core::time::Timestamp;

use super::crew::Crew;
use crate::caught::caught;
use crate::inner::Inner;
use crate::retention::Retention;

/// How often it looks, unless a durable position expires sooner.
const ROUND: Duration = Duration::from_secs(60);
/// How long one round may take, however many topics and subscriptions there are.
const LONGEST: Duration = Duration::from_secs(900);

/// Goes on until it is dropped. Errors wait for the next round: nothing depends on one.
pub(super) async fn keep_house(inner: Arc<Inner>, crew: Arc<Crew>) -> Infallible {
    let mut outage = Outage::default();
    loop {
        let mut durable = crew.registrations();
        durable.retain(|registration| registration.mode == Mode::Durable);
        let soonest = durable.iter().filter_map(|registration| registration.expire_after).min();
        let every = soonest.map_or(ROUND, |expiry| ROUND.min(expiry / 3)).max(Duration::from_secs(1));
        inner.clock.sleep_until(inner.clock.mono() + every).await;
        match in_time(&inner, round(&inner, &durable)).await {
            Ok(()) => drop(outage.handle_succeeded(inner.clock.mono())),
            Err(error) => {
                if outage.handle_failed(inner.clock.mono()) {
                    tracing::warn!(
                        error = chain(&error),
                        "old events and positions stay for now: trying again"
                    );
                }
            }
        }
    }
}

/// Gives up on a round that takes too long or panics: the next one must come.
async fn in_time(
    inner: &Inner,
    round: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    let deadline = inner.clock.instant(inner.clock.mono() + LONGEST);
    tokio::time::timeout_at(deadline, caught(round)).await.unwrap_or_else(|_| {
        let message = format!("the store gave no answer for {LONGEST:?}: check that it is up");
        Err(StoreError::new(StoreErrorKind::Unavailable, message))
    })
}

async fn round(inner: &Inner, durable: &[Registration]) -> Result<(), StoreError> {
    for registration in durable {
        // It may be idle for longer than it may be gone.
        inner.store.register(registration).await?;
    }
    expire(inner).await?;
    for topic in topics(inner).await? {
        let retention = inner.config.retention_of(&topic);
        if !retention.is_forever() {
            trim(inner, &topic, retention).await?;
        }
    }
    Ok(())
}

/// The topics that this program or a subscription names and that the store has.
async fn topics(inner: &Inner) -> Result<BTreeSet<TopicName>, StoreError> {
    let mut topics: BTreeSet<TopicName> =
        inner.store.list().await?.into_iter().map(|info| info.subscription.topic).collect();
    topics.extend(inner.publisher.core().topics.names());
    topics.extend(inner.registry.topics.iter().filter_map(|topic| TopicName::new(topic.name).ok()));
    Ok(topics)
}

/// Forgets the positions of durable subscriptions whose instances are gone for too long.
async fn expire(inner: &Inner) -> Result<(), StoreError> {
    let now = inner.clock.wall();
    for info in inner.store.list().await?.into_iter().filter(|info| is_expired(info, now)) {
        let id = &info.subscription;
        // Whoever holds a shard is there, however quiet.
        if inner.store.holders(id).await?.is_empty() {
            inner.store.forget(id).await?;
            tracing::warn!(
                subscription = %id, last_active = %info.active, expire_after = ?info.expire_after,
                "its instance did not come back: its position and its stored deliveries are forgotten",
            );
        }
    }
    Ok(())
}

/// Where the readers of a topic stand, by shard.
struct Readers(Vec<(SubscriptionId, Vec<Seq>)>);

impl Readers {
    async fn of(inner: &Inner, topic: &TopicName) -> Result<Self, StoreError> {
        let known = inner.store.list().await?;
        let mut all = Vec::new();
        for SubscriptionInfo { subscription, .. } in
            known.into_iter().filter(|info| info.subscription.topic == *topic)
        {
            let stored = inner.store.load(&subscription).await?;
            all.push((subscription, stored.into_iter().map(|stored| stored.checkpoint.watermark).collect()));
        }
        Ok(Self(all))
    }

    fn of_shard(&self, bounds: Bounds) -> Vec<Reader> {
        let watermark = |places: &Vec<Seq>| places.get(usize::from(bounds.shard.0)).copied();
        let places = self.0.iter().map(|(_, places)| watermark(places).unwrap_or(Seq::ZERO));
        places.map(|watermark| Reader { watermark, expired: false }).collect()
    }
}

/// Removes the old events of a topic. What is going to be removed is announced before the readers are looked at for
/// the last time, so that no new one starts in it.
async fn trim(inner: &Inner, topic: &TopicName, retention: Retention) -> Result<(), StoreError> {
    let now = inner.clock.wall();
    let aged = ages(inner, topic, retention.after, now).await?;
    let overdue = ages(inner, topic, retention.limit, now).await?;
    let keep = Keep { age: retention.after, places: None };
    let readers = Readers::of(inner, topic).await?;
    for bounds in inner.store.bounds(topic).await? {
        let shard = usize::from(bounds.shard.0);
        let (aged, overdue) = (aged.get(shard).copied(), overdue.get(shard).copied());
        let through = |readers: &[Reader]| {
            let settled = retention.after.and_then(|_| trim_through(readers, keep, aged, bounds));
            settled.max(trim_overdue(overdue, bounds))
        };
        let Some(planned) = through(&readers.of_shard(bounds)) else { continue };
        inner.store.announce_trim(topic, bounds.shard, planned).await?;
        let readers = Readers::of(inner, topic).await?;
        let Some(end) = through(&readers.of_shard(bounds)) else { continue };
        let end = end.min(planned);
        inner.store.trim(topic, bounds.shard, end).await?;
        tell(topic, bounds, end, &readers);
    }
    Ok(())
}

async fn ages(
    inner: &Inner,
    topic: &TopicName,
    age: Option<Duration>,
    now: Timestamp,
) -> Result<Vec<Seq>, StoreError> {
    match (Keep { age, places: None }).cutoff(now) {
        Some(cutoff) => inner.store.position_at(topic, cutoff).await,
        None => Ok(Vec::new()),
    }
}

fn tell(topic: &TopicName, bounds: Bounds, through: Seq, readers: &Readers) {
    tracing::debug!(%topic, shard = %bounds.shard, %through, "old events removed");
    for (subscription, places) in &readers.0 {
        let watermark = places.get(usize::from(bounds.shard.0)).copied().unwrap_or(Seq::ZERO);
        if watermark < through {
            tracing::warn!(
                %subscription, shard = %bounds.shard, settled = %watermark, removed = %through,
                "events over the limit of retention were removed before this subscription had settled them",
            );
        }
    }
}
