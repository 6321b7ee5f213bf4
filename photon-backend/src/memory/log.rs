//! The logs of topics.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use photon_core::error::StoreError;
use photon_core::event::{Event, NewEvent};
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Generation, Key, MAX_SHARDS, Seq, Shard, TopicName};
use photon_core::store::{
    Appended, Bounds, Cursor, EventLog, ReadBatch, ReadLimit, ShardRead, TopicInfo, TopicSpec, Wake,
};
use photon_core::time::Timestamp;
use tokio::sync::watch;

use super::MemoryStore;
use crate::position::refused;
use crate::refusal::unknown_topic;

/// The place of a topic: there from the first mention, so that a listener can wait for a topic to come.
pub(super) struct TopicSlot {
    log: RwLock<Option<TopicLog>>,
    wake: watch::Sender<()>,
}

/// A topic that was ensured.
pub(super) struct TopicLog {
    generation: Generation,
    key: Option<String>,
    shards: Vec<ShardLog>,
}

/// One shard. Places are given out one by one: the record at index `i` has the place `floor + 1 + i`.
#[derive(Default)]
struct ShardLog {
    records: VecDeque<Record>,
    floor: u64,
    /// Up to here it was announced that records are going to be trimmed.
    announced: u64,
    last_time: Timestamp,
    dedup: HashMap<Arc<str>, Seq>,
    /// The ids in `dedup` with their times, oldest first.
    dedup_ages: VecDeque<(Timestamp, Arc<str>)>,
}

struct Record {
    id: EventId,
    key: Option<Key>,
    headers: Headers,
    payload: Bytes,
    time: Timestamp,
}

/// What is left of a [`ReadLimit`].
struct Budget {
    records: usize,
    bytes: usize,
}

impl Budget {
    fn new(limit: ReadLimit) -> Self {
        // One record is always allowed, whatever the limit says.
        Self { records: limit.records.max(1), bytes: limit.bytes.max(1) }
    }

    fn is_spent(&self) -> bool {
        self.records == 0 || self.bytes == 0
    }

    fn spend(&mut self, payload: usize) {
        self.records -= 1;
        self.bytes = self.bytes.saturating_sub(payload);
    }
}

impl ShardLog {
    fn end(&self) -> Seq {
        Seq(self.floor + self.records.len() as u64)
    }

    fn start(&self) -> Seq {
        Seq(self.announced.max(self.floor))
    }

    fn append(&mut self, event: NewEvent, now: Timestamp, window: Duration) -> Appended {
        let time = now.max(self.last_time);
        let seq = Seq(self.end().0 + 1);
        if let Some(id) = event.dedup_id {
            self.forget_dedup_ids(time, window);
            if let Some(first) = self.dedup.get(id.as_str()) {
                return Appended { seq: *first, duplicate: true };
            }
            let id: Arc<str> = id.into();
            self.dedup.insert(Arc::clone(&id), seq);
            self.dedup_ages.push_back((time, id));
        }
        self.last_time = time;
        let NewEvent { id, key, headers, payload, .. } = event;
        self.records.push_back(Record { id, key, headers, payload, time });
        Appended { seq, duplicate: false }
    }

    fn forget_dedup_ids(&mut self, now: Timestamp, window: Duration) {
        while let Some((time, _)) = self.dedup_ages.front()
            && time.saturating_add(window) <= now
        {
            if let Some((_, id)) = self.dedup_ages.pop_front() {
                self.dedup.remove(&id);
            }
        }
    }

    /// How many records lie at or before `seq`.
    fn index_after(&self, seq: Seq) -> usize {
        let before = seq.0.saturating_sub(self.floor).min(self.records.len() as u64);
        usize::try_from(before).unwrap_or(self.records.len())
    }

