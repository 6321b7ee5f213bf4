//! The server that the tests share, stores on it, and what the tests do with them.

use std::sync::OnceLock;

use photon_backend::postgres::{PostgresOptions, PostgresStore};
use photon_backend::servers::{self, Postgres};

pub(crate) use crate::common::{event, numbers, read_all, topic, wait_for};

/// The server of all tests that leave it alone. It ends with the process. It does not wait for the disk: that
/// matters only where the power fails.
pub(crate) fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start_new(&servers::PostgresOptions::new().set("fsync", "off")))
}

/// The URL of a new database.
pub(crate) fn new_url() -> String {
    server().url(&server().new_database())
}

/// The options for a database.
pub(crate) fn options(url: &str) -> PostgresOptions {
    PostgresOptions::from_url(url).expect("the URL is good")
}

/// A store in a database.
pub(crate) async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(options(url)).await.expect("the store opens")
}
