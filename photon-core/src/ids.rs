//! Names and numbers, each a type of its own that is checked where it is made.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

/// The longest topic or group name, in bytes.
pub const MAX_NAME_BYTES: usize = 200;
/// The longest key, in bytes (64 KiB).
pub const MAX_KEY_BYTES: usize = 64 * 1024;
/// The most shards that a topic can have.
pub const MAX_SHARDS: u16 = 1024;

/// A name that breaks the rules of [`TopicName`], [`GroupName`] or [`InstanceId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name:?} is not usable: {reason}")]
pub struct InvalidName {
    what: &'static str,
    name: String,
    reason: &'static str,
}

/// Says what is wrong with a topic or group name, or `None` when it is fine.
///
/// The rules are the same on every engine: 1 to 200 bytes; ASCII letters, digits, `.`, `_`, `-` and `:`;
/// a letter or digit first and last; no two dots in a row. It is `const`, so that the macros apply it at
/// compile time.
pub const fn name_problem(name: &str) -> Option<&'static str> {
    let bytes = name.as_bytes();
    if bytes.is_empty() {
        return Some("it is empty");
    }
    if bytes.len() > MAX_NAME_BYTES {
        return Some("it is longer than 200 bytes");
    }
    if !bytes[0].is_ascii_alphanumeric() || !bytes[bytes.len() - 1].is_ascii_alphanumeric() {
        return Some("it must start and end with an ASCII letter or digit");
    }
    let mut i = 0;
    while i < bytes.len() {
        let b = bytes[i];
        if !(b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':')) {
            return Some("only ASCII letters, digits, '.', '_', '-' and ':' are allowed");
        }
        if b == b'.' && bytes[i - 1] == b'.' {
            return Some("it has two dots in a row");
        }
        i += 1;
    }
    None
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `name` against [`name_problem`].
            pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
                let name = name.as_ref();
                match name_problem(name) {
                    None => Ok(Self(name.into())),
                    Some(reason) => {
                        let name = name.chars().take(80).collect();
                        Err(InvalidName { what: $what, name, reason })
                    }
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;
            fn from_str(name: &str) -> Result<Self, InvalidName> {
                Self::new(name)
            }
        }
    };
}

name! {
    /// The name of a topic, checked. See [`name_problem`] for the rules.
    TopicName, "topic name"
}
name! {
    /// The name of a group: who shares one position in a topic. See [`name_problem`] for the rules.
    GroupName, "group name"
}
name! {
    /// The stable name of one instance of a service, for `durable` subscriptions and static groups.
    /// See [`name_problem`] for the rules.
    InstanceId, "instance id"
}

/// A subscription: one position in a topic, shared by the instances of a service.
///
/// For a `durable` subscription the position belongs to one instance, and `instance` is set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId {
    /// The topic that is read.
    pub topic: TopicName,
    /// The group that shares the position.
    pub group: GroupName,
    /// The instance that owns the position alone, for `durable` subscriptions.
    pub instance: Option<InstanceId>,
}

impl SubscriptionId {
    /// A subscription that all instances of `group` share.
    pub fn new(topic: TopicName, group: GroupName) -> Self {
        Self { topic, group, instance: None }
    }

    /// The group and the instance as one text, `group` or `group@instance`. It is unique in the topic,
    /// because neither part can hold an `@`; stores use it as the key of the position.
    pub fn position_name(&self) -> String {
        match &self.instance {
            None => self.group.to_string(),
            Some(instance) => format!("{}@{instance}", self.group),
        }
    }

    /// Reads back what [`position_name`](Self::position_name) wrote.
    pub fn from_position_name(topic: TopicName, position: &str) -> Result<Self, InvalidName> {
        let (group, instance) = match position.split_once('@') {
            None => (position, None),
            Some((group, instance)) => (group, Some(InstanceId::new(instance)?)),
        };
        Ok(Self { topic, group: GroupName::new(group)?, instance })
    }
}

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.group)?;
        match &self.instance {
            None => Ok(()),
            Some(instance) => write!(f, "@{instance}"),
        }
    }
}

