//! Events of one shard in one message.
//!
//! A message is stored or not: so a batch of one shard in one message is stored as a whole. The places of its
//! events follow from its sequence `n`: the last event has the place `4096 n`, the one before `4096 n - 1`. So the
//! last place of a shard is known from the sequence of its last message, and a single event a message is at
//! multiples of 4096.

use bytes::Bytes;
use photon_core::envelope::{BadEnvelope, Envelope, get_varint, put_varint};
use photon_core::event::{Event, NewEvent};
use photon_core::ids::{Seq, Shard, TopicName};
use photon_core::time::Timestamp;

use super::cell::{array, bad};

/// The most events in a message.
pub(super) const EVENTS: usize = 4096;
const PLACES: u64 = EVENTS as u64;
/// The first bytes of every message; the last is the version.
const MAGIC: [u8; 3] = *b"Ph\x01";

/// The message that holds a place.
pub(super) fn message_of(place: u64) -> u64 {
    place.div_ceil(PLACES)
}

/// The last place of a message.
pub(super) fn last_of(message: u64) -> u64 {
    message.saturating_mul(PLACES)
}

/// The place of an event of a message.
pub(super) fn place(message: u64, index: usize, count: usize) -> u64 {
    last_of(message) - (count - 1 - index) as u64
}

/// A message that is being filled.
pub(super) struct Packet {
    bytes: Vec<u8>,
    count: usize,
}

impl Packet {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), count: 0 }
    }

    pub(super) fn add(&mut self, event: NewEvent) {
        let NewEvent { id, key, headers, payload, .. } = event;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        Envelope { id, key, headers, payload }.encode(&mut self.bytes);
        let len = u32::try_from(self.bytes.len() - start - 4).unwrap_or(u32::MAX);
        self.bytes[start..start + 4].copy_from_slice(&len.to_be_bytes());
        self.count += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn finish(self) -> Bytes {
        let mut out = Vec::with_capacity(self.bytes.len() + 8);
        out.extend_from_slice(&MAGIC);
        put_varint(&mut out, self.count as u64);
        out.extend_from_slice(&self.bytes);
        out.into()
    }
}

/// The events of a message that was read, in order.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub(super) shard: Shard,
    message: u64,
    time: Timestamp,
    count: usize,
    next: usize,
    rest: Bytes,
}

impl Unpacked {
    /// Fails if Photon did not write it.
    pub(super) fn new(
        shard: Shard,
        message: u64,
        time: Timestamp,
        mut bytes: Bytes,
    ) -> Result<Self, BadEnvelope> {
        if array(&mut bytes)? != MAGIC {
            return Err(bad("it does not begin as one"));
        }
        let count = usize::try_from(get_varint(&mut bytes)?).unwrap_or(usize::MAX);
        if count == 0 || count > EVENTS {
            return Err(bad("the number of events is out of range"));
        }
        let packet = Self { shard, message, time, count, next: 0, rest: bytes };
        packet.check()?;
        Ok(packet)
    }

    /// Walks over the lengths, so that a message is taken whole or not at all.
    fn check(&self) -> Result<(), BadEnvelope> {
        let mut rest = self.rest.clone();
        for _ in 0..self.count {
            take(&mut rest)?;
        }
        if rest.is_empty() { Ok(()) } else { Err(bad("bytes follow the last event")) }
    }

    /// The place of the next event, if there is one.
    pub(super) fn next_place(&self) -> Option<u64> {
        (self.next < self.count).then(|| place(self.message, self.next, self.count))
    }

    /// Passes over the next event.
    pub(super) fn skip(&mut self) {
        if take(&mut self.rest).is_ok() {
            self.next += 1;
        } else {
            self.next = self.count;
        }
    }

    pub(super) fn take(&mut self, topic: &TopicName) -> Result<Event, BadEnvelope> {
        let seq = Seq(place(self.message, self.next, self.count));
        let bytes = take(&mut self.rest)?;
        self.next += 1;
        let Envelope { id, key, headers, payload } = Envelope::decode(bytes)?;
        Ok(Event { id, topic: topic.clone(), shard: self.shard, seq, key, headers, payload, time: self.time })
    }
}

fn take(bytes: &mut Bytes) -> Result<Bytes, BadEnvelope> {
    let len = u32::from_be_bytes(array(bytes)?) as usize;
    if bytes.len() < len {
        return Err(bad("it is cut short"));
    }
    Ok(bytes.split_to(len))
}

#[cfg(test)]
mod tests {
    use photon_core::headers::Headers;
    use photon_core::ids::EventId;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    proptest! {
        #[test]
        fn p11_events_come_back_at_ascending_places(
            payloads in proptest::collection::vec(any::<Vec<u8>>(), 1..20),
            message in 1u64..1 << 40,
        ) {
            let mut packet = Packet::new();
            for payload in &payloads {
                packet.add(NewEvent {
                    id: EventId(Uuid::nil()),
                    shard: Shard(3),
                    key: None,
                    headers: Headers::new(),
                    payload: payload.clone().into(),
                    dedup_id: None,
                });
            }
            let topic = TopicName::new("t").unwrap();
            let mut read = Unpacked::new(Shard(3), message, Timestamp(7), packet.finish()).unwrap();
            let mut last = last_of(message - 1);
            for payload in &payloads {
                let place = read.next_place().unwrap();
                let event = read.take(&topic).unwrap();
                prop_assert_eq!(&event.payload[..], &payload[..]);
                prop_assert!(place == event.seq.0 && place > last && message_of(place) == message);
                last = place;
            }
            prop_assert_eq!(last, last_of(message));
            prop_assert_eq!(read.next_place(), None);
        }

        #[test]
        fn nonsense_is_refused_without_a_panic(mut bytes: Vec<u8>, ours: bool) {
            if ours {
                bytes.splice(0..0, MAGIC);
            }
            let _ = Unpacked::new(Shard(0), 1, Timestamp(0), bytes.into());
        }
    }
}
