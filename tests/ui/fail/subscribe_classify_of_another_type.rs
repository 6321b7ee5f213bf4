//! `classify` takes a function of errors.
#![deny(warnings, missing_docs)]

use photon::prelude::*;

/// An order.
#[topic(name = "orders.placed", key = customer)]
#[derive(Serialize, Deserialize)]
pub struct OrderPlaced {
    /// Who.
    pub customer: String,
}

fn classify(error: &str) -> Option<photon::FailureClass> {
    Some(photon::FailureClass::Permanent).filter(|_| error.is_empty())
}

/// Bills it.
#[subscribe(group = "billing", classify = classify)]
pub async fn charge(_: OrderPlaced) {}

/// Ships it.
#[subscribe(group = "shipping", classify = "classify")]
pub async fn ship(_: OrderPlaced) {}

fn main() {}
