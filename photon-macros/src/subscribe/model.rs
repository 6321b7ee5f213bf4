//! What `#[subscribe]` says.

use std::str::FromStr;

use photon_core::machine::retry::Backoff;
use photon_core::options::{BreakerPolicy, Mode, OnDead, Options, Start};
use photon_core::time::Timestamp;
use proc_macro2::{Span, TokenStream};
use syn::{Lit, LitStr, Path, Type};

use crate::args::{Arg, Errors, Grammar, Key};
use crate::paths::{CRATE, Root};

const DURATION: &str = "a duration in a text";
const NUMBER: &str = "a whole number";

pub(crate) const GRAMMAR: Grammar = Grammar {
    name: "#[subscribe]",
    keys: &[
        Key { name: "topic", takes: "the name of a topic or its type", example: "topic = \"orders.placed\"" },
        Key { name: "group", takes: "a text", example: "group = \"billing\"" },
        Key { name: "mode", takes: "\"group\", \"durable\" or \"ephemeral\"", example: "mode = \"durable\"" },
        Key { name: "durable", takes: "no value", example: "durable" },
        Key { name: "ephemeral", takes: "no value", example: "ephemeral" },
        Key {
            name: "start",
            takes: "\"earliest\", \"latest\" or \"at(time)\"",
            example: "start = \"at(2026-01-31T12:00:00Z)\"",
        },
        Key { name: "concurrency", takes: NUMBER, example: "concurrency = 64" },
        Key { name: "prefetch", takes: NUMBER, example: "prefetch = 1024" },
        Key { name: "window", takes: NUMBER, example: "window = 4096" },
        Key { name: "timeout", takes: DURATION, example: "timeout = \"30s\"" },
        Key { name: "retry", takes: "arguments", example: "retry(max_attempts = 6)" },
        Key { name: "park_after", takes: DURATION, example: "park_after = \"10s\"" },
        Key { name: "max_defer_age", takes: DURATION, example: "max_defer_age = \"7d\"" },
        Key { name: "on_dead", takes: "\"continue\" or \"block_key\"", example: "on_dead = \"block_key\"" },
        Key { name: "max_blocked", takes: NUMBER, example: "max_blocked = 10000" },
        Key {
            name: "classify",
            takes: "the path of a function",
            example: "classify = crate::errors::classify",
        },
        Key { name: "checkpoint", takes: "arguments", example: "checkpoint(every = 512)" },
        Key { name: "expire_after", takes: DURATION, example: "expire_after = \"7d\"" },
        Key {
            name: "breaker",
            takes: "arguments",
            example: "breaker(failures = 5, of = 10, cool_down = \"30s\")",
        },
        CRATE,
    ],
    positional: None,
};

const RETRY: Grammar = Grammar {
    name: "retry",
    keys: &[
        Key { name: "max_attempts", takes: NUMBER, example: "max_attempts = 6" },
        Key { name: "backoff", takes: "a text", example: "backoff = \"exponential(200ms..30s)\"" },
        Key { name: "jitter", takes: "a number from 0 to 1", example: "jitter = 0.2" },
        Key { name: "give_up_after", takes: DURATION, example: "give_up_after = \"1h\"" },
    ],
    positional: None,
};

const CHECKPOINT: Grammar = Grammar {
    name: "checkpoint",
    keys: &[
        Key { name: "every", takes: NUMBER, example: "every = 512" },
        Key { name: "interval", takes: DURATION, example: "interval = \"200ms\"" },
    ],
    positional: None,
};

const BREAKER: Grammar = Grammar {
    name: "breaker",
    keys: &[
        Key { name: "failures", takes: NUMBER, example: "failures = 5" },
        Key { name: "of", takes: NUMBER, example: "of = 10" },
        Key { name: "cool_down", takes: DURATION, example: "cool_down = \"30s\"" },
    ],
    positional: None,
};

