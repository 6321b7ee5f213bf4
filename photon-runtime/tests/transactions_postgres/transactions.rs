//! The tests.

use std::env;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use photon_backend::servers::{self, Postgres};
use photon_core::codec;
use photon_core::error::DecodeError;
use photon_core::event::Event;
use photon_core::handler::{Context, HandlerError, Outcome};
use photon_core::machine::retry::Backoff;
use photon_core::registry::Registry;
use photon_core::store::Page;
use photon_core::topic::{EventParam, Topic, TopicDescriptor};
use photon_runtime::postgres::Tx;
use photon_runtime::{Photon, Subscription};
use sqlx_core::connection::Connection as _;
use sqlx_core::query::query;
use sqlx_postgres::PgConnection;
use tokio::sync::{Notify, mpsc};
use tokio_postgres::{Client, NoTls};

use crate::common::{Order, events, numbers_of, order};

impl EventParam for Order {
    const TOPIC: Option<&'static TopicDescriptor> = Some(Order::DESCRIPTOR);

    fn decode(event: &Event) -> Result<Self, DecodeError> {
        codec::decode_json(event)
    }
}

const URL: &str = "PHOTON_TEST_TRANSACTIONS_URL";
const PATIENCE: Duration = Duration::from_secs(60);
const CUSTOMERS: u64 = 8;
const ORDERS: u64 = 240;

fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    // Only processes are killed here, never the machine.
    SERVER.get_or_init(|| Postgres::start_new(&servers::PostgresOptions::new().set("fsync", "off")))
}

async fn new_database() -> (String, Client) {
    let url = server().url(&server().new_database());
    let client = connect(&url).await;
    let table = "CREATE TABLE effect (id bigserial PRIMARY KEY, customer text, n int8)";
    client.batch_execute(table).await.unwrap();
    (url, client)
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the user can connect");
    tokio::spawn(connection);
    client
}

async fn open(url: &str) -> Photon {
    let builder = Photon::builder().from_url(url).registry(Registry::default()).allow_no_handlers();
    builder.build().await.unwrap()
}

async fn effects(client: &Client, customer: &str) -> Vec<u64> {
    let rows =
        client.query("SELECT n FROM effect WHERE customer = $1 ORDER BY id", &[&customer]).await.unwrap();
    rows.iter().map(|row| row.get::<_, i64>(0).unsigned_abs()).collect()
}

async fn write_effect(client: &Client, order: &Order) -> Result<(), HandlerError> {
    let n = i64::try_from(order.n)?;
    client.execute("INSERT INTO effect (customer, n) VALUES ($1, $2)", &[&order.customer, &n]).await?;
    Ok(())
}

fn subscription() -> Subscription {
    let backoff = Backoff::Fixed(Duration::from_millis(2));
    Subscription::of::<Order>().group("g").concurrency(8).backoff(backoff)
}

