//! The making of a Photon.

use std::any::{TypeId, type_name};
use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use photon_backend::memory::MemoryStore;
use photon_core::handler::Extensions;
use photon_core::identity::{Identities, IdentityFactory};
use photon_core::ids::InstanceId;
use photon_core::options::Options;
use photon_core::registry::{Problem, Problems, Registry};
use photon_core::store::Store;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::{Config, DEFAULT_MAX_PAYLOAD, Engine, Environment, GroupMember, SecretUrl};
use crate::dynamic::Dynamic;
use crate::error::{Error, Result};
use crate::executor::{Around, Process, Running};
use crate::inner::Inner;
use crate::live::Live;
use crate::photon::Photon;
use crate::publisher::{Core, Gate, Publisher};
use crate::random::{EventIds, Random};
use crate::retention::Retention;
use crate::topics::TopicCache;

/// Makes a [`Photon`]. Only the engine must be named:
///
/// ```
/// # async fn example() -> photon_runtime::Result<()> {
/// let photon = photon_runtime::Photon::builder().memory().build().await?;
/// # Ok(()) }
/// ```
///
/// What the builder sets wins over the attributes of handlers, and [`from_env`](Self::from_env) over both.
/// Mistakes are reported by [`build`](Self::build), all at once.
#[must_use = "call .build().await"]
pub struct PhotonBuilder {
    engines: Vec<(&'static str, Choice)>,
    extensions: Extensions,
    given: HashSet<TypeId>,
    config: Config,
    environment: Environment,
    registry: Option<Registry>,
    only: Option<Vec<String>>,
    clock: Clock,
    seed: Option<u64>,
    around: Option<Around>,
    alone: bool,
    problems: Vec<Problem>,
}

enum Choice {
    Engine(Engine),
    Store(Arc<dyn Store>),
}

impl PhotonBuilder {
    pub(crate) fn new() -> Self {
        Self {
            engines: Vec::new(),
            extensions: Extensions::default(),
            given: HashSet::new(),
            config: Config::default(),
            environment: Environment::default(),
            registry: None,
            only: None,
            clock: Clock::system(),
            seed: None,
            around: None,
            alone: false,
            problems: Vec::new(),
        }
    }

    /// Keeps the log in memory: for tests, and for events that need not outlive the process.
    pub fn memory(mut self) -> Self {
        self.engines.push((".memory()", Choice::Engine(Engine::Memory)));
        self
    }

