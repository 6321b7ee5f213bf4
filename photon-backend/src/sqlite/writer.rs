//! The one thread that writes.
//!
//! Pieces of work that wait are done together: one transaction, one commit, and only then the answers. While
//! a commit waits for the disk, or for the lock of another process, the next group gathers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::TopicName;
use photon_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error::{Displaced, File, Trouble, is_certain};
use super::queue::Queue;
use super::topics::{TopicCache, TopicRow};
use super::wake::Wakes;
use super::wal::WalKeeper;

/// The most pieces of work in one transaction.
const MAX_GROUP: usize = 1_024;
/// A transaction takes nothing more in once it wrote about so many bytes.
const MAX_GROUP_BYTES: usize = 8 << 20;

/// Hands work to the writing thread.
#[derive(Clone)]
pub(super) struct Writer {
    file: File,
    queue: Arc<Queue<Box<dyn Work>>>,
}

impl Writer {
    pub(super) fn new(file: File) -> Self {
        Self { file, queue: Arc::new(Queue::new()) }
    }

    /// Does `work` in a transaction and answers after its commit. `bytes`: about how much it writes.
    ///
    /// Work that fails has no effect. It may be run again, in a transaction of its own, when the one that it
    /// was in was lost.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnMut(&mut Transaction<'_>) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let call = Call { work, bytes, result: None, answer };
        if self.queue.push(Box::new(call)).is_err() {
            return Err(self.file.error(StoreErrorKind::Closed, "it was closed: open it again"));
        }
        answered.await.unwrap_or_else(|_| {
            let reason = "the writing thread broke off, what was to be written may be stored or not";
            Err(self.file.error(StoreErrorKind::Unknown, reason))
        })
    }

    /// Takes nothing more in. What waits is still done.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// What the writing thread does, until the queue is closed and empty.
    pub(super) fn work(&self, conn: Connection, mut wal: WalKeeper, wakes: &Wakes) {
        let mut desk = Desk {
            file: &self.file,
            queue: &self.queue,
            conn,
            topics: TopicCache::default(),
            wakes,
            previous: Timestamp::default(),
        };
        while let Some(first) = self.queue.pop() {
            desk.group(first);
            wal.after_commit(&desk.conn);
        }
    }
}

/// A transaction that is open.
pub(super) struct Transaction<'a> {
    /// The connection that it runs on.
    pub(super) conn: &'a Connection,
    /// The database file, for messages.
    pub(super) file: &'a File,
    /// When it began, by the clock of the system.
    pub(super) now: Timestamp,
    topics: &'a mut TopicCache,
    last_seq: Option<u64>,
    appended: Vec<TopicName>,
}

impl Transaction<'_> {
    /// The topic, which must have been ensured.
    pub(super) fn topic(&mut self, name: &TopicName) -> Result<TopicRow, Trouble> {
        self.topics.get(self.conn, name)
    }

    /// The next place in the log.
    pub(super) fn next_seq(&mut self) -> Result<u64, Trouble> {
        let last = match self.last_seq {
            Some(last) => last,
            None => super::log::last_seq(self.conn)?,
        };
        self.last_seq = Some(last + 1);
        Ok(last + 1)
    }

    /// One that is open on a connection of the user's.
    pub(super) fn of_user<'a>(
        conn: &'a Connection,
        file: &'a File,
        now: Timestamp,
        topics: &'a mut TopicCache,
    ) -> Transaction<'a> {
        Transaction { conn, file, now, topics, last_seq: None, appended: Vec::new() }
    }

    /// Others may have given out places in it, or have found topics that a savepoint takes back.
    pub(super) fn forget_places(&mut self) {
        self.last_seq = None;
    }

    /// Wakes the readers of the topic after the commit.
    pub(super) fn wake(&mut self, topic: &TopicName) {
        if !self.appended.contains(topic) {
            self.appended.push(topic.clone());
        }
    }
}

/// A piece of work and the way back to the one who waits for it.
trait Work: Send {
    fn bytes(&self) -> usize;
    /// Does it. `false`: it failed, and says why when it is finished.
    fn run(&mut self, tx: &mut Transaction<'_>) -> bool;
    /// Answers with what `run` gave, or with the error that kept it from taking effect.
    fn finish(self: Box<Self>, file: &File, lost: Option<StoreError>);
}

struct Call<T, F> {
    work: F,
    bytes: usize,
    result: Option<Result<T, Trouble>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&mut Transaction<'_>) -> Result<T, Trouble> + Send> Work for Call<T, F> {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn run(&mut self, tx: &mut Transaction<'_>) -> bool {
        // A thread that broke off would be missed for good.
        let result = catch_unwind(AssertUnwindSafe(|| (self.work)(tx)))
            .unwrap_or_else(|_| Err(tx.file.panicked().into()));
        let done = result.is_ok();
        self.result = Some(result);
        done
    }

