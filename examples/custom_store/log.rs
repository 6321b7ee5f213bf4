//! The logs of topics.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::event::{Event, NewEvent};
use photon_core::ids::{Generation, MAX_SHARDS, Seq, Shard, TopicName};
use photon_core::store::{
    Appended, Bounds, Cursor, EventLog, ReadBatch, ReadLimit, ShardRead, TopicInfo, TopicSpec, Wake,
};
use photon_core::time::Timestamp;
use tokio::sync::watch;

use crate::{Content, Shelf, refused};

/// For so long a dedup id is remembered.
const DEDUP_WINDOW: Duration = Duration::from_secs(600);

/// A topic that was ensured.
pub struct Topic {
    generation: Generation,
    key: Option<String>,
    shards: Vec<ShardLog>,
}

/// One shard. `end` is the last place that was given out, also if its event was trimmed since: no place is ever
/// given out twice.
#[derive(Default)]
struct ShardLog {
    events: BTreeMap<Seq, Event>,
    end: Seq,
    floor: Seq,
    announced: Seq,
    last_time: Timestamp,
    dedup: Vec<(String, Seq, Timestamp)>,
}

impl ShardLog {
    fn append(&mut self, topic: &TopicName, new: NewEvent) -> Appended {
        // The clock of the machine may jump back, the times in a shard do not.
        let time = Timestamp::from(SystemTime::now()).max(self.last_time);
        let seq = Seq(self.end.0 + 1);
        if let Some(id) = new.dedup_id {
            self.dedup.retain(|(_, _, since)| since.saturating_add(DEDUP_WINDOW) > time);
            if let Some((_, first, _)) = self.dedup.iter().find(|(known, ..)| *known == id) {
                return Appended { seq: *first, duplicate: true };
            }
            self.dedup.push((id, seq, time));
        }
        let NewEvent { id, shard, key, headers, payload, .. } = new;
        let event = Event { id, topic: topic.clone(), shard, seq, key, headers, payload, time };
        self.events.insert(seq, event);
        (self.end, self.last_time) = (seq, time);
        Appended { seq, duplicate: false }
    }

    /// Reads on from a cursor, as far as the limit goes.
    fn read(&self, cursor: Cursor, limit: &mut ReadLimit, out: &mut Vec<Event>) -> ShardRead {
        let mut through = cursor.after.max(self.end);
        let mut before = cursor.after;
        for (seq, event) in self.events.range((Excluded(cursor.after), Unbounded)) {
            if limit.records == 0 || limit.bytes == 0 {
                through = before;
                break;
            }
            limit.records -= 1;
            limit.bytes = limit.bytes.saturating_sub(event.payload.len());
            out.push(event.clone());
            before = *seq;
        }
        ShardRead { shard: cursor.shard, through, floor: self.floor, end: self.end }
    }

    /// Where a new subscription starts at the earliest: what is going to be trimmed is not for it.
    fn start(&self) -> Seq {
        self.floor.max(self.announced)
    }

    fn position_at(&self, time: Timestamp) -> Seq {
        let earlier = self.events.values().take_while(|event| event.time < time);
        earlier.last().map_or(self.floor, |event| event.seq)
    }
}

impl Topic {
    fn shard(&mut self, topic: &TopicName, shard: Shard) -> Result<&mut ShardLog, StoreError> {
        let shards = self.shards.len();
        self.shards
            .get_mut(usize::from(shard.0))
            .ok_or_else(|| refused(format!("topic {topic} has no shard {shard}: its {shards} count from 0")))
    }

    /// For each shard, the place that a new subscription starts after at the earliest.
    pub fn starts(&self) -> Vec<Seq> {
        self.shards.iter().map(ShardLog::start).collect()
    }

    pub fn starts_at(&self, time: Timestamp) -> Vec<Seq> {
        self.shards.iter().map(|shard| shard.position_at(time).max(shard.start())).collect()
    }

    pub fn ends(&self) -> Vec<Seq> {
        self.shards.iter().map(|shard| shard.end).collect()
    }
}

impl Content {
    pub fn topic(&mut self, name: &TopicName) -> Result<&mut Topic, StoreError> {
        self.topics.get_mut(name).ok_or_else(|| refused(format!("topic {name} is unknown: ensure it first")))
    }
}

#[async_trait]
impl EventLog for Shelf {
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        let TopicSpec { name, shards, key, generation } = spec;
        if !(1..=MAX_SHARDS).contains(shards) {
            return Err(refused(format!("topic {name} cannot have {shards} shards: 1 to {MAX_SHARDS}")));
        }
        let mut content = self.content();
        let topic = content.topics.entry(name.clone()).or_insert_with(|| Topic {
            generation: *generation,
            key: key.clone(),
            shards: (0..*shards).map(|_| ShardLog::default()).collect(),
        });
        if topic.shards.len() != usize::from(*shards) {
            let has = topic.shards.len();
            return Err(refused(format!("topic {name} has {has} shards, not {shards}: give it {has} again")));
        }
        match (&topic.key, key) {
            (Some(has), Some(wanted)) if has != wanted => {
                return Err(refused(format!(
                    "topic {name} has the key {has}, not {wanted}: keep the first one"
                )));
            }
            (None, Some(wanted)) => topic.key = Some(wanted.clone()),
            _ => {}
        }
        Ok(TopicInfo { generation: topic.generation, shards: *shards })
    }

    async fn append(&self, topic: &TopicName, events: Vec<NewEvent>) -> Result<Vec<Appended>, StoreError> {
        let mut content = self.content();
        let log = content.topic(topic)?;
        // First everything is checked: of a refused batch nothing is stored.
        for event in &events {
            log.shard(topic, event.shard)?;
        }
        let mut places = Vec::new();
        for event in events {
            places.push(log.shard(topic, event.shard)?.append(topic, event));
        }
        drop(content);
        self.news.send_replace(());
        Ok(places)
    }

    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        let mut content = self.content();
        let log = content.topic(topic)?;
        // One record is always allowed, whatever the limit says.
        let mut limit = ReadLimit { records: limit.records.max(1), bytes: limit.bytes.max(1) };
        let mut batch = ReadBatch::default();
        for cursor in cursors {
            let shard = log.shard(topic, cursor.shard)?;
            batch.shards.push(shard.read(*cursor, &mut limit, &mut batch.records));
        }
        Ok(batch)
    }

    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        let mut content = self.content();
        let shards = (0..).map(Shard).zip(&content.topic(topic)?.shards);
        Ok(shards.map(|(shard, log)| Bounds { shard, floor: log.floor, end: log.end }).collect())
    }

    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError> {
        Ok(self.content().topic(topic)?.shards.iter().map(|shard| shard.position_at(time)).collect())
    }

    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let mut content = self.content();
        let shard = content.topic(topic)?.shard(topic, shard)?;
        shard.announced = shard.announced.max(through.min(shard.end));
        Ok(())
    }

    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let mut content = self.content();
        let shard = content.topic(topic)?.shard(topic, shard)?;
        shard.floor = shard.floor.max(through.min(shard.end));
        let floor = shard.floor;
        shard.events.retain(|seq, _| *seq > floor);
        Ok(())
    }

    fn wake(&self, _topic: &TopicName) -> Box<dyn Wake> {
        Box::new(Listener(self.news.subscribe()))
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// Remembers what it has seen: an append between two waits is not missed.
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
