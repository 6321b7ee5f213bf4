//! The logs of topics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use photon_core::error::StoreError;
use photon_core::event::NewEvent;
use photon_core::ids::{Seq, Shard, TopicName};
use photon_core::store::{
    Appended, Bounds, Cursor, EventLog, ReadBatch, ReadLimit, TopicInfo, TopicSpec, Wake,
};
use photon_core::time::Timestamp;
use tokio::sync::watch;

use super::topics::TopicSlot;
use super::{Inner, NatsStore};

#[async_trait]
impl EventLog for NatsStore {
    async fn ensure_topic(&self, spec: &TopicSpec) -> Result<TopicInfo, StoreError> {
        self.inner.ensure(spec).await
    }

    async fn append(&self, topic: &TopicName, events: Vec<NewEvent>) -> Result<Vec<Appended>, StoreError> {
        let topic = self.inner.topic(topic).await?;
        self.inner.append_events(&topic, events).await
    }

    async fn read(
        &self,
        topic: &TopicName,
        cursors: &[Cursor],
        limit: ReadLimit,
    ) -> Result<ReadBatch, StoreError> {
        let topic = self.inner.topic(topic).await?;
        self.inner.read_topic(&topic, cursors, limit).await
    }

    async fn bounds(&self, topic: &TopicName) -> Result<Vec<Bounds>, StoreError> {
        let topic = self.inner.topic(topic).await?;
        self.inner.bounds_of(&topic).await
    }

    async fn position_at(&self, topic: &TopicName, time: Timestamp) -> Result<Vec<Seq>, StoreError> {
        let topic = self.inner.topic(topic).await?;
        Ok(self.inner.positions(&topic, time).await?.into_iter().map(Seq).collect())
    }

    async fn announce_trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let topic = self.inner.topic(topic).await?;
        self.inner.announce(&topic, shard, through).await
    }

    async fn trim(&self, topic: &TopicName, shard: Shard, through: Seq) -> Result<(), StoreError> {
        let topic = self.inner.topic(topic).await?;
        self.inner.trim_shard(&topic, shard, through).await
    }

    fn wake(&self, topic: &TopicName) -> Box<dyn Wake> {
        let slot = self.inner.slot_of(topic);
        if !slot.listens.swap(true, Ordering::Relaxed) {
            listen(&self.inner, topic, &slot);
        }
        Box::new(Listener(slot.wake.subscribe()))
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// Passes the hints of other processes on while the store lives.
fn listen(inner: &Arc<Inner>, topic: &TopicName, slot: &Arc<TopicSlot>) {
    let (client, own) = (inner.js.client.clone(), inner.id);
    let (subject, slot) = (inner.names.wake(topic), Arc::downgrade(slot));
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let Ok(mut hints) = client.subscribe(subject).await else { return };
        while let Some(hint) = hints.next().await {
            let Some(slot) = slot.upgrade() else { return };
            if hint.payload[..] != own.as_bytes()[..] {
                slot.wake.send_modify(|wakes| *wakes += 1);
            }
        }
    });
}

struct Listener(watch::Receiver<u64>);

#[async_trait]
impl Wake for Listener {
    async fn wait(&mut self) {
        if self.0.changed().await.is_err() {
            // The store is gone, and nothing will come.
            std::future::pending::<()>().await;
        }
    }
}
