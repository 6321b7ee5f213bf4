//! Reading.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use photon_core::envelope::Envelope;
use photon_core::event::Event;
use photon_core::ids::{Seq, Shard, TopicName};
use photon_core::store::{Cursor, ReadBatch, ReadLimit, ShardRead};
use photon_core::time::Timestamp;
use redis::{FromRedisValue, ParsingError, Value};

use super::RedisStore;
use super::error::{Effect, Trouble};
use super::known::Topic;
use super::link::Use;
use super::scripts;

/// The most records that one command asks for.
const RECORDS_AT_ONCE: usize = 256;
/// How large a record is taken to be before the first one was seen.
const UNKNOWN_RECORD: usize = 64 << 10;

/// An entry of a stream as the server gives it.
struct Entry {
    seq: u64,
    time: i64,
    /// Of the field `e`, if that is all there is.
    bytes: Option<Bytes>,
}

impl FromRedisValue for Entry {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (id, fields): (String, Vec<Value>) = redis::from_redis_value(value)?;
        let (seq, time) = id.split_once('-').ok_or_else(|| ParsingError::from("an id without a -"))?;
        let number = |_| ParsingError::from("an id that is no number");
        let bytes = match <[Value; 2]>::try_from(fields) {
            Ok([Value::BulkString(name), Value::BulkString(bytes)]) if name == b"e" => Some(bytes.into()),
            _ => None,
        };
        let time: u64 = time.parse().map_err(number)?;
        Ok(Self { seq: seq.parse().map_err(number)?, time: i64::try_from(time).unwrap_or(0), bytes })
    }
}

impl Entry {
    /// `None` if Photon did not write it.
    fn into_event(self, topic: &TopicName, shard: Shard) -> Option<Event> {
        let Envelope { id, key, headers, payload } = Envelope::decode(self.bytes?).ok()?;
        let (seq, time) = (Seq(self.seq), Timestamp(self.time));
        Some(Event { id, topic: topic.clone(), shard, seq, key, headers, payload, time })
    }
}

/// What is left of a [`ReadLimit`].
struct Budget {
    records: usize,
    bytes: usize,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.records == 0 || self.bytes == 0
    }
}

/// Where a read stands in a shard.
struct Progress {
    read: ShardRead,
    /// Nothing was found where something should be.
    hole: Option<Seq>,
}

