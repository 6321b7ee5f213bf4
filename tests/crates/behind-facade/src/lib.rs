//! Case renamed-crate: Photon comes through a facade.

use case_facade::prelude::*;

/// An order was placed.
#[topic(name = "orders.placed", key = customer, crate = case_facade::photon)]
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderPlaced {
    /// Who placed it.
    pub customer: String,
}

/// Charges.
#[subscribe(topic = OrderPlaced, group = "billing", crate = case_facade::photon)]
pub async fn charge(order: OrderPlaced, cx: Context) {
    let _ = (order.customer, cx.attempt());
}

#[cfg(test)]
mod tests {
    use case_facade::photon::Registry;

    #[test]
    fn renamed_crate_behind_a_facade() {
        let registry = Registry::linked();
        assert_eq!(registry.problems(), []);
        assert_eq!(registry.handlers.len(), 1);
        assert_eq!(registry.topics.len(), 1);
    }
}
