//! A reader that stands somewhere in the stream of a topic and gets what comes after.
//!
//! It is a consumer without acknowledgements whose messages are asked for in portions, so that what waits in this
//! process is bounded.

use std::time::{Duration, Instant};

use async_nats::{Message, StatusCode, Subscriber};
use futures::{FutureExt, StreamExt};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::Shard;
use photon_core::time::Timestamp;
use serde_json::json;

use super::Inner;
use super::api::JetStream;
use super::error::error;
use super::packet::{Unpacked, last_of};
use super::topics::Topic;

/// So many messages may be on their way to a reader, if they are small.
const MESSAGES: usize = 256;
/// So many bytes should be on their way to a reader at most, as far as one message allows.
const BYTES: usize = 2 << 20;
/// The server forgets a reader that does not ask for so long.
const IDLE: Duration = Duration::from_secs(60);

pub(super) struct Tail {
    js: JetStream,
    stream: String,
    consumer: String,
    inbox: String,
    messages: Subscriber,
    /// The only shard that it reads; `None`: all.
    filter: Option<Shard>,
    /// The last message of the stream that it has passed.
    pub(super) position: u64,
    /// For each shard the last place that it has passed.
    pub(super) seen: Vec<u64>,
    /// The message that it is in.
    pub(super) packet: Option<Unpacked>,
    /// How many messages the server sent, by its own count.
    delivered: u64,
    /// How many were asked for and did not come yet.
    asked: usize,
    /// The usual size of a message.
    size: usize,
    used: Instant,
}

/// A message as the server describes it.
struct Delivery {
    stream_seq: u64,
    consumer_seq: u64,
    time: Timestamp,
}

impl Inner {
    /// Opens a reader before the message `first`.
    pub(super) async fn open_tail(
        &self,
        topic: &Topic,
        filter: Option<Shard>,
        first: u64,
    ) -> Result<Tail, StoreError> {
        let inbox = self.js.client.new_inbox();
        let messages = self.js.client.subscribe(inbox.clone()).await.map_err(|source| {
            let message = format!("topic {:?} cannot be read: the connection to NATS is closed", topic.name);
            error(StoreErrorKind::Closed, message).with_source(source)
        })?;
        let subjects = filter
            .map_or_else(|| self.names.log_subjects(&topic.name), |shard| self.names.log(&topic.name, shard));
        let config = json!({
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": topic.sequence(first).max(1),
            "filter_subject": subjects,
            "replay_policy": "instant",
            "inactive_threshold": IDLE.as_nanos(),
            "num_replicas": 1,
            "mem_storage": true,
        });
        let consumer = self.js.make_consumer(&topic.stream, config).await?;
        let position = first.saturating_sub(1);
        let mut tail = Tail {
            js: self.js.clone(),
            stream: topic.stream.clone(),
            consumer: consumer.name,
            inbox,
            messages,
            filter,
            position,
            seen: vec![last_of(position); topic.shards.into()],
            packet: None,
            delivered: 0,
            asked: 0,
            size: 1024,
            used: Instant::now(),
        };
        tail.ask().await?;
        Ok(tail)
    }
}

impl Tail {
    /// Whether it can go on for a reader of these shards that stands at these places.
    pub(super) fn fits(&self, mut cursors: impl Iterator<Item = (Shard, u64)>, only: Option<Shard>) -> bool {
        let covers = self.filter.is_none() || self.filter == only;
        covers
            && cursors
                .all(|(shard, after)| self.seen.get(usize::from(shard.0)).is_some_and(|seen| *seen <= after))
    }

    /// Whether nobody used it for so long that the server may have forgotten it.
    pub(super) fn is_old(&self) -> bool {
        self.used.elapsed() > IDLE / 2
    }

