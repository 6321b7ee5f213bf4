//! The shop in one SQLite file, which is its own: Photon is let in.

use photon::prelude::*;
use photon::sqlite::Tx;
use photon::sqlite::rusqlite::{Connection, TransactionBehavior};

use crate::{OrderPlaced, orders};

async fn book(order: OrderPlaced, tx: Tx) -> Result<(), HandlerError> {
    tx.settle(move |conn| {
        conn.execute(
            "INSERT INTO account VALUES (?1, ?2) ON CONFLICT DO UPDATE SET cents = cents + excluded.cents",
            (&order.customer, order.cents),
        )
    })
    .await?;
    Ok(())
}

pub(crate) async fn run(path: &str) -> anyhow::Result<i64> {
    let mut shop = Connection::open(path)?;
    shop.execute_batch(
        "CREATE TABLE IF NOT EXISTS orders (customer TEXT, cents INTEGER);
         CREATE TABLE IF NOT EXISTS account (customer TEXT PRIMARY KEY, cents INTEGER NOT NULL);",
    )?;
    let photon = Photon::builder().sqlite_shared(path).allow_no_handlers().build().await?;
    photon.subscribe(photon::Subscription::of::<OrderPlaced>().group("billing"), book).await?;
    let executor = photon.start_executor().await?;
    for (order, commits) in orders() {
        // A service does this on a thread that may block.
        let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute("INSERT INTO orders VALUES (?1, ?2)", (&order.customer, order.cents))?;
        photon.publish_in_blocking(&tx, &order)?;
        if commits { tx.commit()? } else { tx.rollback()? }
    }
    executor.drain().await?;
    Ok(shop.query_row("SELECT cents FROM account WHERE customer = 'ann'", [], |row| row.get(0))?)
}
