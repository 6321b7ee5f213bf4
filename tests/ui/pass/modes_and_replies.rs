#![deny(warnings, missing_docs)]
//! Every mode, every reply, every extractor.

use photon::prelude::*;
use photon::{EventId, Failure, HandlerError, SubscriptionId};
use std::time::Duration;

#[topic("t")]
#[derive(Serialize, Deserialize)]
struct T;

#[subscribe(mode = "group", start = "earliest")]
async fn group(_: T) {}

#[subscribe(mode = "durable", expire_after = "1d", start = "latest")]
async fn durable(_: T) -> Outcome {
    Outcome::Done
}

#[subscribe(durable, group = "d")]
async fn durable_word(_: T) -> Result<(), String> {
    Ok(())
}

#[subscribe(mode = "ephemeral")]
async fn ephemeral(_: T) -> Result<Outcome, Box<dyn std::error::Error + Send + Sync>> {
    Ok(Outcome::defer(Duration::from_secs(1), "later"))
}

#[subscribe(ephemeral, concurrency = 1, window = 1, prefetch = 2)]
async fn ephemeral_word(_: T) -> Result<Outcome, HandlerError> {
    Err(HandlerError::permanent("no"))
}

struct User;
struct Tenant(String);

impl FromDelivery for Tenant {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        delivery
            .headers()
            .get("tenant")
            .map(|tenant| Tenant(tenant.into()))
            .ok_or_else(|| HandlerError::permanent("no tenant header"))
    }
}

#[derive(Debug, Failure)]
#[failure(retry_after = wait)]
struct Busy {
    wait: Duration,
}

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "busy for {:?}", self.wait)
    }
}

impl std::error::Error for Busy {}

#[subscribe(topic = "any", start = "at(2026-01-31T12:00:00+02:00)", retry(jitter = 1))]
async fn extractors(
    event: Event,
    cx: Context,
    State(n): State<u8>,
    headers: Headers,
    key: Option<Key>,
    id: EventId,
    subscription: SubscriptionId,
    Tenant(tenant): Tenant,
    Actor(_user): Actor<User>,
    anonymous: Option<Actor<User>>,
) -> Result<(), Busy> {
    let _ = (event, cx, n, headers, key, id, subscription, tenant, anonymous.is_some());
    Err(Busy { wait: Duration::ZERO })
}

fn main() {}
