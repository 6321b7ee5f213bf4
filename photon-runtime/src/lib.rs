//! The runtime of Photon: publishing, dead letters, and the state of things. Services use the facade crate
//! `photon`.

mod ambient;
mod batcher;
mod builder;
mod caught;
mod check;
mod clock;
mod config;
mod coordinator;
mod deadletters;
mod dynamic;
mod error;
mod executor;
mod inner;
mod live;
mod outage;
mod photon;
mod position;
mod publish;
mod publish_all;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod publish_in;
mod publisher;
mod random;
mod retention;
mod spec;
mod status;
mod subscriptions;
#[cfg(feature = "testing")]
pub mod testing;
mod topics;

/// What only the engine SQLite has.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use photon_backend::sqlite::{Durability, SqliteOptions, SqliteStore, Tx, rusqlite};
}

/// What only the engine Postgres has.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use photon_backend::postgres::{PostgresOptions, PostgresStore, PostgresTransaction, Tx};
}

pub use builder::PhotonBuilder;
pub use clock::Clock;
pub use config::{Config, DEFAULT_MAX_PAYLOAD, GroupMember, MAX_MAX_PAYLOAD, Variable, variables};
pub use deadletters::{DeadLetter, DeadLetters, Letter};
pub use dynamic::{Remove, Subscribed, Subscription};
pub use error::{Error, Result};
pub use executor::{DrainReport, Executor, SubscriptionReport};
pub use live::{BreakerStatus, HeldUp};
pub use photon::Photon;
pub use position::{Position, ShardReset};
pub use publish::{MAX_DEDUP_ID_BYTES, Publish, PublishAll, Receipt};
pub use publisher::Publisher;
pub use retention::Retention;
pub use status::{ShardStatus, Snapshot, SubscriptionHandle, SubscriptionStatus, TopicStatus};
pub use subscriptions::SubscriptionRef;
pub use topics::DynamicTopic;
