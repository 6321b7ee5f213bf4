//! Appending.

use futures::future::join_all;
use photon_core::envelope::Envelope;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::ids::{Seq, Shard, TopicName};
use photon_core::store::Appended;

use super::RedisStore;
use super::error::{Effect, Trouble, refused};
use super::known::{Topic, mending};
use super::link::Use;
use super::scripts;

/// The most events of one script: it keeps the server busy for a few milliseconds.
const EVENTS_AT_ONCE: usize = 1_000;
/// The most bytes of one script, but for a single larger event.
const BYTES_AT_ONCE: usize = 4 << 20;

/// What one script appends to a shard.
#[derive(Default)]
struct Chunk {
    events: Vec<Vec<u8>>,
    /// With a letter before the id; nothing for none. Empty if no event has one.
    dedup: Vec<Vec<u8>>,
    /// Where the events stand in the batch.
    indexes: Vec<usize>,
    bytes: usize,
}

/// The part of a batch that concerns one shard.
struct Run {
    shard: Shard,
    chunks: Vec<Chunk>,
}

impl RedisStore {
    pub(super) async fn append_all(
        &self,
        name: &TopicName,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Appended>, StoreError> {
        let topic = self.topic(name).await?;
        for event in &events {
            topic.check(event.shard)?;
        }
        let mut appended = vec![Appended { seq: Seq::ZERO, duplicate: false }; events.len()];
        let runs = self.runs(events)?;
        let results = join_all(runs.iter().map(|run| self.append_run(&topic, run))).await;
        let stored = results.iter().any(|(stored, _)| !stored.is_empty());
        let mut failure = None;
        for (places, error) in results {
            for (index, place) in places {
                appended[index] = place;
            }
            failure = worse(failure, error);
        }
        if stored {
            self.inner.wakes.wake(name);
        }
        match failure {
            None => Ok(appended),
            Some(error) if stored && error.kind() != StoreErrorKind::Unknown => {
                let reason = "a part of the batch is stored and the rest is not; look, or repeat only what the store \
                              recognises";
                Err(self.target().error(StoreErrorKind::Unknown, reason).with_source(error))
            }
            Some(error) => Err(error),
        }
    }

    /// Divides a batch by shards, and each part into what one script takes.
    fn runs(&self, events: Vec<NewEvent>) -> Result<Vec<Run>, StoreError> {
        let window = !self.inner.options.dedup_window.is_zero();
        let mut order: Vec<(usize, NewEvent)> = events.into_iter().enumerate().collect();
        order.sort_by_key(|(_, event)| event.shard);
        let mut runs: Vec<Run> = Vec::new();
        for (index, event) in order {
            let NewEvent { id, shard, key, headers, payload, dedup_id } = event;
            let mut bytes = Vec::new();
            Envelope { id, key, headers, payload }.encode(&mut bytes);
            if bytes.len() as u64 > self.inner.limits.value {
                return Err(refused(format!(
                    "an event takes {} bytes, the Redis server takes values of at most {}: publish less at a time, \
                     or raise proto-max-bulk-len there",
                    bytes.len(),
                    self.inner.limits.value
                )));
            }
            if runs.last().is_none_or(|run| run.shard != shard) {
                runs.push(Run { shard, chunks: vec![Chunk::default()] });
            }
            let Some(run) = runs.last_mut() else { continue };
            if run.chunks.last().is_none_or(|chunk| chunk.is_full(bytes.len())) {
                run.chunks.push(Chunk::default());
            }
            let Some(chunk) = run.chunks.last_mut() else { continue };
            chunk.push(index, bytes, dedup_id.filter(|_| window));
        }
        Ok(runs)
    }

    /// Appends the chunks of a shard one after another, up to the first that fails.
    async fn append_run(&self, topic: &Topic, run: &Run) -> (Vec<(usize, Appended)>, Option<StoreError>) {
        let mut stored = Vec::new();
        for chunk in &run.chunks {
            match self.append_mending(topic, run.shard, chunk).await {
                Ok(places) => stored.extend(chunk.indexes.iter().copied().zip(places)),
                Err(error) => return (stored, Some(error)),
            }
        }
        (stored, None)
    }

    async fn append_mending(
        &self,
        topic: &Topic,
        shard: Shard,
        chunk: &Chunk,
    ) -> Result<Vec<Appended>, StoreError> {
        mending!(self, topic, None, self.append_chunk(topic, shard, chunk))
    }

    async fn append_chunk(
        &self,
        topic: &Topic,
        shard: Shard,
        chunk: &Chunk,
    ) -> Result<Vec<Appended>, Trouble> {
        let inner = &self.inner;
        let [dedup, ages] = inner.keys.dedup(&topic.name, shard);
        let keys = [inner.keys.shard(&topic.name, shard), inner.keys.log(&topic.name, shard), dedup, ages];
        let window = if chunk.dedup.is_empty() { 0 } else { inner.options.dedup_window.as_micros() };
        let (channel, own) = inner.wakes.announcement(&topic.name);
        let answer: Vec<String> = inner
            .links
            .run(Use::Append, Effect::Write, &scripts::APPEND, &keys, |command| {
                command.arg(channel).arg(own).arg(topic.last_seen(shard).0);
                command.arg(u64::try_from(window).unwrap_or(u64::MAX));
                for (index, event) in chunk.events.iter().enumerate() {
                    command.arg(event);
                    if let Some(id) = chunk.dedup.get(index) {
                        command.arg(id);
                    }
                }
            })
            .await?;
        let appended = chunk.places(&answer);
        if appended.len() != chunk.events.len() {
            return Err(self.target().strange("the answer to an append").into());
        }
        if let Some(last) = appended.iter().map(|appended| appended.seq).max() {
            topic.see(shard, last);
        }
        Ok(appended)
    }
}

impl Chunk {
    fn is_full(&self, next: usize) -> bool {
        !self.events.is_empty() && (self.events.len() >= EVENTS_AT_ONCE || self.bytes + next > BYTES_AT_ONCE)
    }

    fn push(&mut self, index: usize, event: Vec<u8>, dedup_id: Option<String>) {
        if dedup_id.is_some() || !self.dedup.is_empty() {
            self.dedup.resize(self.events.len(), Vec::new());
            self.dedup.push(dedup_id.map_or_else(Vec::new, |id| [b"i", id.as_bytes()].concat()));
        }
        self.bytes += event.len();
        self.events.push(event);
        self.indexes.push(index);
    }

    /// Reads the answer of the script: the first place, or with dedup ids a letter and the place of each.
    fn places(&self, answer: &[String]) -> Vec<Appended> {
        if self.dedup.is_empty() {
            let first = answer.first().and_then(|first| first.parse::<u64>().ok());
            let seqs = first.into_iter().flat_map(|first| first..first + self.events.len() as u64);
            return seqs.map(|seq| Appended { seq: Seq(seq), duplicate: false }).collect();
        }
        let place = |text: &String| {
            let (duplicate, seq) = match text.split_at_checked(1)? {
                ("d", seq) => (true, seq),
                ("n", seq) => (false, seq),
                _ => return None,
            };
            Some(Appended { seq: Seq(seq.parse().ok()?), duplicate })
        };
        answer.iter().filter_map(place).collect()
    }
}

/// Of two failures the one that leaves more open.
fn worse(one: Option<StoreError>, other: Option<StoreError>) -> Option<StoreError> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other.kind() == StoreErrorKind::Unknown { other } else { one }),
        (one, other) => one.or(other),
    }
}