    /// Keeps the log in one SQLite file, which is made if it is missing. Several processes may share it.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.engines.push((
            ".sqlite(...)",
            Choice::Engine(Engine::Sqlite { path, full_durability: true, shared: false }),
        ));
        self
    }

    /// Keeps the log in a SQLite file that is the application's, beside its own tables, so that both commit together:
    /// see [`Photon::publish_in_blocking`] and [`sqlite::Tx`](crate::sqlite::Tx). Photon's tables start with `photon_`;
    /// `application_id` and `user_version` stay the application's. The file is switched to a write-ahead log.
    #[cfg(feature = "sqlite")]
    pub fn sqlite_shared(mut self, path: impl Into<PathBuf>) -> Self {
        let engine = Engine::Sqlite { path: path.into(), full_durability: true, shared: true };
        self.engines.push((".sqlite_shared(...)", Choice::Engine(engine)));
        self
    }

    /// Keeps the log in a Postgres database, in tables of the schema `photon`, which are made if they are missing:
    /// `postgres://user:password@host:5432/database`. Connections to other machines are encrypted; what else can
    /// be said in the URL is told at `PostgresOptions` of `photon-backend`, whose stores take more options:
    /// [`store`](Self::store).
    #[cfg(feature = "postgres")]
    pub fn postgres(mut self, url: impl Into<String>) -> Self {
        let url = SecretUrl(url.into());
        self.engines.push((".postgres(...)", Choice::Engine(Engine::Postgres(url))));
        self
    }

    /// Keeps the log in NATS JetStream, of one server or a cluster:
    /// `nats://user:password@host:4222,other-host:4222?replicas=3`. Connections to other machines are encrypted; what
    /// else can be said in the URL is told at `NatsOptions` of `photon-backend`, whose stores take more options:
    /// [`store`](Self::store).
    #[cfg(feature = "nats")]
    pub fn nats(mut self, url: impl Into<String>) -> Self {
        let url = SecretUrl(url.into());
        self.engines.push((".nats(...)", Choice::Engine(Engine::Nats(url))));
        self
    }

    /// Keeps the log in a Redis or Valkey server, in keys that start with `photon:`:
    /// `redis://user:password@host:6379/0`. The server must write to its disk before it answers and must not evict
    /// keys, else it is refused. Connections to other machines are encrypted; what else can be said in the URL is
    /// told at `RedisOptions` of `photon-backend`, whose stores take more options: [`store`](Self::store).
    #[cfg(feature = "redis")]
    pub fn redis(mut self, url: impl Into<String>) -> Self {
        let url = SecretUrl(url.into());
        self.engines.push((".redis(...)", Choice::Engine(Engine::Redis(url))));
        self
    }

    /// Keeps the log in a store made elsewhere: with options of its own, shared with another Photon, or of your
    /// own making.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.engines.push((".store(...)", Choice::Store(store)));
        self
    }

    /// Keeps the log in the engine that the URL names: `sqlite:orders.db`,
    /// `sqlite://orders.db?durability=normal`, `postgres://user:password@host/database`, `nats://host`,
    /// `redis://user:password@host` or `memory:`.
    pub fn from_url(mut self, url: &str) -> Self {
        match Engine::parse(url) {
            Ok(engine) => self.engines.push((".from_url(...)", Choice::Engine(engine))),
            Err(message) => self.problem(".from_url(...)", message),
        }
        self
    }

    /// Reads the environment variables `PHOTON_*`; the list is in [`variables`](crate::variables). What they set
    /// wins over the builder, wherever in the chain this stands. They are read by this call and never else.
    ///
    /// # Errors
    /// [`Error::Config`] with every unknown variable and every value that does not parse.
    pub fn from_env(mut self) -> Result<Self> {
        self.environment = Environment::read().map_err(Error::Config)?;
        Ok(self)
    }

    /// Gives handlers a value, which they take as `State<T>`: one of each type. Each delivery gets a clone.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extend(value, ".state(...)", type_name::<T>());
        self
    }

    /// Says how the actor of an event is written and rebuilt, see [`IdentityFactory`].
    pub fn identity<F: IdentityFactory>(mut self, factory: F) -> Self {
        let identities: Identities<F::Identity> = Identities::new(factory);
        self.extend(identities, ".identity(...)", type_name::<F::Identity>());
        self
    }

    /// Names this instance. The name must survive restarts and be another one in each running process;
    /// `durable` subscriptions need it.
    pub fn instance(mut self, name: impl AsRef<str>) -> Self {
        match InstanceId::new(name) {
            Ok(name) => self.config.instance = Some(name),
            Err(error) => self.problem(".instance(...)", error.to_string()),
        }
        self
    }

    /// Lets this instance work on the shards of instance `index` (from 0) of `count`. Default: on all.
    pub fn group(mut self, index: u32, count: u32) -> Self {
        self.config.group = GroupMember { index, count };
        self
    }

    /// Lets this instance work on these shards of every topic, instead of those that an index and a count give it.
    /// Whoever lists them sees to it that each shard is in the list of one instance: the events of one that is in
    /// none wait.
    pub fn group_shards(mut self, shards: impl IntoIterator<Item = u16>) -> Self {
        self.config.group_shards = Some(shards.into_iter().collect());
        self
    }

    /// Sets options of all subscriptions, over what their attributes say.
    pub fn options(mut self, options: Options) -> Self {
        self.config.builder_options = options.over(self.config.builder_options);
        self
    }

    /// Sets how long events are kept, of all topics that [`topic_retention`](Self::topic_retention) does not name.
    /// Default: for ever.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.config.retention = retention;
        self
    }

    /// Sets how long the events of one topic are kept.
    pub fn topic_retention(mut self, topic: impl Into<String>, retention: Retention) -> Self {
        self.config.topic_retention.insert(topic.into(), retention);
        self
    }

    /// Sets the largest payload in bytes, up to 256 MiB. Default: 1 MiB, or what the server takes if that is less: NATS
    /// with its own default takes 820 KiB. What is set here is a demand: a server that takes less is refused.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.config.max_payload = Some(bytes);
        self
    }

    /// Sets how long a drain waits for running handlers; those that are still running then are broken off, which
    /// costs their deliveries no attempt. Default 30 s, at most a day; zero breaks off at once.
    ///
    /// A subscription that asks for a `timeout` over this limit is refused at the start: raise one or lower the
    /// other. The default `timeout` is never refused, nor is any beside a limit of zero.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.config.drain_timeout = timeout;
        self
    }

    /// Sets after how long without a sign of life an instance loses its shards, 500 ms to an hour. Default 5 s.
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.config.lease_ttl = ttl;
        self
    }

    /// Lets an executor start although the program has no handler.
    pub fn allow_no_handlers(mut self) -> Self {
        self.config.allow_no_handlers = true;
        self
    }

    /// Works with the subscriptions of these groups only, as if the program had no others: for tests, and for
    /// processes that share a binary.
    pub fn only<G: Into<String>>(mut self, groups: impl IntoIterator<Item = G>) -> Self {
        self.only.get_or_insert_default().extend(groups.into_iter().map(Into::into));
        self
    }

    /// Takes these handlers and topics instead of the ones that are linked into the program.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Reads the time here: for tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes ids and jitter follow from a seed, so that a test can be repeated. It then stands for a process of its
    /// own: what must run alone in its process runs beside what others here run. Never use it elsewhere: two
    /// processes with one seed make the same event ids.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Runs every handler through this, which also sees to what handlers need: the check at start leaves that out.
    #[cfg(feature = "testing")]
    pub(crate) fn around(mut self, around: Around) -> Self {
        self.around = Some(around);
        self
    }

    /// Promises that nobody else works on the store, and that every append wakes. Long times then pass in few steps.
    #[cfg(feature = "testing")]
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self.lease_ttl(Duration::from_secs(3_600))
    }

    /// What it would be built with, before the environment is looked at.
    #[cfg(feature = "testing")]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Opens the engine and makes the Photon.
    ///
    /// # Errors
    /// [`Error::Config`] with everything that is wrong with the calls before; else what the engine says.
    pub async fn build(mut self) -> Result<Photon> {
        self.apply_environment();
        let choice = self.choose_engine();
        let registry = self.choose_handlers();
        for (method, message) in self.config.problems() {
            self.problem(&format!(".{method}(...)"), message);
        }
        let Some(choice) = choice.filter(|_| self.problems.is_empty()) else {
            return Err(Error::Config(Problems(self.problems)));
        };
        // On the heap: the future that opens a remote engine is large, and would be part of every caller.
        let opened = Box::pin(open(choice, &self.clock, self.config.max_payload)).await?;
        self.config.max_payload = Some(opened.max_payload);
        Ok(assemble(self, opened.store, registry))
    }

    fn apply_environment(&mut self) {
        let environment = std::mem::take(&mut self.environment);
        if let Some(engine) = environment.engine {
            self.engines = vec![("PHOTON_URL", Choice::Engine(engine))];
        }
        let config = &mut self.config;
        config.instance = environment.instance.or(config.instance.take());
        // Either of the two replaces what the builder says about the share.
        if environment.group.is_some() || environment.group_shards.is_some() {
            config.group = environment.group.unwrap_or_default();
            config.group_shards = environment.group_shards;
        }
        config.retention.after = environment.retention.or(config.retention.after);
        config.retention.limit = environment.retention_limit.or(config.retention.limit);
        config.max_payload = environment.max_payload.or(config.max_payload);
        config.drain_timeout = environment.drain_timeout.unwrap_or(config.drain_timeout);
        config.lease_ttl = environment.lease_ttl.unwrap_or(config.lease_ttl);
        config.environment_options = environment.options;
    }

    fn choose_engine(&mut self) -> Option<Choice> {
        if self.engines.len() > 1 {
            let calls: Vec<_> = self.engines.iter().map(|(call, _)| *call).collect();
            self.problem(
                "engine",
                format!("it is named {} times, by {}: keep one", calls.len(), calls.join(" and ")),
            );
        }
        let choice = self.engines.pop().map(|(_, choice)| choice);
        if choice.is_none() && self.problems.is_empty() {
            self.problem(
                "engine",
                "none is named: call .sqlite(\"orders.db\"), .memory(), .store(...) or .from_url(...), \
                 or set PHOTON_URL and call .from_env()",
            );
        }
        choice
    }

    fn choose_handlers(&mut self) -> Registry {
        let mut registry = self.registry.take().unwrap_or_else(Registry::linked);
        let Some(groups) = self.only.take() else { return registry };
        let known: HashSet<String> = registry.handlers.iter().map(|handler| handler.group_name()).collect();
        for group in groups.iter().filter(|group| !known.contains(*group)) {
            let mut known: Vec<_> = known.iter().map(String::as_str).collect();
            known.sort_unstable();
            let message = format!("no handler has the group {group:?}; there are: {}", known.join(", "));
            self.problem(".only(...)", message);
        }
        registry.handlers.retain(|handler| groups.contains(&handler.group_name()));
        registry
    }

    fn extend<T: Send + Sync + 'static>(&mut self, value: T, call: &str, name: &str) {
        if !self.given.insert(TypeId::of::<T>()) {
            let message = format!("a value of type {name} is given twice: wrap one in a type of its own");
            self.problem(call, message);
        }
        self.extensions.insert(value);
    }

    fn problem(&mut self, at: &str, message: impl Into<String>) {
        self.problems.push(Problem::at(at, message));
    }
}

