//! The events of the simulation: numbers with a key.

use bytes::Bytes;
use photon_core::error::EncodeError;
use photon_core::ids::Key;
use photon_core::topic::{Topic, TopicDescriptor};

/// How many shards the topic has.
pub(crate) const SHARDS: u16 = 2;

/// The topic of the simulation.
pub(crate) static STEPS: TopicDescriptor = TopicDescriptor {
    name: "steps",
    shards: SHARDS,
    key: "field:key",
    type_name: "Step",
    file: file!(),
    line: line!(),
};

/// One event. Its number decides what the handlers do with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) n: u32,
    pub(crate) key: Option<u8>,
}

impl Topic for Step {
    const DESCRIPTOR: &'static TopicDescriptor = &STEPS;
    const CONTENT_TYPE: &'static str = "application/octet-stream";

    fn key(&self) -> Option<Key> {
        self.key.map(|key| Key::new(Bytes::copy_from_slice(&[key])))
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend(self.n.to_be_bytes());
        Ok(())
    }
}

/// The number of an event from its payload.
pub(crate) fn number(payload: &[u8]) -> u32 {
    payload.try_into().map_or(u32::MAX, u32::from_be_bytes)
}