    fn finish(self: Box<Self>, file: &File, lost: Option<StoreError>) {
        let result = match (lost, self.result) {
            (None, Some(result)) => result.map_err(|trouble| file.explain(trouble)),
            (Some(lost), _) => Err(lost),
            // Work is only finished without an error after it ran.
            (None, None) => return,
        };
        // Nobody may wait any more.
        let _ = self.answer.send(result);
    }
}

/// Where the writing thread works.
struct Desk<'a> {
    file: &'a File,
    queue: &'a Queue<Box<dyn Work>>,
    conn: Connection,
    topics: TopicCache,
    wakes: &'a Wakes,
    previous: Timestamp,
}

impl Desk<'_> {
    /// Does what waits in one transaction, starting with `first`.
    fn group(&mut self, first: Box<dyn Work>) {
        if let Some(displaced) = self.file.displaced() {
            return self.refuse(first, || displaced.before());
        }
        if let Err(error) = self.begin() {
            return self.refuse(first, || self.file.explain_shared(&error));
        }
        let queue = self.queue;
        let mut tx = self.transaction();
        let (mut done, mut bytes, mut spoilt) = (Vec::new(), 0, false);
        let mut next = Some(first);
        while let Some(mut work) = next {
            let before = tx.conn.total_changes();
            if work.run(&mut tx) {
                bytes += work.bytes();
                done.push(work);
            } else if tx.conn.total_changes() == before && !tx.conn.is_autocommit() {
                work.finish(tx.file, None);
            } else {
                // It failed half-way: what it wrote must go, and takes the others along.
                done.push(work);
                spoilt = true;
                break;
            }
            let full = done.len() >= MAX_GROUP || bytes >= MAX_GROUP_BYTES;
            next = if full { None } else { queue.try_pop() };
        }
        let appended = tx.appended;
        if spoilt {
            self.roll_back();
            return self.one_by_one(done);
        }
        match self.execute("COMMIT") {
            Ok(()) => self.finish(done, &appended),
            Err(error) => {
                self.roll_back();
                if is_certain(&error) && done.len() > 1 {
                    return self.one_by_one(done);
                }
                for work in done {
                    work.finish(self.file, Some(self.file.explain_commit(&error)));
                }
            }
        }
    }

    /// Does each in a transaction of its own, so that the fault of one is not that of the others.
    fn one_by_one(&mut self, works: Vec<Box<dyn Work>>) {
        for mut work in works {
            if let Err(error) = self.begin() {
                work.finish(self.file, Some(self.file.explain(error)));
                continue;
            }
            let mut tx = self.transaction();
            let done = work.run(&mut tx);
            let appended = tx.appended;
            if !done {
                self.roll_back();
                work.finish(self.file, None);
                continue;
            }
            match self.execute("COMMIT") {
                Ok(()) => self.finish(vec![work], &appended),
                Err(error) => {
                    self.roll_back();
                    work.finish(self.file, Some(self.file.explain_commit(&error)));
                }
            }
        }
    }

    fn begin(&self) -> rusqlite::Result<()> {
        // Waits for other processes in the busy handler of the connection.
        self.execute("BEGIN IMMEDIATE")
    }

    fn execute(&self, statement: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(statement)?.execute([]).map(drop)
    }

    fn transaction(&mut self) -> Transaction<'_> {
        // A clock that jumps back must not make a file's times go back within this process.
        self.previous = self.previous.max(SystemTime::now().into());
        Transaction {
            conn: &self.conn,
            file: self.file,
            now: self.previous,
            topics: &mut self.topics,
            last_seq: None,
            appended: Vec::new(),
        }
    }

    fn finish(&self, done: Vec<Box<dyn Work>>, appended: &[TopicName]) {
        let displaced = self.file.displaced();
        for work in done {
            work.finish(self.file, displaced.as_ref().map(Displaced::after));
        }
        for topic in appended {
            self.wakes.notify(topic);
        }
    }

    fn roll_back(&mut self) {
        // What this transaction was the first to write may be in there.
        self.topics = TopicCache::default();
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::warn!(database = %self.file.path().display(), %error, "a transaction was not rolled back");
        }
    }

    /// No transaction could be begun: all that wait have waited for it.
    fn refuse(&self, first: Box<dyn Work>, error: impl Fn() -> StoreError) {
        for work in std::iter::once(first).chain(self.queue.take_all()) {
            work.finish(self.file, Some(error()));
        }
    }
}
