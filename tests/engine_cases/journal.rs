//! Subscriptions that write down what they are given.

use std::sync::{Arc, Mutex};

use photon::{DynamicTopic, Event, Options, Photon, Registry, Subscription};

use crate::support::{Instance, World};

/// A running instance without the handlers of this program.
pub(crate) async fn bare(world: &World) -> Instance {
    world.plan([]).with(|builder| builder.registry(Registry::default()).allow_no_handlers()).start().await
}

/// Payloads as text, in the order in which they were handled.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    pub(crate) fn seen(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Subscribes to a topic of one shard.
    pub(crate) async fn subscribe(&self, photon: &Photon, topic: &str, group: &str) {
        let spec = Subscription::to(DynamicTopic::new(topic).unwrap().shards(1)).group(group);
        let options = Options { start: Some(photon::Start::Earliest), ..Options::NONE };
        let journal = self.clone();
        let handler = move |event: Event| {
            let journal = journal.clone();
            async move {
                journal.0.lock().unwrap().push(String::from_utf8_lossy(&event.payload).into_owned());
            }
        };
        photon.subscribe(spec.options(options), handler).await.unwrap();
    }
}
