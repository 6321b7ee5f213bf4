//! What `#[derive(Failure)]` refuses.

use syn::Data;

use super::model::{Case, Class, Delay, Failure};
use crate::args::Errors;
use crate::spans::text;

pub(crate) fn check(failure: &Failure<'_>, errors: &mut Errors) {
    failure.root.check(errors);
    if let Data::Union(union) = &failure.item.data {
        errors.at(union.union_token.span, "a union cannot be an error: use a struct or an enum");
    }
    if !failure.item.generics.params.is_empty() {
        let message = "a `Failure` cannot be generic: it is found again by its type";
        errors.on(&failure.item.generics, message);
    }
    if let Some(span) = failure.misplaced {
        errors.at(span, "each variant says for itself what it asks for: move this to the variants");
    }
    for case in &failure.cases {
        check_case(case, errors);
    }
}

fn check_case(case: &Case<'_>, errors: &mut Errors) {
    match &case.says {
        None if case.is_given => {}
        None => errors.at(
            case.name.span(),
            format!(
                "`{}` does not say what it asks for: add `#[failure(retry)]`, `#[failure(permanent)]`, \
                 `#[failure(retry_after = ...)]`, `#[failure(defer = ...)]` or `#[failure(transparent)]`",
                case.name
            ),
        ),
        Some(Class::RetryAfter(Delay::Field(field)) | Class::Defer(Delay::Field(field))) => {
            if !case.fields.members().any(|member| member == *field) {
                errors.on(field, format!("`{}` is not a field of `{}`", text(field), case.name));
            }
        }
        Some(Class::Transparent(None, span)) => errors.at(
            *span,
            format!(
                "`{}` has not one field, so it is not clear which one decides: mark it with `#[source]`",
                case.name
            ),
        ),
        Some(_) => {}
    }
}
