//! What `#[subscribe]` refuses.

use photon_core::options::{Mode, Options, Settings};
use proc_macro2::Span;
use syn::{FnArg, PatType, Safety, Type};

use super::model::{Subscribe, TopicName};
use crate::args::Errors;
use crate::function::Function;
use crate::spans::cfgs;
use crate::topic::name_is_usable;

/// So many parameters may have a `#[cfg]`: each doubles the number of calls that are emitted.
const MAX_CFG_PARAMS: usize = 4;

pub(crate) fn function(function: &Function, errors: &mut Errors) {
    let sig = &function.sig;
    if sig.asyncness.is_none() {
        errors.at(sig.fn_token.span, format!("a handler is async: write `async fn {}`", sig.ident));
    }
    if let Some(word) = &sig.constness {
        errors.on(word, "a handler cannot be `const`");
    }
    if !matches!(sig.safety, Safety::Default) {
        errors.on(&sig.safety, "a handler cannot be `unsafe`: Photon calls it");
    }
    if let Some(abi) = &sig.abi {
        errors.on(abi, "a handler cannot be `extern`: Photon calls it");
    }
    if let Some(variadic) = &sig.variadic {
        errors.on(variadic, "a handler has a fixed number of parameters");
    }
    if !sig.generics.params.is_empty() {
        let message = "a handler cannot be generic: it is registered for one event type; write one for each, and \
                       let them call a generic function";
        errors.on(&sig.generics, message);
    }
    if let Some(FnArg::Receiver(receiver)) = sig.inputs.first() {
        let message = "a handler is a free function: take what it needs as `State<T>` instead of `self`";
        errors.on(receiver, message);
    } else if sig.inputs.is_empty() {
        let message = format!(
            "a handler takes the event as its first parameter: `async fn {}(event: OrderPlaced)`",
            sig.ident
        );
        errors.at(sig.paren_token.span.join(), message);
    }
    params(function, errors);
}

fn params(function: &Function, errors: &mut Errors) {
    for (i, param) in function.params().enumerate() {
        by_value(param, errors);
        if i == 0
            && let Some(cfg) = cfgs(&param.attrs).first()
        {
            errors.on(cfg, "the event cannot be optional: put the `#[cfg]` on the whole handler");
        }
    }
    let with_cfg: Vec<_> = function.params().filter(|param| !cfgs(&param.attrs).is_empty()).collect();
    if let Some(param) = with_cfg.get(MAX_CFG_PARAMS) {
        let message = format!("at most {MAX_CFG_PARAMS} parameters of a handler can have a `#[cfg]`");
        errors.on(param, message);
    }
}

fn by_value(param: &PatType, errors: &mut Errors) {
    match &*param.ty {
        Type::Reference(reference) => {
            errors.on(reference, "a handler takes its parameters by value: remove the `&`");
        }
        Type::ImplTrait(open) => errors.on(open, "a parameter of a handler has a type with a name"),
        _ => {}
    }
}

pub(crate) fn settings(subscribe: &Subscribe, errors: &mut Errors) {
    subscribe.root.check(errors);
    if let Some(TopicName::Text(name)) = &subscribe.topic {
        name_is_usable("topic name", name, errors);
    }
    if let Some(name) = &subscribe.group {
        name_is_usable("group name", name, errors);
    }
    mode(subscribe, errors);
    ranges(subscribe, errors);
}

fn mode(subscribe: &Subscribe, errors: &mut Errors) {
    let mut refuse = |key: &str, reason: &str| {
        if let Some(span) = subscribe.span_of(key) {
            errors.at(span, format!("`{key}` {reason}"));
        }
    };
    match subscribe.mode {
        Some(Mode::Ephemeral) => {
            let reason = "does not go with `ephemeral`: such a subscription has no position";
            refuse("start", "does not go with `ephemeral`: such a subscription starts when the program does");
            refuse("group", "does not go with `ephemeral`: every instance gets every event");
            refuse("checkpoint", reason);
            refuse("expire_after", reason);
            let reason = "does not go with `ephemeral`: such a subscription stores no deliveries";
            refuse("on_dead", reason);
            refuse("max_blocked", reason);
            refuse("park_after", reason);
        }
        Some(Mode::Group) => refuse("expire_after", "goes with `durable` only: a group keeps its position"),
        Some(Mode::Durable) | None => {}
    }
}

/// The ranges are those of [`Settings`], whose messages begin with the name of the setting. What was reported is
/// taken back to its default, until the rest fits together.
fn ranges(subscribe: &Subscribe, errors: &mut Errors) {
    let mut options = subscribe.options.clone();
    while let Err(problems) = Settings::resolve(&options) {
        for problem in problems {
            let key = key_of(&problem);
            errors.at(subscribe.span_of(key).unwrap_or_else(Span::call_site), &problem);
            if !take_back(&mut options, key) {
                return;
            }
        }
    }
}

/// The key of the attribute that a problem of [`Settings`] is about.
fn key_of(problem: &str) -> &str {
    match problem.split(' ').next() {
        Some("checkpoint_every") => "every",
        Some("checkpoint_interval") => "interval",
        Some("the") => "backoff",
        word => word.unwrap_or_default(),
    }
}

fn take_back(options: &mut Options, key: &str) -> bool {
    match key {
        "concurrency" => options.concurrency.take().is_some(),
        "prefetch" => options.prefetch.take().is_some(),
        "window" => options.window.take().is_some(),
        "timeout" => options.timeout.take().is_some(),
        "park_after" => options.park_after.take().is_some(),
        "max_defer_age" => options.max_defer_age.take().is_some(),
        "expire_after" => options.expire_after.take().is_some(),
        "max_blocked" => options.max_blocked.take().is_some(),
        "breaker" => options.breaker.take().is_some(),
        "max_attempts" => options.max_attempts.take().is_some(),
        "backoff" => options.backoff.take().is_some(),
        "jitter" => options.jitter.take().is_some(),
        "give_up_after" => options.give_up_after.take().is_some(),
        "every" => options.checkpoint_every.take().is_some(),
        "interval" => options.checkpoint_interval.take().is_some(),
        _ => false,
    }
}
