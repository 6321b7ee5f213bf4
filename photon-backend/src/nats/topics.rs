//! Topics and their streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use photon_core::error::StoreError;
use photon_core::ids::{Generation, MAX_SHARDS, Seq, Shard, TopicName};
use photon_core::store::{Bounds, TopicInfo, TopicSpec};
use photon_core::time::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

use super::Inner;
use super::api::{StreamConfig, StreamInfo};
use super::packet::{last_of, message_of};
use super::records::{Change, TopicRecord};
use super::tail::Tail;
use crate::position::refused;

const AT_ONCE: usize = 64;

/// The place of a topic: there from the first mention, so that a listener can wait for a topic to come.
pub(super) struct TopicSlot {
    pub(super) wake: watch::Sender<u64>,
    pub(super) listens: std::sync::atomic::AtomicBool,
    topic: Mutex<Option<Arc<Topic>>>,
}

/// A topic whose stream was seen.
pub(super) struct Topic {
    pub(super) name: TopicName,
    pub(super) stream: String,
    pub(super) shards: u16,
    pub(super) generation: Generation,
    replicated: bool,
    /// The last place that was seen of each shard.
    ends: Vec<AtomicU64>,
    /// Up to where each shard was seen to be trimmed.
    floors: Vec<AtomicU64>,
    /// Readers that wait for the next read.
    pub(super) tails: Mutex<Vec<Tail>>,
}

impl Topic {
    fn new(name: &TopicName, config: &StreamConfig, (generation, shards): (Generation, u16)) -> Self {
        let (stream, replicated) = (config.name.clone(), config.num_replicas > 1);
        let zeros = || (0..shards).map(|_| AtomicU64::new(0)).collect();
        let (ends, floors) = (zeros(), zeros());
        Self {
            name: name.clone(),
            stream,
            shards,
            generation,
            replicated,
            ends,
            floors,
            tails: Mutex::default(),
        }
    }

    pub(super) fn check(&self, shard: Shard) -> Result<(), StoreError> {
        if shard.0 < self.shards {
            return Ok(());
        }
        Err(refused(format!(
            "topic {:?} has no shard {shard}, its {} shards count from 0: name only shards that it has",
            self.name, self.shards
        )))
    }

    pub(super) fn saw_end(&self, shard: Shard, seq: u64) {
        if let Some(end) = self.ends.get(usize::from(shard.0)) {
            end.fetch_max(seq, Ordering::Relaxed);
        }
    }

    pub(super) fn seen_end(&self, shard: Shard) -> u64 {
        self.ends.get(usize::from(shard.0)).map_or(0, |end| end.load(Ordering::Relaxed))
    }

