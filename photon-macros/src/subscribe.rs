//! `#[subscribe]`.

mod expand;
mod model;
mod options;
mod shim;
mod validate;

pub(crate) use options::duration;

use proc_macro2::{Span, TokenStream};
use quote::quote;

use crate::args::Errors;
use crate::fallback;
use crate::function::Function;

pub(crate) fn run(args: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let Ok(function) = syn::parse2::<Function>(item.clone()) else {
        errors.at(Span::call_site(), "`#[subscribe]` goes on an async function with a body");
        return fallback::item(item, errors);
    };
    let subscribe = model::read(args, &mut errors);
    validate::function(&function, &mut errors);
    validate::settings(&subscribe, &mut errors);
    if errors.count() > 0 {
        return fallback::item(&quote!(#function), errors);
    }
    expand::expand(&function, &subscribe)
}
