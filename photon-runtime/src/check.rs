//! Everything that keeps the handlers of a program from starting.

use photon_core::descriptor::HandlerDescriptor;
use photon_core::handler::{Extensions, Needs};
use photon_core::options::{Mode, Options, Settings};
use photon_core::registry::{Problem, Registry};
use photon_core::timing::{self, Limits};

use crate::config::Config;
use crate::inner::Inner;
use crate::spec::Spec;

/// All problems that can be seen without asking the store, sorted by place.
pub(crate) fn problems(inner: &Inner) -> Vec<Problem> {
    let mut problems = inner.registry.problems();
    let none = inner.registry.handlers.is_empty() && inner.dynamic.all().is_empty();
    if none && !inner.config.allow_no_handlers {
        problems.push(Problem::at(
            "this program",
            "has no handler: a crate that is only listed in Cargo.toml is not linked, name it with \
             `use my_handlers as _;` or photon::manifest![my_handlers]; \
             if only publishing is meant, add .allow_no_handlers() to the builder",
        ));
    }
    for handler in &inner.registry.handlers {
        problems.extend(of_handler(inner, handler));
    }
    problems.sort();
    problems
}

/// What is wrong with a subscription that is made at run time, as far as can be seen without asking the store.
pub(crate) fn of_dynamic(inner: &Inner, spec: &Spec) -> Vec<Problem> {
    let mut messages = settings_of(&inner.config, spec.mode, &spec.options);
    let missing = spec.needs.iter().filter(|need| !inner.extensions.has(need.id));
    messages.extend(missing.map(|need| need.message.clone()));
    let id = &spec.subscription;
    let handlers = inner.registry.handlers.iter();
    let mut declared = handlers.filter(|handler| Registry::subscription(handler).as_ref() == Ok(id));
    let same = |place: String| {
        let (topic, group) = (id.topic.as_str(), id.group.as_str());
        format!("same subscription ({topic:?}, {group:?}) as {place}: give one of them another group")
    };
    if let Some(handler) = declared.next() {
        messages.push(same(format!("{} at {}:{}", handler.name, handler.file, handler.line)));
    }
    if let Some(other) = inner.dynamic.all().iter().find(|other| other.subscription == *id) {
        messages.push(same(format!("the one at {}, which was not removed", other.place.at)));
    }
    messages.into_iter().map(|message| spec.place.problem(message)).collect()
}

fn of_handler(inner: &Inner, handler: &HandlerDescriptor) -> Vec<Problem> {
    let mut messages = settings(&inner.config, handler);
    if inner.around.is_none() {
        messages.extend(missing(&inner.extensions, handler));
    }
    messages.into_iter().map(|message| Problem::of(handler, message)).collect()
}

/// What a handler needs and is not given.
pub(crate) fn missing(given: &Extensions, handler: &HandlerDescriptor) -> Vec<String> {
    let mut needs = Needs::default();
    (handler.needs)(&mut needs);
    needs.iter().filter(|need| !given.has(need.id)).map(|need| need.message.clone()).collect()
}

/// What is wrong with the settings of a handler.
pub(crate) fn settings(config: &Config, handler: &HandlerDescriptor) -> Vec<String> {
    settings_of(config, handler.mode, &handler.options)
}

/// The limits that the timing of a subscription is held against. Its default timeout is nobody's wish to run for that
/// long, and a drain of no time is the wish to break off what runs.
fn limits(config: &Config, options: &Options) -> Limits {
    let meant = options.timeout.is_some() && !config.drain_timeout.is_zero();
    Limits { drain_timeout: meant.then_some(config.drain_timeout) }
}

fn settings_of(config: &Config, mode: Mode, options: &Options) -> Vec<String> {
    let options = config.options(options);
    let limits = limits(config, &options);
    let mut messages = match Settings::resolve(&options) {
        Ok(settings) => timing::problems(&settings, limits),
        Err(messages) => messages,
    };
    if mode == Mode::Durable && config.instance.is_none() {
        messages.push(
            "is durable, so its position belongs to this instance: give it a name that survives restarts, \
             .instance(\"pod-1\") on the builder or PHOTON_INSTANCE=pod-1"
                .to_owned(),
        );
    }
    messages
}
