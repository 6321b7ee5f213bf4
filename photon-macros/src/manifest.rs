//! `manifest![a, b]`: links crates by naming them.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Token;
use syn::parse::Parser;
use syn::punctuated::Punctuated;

use crate::args::Errors;
use crate::spans::at;

pub(crate) fn run(crates: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let crates = match Punctuated::<Ident, Token![,]>::parse_terminated.parse2(crates) {
        Ok(crates) => crates,
        Err(error) => {
            let message = "`manifest!` takes the names of crates as code writes them, for instance \
                           `photon::manifest![billing_handlers, mail_handlers]`";
            errors.at(error.span(), message);
            return errors.into_tokens();
        }
    };
    if crates.is_empty() {
        errors.at(
            Span::call_site(),
            "name the crates that hold handlers: `photon::manifest![billing_handlers]`",
        );
    }
    for (i, name) in crates.iter().enumerate() {
        if crates.iter().take(i).any(|earlier| earlier == name) {
            errors.at(name.span(), format!("`{name}` is named twice"));
        }
    }
    let links = crates.iter().map(|name| quote_spanned!(at(name.span())=> extern crate #name as _;));
    let errors = errors.into_tokens();
    quote!(#(#links)* #errors)
}
