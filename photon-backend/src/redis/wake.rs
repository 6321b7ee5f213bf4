//! Telling readers that something was appended: at once within this process, and by a message to others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use photon_core::error::{StoreError, chain};
use photon_core::ids::TopicName;
use photon_core::store::Wake;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::connect::Connector;
use super::keys::Keys;
use super::throttle::Throttle;

/// So long a broken connection waits before it is made anew, at first and at most.
const WAITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// So often a silent connection is tried.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// All listeners of this store.
pub(super) struct Wakes {
    shared: Arc<Shared>,
    task: Mutex<Option<Task>>,
}

struct Shared {
    connector: Arc<Connector>,
    keys: Keys,
    database: i64,
    /// What our own messages carry: whoever is here was told without them.
    own: String,
    topics: Mutex<HashMap<TopicName, watch::Sender<()>>>,
    outages: Throttle,
}

/// What receives messages.
struct Task {
    running: JoinHandle<()>,
    new_topics: mpsc::UnboundedSender<TopicName>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is a single step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wakes {
    pub(super) fn new(connector: Arc<Connector>, keys: Keys, database: i64) -> Self {
        let shared = Shared {
            connector,
            keys,
            database,
            own: Uuid::new_v4().simple().to_string(),
            topics: Mutex::default(),
            outages: Throttle::default(),
        };
        Self { shared: Arc::new(shared), task: Mutex::default() }
    }

    /// The channel of a topic, and what an append from here says in it.
    pub(super) fn announcement(&self, topic: &TopicName) -> (String, &str) {
        (self.shared.channel(topic), &self.shared.own)
    }

    /// Something was appended here.
    pub(super) fn wake(&self, topic: &TopicName) {
        if let Some(wake) = lock(&self.shared.topics).get(topic) {
            wake.send_replace(());
        }
    }

    /// Ends the task. Listeners hear of appends from here only.
    pub(super) fn close(&self) {
        lock(&self.task).take();
    }

    /// A listener for a topic, from now on.
    pub(super) fn listen(&self, topic: &TopicName) -> Box<dyn Wake> {
        let mut topics = lock(&self.shared.topics);
        let is_new = !topics.contains_key(topic);
        let wake = topics.entry(topic.clone()).or_insert_with(|| watch::Sender::new(()));
        let listener = Listener(wake.subscribe());
        drop(topics);
        self.receive(is_new.then_some(topic));
        Box::new(listener)
    }

    /// Sees to the task: it ends with the runtime that it was started on.
    fn receive(&self, new: Option<&TopicName>) {
        let mut task = lock(&self.task);
        if let Some(task) = task.as_ref().filter(|task| !task.running.is_finished()) {
            if let Some(topic) = new {
                // If it ends just now, the next listener starts it again.
                let _ = task.new_topics.send(topic.clone());
            }
            return;
        }
        // Without a runtime nobody can wait, either.
        let Ok(runtime) = Handle::try_current() else { return };
        let (new_topics, received) = mpsc::unbounded_channel();
        let running = runtime.spawn(Arc::clone(&self.shared).receive_all(received));
        *task = Some(Task { running, new_topics });
    }
}

impl Shared {
    fn channel(&self, topic: &TopicName) -> String {
        self.keys.channel(self.database, topic)
    }

    /// Receives messages until the store is gone.
    async fn receive_all(self: Arc<Self>, mut new_topics: mpsc::UnboundedReceiver<TopicName>) {
        let mut wait = WAITS[0];
        loop {
            let listening = self.receive_some(&mut new_topics, &mut wait).await;
            let Err(error) = listening else { return };
            self.outages.count(|unsaid| {
                tracing::warn!(
                    error = chain(&error), unsaid,
                    "messages about new events do not come in from Redis: readers look from time to time until they do",
                );
            });
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAITS[1]);
        }
    }

    /// Receives messages on one connection. Ends well when the store is gone.
    async fn receive_some(
        &self,
        new_topics: &mut mpsc::UnboundedReceiver<TopicName>,
        wait: &mut Duration,
    ) -> Result<(), StoreError> {
        let limit = self.connector.target().timeout();
        let late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time").into();
        let explain = |error| self.connector.target().explain_connect(error);
        let (mut orders, mut messages) = self.connector.listen().await?.split();
        let known: Vec<TopicName> = lock(&self.topics).keys().cloned().collect();
        let mut topics: HashMap<String, TopicName> =
            known.into_iter().map(|topic| (self.channel(&topic), topic)).collect();
        let mut news: Vec<TopicName> = topics.values().cloned().collect();
        loop {
            for topic in std::mem::take(&mut news) {
                let subscribed = tokio::time::timeout(limit, orders.subscribe(self.channel(&topic))).await;
                subscribed.map_err(late).and_then(|subscribed| subscribed).map_err(explain)?;
                // Something may have come before.
                self.wake(&topic);
                topics.insert(self.channel(&topic), topic);
            }
            *wait = WAITS[0];
            tokio::select! {
                message = messages.next() => {
                    let Some(message) = message else {
                        return Err(explain(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()));
                    };
                    if message.get_payload_bytes() != self.own.as_bytes()
                        && let Some(topic) = topics.get(message.get_channel_name())
                    {
                        self.wake(topic);
                    }
                }
                topic = new_topics.recv() => match topic {
                    Some(topic) => news.push(topic),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(TRY_EVERY) => {
                    let answer = tokio::time::timeout(limit, orders.ping::<redis::Value>()).await;
                    answer.map_err(late).and_then(|answer| answer).map_err(explain)?;
                }
            }
        }
    }

    fn wake(&self, topic: &TopicName) {
        if let Some(wake) = lock(&self.topics).get(topic) {
            wake.send_replace(());
        }
    }
}

/// Compares counters, so an append between two waits is never missed.
struct Listener(watch::Receiver<()>);

#[async_trait]
impl Wake for Listener {
    async fn wait(&mut self) {
        if self.0.changed().await.is_err() {
            // The store is gone: nothing will ever come.
            std::future::pending::<()>().await;
        }
    }
}
