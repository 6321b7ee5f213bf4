//! Topics and their streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Generation, MAX_SHARDS, Seq, Shard, TopicName};
use photon_core::store::{Bounds, TopicInfo, TopicSpec};
use photon_core::time::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

use super::api::{StreamConfig, StreamInfo};
use super::error::error;
use super::packet::{last_of, message_of};
use super::records::{Change, TopicRecord};
use super::tail::Tail;
use super::{Inner, now};
use crate::position::refused;
use crate::refusal::unknown_topic;

const AT_ONCE: usize = 64;

/// The place of a topic: there from the first mention, so that a listener can wait for a topic to come.
pub(super) struct TopicSlot {
    pub(super) wake: watch::Sender<u64>,
    pub(super) listens: std::sync::atomic::AtomicBool,
    topic: Mutex<Option<Arc<Topic>>>,
    /// The last place that was seen of a stream that is in doubt.
    seen: AtomicU64,
    /// What it was asked to be here: to make its stream anew, should somebody remove it.
    wanted: Mutex<Option<TopicSpec>>,
}

/// A topic whose stream was seen.
pub(super) struct Topic {
    pub(super) name: TopicName,
    pub(super) stream: String,
    pub(super) shards: u16,
    pub(super) generation: Generation,
    /// The number of the message before the first of the stream: 0 but for a stream that was made anew.
    base: u64,
    replicated: bool,
    /// The last place that was seen of each shard.
    ends: Vec<AtomicU64>,
    /// Up to where each shard was seen to be trimmed.
    floors: Vec<AtomicU64>,
    /// Readers that wait for the next read.
    pub(super) tails: Mutex<Vec<Tail>>,
}

impl Topic {
    fn new(name: &TopicName, config: &StreamConfig, described: Described) -> Self {
        let Described { generation, shards, base } = described;
        let (stream, replicated) = (config.name.clone(), config.num_replicas > 1);
        let start = || (0..shards).map(|_| AtomicU64::new(last_of(base))).collect();
        let (ends, floors) = (start(), start());
        Self {
            name: name.clone(),
            stream,
            shards,
            generation,
            base,
            replicated,
            ends,
            floors,
            tails: Mutex::default(),
        }
    }

    /// The number of the message of a sequence. Numbers go on where a stream was made anew, sequences begin again.
    pub(super) fn number(&self, sequence: u64) -> u64 {
        self.base.saturating_add(sequence)
    }

    /// The sequence of a message of this number.
    pub(super) fn sequence(&self, number: u64) -> u64 {
        number.saturating_sub(self.base)
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

    fn is_of(&self, record: &TopicRecord) -> bool {
        record.generation == self.generation.0.to_string()
    }

    /// The record, if it is about this stream, else a new one.
    fn own(&self, record: Option<TopicRecord>) -> TopicRecord {
        record.filter(|record| self.is_of(record)).unwrap_or_else(|| {
            let floors = (0..self.shards).filter(|_| self.base > 0).map(|shard| (shard, last_of(self.base)));
            let generation = self.generation.0.to_string();
            TopicRecord { generation, floors: floors.collect(), ..TopicRecord::default() }
        })
    }

    fn saw_record(&self, record: &TopicRecord) {
        for (shard, floor) in (0..).zip(&self.floors) {
            floor.fetch_max(record.floor(shard), Ordering::Relaxed);
            self.saw_end(Shard(shard), record.floor(shard));
        }
    }
}

/// What the description of a stream says about its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Described {
    generation: Generation,
    shards: u16,
    base: u64,
}

impl Described {
    fn write(self) -> String {
        let Self { generation, shards, base } = self;
        let text = format!("Photon topic, version 1, {shards} shards, generation {}", generation.0);
        if base == 0 { text } else { format!("{text}, after {base}") }
    }

    fn read(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("Photon topic, version 1, ")?;
        let (shards, rest) = rest.split_once(" shards, generation ")?;
        let (generation, base) = rest.split_once(", after ").unwrap_or((rest, "0"));
        let shards: u16 = shards.parse().ok()?;
        let generation = Generation(Uuid::parse_str(generation).ok()?);
        let fits = (1..=MAX_SHARDS).contains(&shards);
        fits.then_some(Self { generation, shards, base: base.parse().ok()? })
    }
}

/// The base of a stream that is made anew, behind all places that a subscription may stand at, here or elsewhere: no
/// stream takes a message each 16 µs all its life, and of what this process knows it is certain.
fn base_after(seen: u64) -> u64 {
    let by_time = u64::try_from(now().0).unwrap_or(0) / 16;
    by_time.max(message_of(seen))
}

