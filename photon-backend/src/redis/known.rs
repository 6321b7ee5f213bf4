//! What this process knows about topics and subscriptions: to find them quickly, and to make up for keys that the
//! server lost (`FLUSHALL`, a restart without its data). What was stored is gone then, but places that were given out
//! are not given out again, and subscriptions go on from where they were.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use photon_core::error::StoreError;
use photon_core::ids::{Generation, Seq, Shard, SubscriptionId, TopicName};
use photon_core::store::{Registered, Registration, TopicInfo, TopicSpec};
use uuid::Uuid;

use super::RedisStore;
use super::error::{Effect, Trouble, refused};
use super::link::Use;
use super::scripts;
use super::throttle::Throttle;
use crate::refusal::unknown_topic;
pub(super) use crate::refusal::unregistered;

#[derive(Default)]
pub(super) struct Known {
    topics: Mutex<HashMap<TopicName, Arc<Topic>>>,
    subscriptions: Mutex<HashMap<SubscriptionId, Arc<Subscription>>>,
    /// One topic is made anew at a time, and one subscription.
    mending: tokio::sync::Mutex<()>,
    /// Entries of streams that Photon did not write.
    pub(super) strangers: Throttle,
    /// Places where entries were removed.
    pub(super) holes: Throttle,
}

/// A topic that is or was in the store.
pub(super) struct Topic {
    pub(super) name: TopicName,
    pub(super) shards: u16,
    key: Option<String>,
    /// The last place of each shard that was seen here.
    seen: Vec<AtomicU64>,
    /// About how many bytes its records take; 0 before the first one was read.
    pub(super) record_bytes: AtomicUsize,
    /// How often it was made anew here.
    mended: AtomicU64,
}

impl Topic {
    pub(super) fn new(name: &TopicName, shards: u16, key: Option<String>) -> Self {
        Self {
            name: name.clone(),
            shards,
            key,
            seen: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            record_bytes: AtomicUsize::new(0),
            mended: AtomicU64::new(0),
        }
    }

    /// Refuses a shard that the topic does not have.
    pub(super) fn check(&self, shard: Shard) -> Result<(), StoreError> {
        if shard.0 < self.shards {
            return Ok(());
        }
        Err(refused(format!(
            "topic {:?} has no shard {shard}, its {} shards count from 0: use the shard count that ensure_topic \
             returned",
            self.name, self.shards
        )))
    }

    pub(super) fn shard_numbers(&self) -> impl Iterator<Item = Shard> + Clone + use<> {
        (0..self.shards).map(Shard)
    }

    /// A place was given out.
    pub(super) fn see(&self, shard: Shard, seq: Seq) {
        if let Some(seen) = self.seen.get(usize::from(shard.0)) {
            seen.fetch_max(seq.0, Ordering::Relaxed);
        }
    }

    /// The last place of a shard that is known to have been given out.
    pub(super) fn last_seen(&self, shard: Shard) -> Seq {
        Seq(self.seen.get(usize::from(shard.0)).map_or(0, |seen| seen.load(Ordering::Relaxed)))
    }
}

/// A subscription that was registered here.
struct Subscription {
    registration: Registration,
    /// How far it got in each shard, as far as was seen here.
    reached: Mutex<Vec<u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is a single step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// A registration that the server has taken in.
    pub(super) fn register(&self, registration: &Registration, registered: &Registered) {
        let reached = Mutex::new(registered.starts.iter().map(|seq| seq.0).collect());
        let subscription = Subscription { registration: registration.clone(), reached };
        lock(&self.subscriptions).insert(registration.subscription.clone(), Arc::new(subscription));
    }

    /// A subscription has come so far.
    pub(super) fn reach(&self, subscription: &SubscriptionId, shard: Shard, seq: Seq) {
        self.change_reached(subscription, shard, |reached| *reached = seq.0.max(*reached));
    }

    /// A subscription was set to this place.
    pub(super) fn set_back(&self, subscription: &SubscriptionId, shard: Shard, seq: Seq) {
        self.change_reached(subscription, shard, |reached| *reached = seq.0);
    }

