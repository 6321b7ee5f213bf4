//! The function under an attribute.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, FnArg, PatType, Signature, Visibility, token};

/// A function whose body stays as it was typed: it may be half done, and the compiler says so better.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    pub(crate) body: TokenStream,
}

impl Function {
    /// Its name without `r#`.
    pub(crate) fn name(&self) -> String {
        self.sig.ident.unraw().to_string()
    }

    /// Its parameters; `self` is not one.
    pub(crate) fn params(&self) -> impl Iterator<Item = &PatType> {
        self.sig.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(param) => Some(param),
            FnArg::Receiver(_) => None,
        })
    }

    /// Whether the body awaits something, as far as its words tell.
    fn awaits(&self) -> bool {
        has_word(self.body.clone(), "await")
    }

    /// It has to be async even if it awaits nothing; only there the lint is switched off.
    pub(crate) fn allow_no_await(&self) -> TokenStream {
        if self.awaits() { TokenStream::new() } else { quote!(#[allow(clippy::unused_async)]) }
    }
}

fn has_word(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        proc_macro2::TokenTree::Group(group) => has_word(group.stream(), word),
        proc_macro2::TokenTree::Ident(ident) => ident == word,
        _ => false,
    })
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let sig = input.parse()?;
        if !input.peek(token::Brace) {
            return Err(input.error("expected a body"));
        }
        Ok(Self { attrs, vis, sig, body: input.parse()? })
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.attrs.iter().for_each(|attr| attr.to_tokens(tokens));
        self.vis.to_tokens(tokens);
        self.sig.to_tokens(tokens);
        self.body.to_tokens(tokens);
    }
}
