//! The shop in a Postgres database, beside Photon's schema.

use photon::postgres::Tx;
use photon::prelude::*;
use tokio_postgres::NoTls;

use crate::{OrderPlaced, orders};

async fn book(order: OrderPlaced, tx: Tx) -> Result<(), HandlerError> {
    tx.execute(
        "INSERT INTO account VALUES ($1, $2)
         ON CONFLICT (customer) DO UPDATE SET cents = account.cents + excluded.cents",
        &[&order.customer, &order.cents],
    )
    .await?;
    tx.settle().await
}

pub(crate) async fn run(url: &str) -> anyhow::Result<i64> {
    let (mut shop, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    shop.batch_execute(
        "CREATE TABLE IF NOT EXISTS orders (customer text, cents int8);
         CREATE TABLE IF NOT EXISTS account (customer text PRIMARY KEY, cents int8 NOT NULL);",
    )
    .await?;
    let photon = Photon::builder().from_url(url).allow_no_handlers().build().await?;
    photon.subscribe(photon::Subscription::of::<OrderPlaced>().group("billing"), book).await?;
    for (order, commits) in orders() {
        let mut tx = shop.transaction().await?;
        tx.execute("INSERT INTO orders VALUES ($1, $2)", &[&order.customer, &order.cents]).await?;
        photon.publish_in(&mut tx, &order).await?;
        if commits { tx.commit().await? } else { tx.rollback().await? }
    }
    let executor = photon.start_executor().await?;
    // What was published within a transaction is in the log soon after its commit, and then handled.
    let placed = "SELECT sum(cents)::int8 FROM orders WHERE customer = 'ann'";
    let booked = "SELECT (SELECT cents FROM account WHERE customer = 'ann')";
    let placed: Option<i64> = shop.query_one(placed, &[]).await?.get(0);
    while shop.query_one(booked, &[]).await?.get::<_, Option<i64>>(0) < placed {
        tokio::task::yield_now().await;
    }
    executor.drain().await?;
    Ok(placed.unwrap_or_default())
}
