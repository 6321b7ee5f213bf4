//! Starts workers, publishes, kills, and waits for everything to be settled.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use photon::{Filter, Page, Photon};

use crate::journal;
use crate::verdict::{Ending, Facts};
use crate::worker::{self, GROUPS, Happening, WORKERS, mix};

/// How long nothing may happen before that counts as a fault.
const PATIENCE: Duration = Duration::from_secs(30);
const KEYS: u64 = 30;

/// The number of kills that the environment wants, or else `default`.
pub(crate) fn kills(default: u32) -> u32 {
    number("PHOTON_CRASH_KILLS").unwrap_or(default)
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

pub(crate) fn run(kills: u32) {
    let seed = number("PHOTON_CRASH_SEED").unwrap_or_else(worker::now);
    println!("PHOTON_CRASH_SEED={seed} PHOTON_CRASH_KILLS={kills}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let dir = tempfile::tempdir().expect("a directory");
        let mut harness = Harness::begin(dir.path(), seed).await;
        let began = Instant::now();
        for kill in 0..kills {
            harness.disturb(kill).await;
        }
        harness.settle().await;
        let report = harness.facts().await.judge();
        println!("{kills} kills in {:.1} s: {report}", began.elapsed().as_secs_f64());
        if !report.is_good() {
            let kept = dir.keep();
            panic!("PHOTON_CRASH_SEED={seed} PHOTON_CRASH_KILLS={kills}: {report}\nkept: {}", kept.display());
        }
    });
}

struct Harness {
    dir: PathBuf,
    random: u64,
    photon: Photon,
    /// Ids of events whose publish returned Ok.
    published: Vec<u64>,
    next_event: u64,
    workers: Vec<Worker>,
    /// How each process ended, by its number.
    endings: Vec<Ending>,
}

struct Worker {
    life: usize,
    process: Child,
}

impl Harness {
    async fn begin(dir: &Path, seed: u64) -> Self {
        let photon = Photon::builder().sqlite(worker::database(dir)).build().await.expect("the test builds");
        let mut harness = Self {
            dir: dir.to_owned(),
            random: seed,
            photon,
            published: Vec::new(),
            next_event: 0,
            workers: Vec::new(),
            endings: Vec::new(),
        };
        for index in 0..WORKERS {
            let worker = harness.start(index);
            harness.workers.push(worker);
        }
        harness
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(1);
        mix(self.random) % below
    }

    fn start(&mut self, index: u32) -> Worker {
        let life = self.endings.len();
        self.endings.push(Ending::Killed);
        let (name, value) = worker::environment(&self.dir, index, u32::try_from(life).expect("few lives"));
        let process = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["worker_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(name, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a worker starts");
        Worker { life, process }
    }

    /// Lets the workers work for a random while, then kills one, perhaps while it drains; sometimes one is ended
    /// cleanly before. Starts it again.
    async fn disturb(&mut self, kill: u32) {
        let index = u32::try_from(self.random(u64::from(WORKERS))).expect("a small number");
        let pause = self.random(300);
        self.publish_for(Duration::from_millis(pause)).await;
        if self.random(4) == 0 {
            self.end_cleanly(index).await;
        }
        if self.random(3) == 0 {
            self.tell_to_end(index);
            let pause = self.random(30);
            self.publish_for(Duration::from_millis(pause)).await;
        }
        let worker = &mut self.workers[index as usize];
        worker.process.kill().expect("a worker can be killed");
        let status = worker.process.wait().expect("a killed worker is gone");
        let life = worker.life;
        if status.success() {
            // It was faster.
            self.endings[life] = Ending::Clean;
        }
        if kill.is_multiple_of(5) {
            self.redrive().await;
        }
        let worker = self.start(index);
        self.workers[index as usize] = worker;
    }

    fn tell_to_end(&mut self, index: u32) {
        let stdin = self.workers[index as usize].process.stdin.as_mut().expect("it is piped");
        // Gone already: that will be found out.
        let _ = stdin.write_all(b".");
    }

    /// Ends a worker and starts it again.
    async fn end_cleanly(&mut self, index: u32) {
        self.tell_to_end(index);
        self.wait_for_end(index).await;
        let worker = self.start(index);
        self.workers[index as usize] = worker;
        let pause = self.random(200);
        self.publish_for(Duration::from_millis(pause)).await;
    }

    async fn wait_for_end(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = worker.process.try_wait().expect("a worker can be waited for") {
                break status;
            }
            assert!(Instant::now() < deadline, "worker {index} does not end");
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        assert!(status.success(), "worker {index} ended badly: {status}");
        self.endings[worker.life] = Ending::Clean;
    }

    async fn publish_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let mut events = Vec::new();
            for _ in 0..8 {
                let id = self.next_event;
                self.next_event += 1;
                let key = format!("key-{}", self.random(KEYS));
                // One of a hundred is dead in the blocking subscription at first.
                let late = if self.random(100) == 0 { 200 + self.random(800) } else { 0 };
                let from = if late > 0 { worker::now() + late } else { 0 };
                events.push(Happening { id, key, from });
            }
            let ids: Vec<u64> = events.iter().map(|event| event.id).collect();
            self.photon.publish_all(events).await.expect("the test can publish");
            self.published.extend(ids);
            tokio::time::sleep(Duration::from_millis(8)).await;
        }
    }

    async fn redrive(&self) {
        self.photon.dead_letters("blocking").redrive_all().await.expect("dead letters are redriven");
    }

    /// Waits until everything is settled, with workers that were all restarted after a clean end and publish nothing
    /// more, and ends them.
    async fn settle(&mut self) {
        std::fs::write(worker::quiet_sign(&self.dir), "").expect("the directory takes a file");
        self.end_all().await;
        for index in 0..WORKERS {
            self.workers[index as usize] = self.start(index);
        }
        let (mut least, mut since) = (usize::MAX, Instant::now());
        loop {
            self.redrive().await;
            let open = self.facts().await.open();
            if open < least {
                (least, since) = (open, Instant::now());
            }
            // What is open now is lost, and the verdict says so.
            if open == 0 || since.elapsed() > PATIENCE {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.end_all().await;
    }

    async fn end_all(&mut self) {
        for index in 0..WORKERS {
            self.tell_to_end(index);
        }
        for index in 0..WORKERS {
            self.wait_for_end(index).await;
        }
    }

    async fn facts(&self) -> Facts {
        let mut dead = Vec::new();
        for group in GROUPS {
            let letters = self.photon.dead_letters(group).filter(Filter::default());
            for letter in letters.list(Page::first(100_000)).await.expect("dead letters are listed") {
                let event: Happening =
                    serde_json::from_slice(&letter.payload).expect("a dead letter keeps its payload");
                dead.push((group, event.id));
            }
        }
        Facts {
            published: self.published.clone(),
            lines: journal::read(&worker::side_file(&self.dir)),
            dead,
            endings: self.endings.clone(),
        }
    }
}
