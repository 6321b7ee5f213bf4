//! What `#[topic]` refuses.

use photon_core::ids::{MAX_SHARDS, name_problem};
use proc_macro2::Span;
use quote::ToTokens;
use syn::{Data, Fields, GenericParam, LitStr, Member};

use super::model::{KeySource, Topic, member_text};
use crate::args::Errors;

pub(crate) fn check(topic: &Topic, errors: &mut Errors) {
    topic.root.check(errors);
    match &topic.name {
        Some(name) => name_is_usable("topic name", name, errors),
        None if topic.has_name => {}
        None => {
            let type_name = &topic.item.ident;
            errors.at(
                Span::call_site(),
                format!(
                    "give the topic of `{type_name}` a name, for instance `#[topic(\"orders.placed\")]`; it is \
                     stored with the events and must stay the same when the type is renamed"
                ),
            );
        }
    }
    if topic.shards == 0 || topic.shards > u32::from(MAX_SHARDS) {
        errors.at(topic.shards_span, format!("shards is {}, allowed are 1 to {MAX_SHARDS}", topic.shards));
    }
    check_item(topic, errors);
    if let Some(KeySource::Field(path)) = &topic.key
        && let Some(field) = path.first()
    {
        check_field(topic, field, errors);
    }
}

/// Reports a topic or group name that cannot be used.
pub(crate) fn name_is_usable(what: &str, name: &LitStr, errors: &mut Errors) {
    if let Some(problem) = name_problem(&name.value()) {
        errors.at(name.span(), format!("{what} {:?} is not usable: {problem}", name.value()));
    }
}

fn check_item(topic: &Topic, errors: &mut Errors) {
    if let Data::Union(union) = &topic.item.data {
        errors.at(union.union_token.span, "a union cannot be an event: use a struct or an enum");
    }
    let generics = &topic.item.generics;
    let reason = match generics.params.first() {
        None => return,
        Some(GenericParam::Lifetime(_)) => {
            "an event outlives its publisher and cannot borrow: use owned fields"
        }
        Some(_) => {
            "an event type cannot be generic, because a topic has one type: put `#[topic]` on a type of its \
             own for each"
        }
    };
    errors.on(generics, reason);
}

fn check_field(topic: &Topic, field: &Member, errors: &mut Errors) {
    let type_name = &topic.item.ident;
    match &topic.item.data {
        Data::Struct(data) => {
            if !has_field(&data.fields, field) {
                errors.on(field, no_field(field, &type_name.to_string(), &data.fields));
            }
        }
        Data::Enum(data) => {
            let without = data.variants.iter().find(|variant| !has_field(&variant.fields, field));
            if let Some(variant) = without {
                let name = format!("{type_name}::{}", variant.ident);
                errors.on(
                    field,
                    format!(
                        "{}; every variant needs it, or write a function: `key = Self::key_of`",
                        no_field(field, &name, &variant.fields)
                    ),
                );
            }
        }
        Data::Union(_) => {}
    }
}

fn has_field(fields: &Fields, wanted: &Member) -> bool {
    fields.members().any(|member| member_text(&member) == member_text(wanted))
}

fn no_field(field: &Member, type_name: &str, fields: &Fields) -> String {
    let names: Vec<_> = fields.members().map(|member| member_text(&member)).collect();
    let has = match names.len() {
        0 => "it has no fields".to_owned(),
        1 => format!("its field is {}", names[0]),
        _ => format!("its fields are {}", names.join(", ")),
    };
    format!("`{}` is not a field of `{type_name}`: {has}", field.to_token_stream())
}
