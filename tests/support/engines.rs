//! The engines that every promise is proved on.
//!
//! Another engine is one more line in [`ENGINES`] and a function that makes its [`Home`].

use std::fmt::Display;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use photon::store::Store;
use photon::{Clock, Timestamp};
use photon_backend::memory::MemoryStore;
use photon_backend::nats::{NatsOptions, NatsStore};
use photon_backend::postgres::{PostgresOptions, PostgresStore};
use photon_backend::redis::{RedisOptions, RedisStore};
use photon_backend::servers::suite::Test;
use photon_backend::servers::{self, Nats, Postgres, Redis};
use photon_backend::sqlite::{Durability, SqliteOptions, SqliteStore};

use super::probe::Probe;

/// How an engine is had in a test.
pub struct Kind {
    name: &'static str,
    /// What is not installed, if anything.
    missing: fn() -> Option<String>,
    make: fn() -> Engine,
}

fn nothing() -> Option<String> {
    None
}

/// Memory first: it runs on a paused clock, the others on the real one.
static ENGINES: &[Kind] = &[
    Kind { name: "memory", missing: nothing, make: Engine::memory },
    Kind { name: "sqlite", missing: nothing, make: Engine::sqlite },
    Kind { name: "postgres", missing: Postgres::missing, make: Engine::postgres },
    Kind { name: "nats", missing: Nats::missing, make: Engine::nats },
    Kind { name: "redis", missing: Redis::missing, make: Engine::redis },
];

/// A function that proves something in the world that it gets.
pub type Proof = fn(World) -> Pin<Box<dyn Future<Output = ()>>>;

/// A function that [`on_every_engine!`] or [`on_engine!`] makes tests of.
pub struct Promise {
    pub module: &'static str,
    pub name: &'static str,
    /// The only engine that it is proved on, or all of them.
    pub only: Option<&'static str>,
    pub prove: Proof,
}

inventory::collect!(Promise);

/// Makes one test of each function for each engine: `equal_keys_…` becomes `memory::equal_keys_…`,
/// `sqlite::equal_keys_…` and so on. For a test binary whose `main` runs [`promises`].
#[macro_export]
macro_rules! on_every_engine {
    ($($test:ident),+ $(,)?) => { $crate::promises!(None, $($test),+); };
}

/// The same for one engine: where the others would show nothing new.
#[macro_export]
macro_rules! on_engine {
    ($engine:literal, $($test:ident),+ $(,)?) => { $crate::promises!(Some($engine), $($test),+); };
}

/// What [`on_every_engine!`] and [`on_engine!`] have in common.
#[macro_export]
macro_rules! promises {
    ($only:expr, $($test:ident),+) => {
        $(
            inventory::submit! {
                $crate::support::engines::Promise {
                    module: module_path!(),
                    name: stringify!($test),
                    only: $only,
                    prove: |world| Box::pin($test(world)),
                }
            }
        )+
    };
}

/// The tests that the macros of this binary made.
pub fn promises() -> Vec<Test> {
    let mut promises: Vec<&'static Promise> = inventory::iter::<Promise>().collect();
    promises.sort_by_key(|promise| (promise.module, promise.name));
    let kinds = ENGINES.iter().map(|kind| (kind, (kind.missing)()));
    let tests = kinds.flat_map(|(kind, missing)| {
        let wanted = promises.iter().filter(|promise| promise.only.is_none_or(|only| only == kind.name));
        wanted.map(move |promise| test(promise, kind, missing.clone())).collect::<Vec<_>>()
    });
    tests.collect()
}

fn test(promise: &'static Promise, kind: &'static Kind, missing: Option<String>) -> Test {
    let module = promise.module.split_once("::").map_or("", |(_, module)| module);
    let name = format!("{module}::{}::{}", kind.name, promise.name);
    let run = || async { (promise.prove)(World::new((kind.make)()).await).await };
    Test::new(&name, run).lacking(missing).on_one_thread(kind.name == "memory")
}

/// Makes tests for the engines that need no server, in a test binary with the standard harness.
#[macro_export]
macro_rules! on_embedded_engines {
    ($($test:ident),+ $(,)?) => {
        $crate::tests_on!(memory, [tokio::test(start_paused = true)], $($test),+);
        $crate::tests_on!(sqlite, [tokio::test], $($test),+);
    };
}

/// The tests of one engine, see [`on_embedded_engines!`].
#[macro_export]
macro_rules! tests_on {
    ($engine:ident, [$test_attribute:meta], $($test:ident),+) => {
        mod $engine {
            $(
                #[$test_attribute]
                async fn $test() {
                    super::$test($crate::support::World::new($crate::support::Engine::$engine()).await).await;
                }
            )+
        }
    };
}

