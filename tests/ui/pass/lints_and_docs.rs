//! Case lints-and-docs: nothing that the macros emit disturbs the strictest lints.
#![forbid(missing_docs, unsafe_code)]
#![deny(warnings, unused, nonstandard_style, rust_2018_idioms, let_underscore_drop, unreachable_pub)]
#![deny(unused_qualifications, single_use_lifetimes, trivial_casts, unused_results, elided_lifetimes_in_paths)]
#![deny(missing_debug_implementations, unused_lifetimes, non_ascii_idents, missing_copy_implementations)]

use photon::prelude::*;

/// An order was placed.
#[topic(name = "orders.placed", key = customer)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct OrderPlaced {
    /// Who placed it.
    pub customer: String,
}

/// Why it failed.
#[derive(Debug, Failure)]
pub enum ChargeError {
    /// Never again.
    #[failure(permanent)]
    Declined,
    /// What the inner error says.
    #[failure(transparent)]
    Other(std::io::Error),
}

impl std::fmt::Display for ChargeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("declined")
    }
}

impl std::error::Error for ChargeError {}

/// Charges.
///
/// In two paragraphs.
#[subscribe(topic = "orders.placed", group = "billing", on_dead = "block_key")]
#[allow(clippy::unused_async)]
#[inline]
pub async fn charge(#[allow(unused_variables)] order: OrderPlaced, mut cx: Context) -> Result<(), ChargeError> {
    cx = std::future::ready(cx).await;
    if cx.attempt() > 2 { Err(ChargeError::Declined) } else { Ok(()) }
}

/// Old.
#[subscribe]
#[deprecated = "use another"]
pub async fn old(_order: OrderPlaced) {}

mod handlers {
    use super::OrderPlaced;

    /// In a module, with a path that is not needed.
    #[photon::subscribe(topic = OrderPlaced)]
    pub(crate) async fn inner(_order: OrderPlaced) {}
}

fn main() {
    let _: fn(_) -> _ = handlers::inner;
    let _: fn(_, _) -> _ = charge;
}
