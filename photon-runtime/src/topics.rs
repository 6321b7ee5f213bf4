//! The topics that this process publishes to, each made known to the store once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::headers::{CONTENT_TYPE, Headers};
use photon_core::ids::{Generation, InvalidName, MAX_SHARDS, TopicName};
use photon_core::registry::Registry;
use photon_core::store::{Store, TopicInfo, TopicSpec};
use photon_core::topic::{DEFAULT_SHARDS, Topic, TopicDescriptor};
use tokio::sync::OnceCell;

use crate::batcher::Batcher;
use crate::error::{Error, Result};
use crate::random::Random;

/// A topic that has no type of its own: named at run time, with payloads of any bytes.
///
/// Publish to it with [`Photon::publish_raw`](crate::Photon::publish_raw). Text turns into one with the number
/// of shards that the program declares for a topic of this name, or else 8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicTopic {
    name: TopicName,
    shards: Option<u16>,
}

impl DynamicTopic {
    /// The topic of this name; see [`name_problem`](photon_core::ids::name_problem) for the rules.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        Ok(Self { name: TopicName::new(name)?, shards: None })
    }

    /// Sets the number of shards, 1 to 1024. A topic that exists must have this number.
    #[must_use]
    pub fn shards(mut self, shards: u16) -> Self {
        self.shards = Some(shards);
        self
    }

    pub(crate) fn shard_count(&self) -> Option<u16> {
        self.shards
    }

    /// The name.
    pub fn name(&self) -> &TopicName {
        &self.name
    }
}

impl TryFrom<&str> for DynamicTopic {
    type Error = InvalidName;

    fn try_from(name: &str) -> std::result::Result<Self, InvalidName> {
        Ok(Self { name: TopicName::new(name)?, shards: None })
    }
}

impl TryFrom<String> for DynamicTopic {
    type Error = InvalidName;

    fn try_from(name: String) -> std::result::Result<Self, InvalidName> {
        name.as_str().try_into()
    }
}

impl From<&DynamicTopic> for DynamicTopic {
    fn from(topic: &DynamicTopic) -> Self {
        topic.clone()
    }
}

impl From<TopicName> for DynamicTopic {
    fn from(name: TopicName) -> Self {
        Self { name, shards: None }
    }
}

/// A topic as this process uses it.
#[derive(Debug)]
pub(crate) struct TopicEntry {
    pub(crate) name: TopicName,
    pub(crate) batcher: Batcher,
    shards: u16,
    /// The type that carries the events; `None` for a dynamic topic.
    descriptor: Option<&'static TopicDescriptor>,
    content_type: &'static str,
    /// The headers that every event of the type has, shared by all of them.
    headers: Headers,
    info: OnceCell<TopicInfo>,
}

impl TopicEntry {
    fn typed(descriptor: &'static TopicDescriptor, content_type: &'static str) -> Result<Self> {
        let name = TopicName::new(descriptor.name)?;
        Ok(Self {
            headers: content_type_header(content_type),
            content_type,
            ..Self::new(name, descriptor.shards, Some(descriptor))?
        })
    }

    fn new(name: TopicName, shards: u16, descriptor: Option<&'static TopicDescriptor>) -> Result<Self> {
        if shards == 0 || shards > MAX_SHARDS {
            let message = format!("topic \"{name}\" has {shards} shards, allowed are 1 to {MAX_SHARDS}");
            return Err(Error::refused(message));
        }
        let (batcher, info, headers) = (Batcher::default(), OnceCell::new(), Headers::new());
        Ok(Self { name, batcher, shards, descriptor, content_type: "", headers, info })
    }

    /// The headers that an event with payloads of this type starts with.
    pub(crate) fn headers(&self, content_type: &'static str) -> Headers {
        if content_type == self.content_type {
            self.headers.clone()
        } else {
            content_type_header(content_type)
        }
    }

    /// The topic, to be made if it is not there.
    pub(crate) fn spec(&self, random: &Random) -> TopicSpec {
        TopicSpec {
            name: self.name.clone(),
            shards: self.shards,
            key: self.descriptor.map(|descriptor| descriptor.key.to_owned()),
            generation: Generation(random.uuid()),
        }
    }