    fn read(
        &self,
        topic: &TopicName,
        cursor: Cursor,
        budget: &mut Budget,
        out: &mut Vec<Event>,
    ) -> ShardRead {
        let start = self.index_after(cursor.after);
        let mut next = start;
        out.reserve((self.records.len() - start).min(budget.records));
        for record in self.records.range(start..) {
            if budget.is_spent() {
                break;
            }
            budget.spend(record.payload.len());
            next += 1;
            out.push(Event {
                id: record.id,
                topic: topic.clone(),
                shard: cursor.shard,
                seq: Seq(self.floor + next as u64),
                key: record.key.clone(),
                headers: record.headers.clone(),
                payload: record.payload.clone(),
                time: record.time,
            });
        }
        ShardRead {
            shard: cursor.shard,
            through: cursor.after.max(Seq(self.floor + next as u64)),
            floor: Seq(self.floor),
            end: self.end(),
        }
    }

    fn position_at(&self, time: Timestamp) -> Seq {
        Seq(self.floor + self.records.partition_point(|record| record.time < time) as u64)
    }

    /// Takes the records out that are trimmed, for the caller to drop.
    fn trim(&mut self, through: Seq) -> Vec<Record> {
        let trimmed: Vec<Record> = self.records.drain(..self.index_after(through)).collect();
        self.floor += trimmed.len() as u64;
        trimmed
    }
}

impl TopicLog {
    fn new(spec: &TopicSpec) -> Self {
        Self {
            generation: spec.generation,
            key: spec.key.clone(),
            shards: (0..spec.shards).map(|_| ShardLog::default()).collect(),
        }
    }

