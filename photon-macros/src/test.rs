//! `#[test]`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{FnArg, Safety, Type};

use crate::args::{Errors, Grammar};
use crate::fallback;
use crate::function::Function;
use crate::paths::{CRATE, Paths, Root};
use crate::spans::{at, cfgs, ends, reused};

const GRAMMAR: Grammar = Grammar { name: "#[photon::test]", keys: &[CRATE], positional: None };

/// What a test looks like, for messages.
const EXAMPLE: &str = "mut t: TestPhoton";

pub(crate) fn run(args: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let Ok(function) = syn::parse2::<Function>(item.clone()) else {
        errors.at(Span::call_site(), "`#[photon::test]` goes on an async function with a body");
        return fallback::item(item, errors);
    };
    let args = GRAMMAR.read(args, &mut errors);
    let root = Root::from_args(&args, &mut errors);
    root.check(&mut errors);
    validate(&function, &mut errors);
    if errors.count() > 0 {
        // Nobody calls it as it stands.
        return fallback::item(&quote!(#[allow(dead_code)] #function), errors);
    }
    expand(&function, &root)
}

fn validate(function: &Function, errors: &mut Errors) {
    let sig = &function.sig;
    if sig.asyncness.is_none() {
        errors.at(sig.fn_token.span, format!("a test is async: write `async fn {}`", sig.ident));
    }
    if let Some(word) = &sig.constness {
        errors.on(word, "a test cannot be `const`");
    }
    if !matches!(sig.safety, Safety::Default) {
        errors.on(&sig.safety, "a test cannot be `unsafe`");
    }
    if let Some(abi) = &sig.abi {
        errors.on(abi, "a test cannot be `extern`");
    }
    if !sig.generics.params.is_empty() {
        errors.on(&sig.generics, "a test cannot be generic: nobody says for which types it runs");
    }
    for attr in &function.attrs {
        if attr.path().segments.last().is_some_and(|segment| segment.ident == "test") {
            errors.on(attr, "`#[photon::test]` makes it a test already: remove this");
        }
    }
    params(function, errors);
}

fn params(function: &Function, errors: &mut Errors) {
    let sig = &function.sig;
    let mut inputs = sig.inputs.iter();
    match inputs.next() {
        None => {
            let message = format!("a test takes its Photon: `async fn {}({EXAMPLE})`", sig.ident);
            errors.at(sig.paren_token.span.join(), message);
        }
        Some(FnArg::Receiver(receiver)) => {
            errors.on(receiver, format!("a test is a free function, which takes its Photon: `{EXAMPLE}`"));
        }
        Some(FnArg::Typed(param)) => {
            if let Type::Reference(reference) = &*param.ty {
                errors.on(reference, format!("a test owns its Photon: `{EXAMPLE}`"));
            }
        }
    }
    if let Some(second) = inputs.next() {
        errors.on(second, format!("a test takes its Photon and nothing else: `({EXAMPLE})`"));
    }
}

fn expand(function: &Function, root: &Root) -> TokenStream {
    let Function { attrs, vis, sig, body } = function;
    let (fn_token, ident, output) = (&sig.fn_token, &sig.ident, &sig.output);
    let Some(FnArg::Typed(param)) = sig.inputs.first() else { return TokenStream::new() };
    let (Paths { test_param, .. }, place) = (root.paths(ends(&param.ty).0), at(ends(&param.ty).0));
    let param_type = reused(&param.ty);
    let make = quote_spanned!(place=> <#param_type as #test_param>::make);
    let Paths { run_test, test, .. } = root.paths(Span::call_site());
    let (cfgs, allow) = (cfgs(attrs), function.allow_no_await());
    // The compiler leaves a test out where it builds none; the type is looked at all the same.
    quote! {
        #(#attrs)*
        #[#test]
        #vis #fn_token #ident() #output {
            #allow
            #[allow(clippy::future_not_send)]
            #sig #body
            #run_test(#make, #ident)
        }
        #(#cfgs)*
        const _: fn() -> #param_type = #make;
    }
}