impl Progress {
    fn left(&self) -> usize {
        let left = self.read.end.0.saturating_sub(self.read.through.0.max(self.read.floor.0));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    fn position(&self) -> u64 {
        self.read.through.0.max(self.read.floor.0)
    }
}

impl RedisStore {
    pub(super) async fn read_some(
        &self,
        topic: &Topic,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, Trouble> {
        if cursors.is_empty() {
            return Ok(ReadBatch::default());
        }
        let bounds = self.bounds_of(topic, cursors.iter().map(|cursor| cursor.shard)).await?;
        let mut shards: Vec<Progress> = cursors
            .iter()
            .zip(bounds)
            .map(|(cursor, bounds)| Progress {
                read: ShardRead {
                    shard: cursor.shard,
                    through: cursor.after,
                    floor: bounds.floor,
                    end: bounds.end,
                },
                hole: None,
            })
            .collect();
        let mut budget = Budget { records: limit.records.max(1), bytes: limit.bytes.max(1) };
        let mut records = Vec::new();
        let begin = self.inner.reads.fetch_add(1, Ordering::Relaxed);
        while !budget.is_spent() {
            let plan = plan(topic, &shards, &budget, begin);
            if plan.is_empty() {
                break;
            }
            let found = self.fetch(topic, &shards, &plan).await?;
            for ((index, wanted), entries) in plan.into_iter().zip(found) {
                self.take_in(topic, &mut shards[index], wanted, entries, &mut budget, &mut records);
            }
        }
        for shard in &mut shards {
            self.look_into_hole(topic, shard).await?;
        }
        Ok(ReadBatch { records, shards: shards.into_iter().map(|shard| shard.read).collect() })
    }

    async fn fetch(
        &self,
        topic: &Topic,
        shards: &[Progress],
        plan: &[(usize, usize)],
    ) -> Result<Vec<Vec<Entry>>, Trouble> {
        let mut ask = redis::pipe();
        for (index, count) in plan {
            let shard = &shards[*index];
            ask.cmd("XRANGE")
                .arg(self.inner.keys.log(&topic.name, shard.read.shard))
                .arg(shard.position() + 1)
                // Not beyond the end: what other programs added there has no place yet.
                .arg(shard.read.end.0)
                .arg("COUNT")
                .arg(*count);
        }
        self.inner.links.ask(Use::Read, Effect::Read, &ask).await
    }

    /// Takes what was found in a shard, as far as the budget reaches.
    fn take_in(
        &self,
        topic: &Topic,
        shard: &mut Progress,
        wanted: usize,
        entries: Vec<Entry>,
        budget: &mut Budget,
        records: &mut Vec<Event>,
    ) {
        let mut position = shard.position();
        let is_all = entries.len() < wanted;
        if entries.is_empty() {
            shard.hole.get_or_insert(Seq(position));
        }
        for entry in entries {
            if budget.is_spent() {
                shard.read.through = Seq(position);
                return;
            }
            let (seq, size) = (entry.seq, entry.bytes.as_ref().map_or(0, Bytes::len));
            let event = entry.into_event(&topic.name, shard.read.shard);
            if let Some(event) = event {
                if seq > position + 1 {
                    shard.hole.get_or_insert(Seq(position));
                }
                budget.records -= 1;
                budget.bytes = budget.bytes.saturating_sub(event.payload.len());
                let before = topic.record_bytes.load(Ordering::Relaxed);
                let average = if before == 0 { size } else { before - before / 8 + size / 8 };
                topic.record_bytes.store(average.max(1), Ordering::Relaxed);
                records.push(event);
            } else {
                self.inner.known.strangers.count(|unsaid| {
                    tracing::warn!(
                        topic = %topic.name, shard = shard.read.shard.0, seq, unsaid,
                        "skipped an entry of the stream that Photon did not write",
                    );
                });
            }
            position = seq;
        }
        shard.read.through = Seq(if is_all { position.max(shard.read.end.0) } else { position });
    }

    /// Finds out whether another program removed the beginning of the log, which readers are then told.
    async fn look_into_hole(&self, topic: &Topic, shard: &mut Progress) -> Result<(), Trouble> {
        let Some(hole) = shard.hole else { return Ok(()) };
        let inner = &self.inner;
        let number = shard.read.shard;
        let keys = [inner.keys.shard(&topic.name, number), inner.keys.log(&topic.name, number)];
        let (floor, raised): (u64, bool) = inner
            .links
            .run(Use::Read, Effect::Write, &scripts::FLOOR, &keys, |command| {
                command.arg(hole.0);
            })
            .await?;
        shard.read.floor = shard.read.floor.max(Seq(floor));
        if raised {
            tracing::error!(
                topic = %topic.name, shard = number.0, floor,
                "another program removed events from the stream: subscriptions that had not read them go on behind",
            );
        } else if floor <= hole.0 {
            inner.known.holes.count(|unsaid| {
                tracing::warn!(
                    topic = %topic.name, shard = number.0, after = hole.0, unsaid,
                    "events are missing in the middle of the stream: another program removed them",
                );
            });
        }
        Ok(())
    }
}

/// How many records to ask of which shard, by index.
fn plan(topic: &Topic, shards: &[Progress], budget: &Budget, begin: usize) -> Vec<(usize, usize)> {
    let record = match topic.record_bytes.load(Ordering::Relaxed) {
        0 => UNKNOWN_RECORD,
        bytes => bytes,
    };
    let mut left = budget.records.min(budget.bytes / record + 1);
    let mut plan = Vec::new();
    for step in 0..shards.len() {
        let index = (begin + step) % shards.len();
        let wanted = shards[index].left().min(left).min(RECORDS_AT_ONCE);
        if wanted > 0 {
            left -= wanted;
            plan.push((index, wanted));
        }
    }
    plan
}
