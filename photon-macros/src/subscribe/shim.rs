//! The two functions of a handler's description: run it once, and say what it needs.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Attribute, PatType, ReturnType};

use crate::function::Function;
use crate::paths::{Paths, Root};
use crate::spans::{at, cfgs, ends, reused};

/// Decodes the event, takes the other parameters out of the delivery, and calls the function.
pub(crate) fn call(function: &Function, root: &Root) -> TokenStream {
    let Paths { delivery: delivery_type, handler_future, drop, .. } = root.paths(Span::call_site());
    // What can fail here is a future that is not `Send`: say so at the function's name.
    let span = function.sig.ident.span();
    let Paths { box_pin, .. } = root.paths(span);
    let delivery = local("delivery", span);
    let arguments: TokenStream = function
        .params()
        .enumerate()
        .map(|(i, param)| if i == 0 { decode(param, root) } else { extract(i, param, root) })
        .collect();
    let calls = calls(function);
    let result = result(function, root);
    let body = quote_spanned! {at(span)=>
        #box_pin(async move {
            #arguments
            // The handler may run for long; what it did not take need not stay.
            #drop(#delivery);
            #calls
            #result
        })
    };
    quote!(|#delivery: #delivery_type| -> #handler_future { #body })
}

/// Collects what the extractors need.
pub(crate) fn needs(function: &Function, root: &Root) -> TokenStream {
    let Paths { needs: needs_type, .. } = root.paths(Span::call_site());
    let needs = local("needs", Span::call_site());
    let each: TokenStream = function
        .params()
        .skip(1)
        .map(|param| {
            let cfgs = cfgs(&param.attrs);
            let method = extractor(param, "needs", root);
            quote_spanned!(ends(&param.ty).0=> #(#cfgs)* { #method(#needs); })
        })
        .collect();
    if each.is_empty() { quote!(|_| {}) } else { quote!(|#needs: &mut #needs_type| { #each }) }
}

/// A local name that no name of the user's can meet.
fn local(name: &str, span: Span) -> Ident {
    Ident::new(name, Span::mixed_site().located_at(span))
}

fn argument(i: usize, span: Span) -> Ident {
    local(&format!("argument_{i}"), span)
}

fn decode(param: &PatType, root: &Root) -> TokenStream {
    let (first, last) = ends(&param.ty);
    let Paths { event_param, map_err, undecodable, .. } = root.paths(first);
    let (argument, delivery, ty) = (argument(0, first), local("delivery", first), reused(&param.ty));
    let decode = Ident::new("decode", last);
    quote_spanned! {first=>
        let #argument = #map_err(<#ty as #event_param>::#decode(&#delivery.event), #undecodable)?;
    }
}

fn extract(i: usize, param: &PatType, root: &Root) -> TokenStream {
    let (first, _) = ends(&param.ty);
    let cfgs = cfgs(&param.attrs);
    let (argument, delivery) = (argument(i, first), local("delivery", first));
    let method = extractor(param, "from_delivery", root);
    quote_spanned!(first=> #(#cfgs)* let #argument = #method(&#delivery).await?;)
}

/// `<T as FromDelivery>::method`, underlined as the type: what is wrong with it is said there, once.
fn extractor(param: &PatType, method: &str, root: &Root) -> TokenStream {
    let (first, last) = ends(&param.ty);
    let Paths { from_delivery, .. } = root.paths(first);
    let (ty, method) = (reused(&param.ty), Ident::new(method, last));
    quote_spanned!(first=> <#ty as #from_delivery>::#method)
}

/// The call of the function. An argument of a call cannot have a `#[cfg]`, so there is one call for each
/// combination of those that the parameters have.
fn calls(function: &Function) -> TokenStream {
    let optional: Vec<(usize, Vec<&Attribute>)> = function
        .params()
        .enumerate()
        .map(|(i, param)| (i, cfgs(&param.attrs)))
        .filter(|(_, cfgs)| !cfgs.is_empty())
        .collect();
    let combinations = 0..1usize << optional.len();
    combinations
        .map(|combination| {
            let mut conditions = Vec::new();
            let mut absent = Vec::new();
            for (bit, (i, cfgs)) in optional.iter().enumerate() {
                let all = all_of(cfgs);
                if combination & (1 << bit) == 0 {
                    conditions.push(all);
                } else {
                    conditions.push(quote!(not(#all)));
                    absent.push(*i);
                }
            }
            let condition = (!conditions.is_empty()).then(|| quote!(#[cfg(all(#(#conditions),*))]));
            one_call(function, &condition.unwrap_or_default(), &absent)
        })
        .collect()
}

fn all_of(cfgs: &[&Attribute]) -> TokenStream {
    let conditions = cfgs.iter().filter_map(|cfg| match &cfg.meta {
        syn::Meta::List(list) => Some(list.tokens.to_token_stream()),
        _ => None,
    });
    quote!(all(#(#conditions),*))
}

fn one_call(function: &Function, condition: &TokenStream, absent: &[usize]) -> TokenStream {
    let (name, span) = (&function.sig.ident, function.sig.ident.span());
    let reply = local("reply", span);
    let present = (0..function.params().count()).filter(|i| !absent.contains(i));
    let arguments = present.map(|i| argument(i, span));
    quote_spanned!(at(span)=> #condition let #reply = #name(#(#arguments),*).await;)
}

fn result(function: &Function, root: &Root) -> TokenStream {
    let (first, _) = match &function.sig.output {
        ReturnType::Default => ends(&function.sig.ident),
        ReturnType::Type(_, ty) => ends(ty),
    };
    let Paths { into_result, .. } = root.paths(first);
    let reply = local("reply", first);
    quote_spanned!(first=> #into_result(#reply))
}
