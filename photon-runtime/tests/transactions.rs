//! Transactions of the user on the SQLite file that holds the log: events that they publish, and handlers whose
//! effects commit with the end of their delivery.
#![cfg(feature = "sqlite")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Order, events, memory, numbers_of, order};
use photon_core::codec;
use photon_core::error::DecodeError;
use photon_core::event::Event;
use photon_core::handler::{Context, HandlerError, Outcome};
use photon_core::machine::retry::Backoff;
use photon_core::registry::Registry;
use photon_core::topic::{EventParam, Topic, TopicDescriptor};
use photon_runtime::sqlite::{Tx, rusqlite};
use photon_runtime::{Error, Photon, Subscription};
use rusqlite::{Connection, TransactionBehavior};

impl EventParam for Order {
    const TOPIC: Option<&'static TopicDescriptor> = Some(Order::DESCRIPTOR);

    fn decode(event: &Event) -> Result<Self, DecodeError> {
        codec::decode_json(event)
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

/// An application's file, with a table of its own and its own version.
fn application(dir: &Path) -> (PathBuf, Connection) {
    let path = dir.join("app.db");
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch(
        "PRAGMA user_version = 7; PRAGMA application_id = 99;
         CREATE TABLE effect (id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT, n INTEGER);",
    )
    .unwrap();
    conn.busy_timeout(PATIENCE).unwrap();
    (path, conn)
}

async fn open(path: &Path) -> Photon {
    let builder = Photon::builder().sqlite_shared(path).registry(Registry::default()).allow_no_handlers();
    builder.build().await.unwrap()
}

/// The effects of a customer's orders, in the order in which they happened.
fn effects(conn: &Connection, customer: &str) -> Vec<u64> {
    let mut statement = conn.prepare("SELECT n FROM effect WHERE customer = ?1 ORDER BY id").unwrap();
    let rows = statement.query_map([customer], |row| row.get(0)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

fn write_effect(conn: &Connection, order: &Order) -> rusqlite::Result<usize> {
    conn.execute("INSERT INTO effect (customer, n) VALUES (?1, ?2)", (&order.customer, order.n))
}

#[tokio::test]
async fn an_applications_file_is_shared_only_if_it_says_so_and_stays_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = application(dir.path());
    let error = Photon::builder().sqlite(&path).build().await.unwrap_err();
    assert!(format!("{error:?}").contains("shared"), "{error:?}");
    for _ in 0..2 {
        let photon = open(&path).await;
        photon.publish(&order("ann", 1)).await.unwrap();
        photon.close().await;
    }
    // Once Photon is in it, it is known.
    let photon = Photon::builder().sqlite(&path).build().await.unwrap();
    assert_eq!(numbers_of(&events(&**photon.store(), "orders.placed").await, "ann"), [1, 1]);
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0)).unwrap();
    assert_eq!((number("user_version"), number("application_id")), (7, 99));
}

#[tokio::test]
async fn a_file_of_photons_own_becomes_shared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("orders.db");
    let photon = Photon::builder().sqlite(&path).build().await.unwrap();
    photon.publish(&order("ann", 1)).await.unwrap();
    photon.close().await;
    drop(photon);
    let photon = open(&path).await;
    let conn = Connection::open(&path).unwrap();
    conn.pragma_update(None, "user_version", 42).unwrap();
    photon.publish(&order("ann", 2)).await.unwrap();
    photon.close().await;
    drop(photon);
    let photon = open(&path).await;
    assert_eq!(numbers_of(&events(&**photon.store(), "orders.placed").await, "ann"), [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_published_if_and_only_if_the_transaction_commits() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mut conn) = application(dir.path());
    let photon = open(&path).await;
    let mut reader = Connection::open(&path).unwrap();
    let handled = photon
        .subscribe(Subscription::of::<Order>().group("g"), |order: Order, tx: Tx| async move {
            tx.settle(move |conn| write_effect(conn, &order)).await.map(drop)
        });
    handled.await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    for n in 0..20 {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        photon.publish_in_blocking(&tx, &order("ann", n)).unwrap();
        photon.publish(&order("bob", n)).header("source", "test").within_blocking(&tx).unwrap();
        if n % 2 == 0 {
            tx.commit().unwrap();
        } else {
            tx.rollback().unwrap();
        }
        photon.publish(&order("ann", 100 + n)).await.unwrap();
    }
    executor.drain().await.unwrap();
    let stored = events(&**photon.store(), "orders.placed").await;
    let expected: Vec<u64> =
        (0..20).flat_map(|n| (n % 2 == 0).then_some(n).into_iter().chain([100 + n])).collect();
    assert_eq!(numbers_of(&stored, "ann"), expected);
    assert_eq!(effects(&reader, "ann"), expected);
    assert_eq!(effects(&reader, "bob"), (0..20).step_by(2).collect::<Vec<_>>());
    // What cannot work says why.
    let photon = open(&path).await;
    let error = photon.publish_in_blocking(&reader, &order("ann", 1)).unwrap_err();
    assert!(error.to_string().contains("BEGIN IMMEDIATE"), "{error}");
    let tx = reader.transaction().unwrap();
    let memory = memory().build().await.unwrap();
    let error = memory.publish_in_blocking(&tx, &order("ann", 1)).unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
    let mut other = Connection::open(dir.path().join("other.db")).unwrap();
    let tx = other.transaction().unwrap();
    let error = photon.publish_in_blocking(&tx, &order("ann", 1)).unwrap_err();
    assert!(error.to_string().contains("one file"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p06_the_effects_of_attempts_that_fail_are_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = application(dir.path());
    let photon = open(&path).await;
    let spec = Subscription::of::<Order>()
        .group("g")
        .max_attempts(4)
        .backoff(Backoff::Fixed(Duration::from_millis(1)));
    photon
        .subscribe(spec, |order: Order, cx: Context, tx: Tx| async move {
            let (attempt, mine) = (cx.attempt(), order.clone());
            tx.settle(move |conn| {
                write_effect(conn, &order)?;
                match (order.n, attempt) {
                    (1, 1) => Err(HandlerError::retry("once more")),
                    (2, 1) => panic!("it broke"),
                    (3, _) => Err(HandlerError::permanent("never")),
                    // Not its transaction to end.
                    (4, 1) => conn.execute_batch("COMMIT").map_err(HandlerError::from),
                    (4, 2) => conn.execute_batch("ROLLBACK").map_err(HandlerError::from),
                    _ => Ok(()),
                }
            })
            .await?;
            // What comes after the commit changes nothing.
            match mine.n {
                5 => Err(HandlerError::permanent("too late")),
                6 => panic!("too late"),
                7 => Ok(Outcome::defer(Duration::from_secs(1), "too late")),
                _ => Ok(Outcome::Done),
            }
        })
        .await
        .unwrap();
    let executor = photon.start_executor().await.unwrap();
    photon.publish_all((0..10).map(|n| order("ann", n))).await.unwrap();
    executor.drain().await.unwrap();
    assert_eq!(effects(&conn, "ann"), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    let dead = photon.dead_letters("g").count().await.unwrap();
    assert_eq!(dead, 1);
}

/// What settled in a transaction is not redelivered though no checkpoint was written, and one that ran out of time
/// does not come through afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p04_an_attempt_that_ran_out_of_time_takes_effect_once_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = application(dir.path());
    let photon = open(&path).await;
    let spec = Subscription::of::<Order>()
        .group("g")
        .timeout(Duration::from_millis(30))
        .max_attempts(3)
        .backoff(Backoff::Fixed(Duration::from_millis(1)));
    photon
        .subscribe(spec, |order: Order, cx: Context, tx: Tx| async move {
            let slow = order.n % 3 == 1 && cx.attempt() == 1;
            tx.settle(move |conn| {
                if slow {
                    // Longer than the timeout, on the writing thread.
                    let until = Instant::now() + Duration::from_millis(60);
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                write_effect(conn, &order)
            })
            .await
            .map(drop)
        })
        .await
        .unwrap();
    let executor = photon.start_executor().await.unwrap();
    photon.publish_all((0..9).map(|n| order("ann", n))).await.unwrap();
    executor.drain().await.unwrap();
    let effects = effects(&conn, "ann");
    let mut once = effects.clone();
    once.dedup();
    assert_eq!(effects, once, "no effect happens twice");
    let dead = photon.dead_letters("g").count().await.unwrap();
    assert_eq!(effects.len() as u64 + dead, 9, "{effects:?}");
}

#[tokio::test]
async fn p12_a_transaction_of_another_engine_is_found_at_start() {
    let photon = memory().registry(Registry::default()).allow_no_handlers().build().await.unwrap();
    let error = photon
        .subscribe(Subscription::of::<Order>().group("g"), |_: Order, tx: Tx| async move {
            tx.settle(|_| Ok::<_, HandlerError>(())).await
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Start(_)), "{error:?}");
    assert!(format!("{error:?}").contains("SQLite"), "{error:?}");
}

// --- killed processes ---------------------------------------------------------------------------------------

const FILE: &str = "PHOTON_TEST_TRANSACTIONS_FILE";
const CUSTOMERS: u64 = 8;
const ORDERS: u64 = 400;

fn customer(n: u64) -> String {
    format!("customer-{}", n % CUSTOMERS)
}

/// Dead letters, retries and successes are mixed.
async fn handle(order: Order, cx: Context, tx: Tx) -> Result<(), HandlerError> {
    match order.n % 16 {
        3 => Err(HandlerError::permanent("never")),
        5 if cx.attempt() == 1 => Err(HandlerError::retry("once more")),
        _ => tx.settle(move |conn| write_effect(conn, &order)).await.map(drop),
    }
}

fn subscription() -> Subscription {
    let backoff = Backoff::Fixed(Duration::from_millis(2));
    Subscription::of::<Order>().group("g").concurrency(8).backoff(backoff)
}

/// What a process that is going to be killed runs; in the test process it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let photon = open(Path::new(&path)).await;
    photon.subscribe(subscription(), handle).await.unwrap();
    photon.start_executor().await.unwrap().run_until_signal().await.unwrap();
}

struct Worker(Child);

impl Worker {
    fn start(path: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "worker_process"]).env(FILE, path);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SIGKILL. It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process is killed at random moments, again and again, while its handlers write: each effect happens exactly
/// once, those of a key in the order of their events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_p04_effects_in_the_same_file_happen_exactly_once_through_kills() {
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = application(dir.path());
    let photon = open(&path).await;
    photon.subscribe(subscription(), handle).await.unwrap();
    photon.publish_all((0..ORDERS).map(|n| order(&customer(n), n))).await.unwrap();
    let count = || conn.query_row("SELECT count(*) FROM effect", [], |row| row.get::<_, u64>(0)).unwrap();
    let expected = |of: u64| (0..ORDERS).filter(move |n| n % CUSTOMERS == of && n % 16 != 3);
    let all: u64 = (0..CUSTOMERS).map(|of| expected(of).count() as u64).sum();
    let mut kills = 0;
    while count() < all * 3 / 4 {
        let before = count();
        let worker = Worker::start(&path);
        let deadline = Instant::now() + PATIENCE;
        // Killed in the middle of its work, each time after another number of effects.
        while count() < (before + 1 + kills * 7 % 23).min(all) {
            assert!(Instant::now() < deadline, "the worker handles something");
            std::thread::yield_now();
        }
        drop(worker);
        kills += 1;
    }
    assert!(kills >= 5, "{kills} kills");
    let executor = photon.start_executor().await.unwrap();
    executor.drain().await.unwrap();
    for of in 0..CUSTOMERS {
        assert_eq!(effects(&conn, &customer(of)), expected(of).collect::<Vec<_>>(), "after {kills} kills");
    }
    let dead = photon.dead_letters("g").count().await.unwrap();
    assert_eq!(dead, ORDERS - all);
    let marks: u64 =
        conn.query_row("SELECT count(*) FROM photon_delivery WHERE state = 4", [], |row| row.get(0)).unwrap();
    assert_eq!(marks, 0, "the checkpoint covers them");
}