/// The number of one ordered part of a topic, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard(pub u16);

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The place of an event in its shard, in 1..=[`i64::MAX`]. It grows, not always by one, and is never
/// used twice. 0 stands for "before the first event".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// Before the first event of a shard.
    pub const ZERO: Seq = Seq(0);
    /// The last place that there can be.
    pub const MAX: Seq = Seq(i64::MAX.unsigned_abs());
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The identity of an event: a UUID of version 7, made by the publisher.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub Uuid);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One run of one process that works for subscriptions; a restart makes a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub Uuid);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Tells one life of a topic from another: a topic that was dropped and made again, or restored from an
/// old copy, has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(pub Uuid);

/// The ordering key of an event: any bytes, up to [`MAX_KEY_BYTES`]. Equal keys land in the same shard
/// and are handled in order. The empty key is a key like any other.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Bytes);

impl Key {
    /// Makes a key of bytes. The length is checked when the event is published.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The shared bytes of the key, without a copy.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// The key as text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_str() {
            Some(text) => fmt::Display::fmt(&text.escape_debug(), f),
            None => fmt::Display::fmt(&self.0.escape_ascii(), f),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// What can be the ordering key of an event.
///
/// Text and bytes stand for themselves; numbers are written in decimal, so `7u32`, `7i64` and `"7"` are
/// the same key; a UUID in its hyphenated form. `None` means that the event has no key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the key of an event",
    label = "not usable as a key",
    note = "a key is text, bytes, an integer, a Uuid, or an Option of one; for your own type implement `photon::ToKey`"
)]
pub trait ToKey {
    /// The key, or `None` for an event without one.
    fn to_key(&self) -> Option<Key>;
}

impl ToKey for Key {
    fn to_key(&self) -> Option<Key> {
        Some(self.clone())
    }
}

impl ToKey for str {
    fn to_key(&self) -> Option<Key> {
        Some(Key(Bytes::copy_from_slice(self.as_bytes())))
    }
}

impl ToKey for String {
    fn to_key(&self) -> Option<Key> {
        self.as_str().to_key()
    }
}

impl ToKey for [u8] {
    fn to_key(&self) -> Option<Key> {
        Some(Key(Bytes::copy_from_slice(self)))
    }
}

impl<const N: usize> ToKey for [u8; N] {
    fn to_key(&self) -> Option<Key> {
        self.as_slice().to_key()
    }
}

impl ToKey for Vec<u8> {
    fn to_key(&self) -> Option<Key> {
        self.as_slice().to_key()
    }
}

impl ToKey for Bytes {
    fn to_key(&self) -> Option<Key> {
        Some(Key(self.clone()))
    }
}

impl ToKey for Uuid {
    fn to_key(&self) -> Option<Key> {
        let mut buffer = Uuid::encode_buffer();
        let text: &str = self.hyphenated().encode_lower(&mut buffer);
        text.to_key()
    }
}

impl ToKey for char {
    fn to_key(&self) -> Option<Key> {
        (*self.encode_utf8(&mut [0; 4])).to_key()
    }
}

impl ToKey for bool {
    fn to_key(&self) -> Option<Key> {
        (if *self { "true" } else { "false" }).to_key()
    }
}

impl<T: ToKey> ToKey for Option<T> {
    fn to_key(&self) -> Option<Key> {
        self.as_ref()?.to_key()
    }
}

macro_rules! delegate_key {
    ($($pointer:ty),*) => { $(
        impl<T: ToKey + ?Sized> ToKey for $pointer {
            fn to_key(&self) -> Option<Key> {
                (**self).to_key()
            }
        }
    )* };
}
delegate_key!(&T, Box<T>, Arc<T>, std::rc::Rc<T>);

impl<T: ToKey + ToOwned + ?Sized> ToKey for std::borrow::Cow<'_, T> {
    fn to_key(&self) -> Option<Key> {
        (**self).to_key()
    }
}

