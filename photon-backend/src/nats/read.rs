//! Reading a topic.

use std::sync::PoisonError;
use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::Event;
use photon_core::ids::{Seq, Shard};
use photon_core::store::{Cursor, ReadBatch, ReadLimit, ShardRead};

use super::Inner;
use super::error::error;
use super::packet::message_of;
use super::tail::Tail;
use super::topics::Topic;

/// So many readers of a topic wait for the next read.
const TAILS: usize = 16;
/// A reader that is so many messages behind is not worth going on with.
const TOO_FAR: u64 = 1_000;
/// After so long without a message it is looked whether there is one.
const PATIENCE: Duration = Duration::from_millis(25);
/// A message that is there must come within this time.
const LIMIT: Duration = Duration::from_secs(2);

/// A read while it runs.
struct Reading<'a> {
    topic: &'a Topic,
    cursors: &'a [Cursor],
    /// For each shard of the topic the cursor that is for it.
    cursor_of: Vec<Option<usize>>,
    through: Vec<u64>,
    records: Vec<Event>,
    left: usize,
    bytes_left: usize,
}

impl<'a> Reading<'a> {
    fn new(topic: &'a Topic, cursors: &'a [Cursor], limit: ReadLimit) -> Result<Self, StoreError> {
        let mut cursor_of = vec![None; topic.shards.into()];
        for (index, cursor) in cursors.iter().enumerate() {
            topic.check(cursor.shard)?;
            cursor_of[usize::from(cursor.shard.0)] = Some(index);
        }
        Ok(Self {
            topic,
            cursors,
            cursor_of,
            through: cursors.iter().map(|cursor| cursor.after.0).collect(),
            records: Vec::new(),
            // One record is always allowed, whatever the limit says.
            left: limit.records.max(1),
            bytes_left: limit.bytes.max(1),
        })
    }

    fn is_full(&self) -> bool {
        self.left == 0 || self.bytes_left == 0
    }

    /// The shard, if it is the only one that is read of several.
    fn only(&self) -> Option<Shard> {
        match self.cursors {
            [cursor] if self.topic.shards > 1 => Some(cursor.shard),
            _ => None,
        }
    }

    fn places(&self) -> impl Iterator<Item = (Shard, u64)> {
        self.cursors.iter().map(|cursor| (cursor.shard, cursor.after.0))
    }

    /// Takes what is wanted of the message that the reader is in.
    fn drain(&mut self, inner: &Inner, tail: &mut Tail) {
        let Some(packet) = &mut tail.packet else { return };
        let shard = usize::from(packet.shard.0);
        let cursor = self.cursor_of[shard];
        let floor = self.topic.seen_floor(packet.shard);
        while let Some(place) = packet.next_place() {
            if self.is_full() {
                return;
            }
            tail.seen[shard] = place;
            let wanted = cursor.filter(|cursor| place > self.through[*cursor] && place > floor);
            let Some(cursor) = wanted else {
                packet.skip();
                continue;
            };
            match packet.take(&self.topic.name) {
                Ok(event) => {
                    self.through[cursor] = place;
                    self.left -= 1;
                    self.bytes_left = self.bytes_left.saturating_sub(event.payload.len());
                    self.records.push(event);
                }
                Err(reason) => {
                    let message = self.topic.sequence(message_of(place));
                    inner.foreign.skipped(&self.topic.name, &self.topic.stream, message, &reason);
                }
            }
        }
        tail.packet = None;
    }

    fn finish(self) -> ReadBatch {
        let answer = |(cursor, through): (&Cursor, u64)| {
            let (shard, topic) = (cursor.shard, self.topic);
            let floor = topic.seen_floor(shard);
            ShardRead {
                shard,
                through: Seq(through.max(floor)),
                floor: Seq(floor),
                end: Seq(topic.seen_end(shard)),
            }
        };
        let shards = self.cursors.iter().zip(self.through).map(answer).collect();
        ReadBatch { records: self.records, shards }
    }
}

impl Inner {
    pub(super) async fn read_topic(
        &self,
        topic: &Topic,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        let mut reading = Reading::new(topic, cursors, limit)?;
        if cursors.is_empty() {
            return Ok(reading.finish());
        }
        for (shard, after) in reading.places() {
            if after > topic.seen_end(shard) {
                self.end(topic, shard).await?;
            }
        }
        let mut end = None;
        let mut tail = match take_tail(topic, &reading) {
            Some(tail) => tail,
            None => self.seek(topic, &reading, &mut end).await?,
        };
        loop {
            reading.drain(self, &mut tail);
            if reading.is_full() {
                break;
            }
            if tail.advance(self, topic).await? {
                continue;
            }
            let end = match end {
                Some(end) => end,
                None => *end.insert(self.last_message(topic).await?),
            };
            if tail.position >= end {
                break;
            }
            self.await_message(topic, &reading, &mut tail, end).await?;
        }
        give_back(topic, tail).await;
        Ok(reading.finish())
    }

