//! Servers, stores on them, and what the tests do with them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use photon_backend::redis::{RedisOptions, RedisStore};
use photon_backend::servers::Redis;
use redis::aio::MultiplexedConnection;

pub(crate) use crate::common::{NO_LIMIT, event, numbers, read_all, spec, topic, wait_for};

/// The server of all tests that leave it alone. It ends with the process.
pub(crate) fn server() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    SERVER.get_or_init(|| Redis::start_new(&["--requirepass", "hunter2"]))
}

/// The URL of a log of its own on that server.
pub(crate) fn new_url() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("redis://:hunter2@{}/?prefix=test-{number}", server().addr())
}

/// The prefix that [`new_url`] gave.
pub(crate) fn prefix(url: &str) -> &str {
    url.split_once("prefix=").map_or("photon", |(_, prefix)| prefix)
}

pub(crate) fn options(url: &str) -> RedisOptions {
    RedisOptions::from_url(url).expect("the URL is good")
}

pub(crate) async fn open(url: &str) -> RedisStore {
    RedisStore::open(options(url)).await.expect("the store opens")
}

/// Another program on the server of the URL.
pub(crate) async fn other_program(url: &str) -> MultiplexedConnection {
    let url = url.split('?').next().unwrap_or_default();
    let client = redis::Client::open(url).expect("the URL is good");
    client.get_multiplexed_async_connection().await.expect("it connects")
}

/// What another program does: a command in words.
pub(crate) async fn run(connection: &mut MultiplexedConnection, command: &[&str]) -> redis::Value {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]).query_async(connection).await.expect("the command runs")
}