impl Inner {
    pub(super) fn slot_of(&self, topic: &TopicName) -> Arc<TopicSlot> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = topics.entry(topic.clone()).or_insert_with(|| {
            Arc::new(TopicSlot {
                wake: watch::Sender::new(0),
                listens: false.into(),
                topic: Mutex::default(),
                seen: AtomicU64::new(0),
                wanted: Mutex::default(),
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
        let info = match self.js.stream(&self.names.log_stream(name)).await? {
            Some(info) => info,
            None => self.make_log_anew(name, &slot).await?,
        };
        self.remember(name, &info).await
    }

    /// Makes the stream of a topic that was ensured here, and that somebody removed since.
    async fn make_log_anew(&self, name: &TopicName, slot: &TopicSlot) -> Result<StreamInfo, StoreError> {
        let wanted = slot.wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let wanted = wanted.ok_or_else(|| unknown_topic(name))?;
        let _one = self.mending.lock().await;
        let stream = self.names.log_stream(name);
        if !self.is_gone(&stream).await? {
            return self.js.stream(&stream).await?.ok_or_else(|| unknown_topic(name));
        }
        let info = self.make_log(&TopicSpec { generation: Generation(Uuid::new_v4()), ..wanted }).await?;
        tracing::error!(
            topic = %name, stream = %info.config.name,
            "the stream of the topic was gone from the NATS server and was made anew: the events that it held are \
             lost. Who removed it?",
        );
        Ok(info)
    }

    /// Keeps what is known of a topic: a stream that was made anew is another topic.
    async fn remember(&self, name: &TopicName, info: &StreamInfo) -> Result<Arc<Topic>, StoreError> {
        let described = self.check_stream(name, info)?;
        let topic = Topic::new(name, &info.config, described);
        let topic = Arc::new(topic);
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

    /// Looks at a topic anew if its stream is not there any more.
    pub(super) async fn doubt_if_gone(&self, topic: &Topic) {
        if matches!(self.js.stream(&topic.stream).await, Ok(None)) {
            self.doubt(topic);
        }
    }

    /// The topic as it is now, if its stream is another one than was known.
    pub(super) async fn made_anew(&self, topic: &Topic) -> Result<Option<Arc<Topic>>, StoreError> {
        let looked = async {
            let info = self.js.stream(&topic.stream).await?;
            if info.is_some_and(|info| Self::is_of(topic, 0, &info)) {
                return Ok(None);
            }
            self.doubt(topic);
            self.topic(&topic.name).await.map(Some)
        };
        // The events are stored, and where is not known.
        looked.await.map_err(|source: StoreError| {
            let message =
                format!("events for topic {:?} are stored in a stream that was replaced", topic.name);
            error(StoreErrorKind::Unknown, message).with_source(source)
        })
    }

    /// Looks at a topic anew when the server says something that cannot be of the one that is known.
    pub(super) fn doubt(&self, topic: &Topic) {
        let slot = self.slot_of(&topic.name);
        let mut known = slot.topic.lock().unwrap_or_else(PoisonError::into_inner);
        if known.take_if(|known| known.generation == topic.generation).is_some() {
            slot.seen.fetch_max(topic.last_seen(), Ordering::Relaxed);
        }
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
        let slot = self.slot_of(&spec.name);
        *slot.wanted.lock().unwrap_or_else(PoisonError::into_inner) = Some(spec.clone());
        Ok(TopicInfo { generation: topic.generation, shards: topic.shards })
    }

    async fn make_log(&self, spec: &TopicSpec) -> Result<StreamInfo, StoreError> {
        let window = self.options.dedup_window;
        let base = self.base_for(&spec.name).await?;
        let config = StreamConfig {
            description: Described { generation: spec.generation, shards: spec.shards, base }.write(),
            duplicate_window: i64::try_from(window.as_nanos()).unwrap_or(i64::MAX),
            ..self.stream_config(self.names.log_stream(&spec.name), self.names.log_subjects(&spec.name))
        };
        if let Some(info) = self.js.make_stream(&config).await? {
            return Ok(info);
        }
        // Another process was faster.
        self.js.stream(&config.name).await?.ok_or_else(|| unknown_topic(&spec.name))
    }

    /// Where a new stream of a topic begins: behind an earlier one, of which this process or the state stream knows.
    async fn base_for(&self, name: &TopicName) -> Result<u64, StoreError> {
        let seen = {
            let slot = self.slot_of(name);
            let known = slot.topic.lock().unwrap_or_else(PoisonError::into_inner);
            known.as_ref().map_or(slot.seen.load(Ordering::Relaxed), |topic| topic.last_seen())
        };
        let before: Option<TopicRecord> = self.record(&self.names.topic(name)).await?;
        Ok(if seen == 0 && before.is_none() { 0 } else { base_after(seen) })
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

    fn check_stream(&self, topic: &TopicName, info: &StreamInfo) -> Result<Described, StoreError> {
        let config = &info.config;
        let described = Described::read(&config.description).ok_or_else(|| {
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
        let described = Described::read(&info.config.description);
        let same = described.is_some_and(|described| described.generation == topic.generation);
        same && last_of(topic.number(info.state.last_seq)) >= seen
    }

    async fn fix_key(&self, topic: &Topic, spec: &TopicSpec) -> Result<(), StoreError> {
        let what = format!("topic {:?} cannot be made", topic.name);
        self.change(&what, &self.names.topic(&topic.name), |record: Option<TopicRecord>| {
            let mut changed = record.as_ref().is_none_or(|record| !topic.is_of(record));
            let mut record = topic.own(record);
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
        let record = topic.own(self.record(&self.names.topic(&topic.name)).await?);
        topic.saw_record(&record);
        Ok(record)
    }

    async fn change_topic(
        &self,
        topic: &Topic,
        mut change: impl FnMut(&mut TopicRecord) -> bool,
    ) -> Result<(), StoreError> {
        let what = format!("topic {:?} cannot be trimmed", topic.name);
        let record = self
            .change(&what, &self.names.topic(&topic.name), |record: Option<TopicRecord>| {
                let mut record = topic.own(record);
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
            topic.saw_end(shard, last_of(topic.number(last.seq)));
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
        Ok(last_of(topic.number(consumer.delivered.stream_seq)))
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
        let before = topic.sequence(if last_of(message) == floor { message + 1 } else { message });
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
        for base in [0, 1, 110_000_000_000_000] {
            let described = Described { generation: spec.generation, shards: 7, base };
            assert_eq!(Described::read(&described.write()), Some(described));
        }
        for other in ["", "orders", "Photon topic, version 2, 7 shards, generation x"] {
            assert_eq!(Described::read(other), None);
        }
    }
}
