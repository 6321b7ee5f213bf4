//! Appending to a topic.
//!
//! The events of one shard travel in one message where they fit: it is stored as a whole or not. Of several messages
//! of a shard the next is sent when the one before is acknowledged, so that on an error a prefix is stored and
//! nothing else; the messages of different shards are on their way together. An event with a dedup id has a
//! message of its own, because JetStream recognises messages.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures::{StreamExt, stream};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::event::NewEvent;
use photon_core::ids::{Seq, Shard};
use photon_core::store::Appended;

use super::Inner;
use super::api::PubAck;
use super::error::error;
use super::names;
use super::packet::{EVENTS, Packet, last_of, place};
use super::topics::Topic;
use crate::position::refused;

/// A message is closed when it has so many bytes: small enough that one event of it that is kept in memory does
/// not keep much more, large enough that its own cost does not show.
const ENOUGH: usize = 64 * 1024;
/// So many messages of an append are on their way at a time.
const AT_ONCE: usize = 256;

/// One message to be stored.
struct Parcel {
    bytes: Bytes,
    dedup: Option<String>,
    /// Which events of the batch it holds.
    events: Vec<usize>,
}

/// What became of the messages of one shard: up to the first error.
#[derive(Default)]
struct ShardResult {
    stored: Vec<(Vec<usize>, PubAck)>,
    error: Option<StoreError>,
    /// The stream went back: it may be another one.
    went_back: bool,
}

impl Inner {
    pub(super) async fn append_events(
        &self,
        topic: &Topic,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Appended>, StoreError> {
        let count = events.len();
        let shards = self.pack(topic, events)?;
        let send = async |(shard, parcels)| self.send_shard(topic, shard, parcels).await;
        let results: Vec<ShardResult> =
            stream::iter(shards).map(send).buffer_unordered(AT_ONCE).collect().await;
        let anything = results.iter().any(|result| !result.stored.is_empty());
        if anything {
            self.tell(topic).await;
        }
        let went_back = results.iter().any(|result| result.went_back);
        let made_anew = if went_back { self.made_anew(topic).await? } else { None };
        let topic = made_anew.as_deref().unwrap_or(topic);
        let mut appended = vec![Appended { seq: Seq::ZERO, duplicate: false }; count];
        let mut failed: Option<StoreError> = None;
        for result in results {
            for (events, ack) in result.stored {
                let many = events.len();
                for (index, event) in events.into_iter().enumerate() {
                    appended[event] = Appended {
                        seq: Seq(place(topic.number(ack.seq), index, many)),
                        duplicate: ack.duplicate,
                    };
                }
            }
            // An unknown end says more than that something was not done.
            if result
                .error
                .as_ref()
                .is_some_and(|error| failed.is_none() || error.kind() == StoreErrorKind::Unknown)
            {
                failed = result.error;
            }
        }
        if failed.is_some() {
            self.doubt_if_gone(topic).await;
        }
        match failed {
            None => Ok(appended),
            Some(failed) if !anything || failed.kind() == StoreErrorKind::Unknown => Err(failed),
            Some(failed) => {
                let message =
                    format!("a part of the events for topic {:?} is stored, the rest is not", topic.name);
                Err(error(StoreErrorKind::Unknown, message).with_source(failed))
            }
        }
    }

    /// The messages for each shard. Nothing is sent if one event cannot be.
    fn pack(&self, topic: &Topic, events: Vec<NewEvent>) -> Result<Vec<(Shard, Vec<Parcel>)>, StoreError> {
        let mut of_shard: Vec<Option<usize>> = vec![None; topic.shards.into()];
        let mut shards: Vec<(Shard, Packing)> = Vec::new();
        for (index, event) in events.into_iter().enumerate() {
            topic.check(event.shard)?;
            let shard = event.shard;
            let at = *of_shard[usize::from(shard.0)].get_or_insert_with(|| {
                shards.push((shard, Packing::default()));
                shards.len() - 1
            });
            shards[at].1.add(index, event);
        }
        let limit = self.message_limit();
        let mut packed = Vec::with_capacity(shards.len());
        for (shard, packing) in shards {
            let parcels = packing.finish();
            if let Some(parcel) = parcels.iter().find(|parcel| parcel.bytes.len() > limit) {
                return Err(refused(format!(
                    "an event for topic {:?} takes {} bytes and the NATS server at most {limit}: publish less, or \
                     raise max_payload in its configuration",
                    topic.name,
                    parcel.bytes.len()
                )));
            }
            packed.push((shard, parcels));
        }
        Ok(packed)
    }

    async fn send_shard(&self, topic: &Topic, shard: Shard, parcels: Vec<Parcel>) -> ShardResult {
        let subject = self.names.log(&topic.name, shard);
        let what = format!("events for topic {:?} cannot be stored", topic.name);
        let mut result = ShardResult::default();
        for Parcel { bytes, dedup, events } in parcels {
            let headers = dedup.map(|id| {
                let mut headers = HeaderMap::new();
                headers.insert("Nats-Msg-Id", id);
                headers
            });
            match self.js.put(&what, subject.clone(), headers, bytes).await {
                Ok(ack) => {
                    let end = last_of(topic.number(ack.seq));
                    result.went_back |= !ack.duplicate && end <= topic.seen_end(shard);
                    topic.saw_end(shard, end);
                    result.stored.push((events, ack));
                }
                Err(error) => {
                    result.error = Some(error);
                    break;
                }
            }
        }
        result
    }

    /// Wakes those who read the topic, here and in other processes. It is a hint and not waited for.
    async fn tell(&self, topic: &Topic) {
        self.slot_of(&topic.name).wake.send_modify(|wakes| *wakes += 1);
        let hint = Bytes::copy_from_slice(self.id.as_bytes());
        let told = self.js.client.publish(self.names.wake(&topic.name), hint);
        let _ = tokio::time::timeout(Duration::from_millis(100), told).await;
    }
}

/// The messages of a shard while they are filled.
#[derive(Default)]
struct Packing {
    parcels: Vec<Parcel>,
    open: Option<(Packet, Vec<usize>)>,
}

impl Packing {
    fn add(&mut self, index: usize, event: NewEvent) {
        if event.dedup_id.is_some() {
            self.close();
            let dedup = event.dedup_id.as_deref().map(|id| names::dedup(event.shard, id));
            let mut packet = Packet::new();
            packet.add(event);
            self.parcels.push(Parcel { bytes: packet.finish(), dedup, events: vec![index] });
            return;
        }
        let size = event.payload.len();
        if self
            .open
            .as_ref()
            .is_some_and(|(packet, _)| packet.len() + size > ENOUGH || packet.count() >= EVENTS)
        {
            self.close();
        }
        let (packet, events) = self.open.get_or_insert_with(|| (Packet::new(), Vec::new()));
        packet.add(event);
        events.push(index);
    }

    fn close(&mut self) {
        if let Some((packet, events)) = self.open.take() {
            self.parcels.push(Parcel { bytes: packet.finish(), dedup: None, events });
        }
    }

    fn finish(mut self) -> Vec<Parcel> {
        self.close();
        self.parcels
    }
}
