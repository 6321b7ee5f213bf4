//! Topics: what a type must say about itself to be published.

use crate::error::{DecodeError, EncodeError};
use crate::event::Event;
use crate::ids::Key;

/// The number of shards of a topic that does not say.
pub const DEFAULT_SHARDS: u16 = 8;

/// What `#[topic]` wrote down about a type; one static a topic, collected by `inventory`.
#[derive(Debug)]
pub struct TopicDescriptor {
    /// The name of the topic.
    pub name: &'static str,
    /// Into how many ordered parts it is split.
    pub shards: u16,
    /// How the key is found, as text: `none`, `field:customer_id` or `fn:path::to::function`. The store
    /// remembers it, because another key would break the order of events already stored.
    pub key: &'static str,
    /// The type that carries the events.
    pub type_name: &'static str,
    /// Where the attribute stands.
    pub file: &'static str,
    /// The line of the attribute.
    pub line: u32,
}

/// A type whose values are the events of one topic. Write `#[topic]` on the type; do not implement it by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the event type of a topic",
    label = "not an event type",
    note = "write `#[topic(name = \"...\")]` on the type"
)]
pub trait Topic: Sized + Send + 'static {
    /// What the attribute wrote down.
    const DESCRIPTOR: &'static TopicDescriptor;
    /// The content type of the payloads.
    const CONTENT_TYPE: &'static str;

    /// The ordering key of this event.
    fn key(&self) -> Option<Key>;

    /// Appends the payload to `out`.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError>;
}

/// What a handler can take as its first parameter: an event type, or [`Event`] for the raw event.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event: a handler's first parameter is the event",
    label = "not an event type",
    note = "write `#[topic(name = \"...\")]` on the type, or take `photon::Event` for the undecoded event"
)]
pub trait EventParam: Sized + Send {
    /// The topic of the type; `None` if it fits every topic.
    const TOPIC: Option<&'static TopicDescriptor>;

    /// Reads the value out of a stored event.
    fn decode(event: &Event) -> Result<Self, DecodeError>;
}

impl EventParam for Event {
    const TOPIC: Option<&'static TopicDescriptor> = None;

    fn decode(event: &Event) -> Result<Self, DecodeError> {
        Ok(event.clone())
    }
}
