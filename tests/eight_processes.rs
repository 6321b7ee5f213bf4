//! Case eight-processes: a minute of eight processes that publish and checkpoint on one SQLite file.
//!
//! In a binary of its own, so that nothing else is measured meanwhile. The processes are this binary, started again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use photon::prelude::*;
use photon::{Options, Page, Photon};

#[path = "support/log.rs"]
#[allow(unreachable_pub, reason = "shared with other tests")]
mod log;

use log::Log;

const INDEX: &str = "EIGHT_PROCESSES_INDEX";
const FILE: &str = "EIGHT_PROCESSES_FILE";
const PROCESSES: u32 = 8;
const KEYS: u64 = 5;
const TIME: Duration = Duration::from_secs(60);
/// How long a process that comes and goes stays.
const STAY: Duration = Duration::from_secs(4);

#[topic(name = "marks", key = key, shards = 8)]
#[derive(Serialize, Deserialize)]
struct Mark {
    key: String,
    n: u64,
}

/// The numbers of each key, in the order in which they were handled.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, Vec<u64>>>>);

#[subscribe(group = "marks")]
async fn marks(mark: Mark, State(seen): State<Seen>) {
    seen.0.lock().unwrap().entry(mark.key).or_default().push(mark.n);
}

/// As a service has it by default, but for the time between checkpoints: they are many. And nobody loses its lease on a
/// machine that has other things to do: what is repeated then is allowed, and not what is looked for here.
async fn photon(file: &Path, index: u32, seen: &Seen) -> Photon {
    Photon::builder()
        .sqlite(file)
        .group(index, PROCESSES)
        .lease_ttl(Duration::from_secs(60))
        .options(Options { checkpoint_interval: Some(Duration::from_millis(20)), ..Options::NONE })
        .state(seen.clone())
        .build()
        .await
        .unwrap()
}

/// What the test starts; in the test process it does nothing. Whatever a user may ask for, the answer is never
/// that the file is in use.
#[tokio::test(flavor = "multi_thread")]
async fn worker_process() {
    let (Some(index), Some(file)) = (std::env::var_os(INDEX), std::env::var_os(FILE)) else { return };
    let index: u32 = index.to_str().unwrap().parse().unwrap();
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let (seen, began) = (Seen::default(), Instant::now());
    let mut published = 0;
    while began.elapsed() < TIME {
        // Every other one comes and goes: files are opened and closed while others write.
        let stay = if index.is_multiple_of(2) { TIME } else { STAY };
        let until = (began + TIME).min(Instant::now() + stay);
        let photon = photon(file.as_ref(), index, &seen).await;
        let executor = photon.start_executor().await.unwrap();
        while Instant::now() < until {
            let mark = |n: u64| Mark { key: format!("{index}/{}", n % KEYS), n };
            photon.publish(&mark(published)).await.unwrap();
            photon.publish_all((1..10).map(|more| mark(published + more))).await.unwrap();
            published += 10;
            photon.subscription("marks").status().await.unwrap();
        }
        assert_eq!(photon.dead_letters("marks").list(Page::first(1)).await.unwrap().len(), 0);
        executor.shutdown();
        let report = executor.join().await;
        assert!(report.is_clean(), "{report}");
        photon.close().await;
    }
    for word in ["busy", "locked"] {
        assert_eq!(log.lines_with(word), [] as [&str; 0]);
    }
    let seen = seen.0.lock().unwrap();
    assert!(
        seen.values().all(|numbers| numbers.is_sorted_by(|a, b| a < b)),
        "a key repeats or goes backwards: {:#?}",
        log.lines_with("")
    );
    let handled: usize = seen.values().map(Vec::len).sum();
    println!("published={published} handled={handled}");
}

fn start(index: u32, file: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker_process", "--nocapture"]).env(INDEX, index.to_string()).env(FILE, file);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A number that a worker printed.
fn number(text: &str, name: &str) -> u64 {
    let word = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[tokio::test]
async fn case_eight_processes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("photon.db");
    let workers: Vec<Child> = (0..PROCESSES).map(|index| start(index, &file)).collect();
    let (mut published, mut handled) = (0, 0);
    for (index, worker) in workers.into_iter().enumerate() {
        let output = worker.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{index}: {text}{}", String::from_utf8_lossy(&output.stderr));
        println!("{index}: {}", text.lines().find(|line| line.starts_with("published")).unwrap_or_default());
        assert!(number(&text, "published") > 0);
        published += number(&text, "published");
        handled += number(&text, "handled");
    }
    // What the others left is done by whoever comes next, and nothing of what they did is done again.
    let rest = Seen::default();
    for index in 0..PROCESSES {
        let photon = photon(&file, index, &rest).await;
        assert!(photon.start_executor().await.unwrap().drain().await.unwrap().is_clean());
        photon.close().await;
    }
    handled += rest.0.lock().unwrap().values().map(|numbers| numbers.len() as u64).sum::<u64>();
    assert_eq!(handled, published);
}
