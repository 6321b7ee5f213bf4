//! A shop whose tables and events commit together: an order is published if and only if its row is there, and its
//! payment is booked exactly once, because the booking commits with the end of the delivery.
//!
//!     cargo run --example outbox
//!     cargo run --example outbox --features postgres -- --engine postgres://user:password@localhost/shop

mod common;

#[cfg(feature = "postgres")]
#[path = "outbox/on_postgres.rs"]
mod on_postgres;
#[path = "outbox/on_sqlite.rs"]
mod on_sqlite;

use photon::prelude::*;

/// What both engines work with.
#[topic("shop.orders", key = customer)]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderPlaced {
    /// Who bought.
    pub customer: String,
    /// For how much.
    pub cents: i64,
}

/// The orders that come in. The second one is cancelled before it is committed.
pub fn orders() -> [(OrderPlaced, bool); 3] {
    let order = |cents| OrderPlaced { customer: "ann".into(), cents };
    [(order(500), true), (order(9_900), false), (order(250), true)]
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = common::engine_or("sqlite:shop.db?shared=true");
    let booked = match url.strip_prefix("sqlite:") {
        Some(file) => {
            let path = file.trim_start_matches("//").split('?').next().unwrap_or(file);
            on_sqlite::run(path).await?
        }
        #[cfg(feature = "postgres")]
        None => on_postgres::run(&url).await?,
        #[cfg(not(feature = "postgres"))]
        None => anyhow::bail!("this build has SQLite only: add --features postgres"),
    };
    println!("booked for ann: {booked} cents");
    assert_eq!(booked % 750, 0, "each run books 750 cents, once");
    Ok(())
}