/// An engine that is ready.
struct Opened {
    store: Arc<dyn Store>,
    max_payload: usize,
}

async fn open(choice: Choice, clock: &Clock, max_payload: Option<usize>) -> Result<Opened> {
    let store: Arc<dyn Store> = match choice {
        Choice::Store(store) => store,
        Choice::Engine(Engine::Memory) => {
            let clock = *clock;
            Arc::new(MemoryStore::with_clock(Arc::new(move || clock.wall())))
        }
        Choice::Engine(Engine::Sqlite { path, full_durability, shared }) => {
            open_sqlite(path, full_durability, shared).await?
        }
        Choice::Engine(Engine::Postgres(url)) => open_postgres(url).await?,
        // The only one whose server may take less than the default.
        Choice::Engine(Engine::Nats(url)) => return open_nats(url, max_payload).await,
        Choice::Engine(Engine::Redis(url)) => open_redis(url).await?,
    };
    Ok(Opened { store, max_payload: max_payload.unwrap_or(DEFAULT_MAX_PAYLOAD) })
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: PathBuf, full_durability: bool, shared: bool) -> Result<Arc<dyn Store>> {
    use photon_backend::sqlite::{Durability, SqliteOptions, SqliteStore};

    let durability = if full_durability { Durability::Full } else { Durability::Normal };
    let options = SqliteOptions::new().durability(durability).shared(shared);
    Ok(Arc::new(SqliteStore::open(path, options).await?))
}

