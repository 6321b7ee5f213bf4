//! Settings as constants: nothing is left to be parsed at run time.

use std::time::Duration;

use photon_core::machine::retry::Backoff;
use photon_core::options::{BreakerPolicy, Mode, OnDead, Options, Start};
use photon_core::time::Timestamp;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::Path;
use syn::spanned::Spanned;

use crate::paths::{Paths, Root};
use crate::spans::reused;

pub(crate) fn mode(root: &Root, mode: Mode) -> TokenStream {
    let Paths { mode: mode_type, .. } = root.paths(Span::call_site());
    match mode {
        Mode::Group => quote!(#mode_type::Group),
        Mode::Durable => quote!(#mode_type::Durable),
        Mode::Ephemeral => quote!(#mode_type::Ephemeral),
    }
}

/// `classify`: the path of the function, which stands beside the options because it is no constant here.
pub(crate) fn options(root: &Root, options: &Options, classify: Option<&Path>) -> TokenStream {
    let Options {
        start,
        concurrency,
        prefetch,
        window,
        timeout,
        max_attempts,
        backoff,
        jitter,
        give_up_after,
        park_after,
        max_defer_age,
        on_dead,
        max_blocked,
        classify: _,
        checkpoint_every,
        checkpoint_interval,
        expire_after,
        breaker,
    } = options;
    let Paths { options: options_type, .. } = root.paths(Span::call_site());
    let number = |value: &Option<u32>| optional(root, value.as_ref(), ToTokens::to_token_stream);
    let span = |value: &Option<Duration>| optional(root, value.as_ref(), |value| duration(root, *value));
    let start = optional(root, start.as_ref(), |start| self::start(root, *start));
    let (concurrency, prefetch, window) = (number(concurrency), number(prefetch), number(window));
    let (timeout, give_up_after) = (span(timeout), span(give_up_after));
    let (max_attempts, checkpoint_every) = (number(max_attempts), number(checkpoint_every));
    let backoff = optional(root, backoff.as_ref(), |backoff| self::backoff(root, backoff));
    let jitter = optional(root, jitter.as_ref(), ToTokens::to_token_stream);
    let (park_after, max_defer_age) = (span(park_after), span(max_defer_age));
    let on_dead = optional(root, on_dead.as_ref(), |on_dead| self::on_dead(root, *on_dead));
    let max_blocked = number(max_blocked);
    let classify = optional(root, classify, |path| self::classify(root, path));
    let (checkpoint_interval, expire_after) = (span(checkpoint_interval), span(expire_after));
    let breaker = optional(root, breaker.as_ref(), |policy| self::breaker(root, *policy));
    quote! {
        #options_type {
            start: #start,
            concurrency: #concurrency,
            prefetch: #prefetch,
            window: #window,
            timeout: #timeout,
            max_attempts: #max_attempts,
            backoff: #backoff,
            jitter: #jitter,
            give_up_after: #give_up_after,
            park_after: #park_after,
            max_defer_age: #max_defer_age,
            on_dead: #on_dead,
            max_blocked: #max_blocked,
            classify: #classify,
            checkpoint_every: #checkpoint_every,
            checkpoint_interval: #checkpoint_interval,
            expire_after: #expire_after,
            breaker: #breaker,
        }
    }
}

fn optional<T>(root: &Root, value: Option<&T>, write: impl Fn(&T) -> TokenStream) -> TokenStream {
    let Paths { some, none, .. } = root.paths(Span::call_site());
    match value {
        Some(value) => {
            let value = write(value);
            quote!(#some(#value))
        }
        None => none,
    }
}

/// `Duration::new(30, 0)`.
pub(crate) fn duration(root: &Root, duration: Duration) -> TokenStream {
    let Paths { duration: duration_type, .. } = root.paths(Span::call_site());
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    quote!(#duration_type::new(#seconds, #nanos))
}

fn start(root: &Root, start: Start) -> TokenStream {
    let Paths { start: start_type, timestamp, .. } = root.paths(Span::call_site());
    match start {
        Start::Earliest => quote!(#start_type::Earliest),
        Start::Latest => quote!(#start_type::Latest),
        Start::At(Timestamp(micros)) => quote!(#start_type::At(#timestamp(#micros))),
    }
}

/// The function in its wrapper; one of another type is an error at its path.
fn classify(root: &Root, path: &Path) -> TokenStream {
    let Paths { classify, .. } = root.paths(path.span());
    let path = reused(path);
    quote!(#classify(#path))
}

fn breaker(root: &Root, policy: BreakerPolicy) -> TokenStream {
    let Paths { breaker_policy, .. } = root.paths(Span::call_site());
    let BreakerPolicy { failures, of, cool_down } = policy;
    let cool_down = duration(root, cool_down);
    quote!(#breaker_policy { failures: #failures, of: #of, cool_down: #cool_down })
}

fn on_dead(root: &Root, on_dead: OnDead) -> TokenStream {
    let Paths { on_dead: on_dead_type, .. } = root.paths(Span::call_site());
    match on_dead {
        OnDead::Continue => quote!(#on_dead_type::Continue),
        OnDead::BlockKey => quote!(#on_dead_type::BlockKey),
    }
}

fn backoff(root: &Root, backoff: &Backoff) -> TokenStream {
    let Paths { backoff: backoff_type, cow_borrowed, .. } = root.paths(Span::call_site());
    let duration = |value: &Duration| duration(root, *value);
    match backoff {
        Backoff::Fixed(delay) => {
            let delay = duration(delay);
            quote!(#backoff_type::Fixed(#delay))
        }
        Backoff::Linear { first, max } => {
            let (first, max) = (duration(first), duration(max));
            quote!(#backoff_type::Linear { first: #first, max: #max })
        }
        Backoff::Exponential { first, max } => {
            let (first, max) = (duration(first), duration(max));
            quote!(#backoff_type::Exponential { first: #first, max: #max })
        }
        Backoff::List(delays) => {
            let delays = delays.iter().map(duration);
            quote!(#backoff_type::List(#cow_borrowed(&[#(#delays),*])))
        }
    }
}
