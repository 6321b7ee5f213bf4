//! The code that `#[derive(Failure)]` stands for.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Member;
use syn::spanned::Spanned;

use super::model::{Case, Class, Delay, Failure};
use crate::paths::{Paths, Root};
use crate::spans::{at, moved_to};
use crate::subscribe::duration;

pub(crate) fn expand(failure: &Failure<'_>) -> TokenStream {
    let root = &failure.root;
    let Paths { failure_class, submit, failure_entry, as_std_error, .. } = root.paths(Span::call_site());
    let ident = &failure.item.ident;
    // What can fail here is a type that is no error, or cannot cross threads: say so at its name.
    let Paths { failure: failure_trait, .. } = root.paths(ident.span());
    let head = quote_spanned!(at(ident.span())=> impl #failure_trait for #ident);
    let entry = quote_spanned!(at(ident.span())=> #failure_entry::of::<#ident>());
    let arms: TokenStream = failure.cases.iter().map(|case| arm(root, case)).collect();
    quote! {
        const _: () = {
            #head {
                fn class(&self) -> #failure_class {
                    #[allow(unused_imports)]
                    use #as_std_error as _;
                    match *self { #arms }
                }
            }
            #submit! { #entry }
        };
    }
}

fn arm(root: &Root, case: &Case<'_>) -> TokenStream {
    let Paths { failure_class, .. } = root.paths(Span::call_site());
    let variant = case.variant.iter();
    let path = quote!(Self #(::#variant)*);
    match &case.says {
        Some(Class::Retry) | None => quote!(#path { .. } => #failure_class::Retry,),
        Some(Class::Permanent) => quote!(#path { .. } => #failure_class::Permanent,),
        Some(Class::RetryAfter(delay)) => delayed(root, &path, case, delay, "RetryAfter"),
        Some(Class::Defer(delay)) => delayed(root, &path, case, delay, "Defer"),
        Some(Class::Transparent(field, _)) => transparent(root, &path, case, field.as_ref()),
    }
}

fn delayed(root: &Root, path: &TokenStream, case: &Case<'_>, delay: &Delay, class: &str) -> TokenStream {
    // A field of another type is reported at its name in the attribute.
    let span = match delay {
        Delay::Constant(_) => Span::call_site(),
        Delay::Field(field) => field.span(),
    };
    let Paths { failure_class, .. } = root.paths(span);
    let class = Ident::new(class, at(span));
    match delay {
        Delay::Constant(delay) => {
            let delay = duration(root, *delay);
            quote!(#path { .. } => #failure_class::#class(#delay),)
        }
        Delay::Field(field) => {
            let value = Ident::new("value", Span::mixed_site().located_at(span));
            let field = moved_to(case.name.span(), field);
            quote_spanned!(at(span)=> #path { #field: ref #value, .. } => #failure_class::#class(*#value),)
        }
    }
}

fn transparent(root: &Root, path: &TokenStream, case: &Case<'_>, field: Option<&Member>) -> TokenStream {
    let Some(field) = field else { return TokenStream::new() };
    let span = case.fields.iter().zip(case.fields.members()).find(|(_, member)| member == field);
    let span = span.map_or_else(Span::call_site, |(field, _)| field.ty.span());
    let Paths { class_of, unwrap_or, failure_class, .. } = root.paths(span);
    let value = Ident::new("value", Span::mixed_site());
    let class = quote_spanned! {at(span)=>
        #unwrap_or(#class_of(#value.as_std_error()), #failure_class::Retry)
    };
    quote!(#path { #field: ref #value, .. } => #class,)
}
