//! Publishing within a transaction of sqlx.

use async_trait::async_trait;
use photon_core::error::BoxError;
use photon_core::store::Staged;
use sqlx_core::query::query;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use sqlx_postgres::{PgConnection, Postgres};

use super::outbox::PostgresTransaction;

#[async_trait]
impl PostgresTransaction for PgConnection {
    async fn stage(&mut self, staged: &Staged) -> Result<(), BoxError> {
        let payloads: Vec<&[u8]> = staged.payloads.iter().map(|payload| &payload[..]).collect();
        // No value is part of the statement, and it is not kept: a pooler in transaction mode would lose it.
        query(AssertSqlSafe(staged.statement.as_str()))
            .persistent(false)
            .bind(staged.topic)
            .bind(&staged.shards)
            .bind(&staged.ids)
            .bind(&staged.keys)
            .bind(&staged.headers)
            .bind(payloads)
            .execute(self)
            .await?;
        Ok(())
    }
}

#[async_trait]
impl PostgresTransaction for Transaction<'_, Postgres> {
    async fn stage(&mut self, staged: &Staged) -> Result<(), BoxError> {
        PostgresTransaction::stage(&mut **self, staged).await
    }
}
