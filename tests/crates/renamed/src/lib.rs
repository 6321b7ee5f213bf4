//! Case renamed-crate: Photon is a dependency under another name.

use bus::prelude::*;

/// An order was placed.
#[topic(name = "orders.placed", key = customer, crate = bus)]
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderPlaced {
    /// Who placed it.
    pub customer: String,
}

/// Why it failed.
#[derive(Debug, Failure)]
#[failure(permanent, crate = bus)]
pub struct Declined;

impl std::fmt::Display for Declined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("declined")
    }
}

impl std::error::Error for Declined {}

/// Charges.
#[subscribe(group = "billing", crate = ::bus)]
pub async fn charge(order: OrderPlaced) -> Result<(), Declined> {
    if order.customer.is_empty() { Err(Declined) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use bus::{FailureClass, HandlerError, Registry, Topic};

    use super::{Declined, OrderPlaced};

    #[test]
    fn renamed_crate() {
        let registry = Registry::linked();
        assert_eq!(registry.problems(), []);
        let handlers: Vec<_> = registry.handlers.iter().map(|handler| handler.group_name()).collect();
        assert_eq!(handlers, ["billing"]);
        assert_eq!(registry.topics.len(), 1);
        assert_eq!(OrderPlaced { customer: "c".into() }.key(), bus::ToKey::to_key("c"));
        assert_eq!(HandlerError::from(Declined).class(), FailureClass::Permanent);
    }
}
