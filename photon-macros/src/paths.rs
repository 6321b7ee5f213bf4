//! Where Photon is, and every path that the macros emit.

use std::sync::LazyLock;

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::Path;

use crate::args::{Arg, Errors, Key};
use crate::spans::{at, moved_to, text};

/// The key `crate`, which every attribute has.
pub(crate) const CRATE: Key =
    Key { name: "crate", takes: "the path of Photon", example: "crate = my_facade::photon" };

/// The path of the crate `photon`.
#[derive(Default)]
pub(crate) struct Root(Option<Path>);

impl Root {
    /// Takes the path out of `crate = path`. Without one, Photon must be there under its own name.
    pub(crate) fn from_args(args: &[Arg], errors: &mut Errors) -> Self {
        match args.iter().find(|arg| arg.key.name == CRATE.name) {
            Some(arg) => Self(arg.path(errors)),
            None => Self(None),
        }
    }

    /// Whether the emitted paths can be resolved, as far as can be seen.
    pub(crate) fn is_reachable(&self) -> bool {
        self.0.is_some() || *NAMED_PHOTON
    }

    /// Reports a Photon that is not there under its own name.
    pub(crate) fn check(&self, errors: &mut Errors) {
        if !self.is_reachable() {
            errors.at(
                Span::call_site(),
                "this crate has no dependency with the name `photon`: if Photon has another name here, or comes \
                 through another crate, say where it is with `crate = path`, for instance `crate = bus` or \
                 `crate = my_facade::photon`",
            );
        }
    }

    /// `::photon::__private` with all tokens at the place of `span`.
    pub(crate) fn private(&self, span: Span) -> TokenStream {
        let here = at(span);
        let given = self.0.as_ref().map(|path| moved_to(span, path));
        let root = given.unwrap_or_else(|| quote_spanned!(here=> ::photon));
        quote_spanned!(here=> #root::__private)
    }

    /// The path of serde as the text that serde's own attribute takes. `None` where it cannot be written as
    /// text: in a `macro_rules!` with `$crate`.
    pub(crate) fn serde(&self) -> Option<String> {
        let root = self.0.as_ref().map_or_else(|| "::photon".to_owned(), text);
        (!root.contains('$')).then(|| format!("{root}::__private::serde"))
    }

    /// Every path at the place of `span`.
    pub(crate) fn paths(&self, span: Span) -> Paths {
        Paths::new(&self.private(span), at(span))
    }
}

macro_rules! paths {
    ($($field:ident = $($segment:ident)::+,)*) => {
        /// Every path that is emitted, by a short name.
        pub(crate) struct Paths { $(pub(crate) $field: TokenStream,)* }

        impl Paths {
            fn new(private: &TokenStream, span: Span) -> Self {
                Self { $($field: quote_spanned!(span=> #private::$($segment)::+),)* }
            }
        }
    };
}

paths! {
    // The language.
    box_pin = std::boxed::Box::pin,
    cow_borrowed = std::borrow::Cow::Borrowed,
    drop = core::mem::drop,
    duration = core::time::Duration,
    file = core::file,
    line = core::line,
    module_path = core::module_path,
    concat = core::concat,
    map_err = core::result::Result::map_err,
    none = core::option::Option::None,
    option = core::option::Option,
    result = core::result::Result,
    send = core::marker::Send,
    some = core::option::Option::Some,
    unreachable = core::unreachable,
    unwrap_or = core::option::Option::unwrap_or,
    vec = std::vec::Vec,
    // Registration.
    submit = inventory::submit,
    failure_entry = FailureEntry,
    handler_entry = HandlerEntry,
    topic_entry = TopicEntry,
    // Topics.
    decode_error = DecodeError,
    decode_json = decode_json,
    encode_error = EncodeError,
    encode_json = encode_json,
    event = Event,
    event_param = EventParam,
    json = JSON,
    key = Key,
    to_key = ToKey::to_key,
    topic = Topic,
    topic_descriptor = TopicDescriptor,
    // Handlers.
    backoff = Backoff,
    breaker_policy = BreakerPolicy,
    classify = Classify,
    delivery = Delivery,
    from_delivery = FromDelivery,
    handler_descriptor = HandlerDescriptor,
    handler_future = HandlerFuture,
    into_result = Reply::into_result,
    mode = Mode,
    needs = Needs,
    on_dead = OnDead,
    options = Options,
    start = Start,
    timestamp = Timestamp,
    undecodable = HandlerError::undecodable,
    // Assertions.
    has_key = check::has_key,
    same_topic = check::same_topic,
    topic_of = check::topic_of,
    usable_group = check::usable_group,
    // Tests.
    run_test = testing::run,
    test_param = testing::TestParam,
    test = core::prelude::v1::test,
    // Failures.
    as_std_error = AsStdError,
    class_of = class_of,
    failure = Failure,
    failure_class = FailureClass,
}

/// Whether the crate that is being compiled was given a crate with the name `photon`, or is it. The compiler
/// alone cannot say in its message what to write instead.
///
/// It reads the command line of the compiler. Where that names no crates at all (an editor, arguments in a
/// file) the answer is yes, and the compiler finds out.
static NAMED_PHOTON: LazyLock<bool> = LazyLock::new(|| {
    let args: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    is_named(&args, "photon")
});

fn is_named(args: &[String], name: &str) -> bool {
    let values = |option: &'static str| {
        let following = args.windows(2).filter(move |pair| pair[0] == option).map(|pair| pair[1].as_str());
        let joined = args.iter().filter_map(move |arg| arg.strip_prefix(option)?.strip_prefix('='));
        following.chain(joined)
    };
    if args.iter().any(|arg| arg.starts_with('@')) || values("--crate-name").any(|own| own == name) {
        return true;
    }
    // `name`, `name=path` or `options:name=path`.
    let mut externs = values("--extern").map(|value| {
        let before_path = value.split('=').next().unwrap_or_default();
        before_path.rsplit(':').next().unwrap_or_default()
    });
    values("--extern").next().is_none() || externs.any(|given| given == name)
}

#[cfg(test)]
mod tests {
    use super::is_named;

    fn named(line: &str) -> bool {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        is_named(&args, "photon")
    }

    #[test]
    fn a_renamed_photon_is_seen_on_the_command_line() {
        assert!(named("rustc --crate-name app --extern serde=/s.rlib --extern photon=/p.rlib"));
        assert!(named("rustc --extern=photon=/p.rlib"));
        assert!(named("rustc --extern priv,noprelude:photon=/p.rlib"));
        assert!(named("rustc --crate-name photon --extern serde=/s.rlib"));
        assert!(!named("rustc --crate-name app --extern bus=/photon.rlib --extern photon_core=/c.rlib"));
        assert!(named("rustc @args"), "arguments in a file");
        assert!(named("rust-analyzer"), "no arguments at all");
    }
}
