//! Small things of the state stream that are replaced as a whole: topics, subscriptions, members.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Inner;
use super::error::error;
use super::journal::End;

/// What is known of a topic beside its stream.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct TopicRecord {
    /// The generation of the stream that it is about.
    pub(super) generation: String,
    #[serde(default)]
    pub(super) key: Option<String>,
    /// Up to where each shard was trimmed.
    #[serde(default)]
    pub(super) floors: BTreeMap<u16, u64>,
    /// Up to where it was announced that a shard is going to be trimmed.
    #[serde(default)]
    pub(super) announced: BTreeMap<u16, u64>,
}

impl TopicRecord {
    pub(super) fn floor(&self, shard: u16) -> u64 {
        self.floors.get(&shard).copied().unwrap_or(0)
    }

    /// Where a new subscription starts at the earliest.
    pub(super) fn start(&self, shard: u16) -> u64 {
        self.announced.get(&shard).copied().unwrap_or(0).max(self.floor(shard))
    }
}

/// What is known of a subscription beside its shards.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SubscriptionRecord {
    /// Grows when it is registered after it was forgotten.
    pub(super) life: u64,
    pub(super) stage: Stage,
    pub(super) durable: bool,
    pub(super) registered: i64,
    pub(super) active: i64,
    #[serde(default)]
    pub(super) expire_after_us: Option<u64>,
    pub(super) starts: Vec<u64>,
    #[serde(default)]
    pub(super) revision: u64,
    #[serde(default)]
    pub(super) paused: Option<PausedRecord>,
}

/// How far the registration of a subscription got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// It is known, so that trimming counts it, but its starts may still be raised.
    Announced,
    Registered,
    /// It was forgotten; its shards may still have to be cleared.
    Forgotten,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PausedRecord {
    pub(super) reason: String,
    pub(super) since: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MemberRecord {
    pub(super) instance: String,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) process_start: String,
    pub(super) heartbeat: u64,
    pub(super) joined: i64,
}

/// So often a change is tried again when others change the same thing.
const TRIES: u32 = 200;

/// What a change of a record comes to.
pub(super) enum Change<T, R> {
    /// It is as it should be.
    Keep(R),
    /// It is to be replaced.
    Write(T, R),
}

impl Inner {
    pub(super) async fn record<T: DeserializeOwned>(&self, subject: &str) -> Result<Option<T>, StoreError> {
        Ok(self.versioned(subject).await?.1)
    }

    /// Changes a record. `change` is called again if another change came first.
    pub(super) async fn change<T: Serialize + DeserializeOwned, R>(
        &self,
        what: &str,
        subject: &str,
        mut change: impl FnMut(Option<T>) -> Result<Change<T, R>, StoreError>,
    ) -> Result<R, StoreError> {
        for attempt in 0..TRIES {
            let (end, record) = self.versioned(subject).await?;
            let (record, result) = match change(record)? {
                Change::Keep(result) => return Ok(result),
                Change::Write(record, result) => (record, result),
            };
            let data = serde_json::to_vec(&record).map_err(|source| {
                error(StoreErrorKind::Refused, format!("{what}: it cannot be written")).with_source(source)
            })?;
            if let Some(stored) = self.put_entry(what, subject, end, data.into()).await? {
                self.tidy_sometimes(subject, stored.counts);
                return Ok(result);
            }
            wait_for_others(attempt).await;
        }
        Err(contended(what))
    }

    async fn versioned<T: DeserializeOwned>(&self, subject: &str) -> Result<(End, Option<T>), StoreError> {
        let Some((end, entry)) = self.last_entry(subject).await? else { return Ok((End::default(), None)) };
        let record = serde_json::from_slice(&entry.data).map_err(|source| {
            let message = format!(
                "the message {} on {subject:?} is not one of Photon, or of a newer version: nothing else may \
                 publish there, remove it",
                entry.seq
            );
            error(StoreErrorKind::Corrupt, message).with_source(source)
        })?;
        Ok((end, Some(record)))
    }

    /// Lets older entries be removed, now and then: each time costs requests.
    pub(super) fn tidy_sometimes(&self, subject: &str, seq: u64) {
        if self.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) {
            self.tidy(subject.to_owned(), seq);
        }
    }

    /// Lets the messages of a subject of the state before this one be removed, some time. What stays is removed by
    /// a later call of the same kind.
    pub(super) fn tidy(&self, subject: String, before: u64) {
        let (js, state, replicated) = (self.js.clone(), self.state.clone(), self.replicated);
        tokio::spawn(async move {
            if let Err(error) = js.remove_before(&state, replicated, &subject, before).await {
                tracing::debug!(%subject, %error, "old messages stay for now");
            }
        });
    }
}

/// Lets others go first after a change that came too late.
pub(super) async fn wait_for_others(attempt: u32) {
    if attempt > 2 {
        let spread = uuid::Uuid::new_v4().as_u64_pair().1 % u64::from(attempt.min(20) * 2);
        tokio::time::sleep(Duration::from_millis(spread)).await;
    }
}

pub(super) fn contended(what: &str) -> StoreError {
    let reason = "others changed it each time it was tried: try again";
    error(StoreErrorKind::Unavailable, format!("{what}: {reason}"))
}
