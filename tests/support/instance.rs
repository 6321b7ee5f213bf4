//! Instances of a service, which can crash.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use photon::store::{Checkpoint, Cursor, ReadLimit};
use photon::{
    Backoff, DrainReport, Error, Event, Executor, GroupName, InstanceId, Options, Photon, PhotonBuilder, Seq,
    SubscriptionId, TopicName,
};
use photon_backend::wrap::fault::{Fault, Faults, Rule};

use super::engines::World;
use super::probe::Probe;

/// What the tests run with unless they say otherwise: everything that takes time takes little.
pub fn options() -> Options {
    Options {
        max_attempts: Some(4),
        backoff: Some(Backoff::Fixed(Duration::from_millis(10))),
        jitter: Some(0.0),
        checkpoint_interval: Some(Duration::from_millis(20)),
        ..Options::NONE
    }
}

/// How an instance is going to be started.
pub struct Plan<'a> {
    world: &'a World,
    groups: Vec<&'static str>,
    options: Options,
    pub faults: Faults,
    change: Vec<Box<dyn FnOnce(PhotonBuilder) -> PhotonBuilder>>,
}

impl World {
    /// An instance that works on these groups.
    pub fn plan(&self, groups: impl IntoIterator<Item = &'static str>) -> Plan<'_> {
        Plan {
            world: self,
            groups: groups.into_iter().collect(),
            options: Options::NONE,
            faults: Faults::seeded(1),
            change: Vec::new(),
        }
    }

    /// A running instance with the usual options.
    pub async fn start(&self, groups: impl IntoIterator<Item = &'static str>) -> Instance {
        self.plan(groups).start().await
    }

    /// A Photon that only publishes, and that no fault reaches.
    pub async fn publisher(&self) -> Photon {
        let builder = Photon::builder().store(self.store.clone()).clock(self.engine.clock);
        builder.state(Probe::default()).allow_no_handlers().build().await.unwrap()
    }

    /// Every event of a topic, in no particular order; none if there is no such topic.
    pub async fn events(&self, topic: &str) -> Vec<Event> {
        let topic = TopicName::new(topic).unwrap();
        let Ok(bounds) = self.store.bounds(&topic).await else { return Vec::new() };
        let mut cursors: Vec<_> =
            bounds.iter().map(|b| Cursor { shard: b.shard, after: Seq::ZERO }).collect();
        let mut events = Vec::new();
        loop {
            let limit = ReadLimit { records: 500, bytes: 1 << 20 };
            let records = self.store.read(&topic, &cursors, limit).await.unwrap().records;
            if records.is_empty() {
                return events;
            }
            for event in &records {
                let cursor = cursors.iter_mut().find(|cursor| cursor.shard == event.shard).unwrap();
                cursor.after = event.seq;
            }
            events.extend(records);
        }
    }

    /// The stored checkpoint of the topic with one shard.
    pub async fn checkpoint(&self) -> Checkpoint {
        let stored = self.store.load(&subscription("single", "single")).await.unwrap();
        stored.into_iter().next().map(|stored| stored.checkpoint).unwrap_or_default()
    }
}

/// A subscription of a group.
pub fn subscription(topic: &str, group: &str) -> SubscriptionId {
    SubscriptionId::new(TopicName::new(topic).unwrap(), GroupName::new(group).unwrap())
}

impl Plan<'_> {
    /// Options over the usual ones.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// Something else about the builder.
    pub fn with(mut self, change: impl FnOnce(PhotonBuilder) -> PhotonBuilder + 'static) -> Self {
        self.change.push(Box::new(change));
        self
    }

    /// Instance `index` of `count`.
    pub fn member(self, index: u32, count: u32) -> Self {
        self.with(move |builder| builder.group(index, count))
    }

    /// Something that goes wrong from the beginning.
    pub fn fault(self, rule: Rule) -> Self {
        self.faults.add(rule);
        self
    }

    pub async fn build(self) -> Instance {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let world = self.world;
        let probe = world.probe.of_instance(NUMBER.fetch_add(1, Ordering::Relaxed));
        let store = self.faults.wrap(world.engine.home.open().await);
        let mut builder = Photon::builder()
            .store(std::sync::Arc::new(store))
            .clock(world.engine.clock)
            .state(probe.clone())
            .only(self.groups)
            .lease_ttl(world.engine.lease_ttl())
            .options(options())
            .options(self.options);
        for change in self.change {
            builder = change(builder);
        }
        let photon = builder.build().await.unwrap();
        Instance { photon, executor: None, faults: self.faults, probe }
    }

    pub async fn start(self) -> Instance {
        let mut instance = self.build().await;
        instance.executor = Some(instance.photon.start_executor().await.unwrap());
        instance
    }
}

/// An instance of the service.
pub struct Instance {
    pub photon: Photon,
    pub executor: Option<Executor>,
    pub faults: Faults,
    pub probe: Probe,
}

impl Instance {
    /// Ends at once and without a word, as a process that is killed: no call reaches the store any more, and what
    /// its handlers still do does not count.
    pub fn crash(self) {
        self.probe.kill();
        self.faults.clear();
        self.faults.add(Rule::new(Fault::Hang));
        // Whatever it would say at its end, the store does not hear it.
        drop(self.executor);
    }

    /// The orderly end.
    pub async fn stop(mut self) -> DrainReport {
        let executor = self.executor.take().unwrap();
        executor.shutdown();
        within(executor.join()).await
    }

    /// The orderly end, after everything that can be handled is.
    pub async fn drain(mut self) -> Result<DrainReport, Error> {
        within(self.executor.take().unwrap().drain()).await
    }

    /// Waits until everything that can be handled is.
    pub async fn quiet(&self) {
        within(self.executor.as_ref().unwrap().quiet()).await.unwrap();
    }
}

/// What must end, ends in this time.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("it takes far too long")
}

/// A name for an instance.
pub fn instance_id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

/// Asks until the answer is yes: for what the store knows.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let wait = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(ended.is_ok(), "it never came to this: {what}");
}
