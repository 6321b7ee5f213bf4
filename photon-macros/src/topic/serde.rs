//! Lets serde's derives find serde through Photon, so that it need not be a dependency of the user.

use syn::punctuated::Punctuated;
use syn::{Attribute, DeriveInput, Meta, Path, Token, parse_quote};

use crate::paths::Root;

/// Adds `#[serde(crate = "...")]` where a derive of serde stands below the attribute and the user did not add
/// one.
pub(crate) fn take_from_photon(root: &Root, item: &mut DeriveInput) {
    let Some(path) = root.serde() else { return };
    if item.attrs.iter().any(derives_serde) && !item.attrs.iter().any(names_crate) {
        item.attrs.push(parse_quote!(#[serde(crate = #path)]));
    }
}

fn derives_serde(attr: &Attribute) -> bool {
    if !attr.path().is_ident("derive") {
        return false;
    }
    let derives = attr.parse_args_with(Punctuated::<Path, Token![,]>::parse_terminated);
    derives.is_ok_and(|derives| derives.iter().any(is_of_serde))
}

/// Whether the path means serde's derive: other crates have derives of these names, too, but they are then
/// written with their path.
fn is_of_serde(path: &Path) -> bool {
    let Some(last) = path.segments.last() else { return false };
    let named = last.ident == "Serialize" || last.ident == "Deserialize";
    let from = |name: &str| path.segments.iter().any(|segment| segment.ident == name);
    named && (path.segments.len() == 1 || from("serde") || from("photon") || from("prelude"))
}

fn names_crate(attr: &Attribute) -> bool {
    let Meta::List(list) = &attr.meta else { return false };
    // As text: other arguments of serde's attribute need not be understood here.
    attr.path().is_ident("serde") && list.tokens.to_string().split(',').any(text_starts_with_crate)
}

fn text_starts_with_crate(argument: &str) -> bool {
    argument.trim_start().strip_prefix("crate").is_some_and(|rest| rest.trim_start().starts_with('='))
}
