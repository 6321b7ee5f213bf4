//! Case unlinked-handlers: a crate full of handlers that nothing needs to name.

mod outer {
    mod inner {
        use photon::prelude::*;

        #[topic("orders.placed")]
        #[derive(Serialize, Deserialize)]
        struct OrderPlaced;

        #[subscribe]
        async fn deeply_nested(_: OrderPlaced) {}
    }
}
