//! The arguments of an attribute: `key`, `key = value` and `key(...)`, separated by commas.
//!
//! Each argument is read by itself, so that a mistake in one does not hide those in others.

use std::time::Duration;

use photon_core::time::parse_duration;
use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{Parse, Parser};
use syn::{Lit, LitInt, LitStr, Path};

/// All mistakes found so far.
#[derive(Default)]
pub(crate) struct Errors(Vec<syn::Error>);

impl Errors {
    /// A mistake at one word.
    pub(crate) fn at(&mut self, span: Span, message: impl std::fmt::Display) {
        self.add(syn::Error::new(span, message));
    }

    /// A mistake that covers these tokens.
    pub(crate) fn on(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.add(syn::Error::new_spanned(tokens, message));
    }

    pub(crate) fn add(&mut self, error: syn::Error) {
        self.0.push(error);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// One `compile_error!` a mistake.
    pub(crate) fn into_tokens(self) -> TokenStream {
        self.0.iter().map(syn::Error::to_compile_error).collect()
    }
}

/// A key that an attribute knows, and how it is written.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// What it takes: "a whole number".
    pub(crate) takes: &'static str,
    /// `concurrency = 64`.
    pub(crate) example: &'static str,
}

/// One argument.
pub(crate) struct Arg {
    pub(crate) key: &'static Key,
    /// The place of the key.
    pub(crate) span: Span,
    value: Value,
}

enum Value {
    Word,
    Tokens(TokenStream),
    List(TokenStream),
}

/// What an attribute accepts.
pub(crate) struct Grammar {
    /// How it is called in messages: `#[topic]`.
    pub(crate) name: &'static str,
    pub(crate) keys: &'static [Key],
    /// The key that a literal alone stands for.
    pub(crate) positional: Option<&'static str>,
}

impl Grammar {
    /// Reads the arguments; each key comes at most once.
    pub(crate) fn read(&self, tokens: TokenStream, errors: &mut Errors) -> Vec<Arg> {
        let mut args: Vec<Arg> = Vec::new();
        for chunk in split(tokens) {
            match self.read_one(chunk) {
                Ok(arg) if args.iter().any(|earlier| earlier.key.name == arg.key.name) => {
                    errors.at(arg.span, format!("`{}` is given twice", arg.key.name));
                }
                Ok(arg) => args.push(arg),
                Err(error) => errors.add(error),
            }
        }
        args
    }

    fn read_one(&self, chunk: TokenStream) -> syn::Result<Arg> {
        let mut tokens = chunk.clone().into_iter();
        match tokens.next() {
            Some(TokenTree::Ident(name)) => {
                let key = self.find(&name)?;
                let value = read_value(key, &chunk, tokens)?;
                Ok(Arg { key, span: name.span(), value })
            }
            Some(TokenTree::Literal(literal)) if self.positional.is_some() && tokens.next().is_none() => {
                let key = self.keys.iter().find(|key| Some(key.name) == self.positional);
                let key = key.ok_or_else(|| self.unreadable(&chunk))?;
                Ok(Arg { key, span: literal.span(), value: Value::Tokens(chunk) })
            }
            _ => Err(self.unreadable(&chunk)),
        }
    }

    fn unreadable(&self, chunk: &TokenStream) -> syn::Error {
        let example = self.keys.first().map_or("", |key| key.example);
        let message = format!("{} takes arguments with a name, for instance `{example}`", self.name);
        syn::Error::new_spanned(chunk, message)
    }

    fn find(&self, name: &Ident) -> syn::Result<&'static Key> {
        let text = name.to_string();
        if let Some(key) = self.keys.iter().find(|key| key.name == text) {
            return Ok(key);
        }
        let nearest = self.keys.iter().min_by_key(|key| distance(key.name, &text));
        let hint = match nearest {
            Some(key) if distance(key.name, &text) <= 1 + text.len() / 4 => {
                format!("did you mean `{}`?", key.name)
            }
            _ => {
                let names: Vec<_> = self.keys.iter().map(|key| format!("`{}`", key.name)).collect();
                format!("it knows {}", names.join(", "))
            }
        };
        Err(syn::Error::new(name.span(), format!("{} knows no `{text}`: {hint}", self.name)))
    }
}

/// The chunks between commas; empty ones are left out.
fn split(tokens: TokenStream) -> Vec<TokenStream> {
    let mut chunks = vec![TokenStream::new()];
    for token in tokens {
        match (&token, chunks.last_mut()) {
            (TokenTree::Punct(punct), _) if punct.as_char() == ',' => chunks.push(TokenStream::new()),
            (_, Some(chunk)) => chunk.extend([token]),
            (_, None) => {}
        }
    }
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}