    /// The last place that was seen of all shards.
    pub(super) fn last_seen(&self) -> u64 {
        self.ends.iter().map(|end| end.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    pub(super) fn seen_floor(&self, shard: Shard) -> u64 {
        self.floors.get(usize::from(shard.0)).map_or(0, |floor| floor.load(Ordering::Relaxed))
    }

    fn saw_record(&self, record: &TopicRecord) {
        for (shard, floor) in (0..).zip(&self.floors) {
            floor.fetch_max(record.floor(shard), Ordering::Relaxed);
            self.saw_end(Shard(shard), record.floor(shard));
        }
    }
}

fn unknown_topic(topic: &TopicName) -> StoreError {
    refused(format!("topic {topic:?} is not in this store: call ensure_topic first"))
}

/// What the description of a stream says about its topic.
fn describe(spec: &TopicSpec) -> String {
    format!("Photon topic, version 1, {} shards, generation {}", spec.shards, spec.generation.0)
}

fn read_description(text: &str) -> Option<(Generation, u16)> {
    let rest = text.strip_prefix("Photon topic, version 1, ")?;
    let (shards, generation) = rest.split_once(" shards, generation ")?;
    let shards: u16 = shards.parse().ok()?;
    let fits = (1..=MAX_SHARDS).contains(&shards);
    let generation = Generation(Uuid::parse_str(generation).ok()?);
    fits.then_some((generation, shards))
}

impl Inner {
    pub(super) fn slot_of(&self, topic: &TopicName) -> Arc<TopicSlot> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = topics.entry(topic.clone()).or_insert_with(|| {
            Arc::new(TopicSlot {
                wake: watch::Sender::new(0),
                listens: false.into(),
                topic: Mutex::default(),
            })
        });
        Arc::clone(slot)
    }

    /// A topic that was ensured, here or by another process.
    pub(super) async fn topic(&self, name: &TopicName) -> Result<Arc<Topic>, StoreError> {
        let slot = self.slot_of(name);
        let known = || slot.topic.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(topic) = known() {
            return Ok(topic);
        }
        let stream = self.names.log_stream(name);
        let info = self.js.stream(&stream).await?.ok_or_else(|| unknown_topic(name))?;
        self.remember(name, &info).await
    }

    /// Keeps what is known of a topic: a stream that was made anew is another topic.
    async fn remember(&self, name: &TopicName, info: &StreamInfo) -> Result<Arc<Topic>, StoreError> {
        let described = self.check_stream(name, info)?;
        let topic = Arc::new(Topic::new(name, &info.config, described));
        self.topic_record(&topic).await?;
        self.ends(&topic).await?;
        let slot = self.slot_of(name);
        let mut known = slot.topic.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref().filter(|known| known.generation == topic.generation) {
            return Ok(Arc::clone(known));
        }
        *known = Some(Arc::clone(&topic));
        Ok(topic)
    }

    /// Looks at a topic anew when the server says something that cannot be of the one that is known.
    pub(super) fn doubt(&self, topic: &Topic) {
        let slot = self.slot_of(&topic.name);
        let mut known = slot.topic.lock().unwrap_or_else(PoisonError::into_inner);
        known.take_if(|known| known.generation == topic.generation);
    }

    pub(super) async fn ensure(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        if spec.shards == 0 || spec.shards > MAX_SHARDS {
            let (name, shards) = (&spec.name, spec.shards);
            return Err(refused(format!(
                "topic {name:?} cannot have {shards} shards: give it 1 to {MAX_SHARDS}"
            )));
        }
        let stream = self.names.log_stream(&spec.name);
        let info = match self.js.stream(&stream).await? {
            Some(info) => info,
            None => self.make_log(spec).await?,
        };
        let topic = self.remember(&spec.name, &info).await?;
        if topic.shards != spec.shards {
            return Err(refused(format!(
                "topic {:?} has {kept} shards, not {}: give it {kept} again, or move its events to a topic with \
                 another name",
                spec.name,
                spec.shards,
                kept = topic.shards
            )));
        }
        self.fix_key(&topic, spec).await?;
        Ok(TopicInfo { generation: topic.generation, shards: topic.shards })
    }

    async fn make_log(&self, spec: &TopicSpec) -> Result<StreamInfo, StoreError> {
        let window = self.options.dedup_window;
        let config = StreamConfig {
            description: describe(spec),
            duplicate_window: i64::try_from(window.as_nanos()).unwrap_or(i64::MAX),
            ..self.stream_config(self.names.log_stream(&spec.name), self.names.log_subjects(&spec.name))
        };
        if let Some(info) = self.js.make_stream(&config).await? {
            return Ok(info);
        }
        // Another process was faster.
        self.js.stream(&config.name).await?.ok_or_else(|| unknown_topic(&spec.name))
    }

    /// The settings of every stream that Photon makes: nothing is removed by itself.
    pub(super) fn stream_config(&self, name: String, subjects: String) -> StreamConfig {
        StreamConfig {
            name,
            description: String::new(),
            subjects: vec![subjects],
            retention: "limits".to_owned(),
            storage: "file".to_owned(),
            num_replicas: self.options.replicas,
            max_consumers: -1,
            max_msgs: -1,
            max_bytes: -1,
            max_age: 0,
            max_msgs_per_subject: -1,
            max_msg_size: -1,
            discard: "new".to_owned(),
            duplicate_window: 0,
            allow_direct: false,
        }
    }

    fn check_stream(&self, topic: &TopicName, info: &StreamInfo) -> Result<(Generation, u16), StoreError> {
        let config = &info.config;
        let described = read_description(&config.description).ok_or_else(|| {
            refused(format!(
                "the stream {:?} of topic {topic:?} was not made by Photon: remove or rename it, or choose another \
                 namespace",
                config.name
            ))
        })?;
        super::shape::check(config, &self.names.log_subjects(topic))?;
        Ok(described)
    }

    /// Whether a stream is still the one of a topic: not made anew, and not put back to an earlier state, behind a
    /// place that was seen before it was looked at.
    pub(super) fn is_of(topic: &Topic, seen: u64, info: &StreamInfo) -> bool {
        let described = read_description(&info.config.description);
        let same = described.is_some_and(|(generation, _)| generation == topic.generation);
        same && last_of(info.state.last_seq) >= seen
    }

    async fn fix_key(&self, topic: &Topic, spec: &TopicSpec) -> Result<(), StoreError> {
        let what = format!("topic {:?} cannot be made", topic.name);
        let generation = topic.generation.0.to_string();
        self.change(&what, &self.names.topic(&topic.name), |record: Option<TopicRecord>| {
            let record = record.filter(|record| record.generation == generation);
            let mut changed = record.is_none();
            let mut record =
                record.unwrap_or_else(|| TopicRecord { generation: generation.clone(), ..TopicRecord::default() });
            match (&record.key, &spec.key) {
                (Some(old), Some(new)) if old != new => {
                    return Err(refused(format!(
                        "topic {:?} is ordered by the key {old:?}, not {new:?}: give it the first one again, or move its \
                         events to a topic with another name",
                        spec.name
                    )));
                }
                (None, Some(new)) => (record.key, changed) = (Some(new.clone()), true),
                _ => {}
            }
            Ok(if changed { Change::Write(record, ()) } else { Change::Keep(()) })
        })
        .await
    }

    pub(super) async fn topic_record(&self, topic: &Topic) -> Result<TopicRecord, StoreError> {
        let record: Option<TopicRecord> = self.record(&self.names.topic(&topic.name)).await?;
        let generation = topic.generation.0.to_string();
        let record = record.filter(|record| record.generation == generation).unwrap_or_default();
        topic.saw_record(&record);
        Ok(record)
    }

    async fn change_topic(
        &self,
        topic: &Topic,
        mut change: impl FnMut(&mut TopicRecord) -> bool,
    ) -> Result<(), StoreError> {
        let what = format!("topic {:?} cannot be trimmed", topic.name);
        let generation = topic.generation.0.to_string();
        let record = self
            .change(&what, &self.names.topic(&topic.name), |record: Option<TopicRecord>| {
                let record = record.filter(|record| record.generation == generation);
                let mut record = record.unwrap_or_else(|| TopicRecord {
                    generation: generation.clone(),
                    ..TopicRecord::default()
                });
                let changed = change(&mut record);
                Ok(if changed { Change::Write(record.clone(), record) } else { Change::Keep(record) })
            })
            .await?;
        topic.saw_record(&record);
        Ok(())
    }

    /// The last place of a shard that was given out.
    pub(super) async fn end(&self, topic: &Topic, shard: Shard) -> Result<u64, StoreError> {
        let last = self.js.last(&topic.stream, &self.names.log(&topic.name, shard)).await?;
        if let Some(last) = last {
            topic.saw_end(shard, last_of(last.seq));
        }
        Ok(topic.seen_end(shard))
    }

    pub(super) async fn ends(&self, topic: &Topic) -> Result<Vec<u64>, StoreError> {
        let end = async |shard| self.end(topic, Shard(shard)).await;
        stream::iter(0..topic.shards).map(end).buffered(AT_ONCE).try_collect().await
    }

    pub(super) async fn bounds_of(&self, topic: &Topic) -> Result<Vec<Bounds>, StoreError> {
        self.topic_record(topic).await?;
        let ends = self.ends(topic).await?;
        let bounds = |(shard, end): (u16, u64)| {
            let shard = Shard(shard);
            Bounds { shard, floor: Seq(topic.seen_floor(shard)), end: Seq(end) }
        };
        Ok((0..).zip(ends).map(bounds).collect())
    }

    /// For every shard the last place that was taken in before a time.
    pub(super) async fn positions(&self, topic: &Topic, time: Timestamp) -> Result<Vec<u64>, StoreError> {
        let bounds = self.bounds_of(topic).await?;
        let before = self.last_before(topic, time).await?;
        let position = |bounds: &Bounds| before.min(bounds.end.0).max(bounds.floor.0);
        Ok(bounds.iter().map(position).collect())
    }

    /// The last place of the whole stream that lies before the first message of a time or later.
    async fn last_before(&self, topic: &Topic, time: Timestamp) -> Result<u64, StoreError> {
        let info = self.js.stream(&topic.stream).await?.ok_or_else(|| unknown_topic(&topic.name))?;
        let last: Timestamp = info.state.last_ts.parse().unwrap_or_default();
        if info.state.last_seq == 0 || time.0 <= 0 {
            return Ok(0);
        }
        if time > last {
            return Ok(u64::MAX);
        }
        let config = json!({
            "ack_policy": "none",
            "deliver_policy": "by_start_time",
            "opt_start_time": rfc3339(time),
            "replay_policy": "instant",
            "headers_only": true,
            "inactive_threshold": Duration::from_secs(5).as_nanos(),
        });
        let consumer = self.js.make_consumer(&topic.stream, config).await?;
        self.js.drop_consumer(&topic.stream, &consumer.name).await;
        Ok(last_of(consumer.delivered.stream_seq))
    }

    pub(super) async fn announce(&self, topic: &Topic, shard: Shard, through: Seq) -> Result<(), StoreError> {
        topic.check(shard)?;
        let through = through.0.min(self.end(topic, shard).await?);
        self.change_topic(topic, |record| {
            let announced = record.announced.entry(shard.0).or_default();
            let raised = through > *announced;
            *announced = through.max(*announced);
            raised
        })
        .await
    }

    pub(super) async fn trim_shard(
        &self,
        topic: &Topic,
        shard: Shard,
        through: Seq,
    ) -> Result<(), StoreError> {
        topic.check(shard)?;
        let through = through.0.min(self.end(topic, shard).await?);
        self.change_topic(topic, |record| {
            let floor = record.floors.entry(shard.0).or_default();
            let raised = through > *floor;
            *floor = through.max(*floor);
            raised
        })
        .await?;
        // A message goes when all of it is trimmed.
        let floor = topic.seen_floor(shard);
        let message = message_of(floor);
        let before = if last_of(message) == floor { message + 1 } else { message };
        if before <= 1 {
            return Ok(());
        }
        let subject = self.names.log(&topic.name, shard);
        self.js.remove_before(&topic.stream, topic.replicated, &subject, before).await
    }
}

/// A time as JetStream reads it.
fn rfc3339(time: Timestamp) -> String {
    let micros = time.0.rem_euclid(1_000_000);
    let seconds = Timestamp(time.0 - micros).to_string();
    // "…:07.000Z" becomes "…:07.000123Z".
    let whole = seconds.split_once('.').map_or(seconds.as_str(), |(whole, _)| whole);
    format!("{}.{micros:06}Z", whole.trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_to_the_microsecond() {
        assert_eq!(rfc3339(Timestamp(1_000_123)), "1970-01-01T00:00:01.000123Z");
        assert_eq!(rfc3339(Timestamp(0)), "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn descriptions_come_back() {
        let spec = TopicSpec {
            name: TopicName::new("t").unwrap(),
            shards: 7,
            key: None,
            generation: Generation(Uuid::from_u128(9)),
        };
        assert_eq!(read_description(&describe(&spec)), Some((spec.generation, 7)));
        for other in ["", "orders", "Photon topic, version 2, 7 shards, generation x"] {
            assert_eq!(read_description(other), None);
        }
    }
}
