//! Waking readers: at once for what this process appends, by notification for what others do.
//!
//! Notifications are hints. The server takes a lock of the whole database for the commit of a transaction that
//! notifies, so an append never does: it is told in a statement of its own, many appends together.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use photon_core::error::StoreError;
use photon_core::ids::TopicName;
use photon_core::store::Wake;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::AsyncMessage;
use uuid::Uuid;

use super::connect::{Connection, Connector};
use super::error::Effect;
use super::param::params;
use super::pool::Pool;

/// Appends within this time are told together.
const TELL_EVERY: Duration = Duration::from_millis(5);
/// How often a connection that says nothing is asked whether it is still there, and how long it may take to answer.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// The pauses before a listener that broke off is connected again: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The listeners of all topics.
#[derive(Clone)]
pub(super) struct Wakes(Arc<Shared>);

struct Shared {
    connector: Connector,
    pool: Arc<Pool>,
    channel: String,
    /// Tells our own notifications, which have woken everybody here already.
    ours: String,
    state: Mutex<State>,
    /// There is something to tell.
    told: Notify,
}

#[derive(Default)]
struct State {
    topics: HashMap<TopicName, watch::Sender<()>>,
    untold: HashSet<TopicName>,
    listening: Option<JoinHandle<()>>,
    telling: Option<JoinHandle<()>>,
    is_closed: bool,
}

impl Wakes {
    pub(super) fn new(connector: Connector, pool: Arc<Pool>, schema: &str) -> Self {
        Self(Arc::new(Shared {
            connector,
            pool,
            channel: format!("photon:{schema}"),
            ours: Uuid::new_v4().simple().to_string(),
            state: Mutex::default(),
            told: Notify::new(),
        }))
    }

    /// This process appended to the topic. Needs a runtime.
    pub(super) fn appended(&self, topic: &TopicName) {
        let mut state = self.0.lock();
        state.wake(topic);
        if state.untold.insert(topic.clone()) {
            self.0.told.notify_one();
        }
        let shared = Arc::downgrade(&self.0);
        keep_running(&mut state, |state| &mut state.telling, || tell(shared));
    }

    /// A listener. A change after this call is never missed, whenever it waits.
    pub(super) fn listen(&self, topic: &TopicName) -> Box<dyn Wake> {
        let mut state = self.0.lock();
        let sender = state.topics.entry(topic.clone()).or_insert_with(|| watch::Sender::new(()));
        let changes = sender.subscribe();
        drop(state);
        Box::new(Listener { wakes: self.clone(), changes })
    }

    /// Ends its tasks. Listeners hear nothing any more.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        state.topics.clear();
        for task in [state.listening.take(), state.telling.take()].into_iter().flatten() {
            task.abort();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What another process said: who it is, and the topic.
    fn heard(&self, payload: &str) {
        if let Some((from, topic)) = payload.split_once(':')
            && from != self.ours
            && let Ok(topic) = TopicName::new(topic)
        {
            self.lock().wake(&topic);
        }
    }

    /// Something may have been missed.
    fn wake_all(&self) {
        let mut state = self.lock();
        state.topics.retain(|_, sender| sender.receiver_count() > 0);
        state.topics.values().for_each(|sender| sender.send_replace(()));
    }

    /// Listens until the connection breaks.
    async fn listen(self: &Arc<Self>) -> Result<(), StoreError> {
        let (ends, ended) = oneshot::channel::<()>();
        let shared = Arc::downgrade(self);
        let connection = self
            .connector
            .connect(Box::new(move |message| {
                // Dropped with the connection.
                let _ = &ends;
                if let (AsyncMessage::Notification(heard), Some(shared)) = (message, shared.upgrade()) {
                    shared.heard(heard.payload());
                }
            }))
            .await?;
        let listening = format!("LISTEN \"{}\"", self.channel);
        connection
            .client
            .batch_execute(&listening)
            .await
            .map_err(|error| self.connector.target().explain(error, Effect::Read))?;
        self.wake_all();
        stay(&connection, ended).await;
        Ok(())
    }
}

impl State {
    fn wake(&self, topic: &TopicName) {
        if let Some(sender) = self.topics.get(topic) {
            sender.send_replace(());
        }
    }
}

/// Starts a task if it does not run: it ends with the runtime that it was started on.
fn keep_running<F: Future<Output = ()> + Send + 'static>(
    state: &mut State,
    task: impl FnOnce(&mut State) -> &mut Option<JoinHandle<()>>,
    work: impl FnOnce() -> F,
) {
    if state.is_closed {
        return;
    }
    let task = task(state);
    if task.as_ref().is_none_or(JoinHandle::is_finished)
        && let Ok(runtime) = Handle::try_current()
    {
        *task = Some(runtime.spawn(work()));
    }
}

/// Returns when the connection is gone, or answers no more.
async fn stay(connection: &Connection, mut ended: oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            _ = &mut ended => return,
            () = sleep(ASK_EVERY) => {}
        }
        let asked = timeout(ASK_EVERY, connection.client.batch_execute("SELECT 1")).await;
        if !matches!(asked, Ok(Ok(()))) {
            return;
        }
    }
}

/// Listens for other processes, as long as the store is there.
async fn listen(shared: Weak<Shared>) {
    let mut pause = RETRY.0;
    loop {
        {
            let Some(shared) = shared.upgrade() else { return };
            match shared.listen().await {
                Ok(()) => pause = RETRY.0,
                Err(error) => {
                    // Readers look by themselves, and report what is wrong.
                    tracing::debug!(%error, "notifications cannot be listened for");
                }
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Tells other processes what was appended, as long as the store is there.
async fn tell(shared: Weak<Shared>) {
    loop {
        {
            let Some(shared) = shared.upgrade() else { return };
            shared.told.notified().await;
            let untold = std::mem::take(&mut shared.lock().untold);
            let payloads: Vec<String> =
                untold.iter().map(|topic| format!("{}:{topic}", shared.ours)).collect();
            let telling = async {
                let session = shared.pool.session().await?;
                let statement = "SELECT pg_notify($1, topic) FROM unnest($2) topic";
                let parameters = params![shared.channel, payloads];
                session.run(Effect::Write, session.client().query_typed(statement, parameters)).await
            };
            if let Err(error) = telling.await {
                tracing::debug!(%error, "other processes could not be notified");
            }
        }
        sleep(TELL_EVERY).await;
    }
}

struct Listener {
    wakes: Wakes,
    changes: watch::Receiver<()>,
}

#[async_trait]
impl Wake for Listener {
    async fn wait(&mut self) {
        {
            let mut state = self.wakes.0.lock();
            let shared = Arc::downgrade(&self.wakes.0);
            keep_running(&mut state, |state| &mut state.listening, || listen(shared));
        }
        if self.changes.changed().await.is_err() {
            // The store was closed: nothing will ever come.
            std::future::pending::<()>().await;
        }
    }
}
