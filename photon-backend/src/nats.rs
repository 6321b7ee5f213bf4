//! The NATS store: JetStream of one server or a cluster, shared by any number of processes.
//!
//! The layout, and what each choice is for, is in `docs/decisions/nats-layout.md`: a stream for each topic, whose
//! messages hold batches of one shard, and one stream for positions, stored deliveries and leases.

mod api;
mod append;
mod bodies;
mod cell;
mod cells;
mod checkpoints;
mod connect;
mod denials;
mod error;
mod healing;
mod journal;
mod leases;
mod log;
mod names;
mod options;
mod packet;
mod read;
mod records;
mod shape;
mod sideline;
mod tail;
mod topics;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{SubscriptionId, TopicName};
use photon_core::store::Store;
use photon_core::time::Timestamp;
use uuid::Uuid;

pub use self::options::NatsOptions;

use self::api::JetStream;
use self::cells::Cells;
use self::checkpoints::Known;
use self::healing::Remembered;
use self::names::Names;
use self::tail::Foreign;
use self::topics::TopicSlot;

/// The description of the state stream.
const STATE: &str = "Photon state, version 1";

/// A store in NATS JetStream, version 2.9 or newer.
///
/// A clone is another handle on the same connection. The connection is made again by itself; meanwhile calls fail
/// as `Unavailable`, and those whose answer got lost as `Unknown`.
#[derive(Clone)]
pub struct NatsStore {
    inner: Arc<Inner>,
}

struct Inner {
    js: JetStream,
    options: NatsOptions,
    payload_limit: usize,
    names: Names,
    /// The stream of everything beside the logs.
    state: String,
    /// Whether that stream has replicas: then a check by the server is not part of the consensus.
    replicated: bool,
    /// Tells the hints of this handle from those of others.
    id: Uuid,
    topics: Mutex<HashMap<TopicName, Arc<TopicSlot>>>,
    cells: Cells,
    known: Mutex<HashMap<SubscriptionId, Arc<Known>>>,
    remembered: Remembered,
    /// Held while something is made anew, so that it is done and said once.
    mending: tokio::sync::Mutex<()>,
    writes: AtomicU64,
    foreign: Foreign,
}

impl NatsStore {
    /// Connects, checks the server, and makes the stream that the store needs if it is not there.
    ///
    /// # Errors
    /// `Unavailable` if nobody answers; `Denied` if the login or a permission is missing; `Refused` if the server is
    /// too old, its `max_payload` too small, or a stream of the name has other settings. Each says what to change.
    pub async fn open(options: NatsOptions) -> Result<Self, StoreError> {
        if let Some(problem) = options.problem() {
            return Err(error::error(StoreErrorKind::Refused, format!("the NATS options: {problem}")));
        }
        let (js, payload_limit) = connect::connect(&options).await?;
        let names = Names::new(&options.namespace);
        let mut inner = Inner {
            js,
            state: names.state_stream(),
            names,
            options,
            payload_limit,
            replicated: false,
            id: Uuid::new_v4(),
            topics: Mutex::default(),
            cells: Cells::default(),
            known: Mutex::default(),
            remembered: Remembered::default(),
            mending: tokio::sync::Mutex::default(),
            writes: AtomicU64::new(0),
            foreign: Foreign::default(),
        };
        inner.js.account().await?;
        inner.replicated = inner.make_state().await?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The largest payload that fits with the longest key, headers and error, as the server said at the open: what the
    /// options ask for, else at most 1 MiB. With the default `max_payload` of a server, 1 MiB, it is 820 KiB.
    pub fn payload_limit(&self) -> usize {
        self.inner.payload_limit
    }

    /// How many messages that Photon did not write were skipped in the streams of topics. They are told in the log,
    /// once a minute.
    pub fn skipped_messages(&self) -> u64 {
        self.inner.foreign.count()
    }
}

impl Inner {
    /// Makes the state stream, or checks it. Returns whether it has replicas.
    async fn make_state(&self) -> Result<bool, StoreError> {
        let subjects = self.names.state_subjects();
        let info = if let Some(info) = self.js.stream(&self.state).await? {
            info
        } else {
            let config = api::StreamConfig {
                description: STATE.to_owned(),
                ..self.stream_config(self.state.clone(), subjects.clone())
            };
            let made = self.js.make_stream(&config).await?;
            // If not, another process was faster.
            let found = if made.is_some() { made } else { self.js.stream(&self.state).await? };
            found.ok_or_else(|| {
                let message = format!("the stream {:?} comes and goes: try again", self.state);
                error::error(StoreErrorKind::Unavailable, message)
            })?
        };
        if info.config.description != STATE {
            let message = format!(
                "the stream {:?} was not made by this version of Photon: remove or rename it, or choose another \
                 namespace",
                self.state
            );
            return Err(error::error(StoreErrorKind::Refused, message));
        }
        shape::check(&info.config, &subjects)?;
        Ok(info.config.num_replicas > 1)
    }

    /// How large a message may be, without its headers.
    fn message_limit(&self) -> usize {
        self.js.client.max_payload().saturating_sub(1024)
    }

    /// How large a piece of a journal entry may be.
    fn part_limit(&self) -> usize {
        self.message_limit().min(512 * 1024)
    }
}

impl Store for NatsStore {
    fn engine(&self) -> &'static str {
        "nats"
    }
}

impl fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// The date of something for people, and when a redriven delivery is due.
fn now() -> Timestamp {
    SystemTime::now().into()
}
