//! What the macros write down about a program, collected by `inventory`.

use std::fmt;

use crate::handler::{Delivery, HandlerFuture, Needs};
use crate::options::{Mode, Options};
use crate::topic::TopicDescriptor;

/// What `#[subscribe]` wrote down about a function: plain names, numbers and function pointers.
pub struct HandlerDescriptor {
    /// The name of the function.
    pub name: &'static str,
    /// The module that it stands in.
    pub module: &'static str,
    /// The topic that it subscribes to.
    pub topic: &'static str,
    /// What the event type says about the topic; `None` if the handler takes the raw event.
    pub descriptor: Option<&'static TopicDescriptor>,
    /// The group that was named; `None` stands for `module::name`.
    pub group: Option<&'static str>,
    /// Who gets the events.
    pub mode: Mode,
    /// What the attribute sets.
    pub options: Options,
    /// Runs the handler once.
    pub call: fn(Delivery) -> HandlerFuture,
    /// Collects what the parameters need.
    pub needs: fn(&mut Needs),
    /// Where the attribute stands.
    pub file: &'static str,
    /// The line of the attribute.
    pub line: u32,
}

impl HandlerDescriptor {
    /// The name of the group: as given, or `module::name`, so that functions of one name in two modules
    /// are two subscriptions.
    pub fn group_name(&self) -> String {
        match self.group {
            Some(group) => group.to_owned(),
            None => format!("{}::{}", self.module, self.name),
        }
    }
}

impl fmt::Debug for HandlerDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerDescriptor")
            .field("name", &self.name)
            .field("topic", &self.topic)
            .field("group", &self.group_name())
            .field("at", &format_args!("{}:{}", self.file, self.line))
            .finish_non_exhaustive()
    }
}

/// A topic, in the form that `inventory` collects.
#[derive(Debug)]
pub struct TopicEntry(pub &'static TopicDescriptor);

/// A handler, in the form that `inventory` collects.
#[derive(Debug)]
pub struct HandlerEntry(pub &'static HandlerDescriptor);

inventory::collect!(TopicEntry);
inventory::collect!(HandlerEntry);