    fn change_reached(&self, subscription: &SubscriptionId, shard: Shard, change: impl FnOnce(&mut u64)) {
        if let Some(known) = self.subscription(subscription)
            && let Some(reached) = lock(&known.reached).get_mut(usize::from(shard.0))
        {
            change(reached);
        }
    }

    pub(super) fn forget(&self, subscription: &SubscriptionId) {
        lock(&self.subscriptions).remove(subscription);
    }

    fn subscription(&self, subscription: &SubscriptionId) -> Option<Arc<Subscription>> {
        lock(&self.subscriptions).get(subscription).cloned()
    }
}

/// Runs a piece of work that looks at keys of a topic and of a subscription, if there is one; again, if they are gone and
/// could be made anew.
macro_rules! mending {
    ($store:expr, $topic:expr, $subscription:expr, $work:expr) => {{
        let mut tries = 0;
        loop {
            let mended = $topic.mended();
            match $work.await {
                Err(trouble) if tries < 2 && trouble.is_loss() => {
                    $store.mend(&$topic, $subscription, mended, &trouble).await?;
                    tries += 1;
                }
                other => break $store.last_word(&$topic, $subscription, other),
            }
        }
    }};
}
pub(super) use mending;

impl Topic {
    /// To find out later whether somebody else made it anew meanwhile.
    pub(super) fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }
}

impl RedisStore {
    /// A topic that was ensured, here or elsewhere.
    pub(super) async fn topic(&self, name: &TopicName) -> Result<Arc<Topic>, StoreError> {
        match self.find_topic(name).await? {
            Some(topic) => Ok(topic),
            None => Err(unknown_topic(name)),
        }
    }

    /// The same; `None` if it never was.
    pub(super) async fn find_topic(&self, name: &TopicName) -> Result<Option<Arc<Topic>>, StoreError> {
        let inner = &self.inner;
        if let Some(topic) = lock(&inner.known.topics).get(name) {
            return Ok(Some(Arc::clone(topic)));
        }
        let mut command = redis::cmd("HMGET");
        command.arg(inner.keys.topic(name)).arg("shards").arg("key");
        let asked = inner.links.ask(Use::Control, Effect::Read, &command).await;
        let (shards, key): (Option<u16>, Option<String>) = self.plain(asked)?;
        let Some(shards) = shards else { return Ok(None) };
        let key = key.map(|key| key.trim_start_matches('k').to_owned());
        Ok(Some(self.know_topic(Topic::new(name, shards, key))))
    }

    fn know_topic(&self, topic: Topic) -> Arc<Topic> {
        let mut topics = lock(&self.inner.known.topics);
        Arc::clone(topics.entry(topic.name.clone()).or_insert_with(|| Arc::new(topic)))
    }

