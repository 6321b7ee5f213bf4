//! Stores on servers, and what the tests do with them.

use std::time::Duration;

use photon_backend::nats::{NatsOptions, NatsStore};

pub(crate) use crate::common::{event, numbers, read_all, topic, wait_for};

/// Options for a URL, with little patience.
pub(crate) fn options(url: &str) -> NatsOptions {
    NatsOptions::from_url(url).expect("the URL is good").request_timeout(Duration::from_secs(2))
}

pub(crate) async fn open(url: &str) -> NatsStore {
    NatsStore::open(options(url)).await.expect("the store opens")
}
