//! What is emitted when there are mistakes: the mistakes, the item as it stands, and empty implementations,
//! so that nothing is reported again where the item is used.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::DeriveInput;

use crate::args::Errors;
use crate::paths::{Paths, Root};

/// The mistakes beside the item.
pub(crate) fn item(item: &TokenStream, errors: Errors) -> TokenStream {
    let errors = errors.into_tokens();
    quote!(#item #errors)
}

/// Empty implementations for an event type. `name` is that of the topic, or empty.
pub(crate) fn topic(root: &Root, item: &DeriveInput, name: &str) -> TokenStream {
    if !root.is_reachable() {
        return TokenStream::new();
    }
    let Paths { topic, topic_descriptor, event_param, option, some, none, key, vec, result, event, .. } =
        root.paths(Span::call_site());
    let Paths { encode_error, decode_error, json, send, unreachable, file, line, .. } =
        root.paths(Span::call_site());
    let ident = &item.ident;
    let type_name = ident.to_string();
    let (impl_generics, type_generics, where_clause) = item.generics.split_for_impl();
    let bounds = where_clause.map(|clause| &clause.predicates);
    quote! {
        const _: () = {
            static __PHOTON_TOPIC: #topic_descriptor = #topic_descriptor {
                name: #name, shards: 1, key: "none", type_name: #type_name, file: #file!(), line: #line!(),
            };
            impl #impl_generics #topic for #ident #type_generics where Self: #send + 'static, #bounds {
                const DESCRIPTOR: &'static #topic_descriptor = &__PHOTON_TOPIC;
                const CONTENT_TYPE: &'static str = #json;
                fn key(&self) -> #option<#key> { #none }
                fn encode(&self, _: &mut #vec<u8>) -> #result<(), #encode_error> { #unreachable!() }
            }
            impl #impl_generics #event_param for #ident #type_generics where Self: #send, #bounds {
                const TOPIC: #option<&'static #topic_descriptor> = #some(&__PHOTON_TOPIC);
                fn decode(_: &#event) -> #result<Self, #decode_error> { #unreachable!() }
            }
        };
    }
}

/// An empty implementation for an error type.
pub(crate) fn failure(root: &Root, item: &DeriveInput) -> TokenStream {
    // A generic one would have to be `'static` and an error for every parameter.
    if !root.is_reachable() || !item.generics.params.is_empty() {
        return TokenStream::new();
    }
    let Paths { failure, failure_class, unreachable, .. } = root.paths(Span::call_site());
    let ident = &item.ident;
    quote! {
        impl #failure for #ident {
            fn class(&self) -> #failure_class { #unreachable!() }
        }
    }
}
