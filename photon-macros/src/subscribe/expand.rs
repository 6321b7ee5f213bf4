//! The code that `#[subscribe]` stands for: the function, one static that describes it, and assertions.

use photon_core::options::{Mode, OnDead};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Type;
use syn::spanned::Spanned;

use super::model::{Subscribe, TopicName};
use super::{options, shim};
use crate::function::Function;
use crate::paths::Paths;
use crate::spans::{at, cfgs, moved_to, reused, text};

pub(crate) fn expand(function: &Function, subscribe: &Subscribe) -> TokenStream {
    let Some(event) = function.params().next() else { return TokenStream::new() };
    let cfgs = cfgs(&function.attrs);
    let allow = function.allow_no_await();
    // The shim calls what nobody else should call any more.
    let deprecated = function.attrs.iter().any(|attr| attr.path().is_ident("deprecated"));
    let allow_deprecated = deprecated.then(|| quote!(#[allow(deprecated)]));
    let checks = checks(function, subscribe, &event.ty);
    let handler = handler(function, subscribe, &event.ty);
    let Paths { submit, handler_entry, .. } = subscribe.root.paths(Span::call_site());
    quote! {
        #allow
        #function
        #(#cfgs)*
        #allow_deprecated
        const _: () = {
            #checks
            #handler
            #submit! { #handler_entry(&__PHOTON_HANDLER) }
        };
    }
}

fn handler(function: &Function, subscribe: &Subscribe, event: &Type) -> TokenStream {
    let root = &subscribe.root;
    let Paths { handler_descriptor, some, none, file, line, module_path, .. } = root.paths(Span::call_site());
    let Paths { event_param, .. } = root.paths(event.span());
    let event_type = reused(event);
    let descriptor = quote_spanned!(at(event.span())=> <#event_type as #event_param>::TOPIC);
    let name = function.name();
    let topic = topic(subscribe, event);
    let group = match &subscribe.group {
        Some(group) => quote!(#some(#group)),
        None => none,
    };
    let mode = options::mode(root, subscribe.mode.unwrap_or_default());
    let options = options::options(root, &subscribe.options, subscribe.classify.as_ref());
    let call = shim::call(function, root);
    let needs = shim::needs(function, root);
    quote! {
        static __PHOTON_HANDLER: #handler_descriptor = #handler_descriptor {
            name: #name,
            module: #module_path!(),
            topic: #topic,
            descriptor: #descriptor,
            group: #group,
            mode: #mode,
            options: #options,
            call: #call,
            needs: #needs,
            file: #file!(),
            line: #line!(),
        };
    }
}

fn topic(subscribe: &Subscribe, event: &Type) -> TokenStream {
    match &subscribe.topic {
        Some(TopicName::Text(name)) => quote!(#name),
        Some(TopicName::Type(named)) => {
            let Paths { topic, .. } = subscribe.root.paths(named.span());
            let named_type = reused(named);
            quote_spanned!(at(named.span())=> <#named_type as #topic>::DESCRIPTOR.name)
        }
        None => {
            let Paths { topic_of, .. } = subscribe.root.paths(event.span());
            let event_type = reused(event);
            quote_spanned!(at(event.span())=> #topic_of::<#event_type>())
        }
    }
}

/// What only the compiler can check, because it takes the constants of other items.
fn checks(function: &Function, subscribe: &Subscribe, event: &Type) -> TokenStream {
    let root = &subscribe.root;
    let type_name = text(event);
    let mut checks = TokenStream::new();
    if let Some(named) = &subscribe.topic {
        let span = match named {
            TopicName::Text(name) => name.span(),
            TopicName::Type(named) => named.span(),
        };
        let (topic, event) = (topic(subscribe, event), moved_to(span, event));
        let Paths { same_topic, .. } = root.paths(span);
        checks.extend(quote_spanned! {at(span)=>
            const _: () = #same_topic::<#event>(#type_name, #topic);
        });
    }
    if subscribe.options.on_dead == Some(OnDead::BlockKey) {
        let span = subscribe.span_of("on_dead").unwrap_or_else(Span::call_site);
        let Paths { has_key, .. } = root.paths(span);
        let event = moved_to(span, event);
        checks.extend(quote_spanned!(at(span)=> const _: () = #has_key::<#event>(#type_name);));
    }
    if subscribe.group.is_none() && subscribe.mode != Some(Mode::Ephemeral) {
        let span = function.sig.ident.span();
        let Paths { usable_group, concat, module_path, .. } = root.paths(span);
        let name = function.name();
        checks.extend(quote_spanned! {at(span)=>
            const _: () = #usable_group(#concat!(#module_path!(), "::", #name));
        });
    }
    checks
}