    /// Checks that the topic is what `spec` says, and takes over a key that was left open until now.
    fn verify(&mut self, spec: &TopicSpec) -> Result<(), StoreError> {
        let name = &spec.name;
        if self.shards.len() != usize::from(spec.shards) {
            return Err(refused(format!(
                "topic {name:?} has {} shards, not {}: give it {} again, or move its events to a topic with \
                 another name",
                self.shards.len(),
                spec.shards,
                self.shards.len()
            )));
        }
        match (&self.key, &spec.key) {
            (Some(kept), Some(asked)) if kept != asked => Err(refused(format!(
                "topic {name:?} is ordered by the key {kept:?}, not {asked:?}: give it the first one again, or \
                 move its events to a topic with another name"
            ))),
            (None, Some(asked)) => {
                self.key = Some(asked.clone());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn index(&self, topic: &TopicName, shard: Shard) -> Result<usize, StoreError> {
        let index = usize::from(shard.0);
        if index < self.shards.len() {
            return Ok(index);
        }
        Err(refused(format!(
            "topic {topic:?} has no shard {shard}, its {} shards count from 0: use the shard count that \
             ensure_topic returned",
            self.shards.len()
        )))
    }

    /// The places that a new position starts after at the earliest.
    pub(super) fn starts(&self) -> Vec<Seq> {
        self.shards.iter().map(ShardLog::start).collect()
    }

    pub(super) fn starts_at(&self, time: Timestamp) -> Vec<Seq> {
        self.shards.iter().map(|shard| shard.position_at(time).max(shard.start())).collect()
    }

    pub(super) fn ends(&self) -> Vec<Seq> {
        self.shards.iter().map(ShardLog::end).collect()
    }

    pub(super) fn positions_at(&self, time: Timestamp) -> Vec<Seq> {
        self.shards.iter().map(|shard| shard.position_at(time)).collect()
    }
}

impl MemoryStore {
    fn find_slot(&self, topic: &TopicName) -> Option<Arc<TopicSlot>> {
        self.inner.topics.read().unwrap_or_else(PoisonError::into_inner).get(topic).cloned()
    }

    fn slot(&self, topic: &TopicName) -> Arc<TopicSlot> {
        self.find_slot(topic).unwrap_or_else(|| {
            let mut topics = self.inner.topics.write().unwrap_or_else(PoisonError::into_inner);
            let slot = topics.entry(topic.clone()).or_insert_with(|| {
                Arc::new(TopicSlot { log: RwLock::default(), wake: watch::Sender::new(()) })
            });
            Arc::clone(slot)
        })
    }

    /// Looks at a topic that was ensured.
    pub(super) fn with_log<T>(
        &self,
        topic: &TopicName,
        look: impl FnOnce(&TopicLog) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let slot = self.find_slot(topic).ok_or_else(|| unknown_topic(topic))?;
        let log = slot.log.read().unwrap_or_else(PoisonError::into_inner);
        look(log.as_ref().ok_or_else(|| unknown_topic(topic))?)
    }
}

#[async_trait]
impl EventLog for MemoryStore {
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        if !(1..=MAX_SHARDS).contains(&spec.shards) {
            return Err(refused(format!(
                "topic {:?} cannot have {} shards: give it 1 to {MAX_SHARDS}",
                spec.name, spec.shards
            )));
        }
        let slot = self.slot(&spec.name);
        let mut log = slot.log.write().unwrap_or_else(PoisonError::into_inner);
        let log = log.get_or_insert_with(|| TopicLog::new(spec));
        log.verify(spec)?;
        Ok(TopicInfo { generation: log.generation, shards: spec.shards })
    }

    async fn append(&self, topic: &TopicName, events: Vec<NewEvent>) -> Result<Vec<Appended>, StoreError> {
        let slot = self.find_slot(topic).ok_or_else(|| unknown_topic(topic))?;
        let now = self.now();
        let window = self.inner.options.dedup_window;
        let mut appended = Vec::with_capacity(events.len());
        {
            let mut log = slot.log.write().unwrap_or_else(PoisonError::into_inner);
            let log = log.as_mut().ok_or_else(|| unknown_topic(topic))?;
            for event in &events {
                log.index(topic, event.shard)?;
            }
            for event in events {
                let shard = &mut log.shards[usize::from(event.shard.0)];
                appended.push(shard.append(event, now, window));
            }
        }
        slot.wake.send_replace(());
        Ok(appended)
    }

    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        self.with_log(topic, |log| {
            let mut budget = Budget::new(limit);
            let mut batch = ReadBatch { records: Vec::new(), shards: Vec::with_capacity(cursors.len()) };
            for cursor in cursors {
                let shard = &log.shards[log.index(topic, cursor.shard)?];
                batch.shards.push(shard.read(topic, *cursor, &mut budget, &mut batch.records));
            }
            Ok(batch)
        })
    }

    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        self.with_log(topic, |log| {
            let bounds = |(shard, log): (u16, &ShardLog)| Bounds {
                shard: Shard(shard),
                floor: Seq(log.floor),
                end: log.end(),
            };
            Ok((0..).zip(&log.shards).map(bounds).collect())
        })
    }

    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError> {
        self.with_log(topic, |log| Ok(log.positions_at(time)))
    }

    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let slot = self.find_slot(topic).ok_or_else(|| unknown_topic(topic))?;
        let mut log = slot.log.write().unwrap_or_else(PoisonError::into_inner);
        let log = log.as_mut().ok_or_else(|| unknown_topic(topic))?;
        let index = log.index(topic, shard)?;
        let shard = &mut log.shards[index];
        shard.announced = shard.announced.max(through.0.min(shard.end().0));
        Ok(())
    }

    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let slot = self.find_slot(topic).ok_or_else(|| unknown_topic(topic))?;
        let trimmed = {
            let mut log = slot.log.write().unwrap_or_else(PoisonError::into_inner);
            let log = log.as_mut().ok_or_else(|| unknown_topic(topic))?;
            let index = log.index(topic, shard)?;
            log.shards[index].trim(through)
        };
        // Freed outside the lock: it can be many.
        drop(trimmed);
        Ok(())
    }

    fn wake(&self, topic: &TopicName) -> Box<dyn Wake> {
        Box::new(Listener(self.slot(topic).wake.subscribe()))
    }

    fn poll_interval(&self) -> Duration {
        // Every append wakes; this is only a net below it.
        Duration::from_secs(1)
    }
}

/// Compares counters, so an append between two waits is never missed.
struct Listener(watch::Receiver<()>);

#[async_trait]
impl Wake for Listener {
    async fn wait(&mut self) {
        if self.0.changed().await.is_err() {
            // The store is gone: nothing will ever come.
            std::future::pending::<()>().await;
        }
    }
}