/// Where the data of one test lives: stores are opened on it one after another, or side by side.
#[async_trait]
pub trait Home: Send + Sync {
    /// Opens the store as a process would that just started.
    async fn open(&self) -> Arc<dyn Store>;
}

/// An engine as the tests see it.
pub struct Engine {
    pub name: &'static str,
    pub home: Box<dyn Home>,
    pub clock: Clock,
    /// Whether time passes only when everything waits.
    pub paused: bool,
}

impl Engine {
    /// How long a lease lasts. Where time does not wait for anybody, a busy machine must not lose one by the way.
    pub fn lease_ttl(&self) -> Duration {
        Duration::from_secs(if self.paused { 1 } else { 3 })
    }

    /// The memory store stands in for a server: it outlives the instances of a test.
    pub fn memory() -> Self {
        let clock = Clock::starting_at(Timestamp(1_700_000_000_000_000));
        let store = MemoryStore::with_clock(Arc::new(move || clock.wall()));
        Self { name: "memory", home: Box::new(Memory(store)), clock, paused: true }
    }

    /// The same for tests that change runtimes, where no clock can be paused.
    pub fn memory_on_real_time() -> Self {
        Self::on_real_time("memory", Box::new(Memory(MemoryStore::new())))
    }

    pub fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("photon.db");
        Self { home: Box::new(Sqlite { path, _directory: Some(directory) }), ..Self::sqlite_at("") }
    }

    /// On a file that others may use, too.
    pub fn sqlite_at(path: impl Into<PathBuf>) -> Self {
        let home = Box::new(Sqlite { path: path.into(), _directory: None });
        Self::on_real_time("sqlite", home)
    }

    pub fn postgres() -> Self {
        // Its log does not wait for the disk: no test of a promise cuts the power.
        static SERVER: OnceLock<Postgres> = OnceLock::new();
        let settings = || servers::PostgresOptions::new().set("fsync", "off").set("max_connections", "500");
        let server = SERVER.get_or_init(|| Postgres::start_new(&settings()));
        let options = PostgresOptions::from_url(&server.url("postgres")).unwrap();
        Self::on_real_time("postgres", Box::new(options.schema(unique("test_")).connections(6)))
    }

    pub fn nats() -> Self {
        static SERVER: OnceLock<Nats> = OnceLock::new();
        let server = SERVER.get_or_init(|| Nats::start_new(&[]));
        let options = NatsOptions::from_url(&server.url()).unwrap();
        Self::on_real_time("nats", Box::new(options.namespace(&unique("test_"))))
    }

    pub fn redis() -> Self {
        static SERVER: OnceLock<Redis> = OnceLock::new();
        let server = SERVER.get_or_init(|| Redis::start_new(&[]));
        let options = RedisOptions::from_url(&server.url()).unwrap();
        Self::on_real_time("redis", Box::new(options.prefix(unique("test-"))))
    }

    fn on_real_time(name: &'static str, home: Box<dyn Home>) -> Self {
        Self { name, home, clock: Clock::system(), paused: false }
    }
}

/// A name that no other test of this process has.
fn unique(prefix: impl Display) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    format!("{prefix}{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

#[async_trait]
impl Home for PostgresOptions {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::open(self.clone()).await.unwrap())
    }
}

#[async_trait]
impl Home for NatsOptions {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(NatsStore::open(self.clone()).await.unwrap())
    }
}

#[async_trait]
impl Home for RedisOptions {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(RedisStore::open(self.clone()).await.unwrap())
    }
}

struct Memory(MemoryStore);

#[async_trait]
impl Home for Memory {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }
}

struct Sqlite {
    path: PathBuf,
    /// Removed at the end of the test.
    _directory: Option<tempfile::TempDir>,
}

#[async_trait]
impl Home for Sqlite {
    async fn open(&self) -> Arc<dyn Store> {
        // What a commit survives makes no difference to a process that ends.
        let options = SqliteOptions::new().durability(Durability::Normal);
        Arc::new(SqliteStore::open(&self.path, options).await.unwrap())
    }
}

/// One test's engine, and the record of what its handlers did.
pub struct World {
    pub engine: Engine,
    pub probe: Probe,
    /// A view on the store that no fault reaches.
    pub store: Arc<dyn Store>,
}

impl World {
    pub async fn new(engine: Engine) -> Self {
        let store = engine.home.open().await;
        Self { engine, probe: Probe::default(), store }
    }
}
