//! What the handles of one Photon share.

use std::sync::Arc;

use photon_core::handler::Extensions;
use photon_core::registry::Registry;
use photon_core::store::Store;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::Config;
use crate::dynamic::Dynamic;
use crate::executor::{Around, Process, Running};
use crate::live::Live;
use crate::publisher::Publisher;

/// One Photon. Its handles and its executor hold it.
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    /// The handlers and topics that it works with.
    pub(crate) registry: Registry,
    /// What handlers can take: states, identities and the publisher.
    pub(crate) extensions: Extensions,
    pub(crate) publisher: Publisher,
    /// What stands around the handlers.
    pub(crate) around: Option<Around>,
    /// Whether nobody else works on the store and every append wakes: what others did is then not looked for.
    pub(crate) alone: bool,
    /// The subscriptions that were added at run time.
    pub(crate) dynamic: Dynamic,
    /// The loops that run here.
    pub(crate) live: Live,
    /// Counts what people asked for here (redrives, discards, pauses, resets), so that loops look at once.
    pub(crate) operator: watch::Sender<u64>,
    pub(crate) running: Running,
    /// What ends with it if a handler ends its process.
    pub(crate) process: Process,
}