#[cfg(not(feature = "sqlite"))]
#[expect(clippy::needless_pass_by_value, reason = "as the one with the feature")]
fn open_sqlite(
    path: PathBuf,
    _full_durability: bool,
    _shared: bool,
) -> std::future::Ready<Result<Arc<dyn Store>>> {
    let message = format!("{} cannot be opened: enable the feature \"sqlite\" of photon", path.display());
    std::future::ready(Err(Error::refused(message)))
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: SecretUrl) -> Result<Arc<dyn Store>> {
    use photon_backend::postgres::{PostgresOptions, PostgresStore};

    crate::ambient::check("a server")?;
    Ok(Arc::new(PostgresStore::open(PostgresOptions::from_url(&url.0)?).await?))
}

#[cfg(not(feature = "postgres"))]
#[expect(clippy::needless_pass_by_value, reason = "as the one with the feature")]
fn open_postgres(url: SecretUrl) -> std::future::Ready<Result<Arc<dyn Store>>> {
    let message = format!("{url:?} cannot be opened: enable the feature \"postgres\" of photon");
    std::future::ready(Err(Error::refused(message)))
}

#[cfg(feature = "nats")]
async fn open_nats(url: SecretUrl, max_payload: Option<usize>) -> Result<Opened> {
    use photon_backend::nats::{NatsOptions, NatsStore};

    let mut options = NatsOptions::from_url(&url.0)?;
    if let Some(bytes) = max_payload {
        options = options.payload_limit(bytes);
    }
    crate::ambient::check("a server")?;
    let store = NatsStore::open(options).await?;
    let max_payload = store.payload_limit();
    if max_payload < DEFAULT_MAX_PAYLOAD {
        tracing::info!(
            max_payload,
            "payloads are limited by the NATS server: raise its max_payload for more"
        );
    }
    Ok(Opened { store: Arc::new(store), max_payload })
}