macro_rules! number_key {
    ($($number:ty),*) => { $(
        impl ToKey for $number {
            fn to_key(&self) -> Option<Key> {
                use std::io::Write;
                // The longest integer, i128::MIN, has 40 characters.
                let mut buffer = [0u8; 40];
                let mut rest = &mut buffer[..];
                let _ = write!(rest, "{self}");
                let unused = rest.len();
                Some(Key(Bytes::copy_from_slice(&buffer[..40 - unused])))
            }
        }
    )* };
}
number_key!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_follow_one_rule() {
        for good in ["a", "orders.placed", "A-1_b:c", "7", &"x".repeat(MAX_NAME_BYTES)] {
            assert_eq!(name_problem(good), None, "{good}");
        }
        for bad in ["", ".a", "a.", "a..b", "a b", "é", "a/b", "a@b", "a*", &"x".repeat(201)] {
            assert!(name_problem(bad).is_some(), "{bad}");
            assert!(TopicName::new(bad).is_err());
        }
    }

    #[test]
    fn position_names_come_back() {
        let mut id = SubscriptionId::new(TopicName::new("t").unwrap(), GroupName::new("g").unwrap());
        assert_eq!(SubscriptionId::from_position_name(id.topic.clone(), &id.position_name()).unwrap(), id);
        id.instance = Some(InstanceId::new("pod-1").unwrap());
        assert_eq!(SubscriptionId::from_position_name(id.topic.clone(), &id.position_name()).unwrap(), id);
    }

    #[test]
    fn keys_of_equal_text_are_equal() {
        assert_eq!(7u32.to_key(), "7".to_key());
        assert_eq!(i128::MIN.to_key(), i128::MIN.to_string().to_key());
        assert_eq!(None::<String>.to_key(), None);
        assert_eq!(Some("").to_key().unwrap().as_bytes(), b"");
        assert_eq!(Uuid::nil().to_key(), "00000000-0000-0000-0000-000000000000".to_key());
    }

    proptest! {
        #[test]
        fn p11_any_text_gets_one_verdict(name in "[a-z.:@/é \\-]{0,12}") {
            let good = !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c))
                && name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name.ends_with(|c: char| c.is_ascii_alphanumeric())
                && !name.contains("..");
            prop_assert_eq!(name_problem(&name).is_none(), good);
            prop_assert_eq!(TopicName::new(&name).is_ok(), good);
            prop_assert_eq!(GroupName::new(&name).is_ok(), good);
            prop_assert_eq!(name.parse::<InstanceId>().is_ok(), good);
        }

        #[test]
        fn numbers_are_keys_in_decimal(signed: i128, unsigned: u128, small: i8) {
            prop_assert_eq!(signed.to_key(), signed.to_string().to_key());
            prop_assert_eq!(unsigned.to_key(), unsigned.to_string().to_key());
            prop_assert_eq!(small.to_key(), small.to_string().to_key());
        }

        #[test]
        fn keys_keep_any_bytes(bytes: Vec<u8>) {
            let key = bytes.to_key().unwrap();
            prop_assert_eq!(key.as_bytes(), &bytes[..]);
            prop_assert_eq!(key.as_str(), std::str::from_utf8(&bytes).ok());
            prop_assert!(key.to_string().chars().all(|c| !c.is_control()), "shown in one line");
        }
    }

    #[test]
    fn a_refused_name_says_why() {
        assert_eq!(
            TopicName::new("a b").unwrap_err().to_string(),
            "topic name \"a b\" is not usable: only ASCII letters, digits, '.', '_', '-' and ':' are allowed"
        );
        let long = InstanceId::new("x".repeat(10_000)).unwrap_err().to_string();
        assert!(long.len() < 200 && long.contains("longer than 200 bytes"), "{long}");
        let topic = TopicName::new("t").unwrap();
        for bad in ["", "@", "g@", "@i", "g@i@j", "g/h"] {
            assert!(SubscriptionId::from_position_name(topic.clone(), bad).is_err(), "{bad}");
        }
    }
}
