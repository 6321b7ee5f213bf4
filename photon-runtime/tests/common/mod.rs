//! What the tests share: topics written out by hand, and looks into the store.
#![allow(dead_code, reason = "each test file uses a part")]

use photon_core::codec;
use photon_core::error::EncodeError;
use photon_core::event::Event;
use photon_core::ids::{Key, Seq, ToKey, TopicName};
use photon_core::store::{Cursor, ReadLimit, Store};
use photon_core::topic::{Topic, TopicDescriptor};
use photon_runtime::{Photon, PhotonBuilder};
use serde::{Deserialize, Serialize};

/// An event with a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) customer: String,
    pub(crate) n: u64,
}

/// An event without a key; `broken` ones cannot be encoded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) text: String,
    pub(crate) broken: bool,
}

impl Topic for Order {
    const DESCRIPTOR: &'static TopicDescriptor = &TopicDescriptor {
        name: "orders.placed",
        shards: 4,
        key: "field:customer",
        type_name: "Order",
        file: file!(),
        line: line!(),
    };
    const CONTENT_TYPE: &'static str = codec::JSON;

    fn key(&self) -> Option<Key> {
        self.customer.to_key()
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        codec::encode_json(self, out)
    }
}

impl Topic for Note {
    const DESCRIPTOR: &'static TopicDescriptor = &TopicDescriptor {
        name: "notes",
        shards: 3,
        key: "none",
        type_name: "Note",
        file: file!(),
        line: line!(),
    };
    const CONTENT_TYPE: &'static str = codec::JSON;

    fn key(&self) -> Option<Key> {
        None
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.broken {
            let source = "it was made to break".into();
            return Err(EncodeError { type_name: "Note", content_type: codec::JSON, source });
        }
        codec::encode_json(self, out)
    }
}

pub(crate) fn order(customer: &str, n: u64) -> Order {
    Order { customer: customer.to_owned(), n }
}

pub(crate) fn note(text: &str) -> Note {
    Note { text: text.to_owned(), broken: false }
}

pub(crate) fn memory() -> PhotonBuilder {
    Photon::builder().memory()
}

/// Every event of a topic, by shard and seq.
pub(crate) async fn events(store: &dyn Store, topic: &str) -> Vec<Event> {
    let topic = TopicName::new(topic).unwrap();
    let Ok(bounds) = store.bounds(&topic).await else { return Vec::new() };
    let cursors: Vec<_> =
        bounds.iter().map(|bounds| Cursor { shard: bounds.shard, after: Seq::ZERO }).collect();
    let limit = ReadLimit { records: usize::MAX, bytes: usize::MAX };
    let mut records = store.read(&topic, &cursors, limit).await.unwrap().records;
    records.sort_by_key(|event| (event.shard, event.seq));
    records
}

/// The orders among the events of one customer, in the order of the log.
pub(crate) fn numbers_of(events: &[Event], customer: &str) -> Vec<u64> {
    let key = customer.to_key();
    let of_customer = events.iter().filter(|event| event.key == key);
    of_customer.map(|event| codec::decode_json::<Order>(event).unwrap().n).collect()
}