/// What the attribute says.
pub(crate) struct Subscribe {
    pub(crate) root: Root,
    pub(crate) topic: Option<TopicName>,
    pub(crate) group: Option<LitStr>,
    /// `None` if what was said cannot be read.
    pub(crate) mode: Option<Mode>,
    pub(crate) options: Options,
    /// The function behind `classify`, which only the compiler can look at.
    pub(crate) classify: Option<Path>,
    /// Every key that was given, those inside of `retry` and `checkpoint` too, with the place of its value.
    pub(crate) given: Vec<(&'static str, Span)>,
}

/// How the topic is named.
pub(crate) enum TopicName {
    Text(LitStr),
    Type(Box<Type>),
}

impl Subscribe {
    /// Where the value of a key stands, if it was given.
    pub(crate) fn span_of(&self, key: &str) -> Option<Span> {
        self.given.iter().find(|(name, _)| *name == key).map(|(_, span)| *span)
    }
}

pub(crate) fn read(tokens: TokenStream, errors: &mut Errors) -> Subscribe {
    let args = GRAMMAR.read(tokens, errors);
    let mut subscribe = Subscribe {
        root: Root::from_args(&args, errors),
        topic: None,
        group: None,
        mode: None,
        options: Options::NONE,
        classify: None,
        given: Vec::new(),
    };
    let mut mode = None;
    for arg in &args {
        subscribe.given.push((arg.key.name, arg.value_span()));
        match arg.key.name {
            "topic" => subscribe.topic = read_topic(arg, errors),
            "group" => subscribe.group = arg.string(errors),
            "classify" => subscribe.classify = arg.path(errors),
            "mode" | "durable" | "ephemeral" => read_mode(arg, &mut mode, errors),
            "retry" => read_nested(&RETRY, arg, &mut subscribe, errors),
            "checkpoint" => read_nested(&CHECKPOINT, arg, &mut subscribe, errors),
            "breaker" => subscribe.options.breaker = read_breaker(arg, errors),
            _ => read_option(arg, &mut subscribe.options, errors),
        }
    }
    let is_given = ["mode", "durable", "ephemeral"].iter().any(|key| subscribe.span_of(key).is_some());
    subscribe.mode = if is_given { mode } else { Some(Mode::default()) };
    subscribe
}

fn read_nested(grammar: &Grammar, arg: &Arg, subscribe: &mut Subscribe, errors: &mut Errors) {
    let Some(tokens) = arg.list(errors) else { return };
    for arg in grammar.read(tokens, errors) {
        subscribe.given.push((arg.key.name, arg.value_span()));
        read_option(&arg, &mut subscribe.options, errors);
    }
}

fn read_breaker(arg: &Arg, errors: &mut Errors) -> Option<BreakerPolicy> {
    let (mut failures, mut of, mut cool_down) = (None, None, Some(BreakerPolicy::COOL_DOWN));
    let given = BREAKER.read(arg.list(errors)?, errors);
    for part in &given {
        match part.key.name {
            "failures" => failures = part.number(errors),
            "of" => of = part.number(errors),
            _ => cool_down = part.duration(errors),
        }
    }
    for name in ["failures", "of"] {
        if !given.iter().any(|part| part.key.name == name) {
            let message =
                format!("a breaker says after how many failures of how many attempts: `{name}` is missing");
            errors.at(arg.span, message);
        }
    }
    Some(BreakerPolicy { failures: failures?, of: of?, cool_down: cool_down? })
}

fn read_option(arg: &Arg, options: &mut Options, errors: &mut Errors) {
    match arg.key.name {
        "start" => options.start = arg.read_text(start, errors),
        "concurrency" => options.concurrency = arg.number(errors),
        "prefetch" => options.prefetch = arg.number(errors),
        "window" => options.window = arg.number(errors),
        "timeout" => options.timeout = arg.duration(errors),
        "park_after" => options.park_after = arg.duration(errors),
        "max_defer_age" => options.max_defer_age = arg.duration(errors),
        "on_dead" => options.on_dead = arg.read_text(on_dead, errors),
        "max_blocked" => options.max_blocked = arg.number(errors),
        "expire_after" => options.expire_after = arg.duration(errors),
        "max_attempts" => options.max_attempts = arg.number(errors),
        "backoff" => options.backoff = arg.read_text(Backoff::from_str, errors),
        "jitter" => options.jitter = arg.float(errors),
        "give_up_after" => options.give_up_after = arg.duration(errors),
        "every" => options.checkpoint_every = arg.number(errors),
        "interval" => options.checkpoint_interval = arg.duration(errors),
        _ => {}
    }
}

fn read_topic(arg: &Arg, errors: &mut Errors) -> Option<TopicName> {
    let tokens = arg.tokens(errors)?;
    match syn::parse2::<Lit>(tokens.clone()) {
        Ok(Lit::Str(name)) => return Some(TopicName::Text(name)),
        Ok(_) => return arg.refuse(tokens, errors),
        Err(_) => {}
    }
    match syn::parse2::<Type>(tokens.clone()) {
        Ok(named @ Type::Path(_)) => Some(TopicName::Type(Box::new(named))),
        _ => arg.refuse(tokens, errors),
    }
}

fn read_mode(arg: &Arg, mode: &mut Option<Mode>, errors: &mut Errors) {
    let read = match arg.key.name {
        "mode" => arg.read_text(mode_of, errors),
        word if !arg.is_word() => {
            errors.at(arg.value_span(), format!("`{word}` takes no value; write just `{word}`"));
            None
        }
        word => mode_of(word).ok(),
    };
    if mode.is_some() && read.is_some() {
        errors.at(arg.span, "the mode is given twice");
    }
    *mode = mode.or(read);
}

fn mode_of(text: &str) -> Result<Mode, String> {
    match text {
        "group" => Ok(Mode::Group),
        "durable" => Ok(Mode::Durable),
        "ephemeral" => Ok(Mode::Ephemeral),
        _ => Err(format!("{text:?} is not a mode: write \"group\", \"durable\" or \"ephemeral\"")),
    }
}

fn on_dead(text: &str) -> Result<OnDead, String> {
    match text {
        "continue" => Ok(OnDead::Continue),
        "block_key" => Ok(OnDead::BlockKey),
        _ => Err(format!("{text:?} is not a way to go on: write \"continue\" or \"block_key\"")),
    }
}

fn start(text: &str) -> Result<Start, String> {
    match text {
        "earliest" => Ok(Start::Earliest),
        "latest" => Ok(Start::Latest),
        _ => match text.strip_prefix("at(").and_then(|rest| rest.strip_suffix(')')) {
            Some(time) => Timestamp::from_str(time).map(Start::At),
            None => Err(format!(
                "{text:?} is not a start: write \"earliest\", \"latest\" or \"at(2026-01-31T12:00:00Z)\""
            )),
        },
    }
}
