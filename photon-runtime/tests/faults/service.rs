//! A service with a publisher that never stops, and what must be true of it in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use photon_backend::servers::Proxy;
use photon_core::event::Event;
use photon_core::options::{Options, Start};
use photon_core::registry::Registry;
use photon_core::store::Store;
use photon_runtime::{DynamicTopic, Error, Executor, Photon, Subscription};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::log::lines_with;

const KEYS: u64 = 8;
const CONCURRENCY: u32 = 16;
const CHECKPOINT_EVERY: u32 = 46;
/// The most that one interruption repeats: what runs, and what is settled and not in a checkpoint yet. While no
/// checkpoint can be written, nothing starts beyond that.
const MOST_REPEATED: u32 = 4 * CHECKPOINT_EVERY + CONCURRENCY;
/// The most warnings and errors that one interruption leads to: a few for each shard that is worked on.
const MOST_LINES: usize = 20;

/// Numbers by key, in the order of what happened.
type Journal = Arc<Mutex<BTreeMap<u64, Vec<u64>>>>;

pub(crate) struct Service<S> {
    pub(crate) server: S,
    pub(crate) proxy: Proxy,
    topic: String,
    executor: Executor,
    acknowledged: Journal,
    handled: Journal,
    stop: watch::Sender<bool>,
    publisher: JoinHandle<()>,
    /// How often work may have been repeated.
    pub(crate) interruptions: u32,
}

impl<S: Send + 'static> Service<S> {
    /// Starts the service on a store behind a proxy before the server.
    pub(crate) async fn over(topic: &str, server: S, proxy: Proxy, store: Arc<dyn Store>) -> Self {
        let photon = Photon::builder()
            .store(store)
            .registry(Registry::default())
            .allow_no_handlers()
            .build()
            .await
            .unwrap();
        let handled = Journal::default();
        let journal = handled.clone();
        let handler = move |event: Event| {
            let journal = journal.clone();
            async move {
                let (key, number) = (number(event.key.as_ref().unwrap().as_bytes()), number(&event.payload));
                journal.lock().unwrap().entry(key).or_default().push(number);
            }
        };
        let options = Options {
            concurrency: Some(CONCURRENCY),
            checkpoint_every: Some(CHECKPOINT_EVERY),
            start: Some(Start::Earliest),
            ..Options::NONE
        };
        let spec = Subscription::to(DynamicTopic::new(topic).unwrap()).group("group").options(options);
        photon.subscribe(spec, handler).await.unwrap();
        let executor = photon.start_executor().await.unwrap();
        let acknowledged = Journal::default();
        let (stop, stopped) = watch::channel(false);
        let publisher = tokio::spawn(publish(photon, topic.to_owned(), acknowledged.clone(), stopped));
        let topic = topic.to_owned();
        let service =
            Self { server, proxy, topic, executor, acknowledged, handled, stop, publisher, interruptions: 0 };
        service.goes_on().await;
        service
    }

    /// Does something to the server that blocks the thread.
    pub(crate) async fn with_server(self, act: impl FnOnce(&S) + Send + 'static) -> Self {
        let acted = tokio::task::spawn_blocking(move || {
            act(&self.server);
            self
        });
        acted.await.unwrap()
    }

    /// Waits until a good number of events was published from now on and handled.
    pub(crate) async fn goes_on(&self) {
        let acknowledged = count(&self.acknowledged) + 100;
        wait_for("publishers come back", || count(&self.acknowledged) >= acknowledged).await;
        let handled = count(&self.handled) + 100;
        wait_for("loops come back", || count(&self.handled) >= handled).await;
    }

    /// Waits until the log has said something so many times, and every key has caught up after that.
    pub(crate) async fn has_caught_up_after(&self, word: &str, times: usize) {
        let said = || lines_with(&self.topic).iter().filter(|line| line.contains(word)).count();
        wait_for(word, || said() >= times).await;
        let is_forward = || self.handled.lock().unwrap().values().all(|numbers| is_forward(numbers));
        self.goes_on().await;
        wait_for("every key catches up", is_forward).await;
    }

    /// Forgets what was acknowledged until now: the server lost it.
    pub(crate) async fn lost_what_was(&self) {
        // What is on its way may have been stored before.
        let acknowledged = count(&self.acknowledged) + 2;
        wait_for("publishers go on", || count(&self.acknowledged) >= acknowledged).await;
        self.acknowledged.lock().unwrap().values_mut().for_each(Vec::clear);
    }

    /// Ends the service, and looks at what it did.
    pub(crate) async fn check(self) {
        self.stop.send_replace(true);
        self.publisher.await.unwrap();
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        let missing = || {
            let handled = self.handled.lock().unwrap();
            let missing = |(key, numbers): (&u64, &Vec<u64>)| {
                let seen: BTreeSet<u64> = handled.get(key).into_iter().flatten().copied().collect();
                numbers.iter().filter(|number| !seen.contains(number)).count()
            };
            acknowledged.iter().map(missing).sum::<usize>()
        };
        wait_for("what was acknowledged is handled", || missing() == 0).await;
        let report = self.executor.drain().await.unwrap();
        assert!(report.is_clean(), "{report}");
        let handled = self.handled.lock().unwrap().clone();
        let (mut runs, mut distinct) = (0, 0);
        for (key, numbers) in &handled {
            assert!(is_forward(numbers), "key {key} went backwards: {numbers:?}");
            runs += numbers.len();
            distinct += numbers.iter().collect::<BTreeSet<_>>().len();
        }
        let most = (MOST_REPEATED * self.interruptions) as usize;
        assert!(
            runs - distinct <= most,
            "{} of {runs} runs were repetitions, {most} allowed",
            runs - distinct
        );
        let lines = lines_with(&self.topic);
        let most = MOST_LINES * (1 + self.interruptions as usize);
        assert!(lines.len() <= most, "{} lines in the log:\n{}", lines.len(), lines.join("\n"));
        println!("{}: {distinct} events, {} repeated, {} lines", self.topic, runs - distinct, lines.len());
    }
}

/// P3: after an interruption a key may repeat from an earlier point, but always forward from there: the last runs are
/// in order.
fn is_forward(numbers: &[u64]) -> bool {
    let mut last = BTreeMap::new();
    for (at, number) in numbers.iter().enumerate() {
        last.insert(*number, at);
    }
    last.into_values().is_sorted()
}

/// Publishes numbers, ascending for each key, whatever happens.
async fn publish(photon: Photon, topic: String, acknowledged: Journal, stop: watch::Receiver<bool>) {
    let mut number = 0;
    while !*stop.borrow() {
        let key = number % KEYS;
        match photon.publish_raw(topic.as_str(), number.to_string()).key(key.to_string()).await {
            Ok(_) => acknowledged.lock().unwrap().entry(key).or_default().push(number),
            // It may be stored: it counts for nothing, and the next number follows.
            Err(Error::Unknown(_)) => {}
            Err(Error::Unavailable(_) | Error::Store(_)) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(error) => panic!("{error:?}"),
        }
        number += 1;
    }
}

fn number(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

fn count(journal: &Journal) -> usize {
    journal.lock().unwrap().values().map(Vec::len).sum()
}

pub(crate) async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "waited in vain: {what}; the log says\n{}", lines_with("").join("\n"));
}
