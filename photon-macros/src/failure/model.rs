//! What `#[failure(...)]` says.

use std::time::Duration;

use photon_core::time::parse_duration;
use proc_macro2::{Span, TokenStream};
use syn::{Attribute, Data, DeriveInput, Field, Fields, Ident, LitStr, Member};

use crate::args::{Arg, Errors, Grammar, Key};
use crate::paths::{CRATE, Root};

const DELAY: &str = "a duration in a text or the name of a field";

const GRAMMAR: Grammar = Grammar {
    name: "#[failure]",
    keys: &[
        Key { name: "retry", takes: "no value", example: "retry" },
        Key { name: "retry_after", takes: DELAY, example: "retry_after = \"5s\"` or `retry_after = wait" },
        Key { name: "permanent", takes: "no value", example: "permanent" },
        Key { name: "defer", takes: DELAY, example: "defer = \"1h\"` or `defer = wait" },
        Key { name: "transparent", takes: "no value", example: "transparent" },
        CRATE,
    ],
    positional: None,
};

/// The type and what is said about it.
pub(crate) struct Failure<'a> {
    pub(crate) root: Root,
    pub(crate) item: &'a DeriveInput,
    /// The variants, or the struct as the only one.
    pub(crate) cases: Vec<Case<'a>>,
    /// What is said above an enum, where only `crate` belongs.
    pub(crate) misplaced: Option<Span>,
}

/// A variant, or the whole struct.
pub(crate) struct Case<'a> {
    /// `None` for a struct.
    pub(crate) variant: Option<&'a Ident>,
    pub(crate) name: &'a Ident,
    pub(crate) fields: &'a Fields,
    /// `None` if nothing is said, or what was said cannot be read.
    pub(crate) says: Option<Class>,
    /// Whether anything was said, be it unreadable.
    pub(crate) is_given: bool,
}

pub(crate) enum Class {
    Retry,
    Permanent,
    RetryAfter(Delay),
    Defer(Delay),
    /// With the field that decides; `None` if that is not clear.
    Transparent(Option<Member>, Span),
}

pub(crate) enum Delay {
    Constant(Duration),
    Field(Member),
}

pub(crate) fn read<'a>(item: &'a DeriveInput, errors: &mut Errors) -> Failure<'a> {
    let errors_before = errors.count();
    let args = args(&item.attrs, errors);
    let unreadable = errors.count() > errors_before;
    let mut failure =
        Failure { root: Root::from_args(&args, errors), item, cases: Vec::new(), misplaced: None };
    let own: Vec<Arg> = args.into_iter().filter(|arg| arg.key.name != CRATE.name).collect();
    match &item.data {
        Data::Struct(data) => {
            let case = case(None, &item.ident, &data.fields, &own, errors);
            failure.cases.push(Case { is_given: case.is_given || unreadable, ..case });
        }
        Data::Enum(data) => {
            failure.misplaced = own.first().map(|arg| arg.span);
            for variant in &data.variants {
                let errors_before = errors.count();
                let args = args_of_variant(&variant.attrs, errors);
                let unreadable = errors.count() > errors_before;
                let case = case(Some(&variant.ident), &variant.ident, &variant.fields, &args, errors);
                failure.cases.push(Case { is_given: case.is_given || unreadable, ..case });
            }
        }
        Data::Union(_) => {}
    }
    failure
}

fn args(attrs: &[Attribute], errors: &mut Errors) -> Vec<Arg> {
    let mut tokens = TokenStream::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("failure")) {
        match attr.meta.require_list() {
            Ok(list) => {
                let list = &list.tokens;
                tokens.extend(quote::quote!(#list,));
            }
            Err(error) => errors.add(error),
        }
    }
    GRAMMAR.read(tokens, errors)
}

fn args_of_variant(attrs: &[Attribute], errors: &mut Errors) -> Vec<Arg> {
    let mut args = args(attrs, errors);
    args.retain(|arg| {
        let is_crate = arg.key.name == CRATE.name;
        if is_crate {
            errors.at(arg.span, "`crate` belongs above the type");
        }
        !is_crate
    });
    args
}

fn case<'a>(
    variant: Option<&'a Ident>,
    name: &'a Ident,
    fields: &'a Fields,
    args: &[Arg],
    errors: &mut Errors,
) -> Case<'a> {
    if let Some(second) = args.get(1) {
        errors.at(second.span, format!("`{name}` says two things: keep one of them"));
    }
    let says = args.first().and_then(|arg| class(arg, fields, errors));
    Case { variant, name, fields, says, is_given: !args.is_empty() }
}

fn class(arg: &Arg, fields: &Fields, errors: &mut Errors) -> Option<Class> {
    match arg.key.name {
        "retry_after" => return delay(arg, errors).map(Class::RetryAfter),
        "defer" => return delay(arg, errors).map(Class::Defer),
        word if !arg.is_word() => {
            errors.at(arg.span, format!("`{word}` takes no value; write just `{word}`"));
            return None;
        }
        _ => {}
    }
    match arg.key.name {
        "retry" => Some(Class::Retry),
        "permanent" => Some(Class::Permanent),
        "transparent" => Some(Class::Transparent(source(fields), arg.span)),
        _ => None,
    }
}

fn delay(arg: &Arg, errors: &mut Errors) -> Option<Delay> {
    let tokens = arg.tokens(errors)?;
    if let Ok(text) = syn::parse2::<LitStr>(tokens.clone()) {
        let parsed = parse_duration(&text.value());
        return parsed.map(Delay::Constant).map_err(|problem| errors.at(text.span(), problem)).ok();
    }
    syn::parse2(tokens.clone()).map_or_else(|_| arg.refuse(tokens, errors), |f| Some(Delay::Field(f)))
}

/// The field that holds the inner error.
fn source(fields: &Fields) -> Option<Member> {
    let marked = |field: &Field| {
        field.attrs.iter().any(|attr| attr.path().is_ident("source") || attr.path().is_ident("from"))
            || field.ident.as_ref().is_some_and(|name| name == "source")
    };
    let only = fields.len() == 1;
    fields.iter().zip(fields.members()).find(|(field, _)| only || marked(field)).map(|(_, member)| member)
}
