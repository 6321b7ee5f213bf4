//! The code that `#[topic]` stands for.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{Data, DataEnum, Member, Path};

use super::model::{KeySource, Topic};
use crate::paths::{Paths, Root};
use crate::spans::{at, cfgs, moved_to, reused, text};

pub(crate) fn expand(topic: &Topic) -> TokenStream {
    let item = &topic.item;
    let cfgs = cfgs(&item.attrs);
    let descriptor = descriptor(topic);
    let topic_impl = topic_impl(topic);
    let event_param_impl = event_param_impl(topic);
    let Paths { submit, topic_entry, .. } = topic.root.paths(Span::call_site());
    quote! {
        #item
        #(#cfgs)*
        const _: () = {
            #descriptor
            #topic_impl
            #event_param_impl
            #submit! { #topic_entry(&__PHOTON_TOPIC) }
        };
    }
}

fn descriptor(topic: &Topic) -> TokenStream {
    let Paths { topic_descriptor, file, line, .. } = topic.root.paths(Span::call_site());
    let name = topic.name.as_ref().map(syn::LitStr::value).unwrap_or_default();
    // Checked: at most 1 024.
    let shards = u16::try_from(topic.shards).unwrap_or(u16::MAX);
    let key = topic.key.as_ref().map_or_else(|| "none".to_owned(), KeySource::description);
    let type_name = text(&topic.item.ident);
    quote! {
        static __PHOTON_TOPIC: #topic_descriptor = #topic_descriptor {
            name: #name,
            shards: #shards,
            key: #key,
            type_name: #type_name,
            file: #file!(),
            line: #line!(),
        };
    }
}

fn topic_impl(topic: &Topic) -> TokenStream {
    let Paths { topic_descriptor, json, option, key: key_type, .. } = topic.root.paths(Span::call_site());
    let Paths { vec, result, encode_error, .. } = topic.root.paths(Span::call_site());
    let ident = &topic.item.ident;
    // What can fail here is a type that cannot be an event: say so at its name.
    let Paths { topic: topic_trait, encode_json, .. } = topic.root.paths(ident.span());
    let encode = quote_spanned!(at(ident.span())=> #encode_json(self, out));
    let head = quote_spanned!(at(ident.span())=> impl #topic_trait for #ident);
    let key = key(topic);
    quote! {
        #head {
            const DESCRIPTOR: &'static #topic_descriptor = &__PHOTON_TOPIC;
            const CONTENT_TYPE: &'static str = #json;

            fn key(&self) -> #option<#key_type> {
                #key
            }

            fn encode(&self, out: &mut #vec<u8>) -> #result<(), #encode_error> {
                #encode
            }
        }
    }
}

fn event_param_impl(topic: &Topic) -> TokenStream {
    let Paths { topic_descriptor, option, some, result, event, decode_error, event_param, .. } =
        topic.root.paths(Span::call_site());
    let ident = &topic.item.ident;
    let Paths { decode_json, .. } = topic.root.paths(ident.span());
    let decode = quote_spanned!(at(ident.span())=> #decode_json(event));
    quote! {
        impl #event_param for #ident {
            const TOPIC: #option<&'static #topic_descriptor> = #some(&__PHOTON_TOPIC);

            fn decode(event: &#event) -> #result<Self, #decode_error> {
                #decode
            }
        }
    }
}

fn key(topic: &Topic) -> TokenStream {
    match (&topic.key, &topic.item.data) {
        (None, _) => topic.root.paths(Span::call_site()).none,
        (Some(KeySource::Function(path)), _) => key_of_function(&topic.root, path),
        (Some(KeySource::Field(fields)), Data::Enum(data)) => key_of_variants(&topic.root, fields, data),
        (Some(KeySource::Field(fields)), _) => {
            let span = fields.first().map_or_else(Span::call_site, member_span);
            let Paths { to_key, .. } = topic.root.paths(span);
            quote_spanned!(at(span)=> #to_key(&self #(.#fields)*))
        }
    }
}

fn key_of_function(root: &Root, path: &Path) -> TokenStream {
    let span = path.segments.last().map_or_else(Span::call_site, |segment| segment.ident.span());
    let Paths { to_key, .. } = root.paths(span);
    let path = reused(path);
    quote_spanned!(at(span)=> #to_key(&#path(self)))
}

/// One arm a variant: the field may have another type in each.
fn key_of_variants(root: &Root, fields: &[Member], data: &DataEnum) -> TokenStream {
    let Some((first, rest)) = fields.split_first() else { return TokenStream::new() };
    let span = member_span(first);
    let Paths { to_key, .. } = root.paths(span);
    let value: Ident = format_ident!("value", span = Span::mixed_site());
    let arms = data.variants.iter().map(|variant| {
        let (cfgs, name) = (cfgs(&variant.attrs), &variant.ident);
        let first = moved_to(name.span(), first);
        quote_spanned!(at(span)=> #(#cfgs)* Self::#name { #first: ref #value, .. } => #to_key(&#value #(.#rest)*),)
    });
    let arms: TokenStream = arms.collect();
    quote_spanned!(at(span)=> match *self { #arms })
}

fn member_span(member: &Member) -> Span {
    match member {
        Member::Named(name) => name.span(),
        Member::Unnamed(index) => index.span,
    }
}
