//! Test support: private servers on loopback, and a proxy that breaks connections.
//!
//! A test starts a server of its own ([`Postgres`], [`Nats`], [`Redis`]) on a free port of 127.0.0.1 with a new
//! data directory. It can be killed, restarted on the same data, frozen and thawed ([`Server`]), and a [`Proxy`]
//! before it stalls, delays, cuts or refuses connections. When the value is dropped or the test process ends,
//! however it ends, the server is stopped and its directory removed.
//!
//! What needs a server is a test binary without the standard harness (`harness = false`), whose `main` is one
//! call of [`run`](suite::run): so that tests whose server is not installed are reported as ignored, and not as
//! passed. With `PHOTON_REQUIRE_ENGINES=1` they fail.
//!
//! Everything in here is for tests: it panics, with the reason and the server's log, when a server cannot be
//! started or stopped, and its calls block the thread, except those of the proxy.

mod nats;
mod postgres;
mod process;
mod proxy;
mod redis;
mod server;
pub mod suite;

pub use self::nats::Nats;
pub use self::postgres::{Postgres, PostgresOptions};
pub use self::proxy::Proxy;
pub use self::redis::Redis;
pub use self::server::Server;
