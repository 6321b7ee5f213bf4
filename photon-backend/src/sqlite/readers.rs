//! The threads that read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::TopicName;
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use super::connection;
use super::error::{File, Trouble};
use super::queue::Queue;
use super::topics::{TopicCache, TopicRow};

type Work = Box<dyn FnOnce(Result<&mut Reader, StoreError>) + Send>;

/// A few threads with a connection each, started at need.
pub(super) struct Readers {
    file: File,
    queue: Arc<Queue<Work>>,
    started: Mutex<usize>,
    most: usize,
    /// Each thread holds a receiver: they are all gone when the sender says so.
    threads: watch::Sender<()>,
}

/// A connection that reads.
struct Reader {
    conn: Connection,
    topics: TopicCache,
}

/// One state of the database, held as long as this lives.
pub(super) struct Snapshot<'a> {
    /// The connection that it is read on.
    pub(super) conn: &'a Connection,
    /// The database file, for messages.
    pub(super) file: &'a File,
    topics: &'a mut TopicCache,
}

impl Snapshot<'_> {
    /// The topic, which must have been ensured.
    pub(super) fn topic(&mut self, name: &TopicName) -> Result<TopicRow, Trouble> {
        self.topics.get(self.conn, name)
    }
}

impl Readers {
    pub(super) fn new(file: File, most: usize, threads: &watch::Sender<()>) -> Self {
        let threads = threads.clone();
        Self { file, queue: Arc::new(Queue::new()), started: Mutex::new(0), most, threads }
    }

    /// Looks at the database as every commit before the call left it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Snapshot<'_>) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let file = self.file.clone();
        let work: Work = Box::new(move |reader| {
            let result =
                reader.and_then(|reader| read(&file, reader, look).map_err(|trouble| file.explain(trouble)));
            // Nobody may wait any more.
            let _ = answer.send(result);
        });
        match self.queue.push(work) {
            Ok(behind) => self.start_thread(behind)?,
            Err(_) => return Err(self.file.error(StoreErrorKind::Closed, "it was closed: open it again")),
        }
        answered.await.unwrap_or_else(|_| {
            Err(self.file.error(StoreErrorKind::Unavailable, "a reading thread broke off: try again"))
        })
    }

    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Starts another thread if there is more work than threads, and fewer threads than allowed.
    fn start_thread(&self, behind: bool) -> Result<(), StoreError> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !behind || *started >= self.most {
            return Ok(());
        }
        let (file, queue, alive) = (self.file.clone(), Arc::clone(&self.queue), self.threads.subscribe());
        let thread = std::thread::Builder::new().name("photon-sqlite-read".to_owned()).spawn(move || {
            serve(&file, &queue);
            drop(alive);
        });
        match thread {
            Ok(_) => *started += 1,
            // The threads that run already will come to it.
            Err(_) if *started > 0 => {}
            Err(error) => {
                let reason = "no thread could be started to read it: raise the limit of threads";
                return Err(self.file.error(StoreErrorKind::Unavailable, reason).with_source(error));
            }
        }
        Ok(())
    }
}

fn serve(file: &File, queue: &Queue<Work>) {
    let mut reader = None;
    while let Some(work) = queue.pop() {
        if reader.is_none() {
            match connection::open_reader(file) {
                Ok(conn) => reader = Some(Reader { conn, topics: TopicCache::default() }),
                Err(trouble) => {
                    // A file that is not in its place any more cannot be opened either.
                    let displaced = file.displaced().map(|displaced| displaced.before());
                    work(Err(displaced.unwrap_or_else(|| file.explain(trouble))));
                    continue;
                }
            }
        }
        if let Some(reader) = &mut reader {
            work(Ok(reader));
        }
    }
}

fn read<T>(
    file: &File,
    reader: &mut Reader,
    look: impl FnOnce(&mut Snapshot<'_>) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    if let Some(displaced) = file.displaced() {
        return Err(displaced.before().into());
    }
    // A thread that broke off would be missed for good.
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let conn = reader.conn.unchecked_transaction()?;
        look(&mut Snapshot { conn: &conn, file, topics: &mut reader.topics })
    }));
    looked.unwrap_or_else(|_| Err(file.panicked().into()))
}