fn read_value(
    key: &'static Key,
    chunk: &TokenStream,
    mut rest: impl Iterator<Item = TokenTree>,
) -> syn::Result<Value> {
    let value = match rest.next() {
        None => return Ok(Value::Word),
        Some(TokenTree::Punct(punct)) if punct.as_char() == '=' => Value::Tokens(rest.by_ref().collect()),
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => {
            Value::List(group.stream())
        }
        Some(_) => return Err(syn::Error::new_spanned(chunk, wrong(key))),
    };
    let empty = matches!(&value, Value::Tokens(tokens) if tokens.is_empty());
    if empty || rest.next().is_some() {
        return Err(syn::Error::new_spanned(chunk, wrong(key)));
    }
    Ok(value)
}

fn wrong(key: &Key) -> String {
    format!("`{}` takes {}, for instance `{}`", key.name, key.takes, key.example)
}

impl Arg {
    /// Whether it stands alone, without a value.
    pub(crate) fn is_word(&self) -> bool {
        matches!(self.value, Value::Word)
    }

    /// The tokens behind the `=`.
    pub(crate) fn tokens(&self, errors: &mut Errors) -> Option<&TokenStream> {
        match &self.value {
            Value::Tokens(tokens) => Some(tokens),
            Value::List(list) if !list.is_empty() => self.refuse(list, errors),
            Value::Word | Value::List(_) => {
                errors.at(self.span, wrong(self.key));
                None
            }
        }
    }

    /// The tokens in the parentheses.
    pub(crate) fn list(&self, errors: &mut Errors) -> Option<TokenStream> {
        match &self.value {
            Value::List(tokens) if !tokens.is_empty() => Some(tokens.clone()),
            Value::Tokens(tokens) => self.refuse(tokens, errors),
            Value::Word | Value::List(_) => {
                errors.at(self.span, wrong(self.key));
                None
            }
        }
    }

    /// Reports that the value does not fit the key.
    pub(crate) fn refuse<T>(&self, tokens: &TokenStream, errors: &mut Errors) -> Option<T> {
        errors.on(tokens, wrong(self.key));
        None
    }

    fn parse<T: Parse>(&self, errors: &mut Errors) -> Option<T> {
        let tokens = self.tokens(errors)?;
        T::parse.parse2(tokens.clone()).map_or_else(|_| self.refuse(tokens, errors), Some)
    }

    /// A text.
    pub(crate) fn string(&self, errors: &mut Errors) -> Option<LitStr> {
        self.parse(errors)
    }

    /// A path such as `bus` or `crate::events`.
    pub(crate) fn path(&self, errors: &mut Errors) -> Option<Path> {
        let tokens = self.tokens(errors)?;
        Path::parse_mod_style.parse2(tokens.clone()).map_or_else(|_| self.refuse(tokens, errors), Some)
    }

    /// A whole number from 0 to 4 294 967 295.
    pub(crate) fn number(&self, errors: &mut Errors) -> Option<u32> {
        let tokens = self.tokens(errors)?;
        match syn::parse2(tokens.clone()) {
            Ok(Lit::Int(number)) if is_plain(&number) => number
                .base10_parse()
                .map_err(|_| errors.on(tokens, format!("`{}` is at most {}", self.key.name, u32::MAX)))
                .ok(),
            _ => self.refuse(tokens, errors),
        }
    }

    /// A number with or without a fraction.
    pub(crate) fn float(&self, errors: &mut Errors) -> Option<f64> {
        let tokens = self.tokens(errors)?;
        let number = match syn::parse2(tokens.clone()) {
            Ok(Lit::Float(number)) if number.suffix().is_empty() => number.base10_parse().ok(),
            Ok(Lit::Int(number)) if number.suffix().is_empty() => number.base10_parse().ok(),
            _ => None,
        };
        number.map_or_else(|| self.refuse(tokens, errors), Some)
    }

    /// A duration in a text.
    pub(crate) fn duration(&self, errors: &mut Errors) -> Option<Duration> {
        self.read_text(parse_duration, errors)
    }

    /// A text that `read` understands.
    pub(crate) fn read_text<T>(
        &self,
        read: impl FnOnce(&str) -> Result<T, String>,
        errors: &mut Errors,
    ) -> Option<T> {
        let text = self.string(errors)?;
        read(&text.value()).map_err(|problem| errors.at(text.span(), problem)).ok()
    }

    /// The place of the value, or of the key if it has none.
    pub(crate) fn value_span(&self) -> Span {
        match &self.value {
            Value::Tokens(tokens) => tokens.clone().into_iter().next().map_or(self.span, |t| t.span()),
            Value::Word | Value::List(_) => self.span,
        }
    }
}

/// Whether a number has neither a type nor a sign.
fn is_plain(number: &LitInt) -> bool {
    number.suffix().is_empty() && !number.base10_digits().starts_with('-')
}

/// The number of letters to insert, remove or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