    /// Makes a topic or finds it.
    pub(super) async fn make_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        let topic = Topic::new(&spec.name, spec.shards, spec.key.clone());
        let (generation, shards, key) = self.ensure(&topic, spec.generation).await?;
        let name = &spec.name;
        if shards != spec.shards {
            let asked = spec.shards;
            return Err(refused(format!(
                "topic {name:?} has {shards} shards, not {asked}: give it {shards} again, or move its events to a \
                 topic with another name"
            )));
        }
        if let (Some(kept), Some(asked)) = (&key, &spec.key)
            && kept != asked
        {
            return Err(refused(format!(
                "topic {name:?} is ordered by the key {kept:?}, not {asked:?}: give it the first one again, or move \
                 its events to a topic with another name"
            )));
        }
        self.know_topic(Topic { key, ..topic });
        Ok(TopicInfo { generation, shards })
    }

    /// Makes what is missing, and tells what there is.
    async fn ensure(
        &self,
        topic: &Topic,
        generation: Generation,
    ) -> Result<(Generation, u16, Option<String>), StoreError> {
        let inner = &self.inner;
        let mut keys = vec![inner.keys.topic(&topic.name)];
        for shard in topic.shard_numbers() {
            keys.extend([inner.keys.shard(&topic.name, shard), inner.keys.log(&topic.name, shard)]);
        }
        let answer = inner.links.run(Use::Control, Effect::Write, &scripts::ENSURE, &keys, |command| {
            let key = topic.key.as_ref().map_or_else(String::new, |key| format!("k{key}"));
            command.arg(topic.shards).arg(generation.0.to_string()).arg(key);
            for seen in &topic.seen {
                command.arg(seen.load(Ordering::Relaxed));
            }
        });
        let (kept, shards, key): (String, u16, String) = self.plain(answer.await)?;
        let kept = Uuid::parse_str(&kept)
            .map_err(|error| self.target().strange(format!("topic {:?}", topic.name)).with_source(error))?;
        let key = key.strip_prefix('k').map(ToOwned::to_owned);
        Ok((Generation(kept), shards, key))
    }

    /// Makes anew what the trouble says is gone. A topic is left alone that was made anew since it had been `mended` so
    /// often.
    pub(super) async fn mend(
        &self,
        topic: &Topic,
        subscription: Option<&SubscriptionId>,
        mended: u64,
        trouble: &Trouble,
    ) -> Result<(), StoreError> {
        let _one = self.inner.known.mending.lock().await;
        match (trouble, subscription) {
            (Trouble::NoSubscription, Some(subscription)) => {
                self.mend_subscription(topic, subscription).await
            }
            _ if topic.mended() == mended => self.mend_topic(topic).await,
            _ => Ok(()),
        }
    }

    async fn mend_topic(&self, topic: &Topic) -> Result<(), StoreError> {
        self.ensure(topic, Generation(Uuid::new_v4())).await?;
        topic.mended.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            topic = %topic.name, prefix = self.inner.keys.prefix(),
            "the keys of the topic were gone from the Redis server and were made anew: the events that they held are \
             lost. Was FLUSHALL called, or the server restarted without its files?",
        );
        Ok(())
    }

    /// Makes a subscription known again if it was registered here. One that was forgotten by its name stays forgotten.
    async fn mend_subscription(
        &self,
        topic: &Topic,
        subscription: &SubscriptionId,
    ) -> Result<(), StoreError> {
        let Some(known) = self.inner.known.subscription(subscription) else {
            return Err(unregistered(subscription));
        };
        let reached = lock(&known.reached).clone();
        let mut registered = self.register_in(topic, &known.registration, Some(&reached)).await;
        if matches!(registered, Err(Trouble::NoTopic)) {
            self.mend_topic(topic).await?;
            registered = self.register_in(topic, &known.registration, Some(&reached)).await;
        }
        if matches!(registered, Err(Trouble::NoSubscription)) {
            self.inner.known.forget(subscription);
        }
        self.last_word(topic, Some(subscription), registered)?;
        tracing::error!(
            %subscription,
            "a position of the subscription was gone from the Redis server: it goes on from where this process saw it \
             last; parked deliveries and dead letters may be lost",
        );
        Ok(())
    }

    /// What the caller gets.
    pub(super) fn last_word<T>(
        &self,
        topic: &Topic,
        subscription: Option<&SubscriptionId>,
        result: Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        result.map_err(|trouble| match (trouble, subscription) {
            (Trouble::Store(error), _) => error,
            (Trouble::NoSubscription, Some(subscription)) => unregistered(subscription),
            // It was there a moment ago, so somebody removes keys again and again.
            (Trouble::NoTopic, _) => unknown_topic(&topic.name),
            (other, _) => self.target().strange(format!("the answer {other:?}")),
        })
    }

    /// What the caller gets of work that needs no topic and no subscription.
    pub(super) fn plain<T>(&self, result: Result<T, Trouble>) -> Result<T, StoreError> {
        result.map_err(|trouble| match trouble {
            Trouble::Store(error) => error,
            other => self.target().strange(format!("the answer {other:?}")),
        })
    }
}
