//! Where emitted tokens seem to stand, and how tokens read as text.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::Attribute;

/// The place of `span`, for emitted tokens: errors point there, and lints still see that a macro wrote them.
pub(crate) fn at(span: Span) -> Span {
    Span::call_site().located_at(span)
}

/// The places of the first and the last of the tokens. What begins at the one and ends at the other is
/// underlined from end to end.
pub(crate) fn ends(tokens: &impl ToTokens) -> (Span, Span) {
    let mut spans = tokens.to_token_stream().into_iter().map(|token| at(token.span()));
    let first = spans.next().unwrap_or_else(Span::call_site);
    (first, spans.last().unwrap_or(first))
}

/// `tokens` of the user's, used a second time: each stays at its place, but lints see that a macro wrote it.
pub(crate) fn reused(tokens: impl ToTokens) -> TokenStream {
    respan(tokens.into_token_stream(), at)
}

/// `tokens` of the user's, all of them at the place of `span`.
pub(crate) fn moved_to(span: Span, tokens: impl ToTokens) -> TokenStream {
    respan(tokens.into_token_stream(), |_| at(span))
}

fn respan(tokens: TokenStream, place: impl Fn(Span) -> Span + Copy) -> TokenStream {
    let moved = tokens.into_iter().map(|mut token| {
        let span = place(token.span());
        match &mut token {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), respan(group.stream(), place));
                inner.set_span(span);
                return TokenTree::Group(inner);
            }
            // It means the crate of the macro that wrote it, and loses that with its span.
            TokenTree::Ident(ident) if ident == "$crate" => ident.set_span(span.resolved_at(ident.span())),
            _ => token.set_span(span),
        }
        token
    });
    moved.collect()
}

/// Tokens as people write a path or a type, without spaces.
pub(crate) fn text(tokens: &impl ToTokens) -> String {
    tokens.to_token_stream().to_string().replace(' ', "")
}

/// The `#[cfg(...)]` among the attributes: what is emitted beside an item must vanish with it.
pub(crate) fn cfgs(attrs: &[Attribute]) -> Vec<&Attribute> {
    attrs.iter().filter(|attr| attr.path().is_ident("cfg")).collect()
}
