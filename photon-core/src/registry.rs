//! The handlers and topics of a program, sorted and checked.

use std::collections::BTreeMap;
use std::fmt;

use crate::descriptor::{HandlerDescriptor, HandlerEntry, TopicEntry};
use crate::ids::{GroupName, MAX_SHARDS, SubscriptionId, TopicName, name_problem};
use crate::topic::TopicDescriptor;

/// One thing that keeps a program from starting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// `file:line` of the attribute, or where else the fault lies.
    pub at: String,
    /// The handler or topic, or empty.
    pub name: String,
    /// What is wrong and what to change.
    pub message: String,
}

impl Problem {
    /// A problem with a handler.
    pub fn of(handler: &HandlerDescriptor, message: impl Into<String>) -> Self {
        Self {
            at: format!("{}:{}", handler.file, handler.line),
            name: handler.name.to_owned(),
            message: message.into(),
        }
    }

    /// A problem that lies in no handler: `at` says where.
    pub fn at(at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at: at.into(), name: String::new(), message: message.into() }
    }
}

/// Everything that keeps a program from starting, at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "Photon cannot start: {} problem{plural}", self.0.len())?;
        let at_width = self.0.iter().map(|p| p.at.chars().count()).max().unwrap_or(0);
        let name_width = self.0.iter().map(|p| p.name.chars().count()).max().unwrap_or(0);
        for problem in &self.0 {
            write!(f, "\n  {:at_width$}  ", problem.at)?;
            if name_width > 0 {
                write!(f, "{:name_width$}  ", problem.name)?;
            }
            f.write_str(&problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The handlers and topics that `inventory` found, in a fixed order.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// The handlers, by file and line.
    pub handlers: Vec<&'static HandlerDescriptor>,
    /// The topics, by name.
    pub topics: Vec<&'static TopicDescriptor>,
}

impl Registry {
    /// What is linked into this program.
    pub fn linked() -> Self {
        let handlers = inventory::iter::<HandlerEntry>.into_iter().map(|entry| entry.0).collect();
        let topics = inventory::iter::<TopicEntry>.into_iter().map(|entry| entry.0).collect();
        Self::new(handlers, topics)
    }

    /// A registry of just these.
    pub fn new(
        mut handlers: Vec<&'static HandlerDescriptor>,
        mut topics: Vec<&'static TopicDescriptor>,
    ) -> Self {
        handlers.sort_by_key(|h| (h.file, h.line, h.name));
        topics.sort_by_key(|t| (t.name, t.file, t.line));
        topics.dedup_by_key(|t| std::ptr::from_ref(*t));
        Self { handlers, topics }
    }

    /// The subscription of a handler, without the instance of a `durable` one.
    pub fn subscription(handler: &HandlerDescriptor) -> Result<SubscriptionId, Problem> {
        let topic = TopicName::new(handler.topic).map_err(|error| Problem::of(handler, error.to_string()))?;
        let group = GroupName::new(handler.group_name())
            .map_err(|error| Problem::of(handler, format!("{error}; name one with group = \"...\"")))?;
        Ok(SubscriptionId::new(topic, group))
    }

    /// Everything wrong that can be seen without a store: bad names, one subscription twice, one topic
    /// declared in two ways.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.topic_problems();
        let mut seen: BTreeMap<SubscriptionId, &HandlerDescriptor> = BTreeMap::new();
        for &handler in &self.handlers {
            let id = match Self::subscription(handler) {
                Ok(id) => id,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            if let Some(topic) = handler.descriptor
                && topic.name != handler.topic
            {
                problems.push(Problem::of(
                    handler,
                    format!(
                        "takes `{}`, whose topic is {:?}, but subscribes to {:?}",
                        topic.type_name, topic.name, handler.topic
                    ),
                ));
            }
            if let Some(first) = seen.get(&id) {
                problems.push(Problem::of(
                    handler,
                    format!(
                        "same subscription ({:?}, {:?}) as {} at {}:{}: give one of them another group",
                        id.topic.as_str(),
                        id.group.as_str(),
                        first.name,
                        first.file,
                        first.line
                    ),
                ));
            } else {
                seen.insert(id, handler);
            }
        }
        problems
    }

    fn topic_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for topic in &self.topics {
            let at = format!("{}:{}", topic.file, topic.line);
            if let Some(reason) = name_problem(topic.name) {
                problems
                    .push(Problem::at(&at, format!("topic name {:?} is not usable: {reason}", topic.name)));
            }
            if topic.shards == 0 || topic.shards > MAX_SHARDS {
                let message = format!(
                    "topic {:?} has {} shards, allowed are 1 to {MAX_SHARDS}",
                    topic.name, topic.shards
                );
                problems.push(Problem::at(&at, message));
            }
        }
        for pair in self.topics.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            if first.name == second.name {
                problems.push(Problem::at(
                    format!("{}:{}", second.file, second.line),
                    format!(
                        "topic {:?} is declared for `{}` here and for `{}` at {}:{}: a topic has one type",
                        second.name, second.type_name, first.type_name, first.file, first.line
                    ),
                ));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Outcome;
    use crate::options::{Mode, Options};

    fn topic(name: &'static str, shards: u16, line: u32) -> &'static TopicDescriptor {
        let topic =
            TopicDescriptor { name, shards, key: "none", type_name: "Order", file: "src/orders.rs", line };
        Box::leak(Box::new(topic))
    }

    fn handler(
        name: &'static str,
        topic: &'static str,
        group: Option<&'static str>,
        file: &'static str,
        line: u32,
    ) -> HandlerDescriptor {
        HandlerDescriptor {
            name,
            module: "shop::orders",
            topic,
            descriptor: None,
            group,
            mode: Mode::Group,
            options: Options::NONE,
            call: |_| Box::pin(async { Ok(Outcome::Done) }),
            needs: |_| {},
            file,
            line,
        }
    }

    fn registry(handlers: Vec<HandlerDescriptor>, topics: Vec<&'static TopicDescriptor>) -> Registry {
        let handlers = handlers.into_iter().map(|h| &*Box::leak(Box::new(h))).collect();
        Registry::new(handlers, topics)
    }

    #[test]
    fn twin_subscriptions() {
        let twins = registry(
            vec![
                handler("notify", "orders", Some("billing"), "src/mail.rs", 40),
                handler("charge", "orders", Some("billing"), "src/billing.rs", 12),
                handler("other", "orders", Some("audit"), "src/mail.rs", 60),
                handler("third", "paid", Some("billing"), "src/mail.rs", 70),
            ],
            Vec::new(),
        );
        let problems = twins.problems();
        assert_eq!(problems.len(), 1);
        assert_eq!(
            Problems(problems).to_string(),
            "Photon cannot start: 1 problem\n  src/mail.rs:40  notify  same subscription (\"orders\", \"billing\") \
             as charge at src/billing.rs:12: give one of them another group"
        );
    }

    #[test]
    fn an_unnamed_group_is_the_path_of_the_function() {
        let unnamed = handler("charge", "orders", None, "src/a.rs", 1);
        let id = Registry::subscription(&unnamed).unwrap();
        assert_eq!(id.group.as_str(), "shop::orders::charge");
        let elsewhere =
            HandlerDescriptor { module: "shop::mail", ..handler("charge", "orders", None, "src/b.rs", 1) };
        assert!(registry(vec![unnamed, elsewhere], Vec::new()).problems().is_empty());

        // A name that is given keeps the position wherever the function goes.
        let here = handler("charge", "orders", Some("billing"), "src/a.rs", 1);
        let moved = HandlerDescriptor {
            module: "shop::v2",
            ..handler("bill", "orders", Some("billing"), "src/b.rs", 9)
        };
        assert_eq!(Registry::subscription(&here), Registry::subscription(&moved));
    }

    #[test]
    fn p12_every_problem_has_its_place() {
        let takes_orders = HandlerDescriptor {
            descriptor: Some(topic("orders", 8, 3)),
            ..handler("pay", "orders.paid", Some("pay"), "src/pay.rs", 5)
        };
        let problems = registry(
            vec![
                takes_orders,
                handler("odd", "no such topic", Some("odd"), "src/odd.rs", 6),
                handler("group", "orders", Some("a b"), "src/odd.rs", 7),
            ],
            vec![
                topic("orders", 8, 3),
                topic("orders", 8, 90),
                topic("empty", 0, 4),
                topic("a..b", 8, 5),
                topic("many", 1_025, 6),
            ],
        )
        .problems();
        let shown = Problems(problems).to_string();
        let lines: Vec<_> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "Photon cannot start: 7 problems",
                "src/orders.rs:5 topic name \"a..b\" is not usable: it has two dots in a row",
                "src/orders.rs:4 topic \"empty\" has 0 shards, allowed are 1 to 1024",
                "src/orders.rs:6 topic \"many\" has 1025 shards, allowed are 1 to 1024",
                "src/orders.rs:90 topic \"orders\" is declared for `Order` here and for `Order` at src/orders.rs:3: a topic has one type",
                "src/odd.rs:6 odd topic name \"no such topic\" is not usable: only ASCII letters, digits, '.', '_', '-' and ':' are allowed",
                "src/odd.rs:7 group group name \"a b\" is not usable: only ASCII letters, digits, '.', '_', '-' and ':' are allowed; name one with group = \"...\"",
                "src/pay.rs:5 pay takes `Order`, whose topic is \"orders\", but subscribes to \"orders.paid\"",
            ]
        );
    }

    #[test]
    fn columns_line_up() {
        let problems = Problems(vec![
            Problem::at("src/a.rs:1", "one"),
            Problem {
                at: "src/billing.rs:12".to_owned(),
                name: "charge".to_owned(),
                message: "two".to_owned(),
            },
        ]);
        assert_eq!(
            problems.to_string(),
            "Photon cannot start: 2 problems\n  src/a.rs:1                 one\n  src/billing.rs:12  charge  two"
        );
    }

    #[test]
    fn a_topic_that_is_linked_twice_is_one_topic() {
        let orders = topic("orders", 8, 3);
        let both = registry(Vec::new(), vec![orders, topic("a", 8, 1), orders]);
        assert_eq!(both.topics.iter().map(|topic| topic.name).collect::<Vec<_>>(), ["a", "orders"]);
        assert!(both.problems().is_empty());
    }
}