    /// What the store says about the topic: asked once, and again after an error.
    pub(crate) async fn ensure(&self, store: &dyn Store, random: &Random) -> Result<TopicInfo> {
        if let Some(info) = self.info.get() {
            return Ok(info.clone());
        }
        let ask = || async {
            let spec = self.spec(random);
            let info = store.ensure_topic(&spec).await.map_err(nothing_stored)?;
            tracing::debug!(topic = %self.name, shards = info.shards, "topic is ready");
            Ok(info)
        };
        self.info.get_or_try_init(ask).await.cloned()
    }
}

/// A lost answer is no more than an absent store here: no event was written, and asking again is safe.
fn nothing_stored(error: StoreError) -> Error {
    match error.kind() {
        StoreErrorKind::Unknown => Error::Unavailable(Arc::new(error)),
        _ => error.into(),
    }
}

fn content_type_header(content_type: &'static str) -> Headers {
    std::iter::once((CONTENT_TYPE, content_type)).collect()
}

/// Finds the entry of a topic. Typed and dynamic ones are apart, because only the former say how their key is
/// found.
#[derive(Debug, Default)]
pub(crate) struct TopicCache {
    typed: RwLock<Entries>,
    dynamic: RwLock<Entries>,
    declared: HashMap<&'static str, u16>,
}

type Entries = HashMap<TopicName, Arc<TopicEntry>>;

impl TopicCache {
    pub(crate) fn new(registry: &Registry) -> Self {
        let declared = registry.topics.iter().map(|topic| (topic.name, topic.shards)).collect();
        Self { declared, ..Self::default() }
    }

    /// The entry of the topic of `E`.
    pub(crate) fn of<E: Topic>(&self) -> Result<Arc<TopicEntry>> {
        let wanted = E::DESCRIPTOR;
        let make = || TopicEntry::typed(wanted, E::CONTENT_TYPE);
        let entry = find_or_insert(&self.typed, wanted.name, make)?;
        match entry.descriptor {
            Some(known) if !std::ptr::eq(known, wanted) && !same_topic(known, wanted) => {
                Err(Error::refused(format!(
                    "topic {:?} is declared for `{}` at {}:{} and for `{}` at {}:{}: a topic has one type",
                    known.name,
                    known.type_name,
                    known.file,
                    known.line,
                    wanted.type_name,
                    wanted.file,
                    wanted.line
                )))
            }
            _ => Ok(entry),
        }
    }

    /// The entry of a topic without a type.
    pub(crate) fn dynamic(&self, topic: &DynamicTopic) -> Result<Arc<TopicEntry>> {
        let name = topic.name.as_str();
        let make = || {
            let declared = || self.declared(&topic.name);
            TopicEntry::new(topic.name.clone(), topic.shards.unwrap_or_else(declared), None)
        };
        let entry = find_or_insert(&self.dynamic, name, make)?;
        match topic.shards {
            Some(wanted) if wanted != entry.shards => Err(Error::refused(format!(
                "topic \"{name}\" is used with {} shards and now with {wanted}: name one number everywhere",
                entry.shards
            ))),
            _ => Ok(entry),
        }
    }

    /// The number of shards that the program declares for a topic, or the usual one.
    pub(crate) fn declared(&self, topic: &TopicName) -> u16 {
        self.declared.get(topic.as_str()).copied().unwrap_or(DEFAULT_SHARDS)
    }

    /// The names of all topics that were used.
    pub(crate) fn names(&self) -> Vec<TopicName> {
        let mut names = Vec::new();
        for entries in [&self.typed, &self.dynamic] {
            names.extend(entries.read().unwrap_or_else(PoisonError::into_inner).keys().cloned());
        }
        names
    }
}

fn same_topic(a: &TopicDescriptor, b: &TopicDescriptor) -> bool {
    (a.file, a.line, a.type_name, a.shards, a.key) == (b.file, b.line, b.type_name, b.shards, b.key)
}

fn find_or_insert(
    entries: &RwLock<Entries>,
    name: &str,
    make: impl FnOnce() -> Result<TopicEntry>,
) -> Result<Arc<TopicEntry>> {
    // A map stays whole when a thread that held the lock panicked.
    if let Some(entry) = entries.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return Ok(entry.clone());
    }
    let made = Arc::new(make()?);
    let mut entries = entries.write().unwrap_or_else(PoisonError::into_inner);
    Ok(entries.entry(made.name.clone()).or_insert(made).clone())
}
