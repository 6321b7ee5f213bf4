//! Case process-killer: handlers that end the process, under a supervisor that starts it again and again.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use photon::prelude::*;
use photon::{DeadReason, Options, Page, Seq};

const DIRECTORY: &str = "PROCESS_KILLER_DIRECTORY";
const CURED: &str = "PROCESS_KILLER_CURED";
const MAX_ATTEMPTS: u32 = 3;
const EVENTS: u32 = 60;
/// Two of different keys, so that both may run at the time of the first crash.
const KILLERS: [u32; 2] = [7, 22];

#[topic(name = "tasks", key = key, shards = 2)]
#[derive(Serialize, Deserialize)]
struct Task {
    key: String,
    n: u32,
}

#[derive(Clone)]
struct Journal(PathBuf);

impl Journal {
    fn write(&self, line: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.0).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn count(&self, prefix: &str) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(&self.0).unwrap().lines() {
            if let Some(n) = line.strip_prefix(prefix) {
                *counts.entry(n.parse().unwrap()).or_default() += 1;
            }
        }
        counts
    }
}

#[subscribe(group = "risky")]
async fn risky(task: Task, State(journal): State<Journal>) {
    journal.write(&format!("start {}", task.n));
    tokio::time::sleep(Duration::from_millis(1)).await;
    if KILLERS.contains(&task.n) && std::env::var_os(CURED).is_none() {
        std::process::abort();
    }
    journal.write(&format!("done {}", task.n));
}

/// Runs in the same process, and does no harm.
#[subscribe(group = "harmless")]
async fn harmless(task: Task, State(journal): State<Journal>) {
    tokio::time::sleep(Duration::from_millis(3)).await;
    journal.write(&format!("beside {}", task.n));
}

async fn photon(directory: &Path) -> Photon {
    Photon::builder()
        .sqlite(directory.join("tasks.db"))
        .options(Options { concurrency: Some(4), max_attempts: Some(MAX_ATTEMPTS), ..Options::NONE })
        .state(Journal(directory.join("journal")))
        .build()
        .await
        .unwrap()
}

/// Starts the process until it ends well. Returns how often it was started.
fn supervise(directory: &Path, cured: bool) -> u32 {
    for starts in 1..=30 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "worker_process"]).env(DIRECTORY, directory).stdout(Stdio::null());
        if cured {
            command.env(CURED, "1");
        }
        if command.stderr(Stdio::null()).status().unwrap().success() {
            return starts;
        }
    }
    panic!("the process does not come to an end: {}", fs::read_to_string(directory.join("journal")).unwrap());
}

/// What the supervisor starts; in the test process it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn worker_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let executor = photon(Path::new(&directory)).await.start_executor().await.unwrap();
    assert!(executor.drain().await.unwrap().is_clean());
}

#[tokio::test]
async fn process_killer() {
    let directory = tempfile::tempdir().unwrap();
    let here = photon(directory.path()).await;
    let tasks = (0..EVENTS).map(|n| Task { key: format!("k{}", n % 5), n });
    here.publish_all(tasks).await.unwrap();

    let starts = supervise(directory.path(), false);
    // Each is started once before it is suspected, once among others and `max_attempts` times alone; the last start
    // ends well.
    assert!((MAX_ATTEMPTS + 3..=2 * (MAX_ATTEMPTS + 2) + 1).contains(&starts), "{starts} starts");

    let letters = here.dead_letters("risky").list(Page::first(100)).await.unwrap();
    let mut dead: Vec<u32> =
        letters.iter().map(|l| serde_json::from_slice::<Task>(&l.payload).unwrap().n).collect();
    dead.sort_unstable();
    assert_eq!(dead, KILLERS, "the killers are dead letters, and nothing else");
    for letter in &letters {
        assert_eq!(letter.reason, DeadReason::Crash);
        assert_eq!(letter.attempts, 0, "crashes are counted apart from attempts");
        assert!(letter.error.contains("3 times while this delivery ran alone"), "{}", letter.error);
    }
    assert_eq!(here.dead_letters("harmless").count().await.unwrap(), 0);
    let journal = Journal(directory.path().join("journal"));
    let (started, done, beside) = (journal.count("start "), journal.count("done "), journal.count("beside "));
    for n in 0..EVENTS {
        assert_eq!(done.contains_key(&n), !KILLERS.contains(&n), "{n} of the risky ones");
        assert!(beside.contains_key(&n), "{n} of the harmless ones");
    }
    for killer in KILLERS {
        // Another killer can end the process while it runs, too.
        assert!((MAX_ATTEMPTS..=MAX_ATTEMPTS + 4).contains(&started[&killer]), "{started:?}");
    }

    // Once the handler is mended they can be redriven; whoever looks finds nothing left over.
    assert_eq!(here.dead_letters("risky").redrive_all().await.unwrap(), 2);
    assert_eq!(supervise(directory.path(), true), 1);
    let done = journal.count("done ");
    assert!(KILLERS.iter().all(|killer| done[killer] == 1), "{done:?}");
    let status = here.subscription("risky").status().await.unwrap();
    assert_eq!((status.dead, status.parked, status.lag()), (0, 0, 0));
    for stored in here.store().load(&status.subscription).await.unwrap() {
        assert_eq!(stored.trials, []);
        assert!(stored.checkpoint.watermark > Seq::ZERO);
    }
}
