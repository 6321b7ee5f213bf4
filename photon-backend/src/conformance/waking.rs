//! Being told about new records.

use std::time::Duration;

use futures::FutureExt;
use photon_core::store::Wake;

use super::kit::{Kit, Topic};
use super::verdict::Outcome;

/// A wake may be slow, but not slower than this.
const LIMIT: Duration = Duration::from_secs(10);

async fn expect_wake(listener: &mut dyn Wake, when: &str) -> Outcome {
    let woken = tokio::time::timeout(LIMIT, listener.wait()).await;
    ensure!(woken.is_ok(), "no wake {when}");
    Ok(())
}

async fn append(topic: &Topic) -> Outcome {
    topic.fill(0, 1).await.map(drop)
}

pub(super) async fn an_append_wakes_the_listener(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    append(&topic).await?;
    let mut listener = kit.store.wake(&topic.name);
    for round in 0..3 {
        let writer = topic.clone();
        let writing = tokio::spawn(async move { append(&writer).await });
        expect_wake(&mut *listener, &format!("after append number {round}")).await?;
        writing.await.map_err(super::Violation::new)??;
    }
    Ok(())
}

pub(super) async fn an_append_before_the_wait_is_not_missed(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let mut listener = kit.store.wake(&topic.name);
    append(&topic).await?;
    expect_wake(&mut *listener, "for an append between the making of the listener and its first wait")
        .await?;
    append(&topic).await?;
    expect_wake(&mut *listener, "for an append between two waits").await
}

pub(super) async fn a_dropped_wait_loses_nothing(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let mut listener = kit.store.wake(&topic.name);
    // Polled once and dropped, with and without something to report.
    let _ = listener.wait().now_or_never();
    append(&topic).await?;
    {
        let mut other = kit.store.wake(&topic.name);
        let _ = other.wait().now_or_never();
    }
    expect_wake(&mut *listener, "for an append after a wait that was dropped").await
}

pub(super) async fn every_listener_is_woken(kit: Kit<'_>) -> Outcome {
    let (topic, other) = (kit.topic(1).await?, kit.topic(1).await?);
    let mut listeners: Vec<_> = (0..5).map(|_| kit.store.wake(&topic.name)).collect();
    append(&other).await?;
    append(&topic).await?;
    for (number, listener) in listeners.iter_mut().enumerate() {
        expect_wake(&mut **listener, &format!("of listener number {number}")).await?;
    }
    Ok(())
}
