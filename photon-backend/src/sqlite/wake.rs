//! Waking readers: at once for what this process appends, soon for what others do.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use photon_core::ids::TopicName;
use photon_core::store::Wake;
use rusqlite::Connection;
use tokio::sync::watch;

use super::connection;
use super::error::{File, Trouble};
use super::{log, topics};

/// How often it is looked for what other processes appended, while somebody waits.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How long it is left alone after it could not be looked at.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The listeners of all topics.
#[derive(Debug, Clone, Default)]
pub(super) struct Wakes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    topics: HashMap<TopicName, watch::Sender<()>>,
    waiting: usize,
    closed: bool,
}

impl Wakes {
    /// Something was appended to the topic by this process.
    pub(super) fn notify(&self, topic: &TopicName) {
        if let Some(sender) = self.lock().topics.get(topic) {
            sender.send_replace(());
        }
    }

    /// A listener. A change after this call is never missed, whenever it waits.
    pub(super) fn listen(&self, topic: &TopicName) -> Box<dyn Wake> {
        let mut state = self.lock();
        let sender = state.topics.entry(topic.clone()).or_insert_with(|| watch::Sender::new(()));
        let changes = sender.subscribe();
        Box::new(Listener { wakes: self.clone(), changes })
    }

    /// Ends the watching thread. Listeners hear nothing any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.topics.clear();
        self.0.changed.notify_all();
    }

    /// What the watching thread does until it is closed: looks for appends of other processes while
    /// somebody waits.
    pub(super) fn watch(&self, file: &File) {
        let mut eye = None;
        while self.wait_for_waiting() {
            let looked = match &mut eye {
                Some(eye) => self.look(eye),
                None => Eye::open(file).map(|opened| eye = Some(opened)),
            };
            let pause = match looked {
                Ok(()) => LOOK_EVERY,
                Err(trouble) => {
                    // Readers look from time to time by themselves, and report what is wrong.
                    tracing::debug!(error = %file.explain(trouble), "other processes could not be watched");
                    eye = None;
                    RETRY_AFTER
                }
            };
            self.rest(pause);
        }
    }

    /// Returns when somebody waits; `false` if it is closed.
    fn wait_for_waiting(&self) -> bool {
        let state = self.lock();
        let idle = |state: &mut State| state.waiting == 0 && !state.closed;
        let state = self.0.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        !state.closed
    }

    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let mut state = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.closed {
                return;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn look(&self, eye: &mut Eye) -> Result<(), Trouble> {
        if !eye.has_changed()? {
            return Ok(());
        }
        let listened: Vec<TopicName> = {
            let mut state = self.lock();
            state.topics.retain(|_, sender| sender.receiver_count() > 0);
            state.topics.keys().cloned().collect()
        };
        for topic in listened {
            if eye.topic_has_grown(&topic)? {
                self.notify(&topic);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock can panic half-way through a change.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the watching thread has seen.
struct Eye {
    conn: Connection,
    data_version: Option<i64>,
    last_seq: Option<u64>,
    ends: HashMap<TopicName, u64>,
}

impl Eye {
    fn open(file: &File) -> Result<Self, Trouble> {
        let conn = connection::open_reader(file)?;
        Ok(Self { conn, data_version: None, last_seq: None, ends: HashMap::new() })
    }

    /// Whether anything was appended since the last look.
    fn has_changed(&mut self) -> Result<bool, Trouble> {
        let version = self.conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if self.data_version == Some(version) {
            return Ok(false);
        }
        let last_seq = log::last_seq(&self.conn)?;
        self.data_version = Some(version);
        Ok(self.last_seq.replace(last_seq) != Some(last_seq))
    }

    /// Whether the topic got new records since it was last looked at. The first look says yes.
    fn topic_has_grown(&mut self, topic: &TopicName) -> Result<bool, Trouble> {
        let Some(row) = topics::find(&self.conn, topic)? else { return Ok(false) };
        let end: u64 = self
            .conn
            .prepare_cached(
                "SELECT ifnull(max(last), 0) FROM (SELECT (SELECT max(last) FROM photon_segment g
                     WHERE g.topic = s.topic AND g.shard = s.shard) AS last
                 FROM photon_shard s WHERE s.topic = ?1)",
            )?
            .query_row([row.id], |row| row.get(0))?;
        Ok(self.ends.insert(topic.clone(), end) != Some(end))
    }
}

struct Listener {
    wakes: Wakes,
    changes: watch::Receiver<()>,
}

/// Counts a listener as waiting while it lives.
struct Waiting<'a>(&'a Wakes);

impl<'a> Waiting<'a> {
    fn new(wakes: &'a Wakes) -> Self {
        let mut state = wakes.lock();
        state.waiting += 1;
        if state.waiting == 1 {
            wakes.0.changed.notify_all();
        }
        Self(wakes)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

#[async_trait]
impl Wake for Listener {
    async fn wait(&mut self) {
        let _waiting = Waiting::new(&self.wakes);
        if self.changes.changed().await.is_err() {
            // The store was closed: nothing will ever come.
            std::future::pending::<()>().await;
        }
    }
}
