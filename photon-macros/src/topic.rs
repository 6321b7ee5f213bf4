//! `#[topic]`.

mod expand;
mod model;
mod serde;
mod validate;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::DeriveInput;

use crate::args::Errors;
use crate::fallback;
pub(crate) use validate::name_is_usable;

pub(crate) fn run(args: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let Ok(input) = syn::parse2::<DeriveInput>(item.clone()) else {
        errors.at(Span::call_site(), "`#[topic]` goes on a struct or an enum");
        return fallback::item(item, errors);
    };
    let mut topic = model::read(args, input, &mut errors);
    validate::check(&topic, &mut errors);
    serde::take_from_photon(&topic.root, &mut topic.item);
    if errors.count() == 0 {
        return expand::expand(&topic);
    }
    let item = &topic.item;
    let stubs = fallback::topic(&topic.root, item, &topic.usable_name());
    let item = fallback::item(&quote!(#item), errors);
    quote!(#item #stubs)
}