/// Handlers publish on within their transactions, too.
pub(crate) async fn an_event_is_published_if_and_only_if_the_transaction_commits() {
    let (url, mut client) = new_database().await;
    let photon = open(&url).await;
    let publisher = photon.clone();
    photon
        .subscribe(subscription(), move |order: Order, mut tx: Tx| {
            let photon = publisher.clone();
            async move {
                write_effect(&tx, &order).await?;
                if order.n < 1_000 {
                    photon.publish_in(&mut tx, &Order { n: order.n + 1_000, ..order }).await?;
                }
                tx.settle().await
            }
        })
        .await
        .unwrap();
    let executor = photon.start_executor().await.unwrap();
    for n in 0..12 {
        let mut tx = client.transaction().await.unwrap();
        photon.publish_in(&mut tx, &order("ann", n)).await.unwrap();
        if n % 2 == 0 { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    // It waits for what was committed, too.
    executor.drain().await.unwrap();
    let mut done = effects(&client, "ann").await;
    let stored = events(&**photon.store(), "orders.placed").await;
    assert_eq!(numbers_of(&stored, "ann"), done, "in the order of the log");
    done.sort_unstable();
    let expected = (0..12).step_by(2);
    assert_eq!(done, expected.clone().chain(expected.map(|n| n + 1_000)).collect::<Vec<_>>());
}

/// Two clients take turns on one key: their events are in the log in the order of the commits.
pub(crate) async fn a_transaction_of_sqlx_publishes_as_one_of_tokio_postgres() {
    let (url, mut client) = new_database().await;
    let mut other = PgConnection::connect(&url).await.unwrap();
    let photon = open(&url).await;
    let handler = |order: Order, tx: Tx| async move {
        write_effect(&tx, &order).await?;
        tx.settle().await
    };
    photon.subscribe(subscription(), handler).await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    for n in 0..20 {
        if n % 4 == 0 {
            let mut tx = client.transaction().await.unwrap();
            photon.publish_in(&mut tx, &order("ann", n)).await.unwrap();
            tx.commit().await.unwrap();
            continue;
        }
        let mut tx = other.begin().await.unwrap();
        query("INSERT INTO effect (customer, n) VALUES ('sqlx', 1)").execute(&mut *tx).await.unwrap();
        photon.publish(&order("ann", n)).header("by", "sqlx").within(&mut tx).await.unwrap();
        match n % 4 {
            1 => tx.commit().await.unwrap(),
            2 => tx.rollback().await.unwrap(),
            _ => drop(tx),
        }
    }
    executor.drain().await.unwrap();
    let committed: Vec<u64> = (0..20).filter(|n| n % 4 < 2).collect();
    assert_eq!(effects(&client, "ann").await, committed);
    assert_eq!(effects(&client, "sqlx").await.len(), 5);
    let stored = events(&**photon.store(), "orders.placed").await;
    let by = |event: &&Event| event.headers.get("by") == Some("sqlx");
    assert_eq!((stored.len(), stored.iter().filter(by).count()), (10, 5));
}

/// What a handler commits by itself is found out: nothing is settled outside of the transaction.
pub(crate) async fn a_transaction_that_the_handler_ended_does_not_settle() {
    let (url, client) = new_database().await;
    let photon = open(&url).await;
    let handler = |order: Order, tx: Tx| async move {
        write_effect(&tx, &order).await?;
        match order.n {
            0 => tx.batch_execute("COMMIT").await?,
            1 => tx.batch_execute("ROLLBACK").await?,
            2 => tx.batch_execute("COMMIT; BEGIN").await?,
            _ => tx.batch_execute("SAVEPOINT here; ROLLBACK TO here").await?,
        }
        tx.settle().await
    };
    photon.subscribe(subscription(), handler).await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    photon.publish_all((0..4).map(|n| order("ann", n))).await.unwrap();
    executor.drain().await.unwrap();
    assert_eq!(effects(&client, "ann").await, [0, 2, 3]);
    let dead = photon.dead_letters("g").list(Page::first(9)).await.unwrap();
    let errors: Vec<String> = dead.iter().map(|letter| letter.error.clone()).collect();
    assert_eq!(dead.len(), 3, "{errors:?}");
    assert!(errors.iter().all(|error| error.contains("ended its transaction")), "{errors:?}");
}

pub(crate) async fn p06_the_effects_of_attempts_that_fail_are_taken_back() {
    let (url, client) = new_database().await;
    let photon = open(&url).await;
    let spec = subscription().max_attempts(3).timeout(Duration::from_millis(500));
    photon
        .subscribe(spec, |order: Order, cx: Context, tx: Tx| async move {
            write_effect(&tx, &order).await?;
            match (order.n, cx.attempt()) {
                (1, 1) => return Err(HandlerError::retry("once more")),
                (2, 1) => panic!("it broke"),
                (3, _) => return Err(HandlerError::permanent("never")),
                (4, 1) => std::future::pending::<()>().await,
                // Neither settled nor taken back: that is a mistake, and not an end.
                (5, 1) => return Ok(Outcome::Done),
                (6, _) => {
                    tx.rollback().await?;
                    return Ok(Outcome::Done);
                }
                _ => {}
            }
            tx.settle().await?;
            // What comes after the commit changes nothing.
            if order.n == 7 { Err(HandlerError::permanent("too late")) } else { Ok(Outcome::Done) }
        })
        .await
        .unwrap();
    let executor = photon.start_executor().await.unwrap();
    photon.publish_all((0..10).map(|n| order("ann", n))).await.unwrap();
    let report = executor.drain().await.unwrap();
    assert_eq!(effects(&client, "ann").await, [0, 1, 2, 4, 5, 7, 8, 9], "{report:?}");
    assert_eq!(photon.dead_letters("g").count().await.unwrap(), 1);
}

/// The shard goes to another owner while a handler runs: it cannot commit, and the next owner handles the event.
pub(crate) async fn p09_a_late_owner_cannot_commit() {
    let (url, client) = new_database().await;
    let photon = open(&url).await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (ended, mut ends) = mpsc::unbounded_channel();
    let (tell, wait) = (begun.clone(), go_on.clone());
    photon
        .subscribe(subscription(), move |order: Order, tx: Tx| {
            let (begun, go_on, ended) = (tell.clone(), wait.clone(), ended.clone());
            async move {
                write_effect(&tx, &order).await?;
                begun.notify_one();
                // In a task of its own, that nobody breaks off.
                let late = tokio::spawn(async move {
                    go_on.notified().await;
                    let result = tx.settle().await;
                    let _ = ended.send(result.as_ref().map_err(ToString::to_string).copied());
                    result
                });
                late.await?
            }
        })
        .await
        .unwrap();
    let executor = photon.start_executor().await.unwrap();
    photon.publish(&order("ann", 1)).await.unwrap();
    begun.notified().await;
    // As a new owner does it.
    client.execute("UPDATE photon.claim SET epoch = epoch + 1", &[]).await.unwrap();
    go_on.notify_one();
    let error = ends.recv().await.unwrap().unwrap_err();
    assert!(error.contains("another owner"), "{error}");
    assert_eq!(effects(&client, "ann").await, [] as [u64; 0]);
    // It takes the shard again, which is the next ownership.
    let deadline = Instant::now() + PATIENCE;
    while effects(&client, "ann").await.is_empty() {
        assert!(Instant::now() < deadline, "the next owner handles it");
        go_on.notify_one();
        tokio::task::yield_now().await;
    }
    executor.drain().await.unwrap();
    assert_eq!(effects(&client, "ann").await, [1]);
}

async fn handle(order: Order, cx: Context, tx: Tx) -> Result<(), HandlerError> {
    write_effect(&tx, &order).await?;
    match order.n % 16 {
        3 => Err(HandlerError::permanent("never")),
        5 if cx.attempt() == 1 => Err(HandlerError::retry("once more")),
        _ => tx.settle().await,
    }
}

pub(crate) fn is_worker() -> bool {
    env::var_os(URL).is_some()
}

/// What a process that is going to be killed runs.
pub(crate) fn work() {
    let url = env::var(URL).expect("the test gives it");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    runtime.block_on(async {
        let photon = open(&url).await;
        photon.subscribe(subscription(), handle).await.unwrap();
        photon.start_executor().await.unwrap().run_until_signal().await.unwrap();
    });
}

struct Worker(Child);

impl Worker {
    fn start(url: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.env(URL, url).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SIGKILL. It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process, which handles and moves the outbox, is killed again and again: each effect happens exactly once, those
/// of a key in the order of their events.
pub(crate) async fn p03_p04_effects_happen_exactly_once_through_kills() {
    let (url, mut client) = new_database().await;
    let photon = open(&url).await;
    photon.subscribe(subscription(), handle).await.unwrap();
    let customer = |n: u64| format!("customer-{}", n % CUSTOMERS);
    let count = async |client: &Client| {
        client.query_one("SELECT count(*) FROM effect", &[]).await.unwrap().get::<_, i64>(0).unsigned_abs()
    };
    let expected = |of: u64| (0..ORDERS).filter(move |n| n % CUSTOMERS == of && n % 16 != 3);
    let all: u64 = (0..CUSTOMERS).map(|of| expected(of).count() as u64).sum();
    let (mut kills, mut published) = (0, 0);
    while published < ORDERS {
        let worker = Worker::start(&url);
        let mut tx = client.transaction().await.unwrap();
        for n in published..(published + 40).min(ORDERS) {
            photon.publish_in(&mut tx, &order(&customer(n), n)).await.unwrap();
        }
        published += 40;
        tx.commit().await.unwrap();
        let before = count(&client).await;
        let deadline = Instant::now() + PATIENCE;
        while count(&client).await < before + 1 + kills * 7 % 23 {
            assert!(Instant::now() < deadline, "the worker handles something");
            tokio::task::yield_now().await;
        }
        drop(worker);
        kills += 1;
    }
    let executor = photon.start_executor().await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while count(&client).await < all {
        assert!(Instant::now() < deadline, "everything is handled");
        tokio::task::yield_now().await;
    }
    executor.drain().await.unwrap();
    for of in 0..CUSTOMERS {
        let done = effects(&client, &customer(of)).await;
        assert_eq!(done, expected(of).collect::<Vec<_>>(), "after {kills} kills");
    }
    assert_eq!(photon.dead_letters("g").count().await.unwrap(), ORDERS - all);
    let stored = events(&**photon.store(), "orders.placed").await;
    assert_eq!(stored.len() as u64, ORDERS, "each event is in the log once");
}