#[cfg(not(feature = "nats"))]
#[expect(clippy::needless_pass_by_value, reason = "as the one with the feature")]
fn open_nats(url: SecretUrl, _max_payload: Option<usize>) -> std::future::Ready<Result<Opened>> {
    let message = format!("{url:?} cannot be opened: enable the feature \"nats\" of photon");
    std::future::ready(Err(Error::refused(message)))
}

#[cfg(feature = "redis")]
async fn open_redis(url: SecretUrl) -> Result<Arc<dyn Store>> {
    use photon_backend::redis::{RedisOptions, RedisStore};

    crate::ambient::check("a server")?;
    Ok(Arc::new(RedisStore::open(RedisOptions::from_url(&url.0)?).await?))
}

#[cfg(not(feature = "redis"))]
#[expect(clippy::needless_pass_by_value, reason = "as the one with the feature")]
fn open_redis(url: SecretUrl) -> std::future::Ready<Result<Arc<dyn Store>>> {
    let message = format!("{url:?} cannot be opened: enable the feature \"redis\" of photon");
    std::future::ready(Err(Error::refused(message)))
}

fn assemble(mut builder: PhotonBuilder, store: Arc<dyn Store>, registry: Registry) -> Photon {
    store.extend(&mut builder.extensions);
    let publisher = Publisher::new(Core {
        store: store.clone(),
        clock: builder.clock,
        random: builder.seed.map_or_else(Random::from_system, Random::new),
        ids: EventIds::default(),
        extensions: builder.extensions.clone(),
        topics: TopicCache::new(&registry),
        gate: Gate::new(),
        max_payload: builder.config.max_payload.unwrap_or(DEFAULT_MAX_PAYLOAD),
    });
    // Seeded ones stand for a process each.
    let process = if builder.seed.is_some() { Process::default() } else { Process::here() };
    let PhotonBuilder { clock, config, around, alone, mut extensions, .. } = builder;
    extensions.insert(publisher.clone());
    let (live, operator, running) = (Live::default(), watch::Sender::new(0), Running::default());
    let inner = Inner {
        store,
        clock,
        config,
        registry,
        extensions,
        publisher,
        around,
        alone,
        dynamic: Dynamic::default(),
        live,
        operator,
        running,
        process,
    };
    Photon { inner: Arc::new(inner) }
}

impl fmt::Debug for PhotonBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engines: Vec<_> = self.engines.iter().map(|(call, _)| call).collect();
        f.debug_struct("PhotonBuilder").field("engines", &engines).finish_non_exhaustive()
    }
}
