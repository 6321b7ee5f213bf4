//! What the macros leave to the compiler: assertions that need to know another item's constants.
//!
//! Each is evaluated at compile time and stops the compilation with a message at the word in question.

use crate::ids::name_problem;
use crate::topic::EventParam;

/// The topic of a handler that does not name one: that of its event type.
///
/// # Panics
/// If the handler takes the raw event, which belongs to no topic.
#[track_caller]
pub const fn topic_of<E: EventParam>() -> &'static str {
    match E::TOPIC {
        Some(topic) => topic.name,
        None => panic!(
            "a handler that takes the undecoded event must say which topic it subscribes to: add `topic = \"...\"`"
        ),
    }
}

/// Checks that a handler subscribes to the topic of the event type it takes.
///
/// # Panics
/// If it names another one.
#[track_caller]
pub const fn same_topic<E: EventParam>(type_name: &str, wanted: &str) {
    let Some(topic) = E::TOPIC else { return };
    // An event type whose own attribute has a mistake has no name; that mistake is reported there.
    if topic.name.is_empty() || same(topic.name, wanted) {
        return;
    }
    let message = Message::new()
        .with("this handler takes `")
        .with(type_name)
        .with("`, whose topic is \"")
        .with(topic.name)
        .with("\", but subscribes to \"")
        .with(wanted)
        .with("\"");
    panic!("{}", message.as_str())
}

/// Checks that the events of a handler with `on_dead = "block_key"` have keys.
///
/// # Panics
/// If the topic has none.
#[track_caller]
pub const fn has_key<E: EventParam>(type_name: &str) {
    let Some(topic) = E::TOPIC else { return };
    if !topic.name.is_empty() && same(topic.key, "none") {
        let message = Message::new()
            .with("`block_key` holds back the later events of a key, but `")
            .with(type_name)
            .with("` has no key: add `key = ...` to its #[topic], or use \"continue\"");
        panic!("{}", message.as_str())
    }
}

/// Checks the group name that a handler without one gets.
///
/// # Panics
/// If module and function do not make a usable name.
#[track_caller]
pub const fn usable_group(module_and_function: &str) {
    if let Some(reason) = name_problem(module_and_function) {
        let message = Message::new()
            .with("the group of this handler would be \"")
            .with(module_and_function)
            .with("\", which is not usable: ")
            .with(reason)
            .with("; name one with `group = \"...\"`");
        panic!("{}", message.as_str())
    }
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Text that is put together at compile time; what does not fit is cut off.
struct Message {
    bytes: [u8; Message::CAPACITY],
    len: usize,
}

impl Message {
    const CAPACITY: usize = 1024;

    const fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], len: 0 }
    }

    const fn with(mut self, text: &str) -> Self {
        let text = text.as_bytes();
        let mut i = 0;
        while i < text.len() && self.len < Self::CAPACITY {
            self.bytes[self.len] = text[i];
            self.len += 1;
            i += 1;
        }
        self
    }

    const fn as_str(&self) -> &str {
        match std::str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(text) => text,
            // Cut within a character.
            Err(_) => "the names are too long to be shown",
        }
    }
}