    /// The number of the last message of a topic, as the leader of its stream has it.
    async fn last_message(&self, topic: &Topic) -> Result<u64, StoreError> {
        let seen = topic.last_seen();
        let (info, record) = futures::join!(self.js.stream(&topic.stream), self.topic_record(topic));
        record?;
        let gone = || {
            self.doubt(topic);
            let message = format!(
                "the stream {:?} of topic {:?} was removed or replaced: try again",
                topic.stream, topic.name
            );
            error(StoreErrorKind::Unavailable, message)
        };
        let info = info?.ok_or_else(gone)?;
        if !Self::is_of(topic, seen, &info) {
            return Err(gone());
        }
        Ok(topic.number(info.state.last_seq))
    }

    /// Opens a reader where the first of the cursors stands that has something to read.
    async fn seek(
        &self,
        topic: &Topic,
        reading: &Reading<'_>,
        end: &mut Option<u64>,
    ) -> Result<Tail, StoreError> {
        let last = self.last_message(topic).await?;
        *end = Some(last);
        let mut first = last + 1;
        let ends = reading.places().map(|(shard, _)| self.end(topic, shard));
        let ends: Vec<u64> = futures::future::try_join_all(ends).await?;
        for ((shard, after), end) in reading.places().zip(&ends) {
            let after = after.max(topic.seen_floor(shard));
            if after < *end {
                first = first.min(message_of(after + 1));
            }
        }
        let mut tail = self.open_tail(topic, reading.only(), first).await?;
        // A shard with nothing to read up to here has been passed, wherever its reader stands.
        for ((shard, after), end) in reading.places().zip(ends) {
            if after >= end {
                let seen = &mut tail.seen[usize::from(shard.0)];
                *seen = after.min(*seen);
            }
        }
        Ok(tail)
    }

    /// Waits for a message that may be there, because the stream goes on to `end`.
    async fn await_message(
        &self,
        topic: &Topic,
        reading: &Reading<'_>,
        tail: &mut Tail,
        end: u64,
    ) -> Result<(), StoreError> {
        if tail.wait(self, topic, PATIENCE).await? {
            return Ok(());
        }
        // Messages that were trimmed, or of other shards, do not come.
        let subject = match reading.only() {
            Some(shard) => self.names.log(&topic.name, shard),
            None => self.names.log_subjects(&topic.name),
        };
        let next = self.js.next(&topic.stream, &subject, topic.sequence(tail.position)).await?;
        if next.is_none_or(|next| topic.number(next.seq) > end) {
            tail.position = tail.position.max(end);
            return Ok(());
        }
        if tail.wait(self, topic, LIMIT).await? {
            return Ok(());
        }
        let reason = "the server does not deliver what it has; try again";
        Err(error(StoreErrorKind::Unavailable, format!("topic {:?} cannot be read on: {reason}", topic.name)))
    }
}

/// A reader that stands where the cursors do.
fn take_tail(topic: &Topic, reading: &Reading<'_>) -> Option<Tail> {
    let mut tails = topic.tails.lock().unwrap_or_else(PoisonError::into_inner);
    let behind = reading.places().map(|(_, after)| message_of(after)).min().unwrap_or(0);
    let fits = |tail: &Tail| {
        !tail.is_old()
            && tail.fits(reading.places(), reading.only())
            && tail.position.saturating_add(TOO_FAR) > behind
    };
    let (best, _) =
        tails.iter().enumerate().filter(|(_, tail)| fits(tail)).max_by_key(|(_, tail)| tail.position)?;
    Some(tails.swap_remove(best))
}

async fn give_back(topic: &Topic, tail: Tail) {
    let old: Vec<Tail> = {
        let mut tails = topic.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.push(tail);
        let crowd = tails.len().saturating_sub(TAILS);
        let mut old: Vec<Tail> = tails.drain(..crowd).collect();
        old.extend(tails.extract_if(.., |tail| tail.is_old()));
        old
    };
    for tail in old {
        tail.close().await;
    }
}
