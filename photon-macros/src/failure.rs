//! `#[derive(Failure)]`.

mod expand;
mod model;
mod validate;

use proc_macro2::TokenStream;
use syn::DeriveInput;

use crate::args::Errors;
use crate::fallback;

pub(crate) fn run(item: TokenStream) -> TokenStream {
    let input: DeriveInput = match syn::parse2(item) {
        Ok(input) => input,
        Err(error) => return error.to_compile_error(),
    };
    let mut errors = Errors::default();
    let failure = model::read(&input, &mut errors);
    validate::check(&failure, &mut errors);
    if errors.count() == 0 {
        return expand::expand(&failure);
    }
    let stub = fallback::failure(&failure.root, &input);
    fallback::item(&stub, errors)
}
