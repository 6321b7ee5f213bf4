//! What `#[topic]` says.

use photon_core::ids::name_problem;
use photon_core::topic::DEFAULT_SHARDS;
use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{DeriveInput, LitStr, Member, Path, Token};

use crate::args::{Arg, Errors, Grammar, Key};
use crate::paths::{CRATE, Root};
use crate::spans::text;

pub(crate) const GRAMMAR: Grammar = Grammar {
    name: "#[topic]",
    keys: &[
        Key { name: "name", takes: "a text", example: "name = \"orders.placed\"" },
        Key {
            name: "key",
            takes: "a field, or the path of a function with at least two words",
            example: "key = customer_id` or `key = self::key_of",
        },
        Key { name: "shards", takes: "a whole number", example: "shards = 16" },
        CRATE,
    ],
    positional: Some("name"),
};

/// A type and what its attribute says.
pub(crate) struct Topic {
    pub(crate) root: Root,
    pub(crate) name: Option<LitStr>,
    /// Whether a name was given at all, be it unusable.
    pub(crate) has_name: bool,
    pub(crate) key: Option<KeySource>,
    pub(crate) shards: u32,
    pub(crate) shards_span: Span,
    pub(crate) item: DeriveInput,
}

/// Where the ordering key comes from.
pub(crate) enum KeySource {
    /// A field, or a field of a field.
    Field(Vec<Member>),
    /// A function of the event.
    Function(Path),
}

impl KeySource {
    /// The text that the store remembers.
    pub(crate) fn description(&self) -> String {
        match self {
            KeySource::Field(path) => {
                let words: Vec<_> = path.iter().map(member_text).collect();
                format!("field:{}", words.join("."))
            }
            KeySource::Function(path) => format!("fn:{}", text(path)),
        }
    }
}

/// A field as people name it, without `r#`.
pub(crate) fn member_text(member: &Member) -> String {
    match member {
        Member::Named(name) => name.unraw().to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

impl Topic {
    /// The name, if it can be used: what other attributes may be compared with although there are mistakes.
    pub(crate) fn usable_name(&self) -> String {
        self.name.as_ref().map(LitStr::value).filter(|name| name_problem(name).is_none()).unwrap_or_default()
    }
}

pub(crate) fn read(args: TokenStream, item: DeriveInput, errors: &mut Errors) -> Topic {
    let args = GRAMMAR.read(args, errors);
    let mut topic = Topic {
        root: Root::from_args(&args, errors),
        name: None,
        has_name: false,
        key: None,
        shards: DEFAULT_SHARDS.into(),
        shards_span: Span::call_site(),
        item,
    };
    for arg in &args {
        match arg.key.name {
            "name" => {
                topic.has_name = true;
                topic.name = arg.string(errors);
            }
            "key" => topic.key = read_key(arg, errors),
            "shards" => {
                topic.shards_span = arg.value_span();
                topic.shards = arg.number(errors).unwrap_or(topic.shards);
            }
            _ => {}
        }
    }
    topic
}

fn read_key(arg: &Arg, errors: &mut Errors) -> Option<KeySource> {
    let tokens = arg.tokens(errors)?;
    let path = Path::parse_mod_style.parse2(tokens.clone());
    match path {
        Ok(path) if path.segments.len() > 1 || path.leading_colon.is_some() => {
            Some(KeySource::Function(path))
        }
        _ => match parse_fields.parse2(split_floats(tokens.clone())) {
            Ok(fields) => Some(KeySource::Field(fields)),
            Err(_) => arg.refuse(tokens, errors),
        },
    }
}

fn parse_fields(input: ParseStream<'_>) -> syn::Result<Vec<Member>> {
    let mut fields = vec![input.parse()?];
    while input.parse::<Option<Token![.]>>()?.is_some() {
        fields.push(input.parse()?);
    }
    Ok(fields)
}

/// `0.1` is one token, a number with a fraction; as a path of fields it is three.
fn split_floats(tokens: TokenStream) -> TokenStream {
    let split = tokens.into_iter().map(|token| match &token {
        TokenTree::Literal(literal) => match literal.to_string().split_once('.') {
            Some((outer, inner)) => fields_of_float(outer, inner, literal.span()),
            None => token.into_token_stream(),
        },
        _ => token.into_token_stream(),
    });
    split.collect()
}

fn fields_of_float(outer: &str, inner: &str, span: Span) -> TokenStream {
    let index = |text: &str| {
        let index = text.parse().ok().map(|index| syn::Index { index, span });
        index.map(ToTokens::into_token_stream).unwrap_or_default()
    };
    let (outer, inner) = (index(outer), index(inner));
    quote!(#outer . #inner)
}
