//! Cases of tokio runtimes: dropped ones, blocked ones.

use std::future::IntoFuture;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use photon::Photon;
use photon_backend::memory::MemoryStore;
use tokio::runtime::{Builder, Runtime};

use crate::support::instance::options;
use crate::support::{Act, Engine, Probe, What, World, step};

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// What panicked from now on, but for what tests planned: also in tasks, where nobody else sees it.
fn panics() -> &'static Mutex<Vec<String>> {
    static PANICS: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    PANICS.get_or_init(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.to_string();
            // The second is how tokio says, to whom asks, that it has no timers.
            if info.location().is_none_or(|place| !place.file().starts_with("tests/"))
                && !text.contains("timers are disabled")
            {
                panics().lock().unwrap().push(text);
            }
            tell(info);
        }));
        Mutex::default()
    })
}

#[test]
fn case_runtime_dropped() {
    let panics = panics();
    for make in [current_thread as fn() -> Runtime, multi_thread] {
        for engine in [Engine::sqlite as fn() -> Engine, Engine::memory_on_real_time] {
            let first = make();
            let world = first.block_on(async { World::new(engine()).await });
            first.block_on(async {
                let instance = world.start(["main", "chain", "loose"]).await;
                let other = world.plan(["other"]).member(0, 1).start().await;
                let gate = Act::Wait("gate".to_owned());
                instance.photon.publish_all([step("a", 0, gate), step("a", 1, Act::Done)]).await.unwrap();
                instance.photon.publish_all((0..50).map(|n| step("b", n, Act::Done))).await.unwrap();
                world
                    .probe
                    .until("it runs, and others are done", |seen| {
                        seen.iter().any(|e| e.group == "main" && e.key == "a")
                            && seen
                                .iter()
                                .filter(|e| e.group == "main" && e.key == "b" && e.what == What::Done)
                                .count()
                                >= 10
                    })
                    .await;
                // Neither is shut down; the handles outlive the runtime.
                std::mem::forget((instance.executor, other.executor));
            });
            drop(first);
            world.probe.open("gate");
            let second = make();
            second.block_on(async {
                world.start(["main", "chain", "loose", "other"]).await.drain().await.unwrap();
            });
            world.probe.assert_key_order("main");
            let done = world.probe.done("main");
            assert_eq!(done["a"].last(), Some(&1));
            assert_eq!(done["b"].last(), Some(&49));
        }
    }
    assert_eq!(*panics.lock().unwrap(), [] as [&str; 0]);
}

#[test]
fn case_runtime_dropped_while_a_drain_is_on() {
    let panics = panics();
    let runtime = multi_thread();
    let photon = runtime.block_on(async {
        let probe = Probe::default();
        let store = std::sync::Arc::new(MemoryStore::new());
        let builder = Photon::builder().store(store).state(probe.clone()).only(["main"]).options(options());
        let photon = builder.build().await.unwrap();
        let executor = photon.start_executor().await.unwrap();
        photon.publish(&step("k", 0, Act::Hang)).await.unwrap();
        probe.until("it runs", |seen| !seen.is_empty()).await;
        executor.shutdown();
        tokio::spawn(executor.join());
        photon
    });
    drop(runtime);
    // Whatever is asked of it now is answered.
    let second = current_thread();
    second.block_on(async {
        let status = photon.subscription("main").status().await.unwrap();
        assert_eq!(status.dead, 0);
        photon.publish(&step("k", 1, Act::Done)).await.unwrap();
        photon.start_executor().await.unwrap_err();
    });
    assert_eq!(*panics.lock().unwrap(), [] as [&str; 0]);
}

/// Waits so many ticks of 10 ms would fit into a time, and tells how many came.
async fn ticks(time: Duration) -> u32 {
    let mut ticker = tokio::time::interval(Duration::from_millis(10));
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let end = tokio::time::Instant::now() + time;
    let mut count = 0;
    while tokio::time::Instant::now() < end {
        ticker.tick().await;
        count += 1;
    }
    count
}

#[tokio::test]
async fn case_blocked_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("photon.db");
    let world = World::new(Engine::sqlite_at(&path)).await;
    let instance = world.plan(["main"]).with(|b| b.lease_ttl(Duration::from_secs(60))).start().await;
    instance.photon.publish(&step("k", 0, Act::Done)).await.unwrap();
    world.probe.until_done("main", 1).await;
    let mut shares = Vec::new();
    // A machine with much else to do may take the ticks away once; a blocked runtime takes them every time.
    for round in 1..=3u64 {
        let free = ticks(Duration::from_secs(5)).await;
        let lock = rusqlite::Connection::open(&path).unwrap();
        lock.execute_batch("begin immediate").unwrap();
        let publish = tokio::spawn(instance.photon.publish(&step("k", round, Act::Done)).into_future());
        let blocked = ticks(Duration::from_secs(5)).await;
        assert!(!publish.is_finished(), "the lock does not hold");
        lock.execute_batch("rollback").unwrap();
        publish.await.unwrap().unwrap();
        shares.push(f64::from(blocked) / f64::from(free));
        if shares.last() >= Some(&0.9) {
            break;
        }
    }
    assert!(shares.last() >= Some(&0.9), "shares of the ticks: {shares:?}");
    instance.drain().await.unwrap();
}

/// Where no loop could run an error says so.
#[test]
fn case_runtime_that_is_missing_or_has_no_timers() {
    let panics = panics();
    let build =
        async || Photon::builder().memory().state(Probe::default()).only(["main"]).build().await.unwrap();
    let whole = current_thread();
    let photon = whole.block_on(build());
    let mut outside = std::pin::pin!(photon.start_executor());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = outside.as_mut().poll(&mut cx) else { panic!("it started") };
    assert!(error.to_string().contains("needs a tokio runtime"), "{error}");

    let bare = Builder::new_current_thread().build().unwrap();
    let error = bare.block_on(async { build().await.start_executor().await.unwrap_err() });
    assert!(error.to_string().contains("call .enable_all()"), "{error}");
    // Publishing needs neither, and once there is a runtime the same Photon works.
    bare.block_on(async { photon.publish(&step("k", 0, Act::Done)).await.unwrap() });
    let report = whole.block_on(async { photon.start_executor().await.unwrap().drain().await.unwrap() });
    assert_eq!(report.handled(), 1);
    assert_eq!(*panics.lock().unwrap(), [] as [&str; 0]);
}