    /// Takes the next message, if one is here already. `false` if not.
    pub(super) async fn advance(&mut self, inner: &Inner, topic: &Topic) -> Result<bool, StoreError> {
        self.used = Instant::now();
        match self.messages.next().now_or_never() {
            Some(message) => self.accept(inner, topic, message).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Takes the next message, which may take so long. `false` if none came.
    pub(super) async fn wait(
        &mut self,
        inner: &Inner,
        topic: &Topic,
        limit: Duration,
    ) -> Result<bool, StoreError> {
        match tokio::time::timeout(limit, self.messages.next()).await {
            Ok(message) => self.accept(inner, topic, message).await.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    async fn accept(
        &mut self,
        inner: &Inner,
        topic: &Topic,
        message: Option<Message>,
    ) -> Result<(), StoreError> {
        let message = message.ok_or_else(|| broken(topic, "the connection is closed"))?;
        if let Some(status) = message.status.filter(|status| *status != StatusCode::OK) {
            if status == StatusCode::IDLE_HEARTBEAT {
                return Ok(());
            }
            let reason = message.description.unwrap_or_else(|| status.to_string());
            return Err(broken(topic, &format!("the server ended the reading ({reason})")));
        }
        let delivery = message.reply.as_deref().and_then(Delivery::read);
        let delivery = delivery.ok_or_else(|| broken(topic, "a message came that JetStream did not send"))?;
        if delivery.consumer_seq != self.delivered + 1 {
            return Err(broken(topic, "messages got lost on the way"));
        }
        self.delivered = delivery.consumer_seq;
        let number = topic.number(delivery.stream_seq);
        self.position = number;
        self.asked = self.asked.saturating_sub(1);
        self.size = (self.size * 7 + message.payload.len()) / 8;
        if self.asked <= self.portion() / 2 {
            self.ask().await?;
        }
        let shard = message.subject.rsplit_once('.').and_then(|(_, shard)| shard.parse().ok()).map(Shard);
        let shard = shard.filter(|shard| shard.0 < topic.shards);
        let packet = shard
            .ok_or_else(|| super::cell::bad("its shard is unknown"))
            .and_then(|shard| Unpacked::new(shard, number, delivery.time, message.payload));
        match packet {
            Ok(packet) => {
                topic.saw_end(packet.shard, last_of(number));
                self.packet = Some(packet);
            }
            Err(reason) => inner.foreign.skipped(&topic.name, &topic.stream, delivery.stream_seq, &reason),
        }
        Ok(())
    }

    /// How many messages may be on their way.
    fn portion(&self) -> usize {
        (BYTES / self.size.max(1)).clamp(1, MESSAGES)
    }

    async fn ask(&mut self) -> Result<(), StoreError> {
        let batch = self.portion().saturating_sub(self.asked).max(1);
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream, self.consumer);
        let body = json!({ "batch": batch }).to_string();
        self.asked += batch;
        self.js.client.publish_with_reply(subject, self.inbox.clone(), body.into()).await.map_err(|source| {
            let message = format!("stream {:?} cannot be read: the connection is closed", self.stream);
            error(StoreErrorKind::Closed, message).with_source(source)
        })
    }

    /// Lets the server forget it.
    pub(super) async fn close(self) {
        self.js.drop_consumer(&self.stream, &self.consumer).await;
    }
}

impl Delivery {
    /// Reads the address of an acknowledgement, which says what was delivered:
    /// `$JS.ACK.stream.consumer.deliveries.stream seq.consumer seq.time.pending`, in newer servers with a domain and
    /// an account after `ACK`, and more at the end.
    fn read(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.split('.').collect();
        let at = match tokens.len() {
            9 => 0,
            11.. => 2,
            _ => return None,
        };
        (tokens[..2] == ["$JS", "ACK"]).then_some(())?;
        let number = |index: usize| tokens[at + index].parse::<u64>().ok();
        let nanos: i64 = tokens[at + 7].parse().ok()?;
        Some(Self {
            stream_seq: number(5)?,
            consumer_seq: number(6)?,
            time: Timestamp(nanos.div_euclid(1_000)),
        })
    }
}

fn broken(topic: &Topic, reason: &str) -> StoreError {
    error(
        StoreErrorKind::Unavailable,
        format!("topic {:?} cannot be read on: {reason}; try again", topic.name),
    )
}

/// Messages in the streams of topics that Photon did not write.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    count: std::sync::atomic::AtomicU64,
    told: std::sync::Mutex<Option<Instant>>,
}

impl Foreign {
    pub(super) fn count(&self) -> u64 {
        self.count.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Counts one, and says so once a minute.
    pub(super) fn skipped(
        &self,
        topic: &photon_core::ids::TopicName,
        stream: &str,
        message: u64,
        reason: &photon_core::envelope::BadEnvelope,
    ) {
        let count = self.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.is_some_and(|told| told.elapsed() < Duration::from_secs(60)) {
            return;
        }
        *told = Some(Instant::now());
        tracing::warn!(
            %topic, stream, message, %reason, skipped = count,
            "a message that Photon did not write is skipped: only Photon may publish on its subjects"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_of_old_and_new_servers_are_read() {
        for reply in [
            "$JS.ACK.photon-log-t.abc.1.42.7.1700000000123456789.5",
            "$JS.ACK._.ACCHASH.photon-log-t.abc.1.42.7.1700000000123456789.5.rnd",
        ] {
            let read = Delivery::read(reply).unwrap();
            assert_eq!((read.stream_seq, read.consumer_seq, read.time.0), (42, 7, 1_700_000_000_123_456));
        }
        for reply in ["", "a.b", "$JS.ACK.s.c.1.x.7.1.5", "x.y.s.c.1.42.7.1.5"] {
            assert!(Delivery::read(reply).is_none(), "{reply}");
        }
    }
}
