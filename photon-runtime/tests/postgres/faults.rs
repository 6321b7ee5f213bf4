//! One fault each.

use std::sync::Arc;
use std::time::Duration;

use photon_backend::postgres::{PostgresOptions, PostgresStore};
use photon_backend::servers::{self, Postgres, Proxy};
use photon_runtime::Photon;

use crate::common::Engine;
use crate::service::Service;

/// How long an operation may take in these tests.
const TIMEOUT: Duration = Duration::from_secs(3);

impl Engine for Postgres {
    async fn start(topic: &str) -> Service<Self> {
        let postgres = tokio::task::spawn_blocking(|| {
            let postgres = Postgres::start_new(&servers::PostgresOptions::new());
            // The tests take its rights away; the superuser stays for them.
            postgres.sql("postgres", "CREATE ROLE service LOGIN PASSWORD 'secret'");
            postgres.sql("postgres", "GRANT CREATE ON DATABASE postgres TO service");
            postgres
        });
        let postgres = postgres.await.unwrap();
        let proxy = Proxy::before(postgres.addr()).await.unwrap();
        let options =
            PostgresOptions::from_url(&format!("postgres://service:secret@{}/postgres", proxy.addr()));
        let store = PostgresStore::open(options.unwrap().timeout(TIMEOUT)).await.unwrap();
        Service::over(topic, postgres, proxy, Arc::new(store)).await
    }
}

impl Service<Postgres> {
    /// What the superuser does, in a database that the service is connected to.
    async fn sql(self, statements: impl Into<String>) -> Self {
        let statements = statements.into();
        self.with_server(move |server| drop(server.sql("postgres", &statements))).await
    }

    /// Makes a setting count, and takes it back: sessions have what was set when they began.
    async fn set(self, name: &str, value: &str) -> Self {
        self.sql(format!("ALTER ROLE service SET {name} = '{value}'")).await.sql(TERMINATE).await
    }
}

/// Ends the sessions of the service.
const TERMINATE: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'service'";

pub(crate) async fn the_url_alone_is_enough() {
    let postgres = Postgres::start_new(&servers::PostgresOptions::new());
    let url = postgres.url("postgres");
    for builder in [Photon::builder().postgres(&url), Photon::builder().from_url(&url)] {
        let photon = builder.build().await.unwrap();
        assert_eq!(photon.store().engine(), "postgres");
        photon.publish_raw("notes", "hello").await.unwrap();
    }
    postgres.kill();
    let error = Photon::builder()
        .postgres(format!("postgres://me:hunter2@{}/db", postgres.addr()))
        .build()
        .await
        .unwrap_err();
    let shown = format!("{error:?}");
    assert!(shown.contains(&postgres.addr().to_string()) && !shown.contains("hunter2"), "{shown}");
}

pub(crate) async fn the_rights_are_revoked() {
    let mut service = Postgres::start("revoked").await;
    for (revoke, give_back) in [
        ("ALTER ROLE service NOLOGIN", "ALTER ROLE service LOGIN"),
        ("ALTER ROLE service PASSWORD 'other'", "ALTER ROLE service PASSWORD 'secret'"),
        ("REVOKE ALL ON SCHEMA photon FROM service", "GRANT ALL ON SCHEMA photon TO service"),
        (
            "REVOKE INSERT, UPDATE ON ALL TABLES IN SCHEMA photon FROM service",
            "GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA photon TO service",
        ),
    ] {
        service.interruptions += 1;
        service = service.sql(revoke).await.sql(TERMINATE).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        service = service.sql(give_back).await;
        service.goes_on().await;
    }
    service.check().await;
}

/// All of them, the one that listens and those that work, alone and together.
pub(crate) async fn sessions_are_terminated() {
    let mut service = Postgres::start("sessions").await;
    for which in ["query LIKE 'LISTEN%'", "query NOT LIKE 'LISTEN%'", "true"].repeat(3) {
        service.interruptions += 1;
        service = service.sql(format!("{TERMINATE} AND {which}")).await;
        service.goes_on().await;
    }
    service.check().await;
}

pub(crate) async fn statements_take_too_long() {
    let mut service = Postgres::start("statements").await;
    service.interruptions += 1;
    service = service.set("statement_timeout", "150ms").await;
    service.goes_on().await;
    for table in ["shard", "checkpoint", "member"] {
        service.interruptions += 1;
        // Whoever writes there has to wait.
        let hold = format!("BEGIN; SELECT FROM photon.{table} FOR UPDATE; SELECT pg_sleep(3); COMMIT");
        service = service.sql(hold).await;
        service.goes_on().await;
    }
    service.check().await;
}

/// The network stops in the middle of transactions, which the server then ends.
pub(crate) async fn transactions_idle_for_too_long() {
    let mut service = Postgres::start("idle").await;
    service.interruptions += 1;
    service = service.set("idle_in_transaction_session_timeout", "100ms").await;
    service.goes_on().await;
    for _ in 0..10 {
        service.interruptions += 1;
        service.proxy.stall();
        tokio::time::sleep(Duration::from_millis(500)).await;
        service.proxy.forward();
        service.goes_on().await;
    }
    service.check().await;
}
