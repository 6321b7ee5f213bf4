//! Opening a store, and the mistakes that people make with it.

use futures::future::join_all;
use photon_backend::postgres::PostgresStore;
use photon_backend::servers::{Postgres, PostgresOptions};
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::store::EventLog;

use crate::support::{event, new_url, open, options, read_all, server, topic};

fn database(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

/// Opens a store that cannot be opened.
async fn refusal(url: &str) -> StoreError {
    let error = PostgresStore::open(options(url)).await.expect_err("it cannot be opened");
    let shown = format!("{error} {error:?} {}", photon_core::error::chain(&error));
    assert!(!shown.contains("hunter2") && !shown.contains("photon-test"), "the password is shown: {shown}");
    error
}

pub(crate) async fn many_processes_make_the_schema_at_once() {
    let url = new_url();
    let stores = join_all((0..12).map(|_| PostgresStore::open(options(&url).connections(1)))).await;
    for store in stores {
        let store = store.expect("each finds the schema, whoever made it");
        let name = topic(&store, "orders", 2).await;
        store.append(&name, vec![event(0, 0)]).await.unwrap();
    }
    assert_eq!(server().sql(database(&url), "SELECT photon_version FROM photon.meta"), "1");
    assert_eq!(server().sql(database(&url), "SELECT count(*) FROM photon.event"), "12");
}

pub(crate) async fn mistakes_in_the_url_are_named_without_the_password() {
    let good = new_url();
    let addr = server().addr();
    let error = refusal(&format!("postgres://postgres:hunter2@{addr}/{}", database(&good))).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("check user and password"), "{error}");

    let error = refusal(&format!("{good}x")).await;
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("CREATE DATABASE"), "{error}");

    // Nobody listens there.
    let closed = Postgres::start_new(&PostgresOptions::new());
    let url = closed.url("postgres");
    drop(closed);
    let error = refusal(&url).await;
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("host and port"), "{error}");

    // The server has no certificate.
    let error = refusal(&format!("{good}?sslmode=verify-full")).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("sslmode=disable"), "{error}");
}

pub(crate) async fn connections_are_encrypted_and_the_server_is_who_it_says() {
    let certificate = |name: &str| format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let keys = PostgresOptions::new().certificate(certificate("server.pem"), certificate("server.key"));
    let server = Postgres::start_new(&keys);
    let by_address = server.url("postgres");
    let by_name = by_address.replace("127.0.0.1", "localhost");
    let trusted = format!("sslmode=verify-full&sslrootcert={}", certificate("ca.pem"));
    let store = open(&format!("{by_name}?{trusted}")).await;
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    assert_eq!(read_all(&store, &name, 0).await.len(), 1);
    let connections = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                       WHERE application_name = 'photon'";
    assert_eq!(server.sql("postgres", connections), "t");
    // Not by an authority that the system trusts, and not for this name.
    for other in [format!("{by_name}?sslmode=verify-full"), format!("{by_address}?{trusted}")] {
        let error = refusal(&other).await;
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("sslrootcert=FILE"), "{error}");
    }
}

pub(crate) async fn a_missing_right_is_named() {
    let url = new_url();
    let name = database(&url);
    server().sql(name, &format!("CREATE ROLE guest_{name} LOGIN PASSWORD 'hunter2'"));
    let guest = format!("postgres://guest_{name}:hunter2@{}/{name}", server().addr());
    let error = refusal(&guest).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("GRANT CREATE ON DATABASE"), "{error}");
    // With a schema of its own it needs no right to make one; once it is made, it needs no right to change it.
    server().sql(name, &format!("CREATE SCHEMA photon AUTHORIZATION guest_{name}"));
    let store = open(&guest).await;
    let orders = topic(&store, "orders", 1).await;
    store.append(&orders, vec![event(0, 0)]).await.unwrap();
    server().sql(name, &format!("REVOKE CREATE ON SCHEMA photon FROM guest_{name}"));
    assert_eq!(read_all(&open(&guest).await, &orders, 0).await.len(), 1);
}

pub(crate) async fn tables_of_somebody_else_are_left_alone() {
    for table in ["meta", "event"] {
        let url = new_url();
        let name = database(&url);
        server().sql(name, &format!("CREATE SCHEMA photon; CREATE TABLE photon.{table} (a int)"));
        server().sql(name, &format!("INSERT INTO photon.{table} VALUES (7)"));
        let error = refusal(&url).await;
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("schema=NAME"), "{error}");
        assert!(error.to_string().contains(table), "{error}");
        assert_eq!(server().sql(name, &format!("SELECT a FROM photon.{table}")), "7");
        let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'photon'";
        assert_eq!(server().sql(name, tables), "1", "nothing was made beside it");
        open(&format!("{url}?schema=of_our_own")).await;
    }
}

pub(crate) async fn a_newer_schema_is_refused() {
    let url = new_url();
    open(&url).await;
    server().sql(database(&url), "UPDATE photon.meta SET photon_version = 99");
    let error = refusal(&url).await;
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    assert!(
        error.to_string().contains("version 99") && error.to_string().contains("newer Photon"),
        "{error}"
    );
}

pub(crate) async fn two_schemas_are_two_logs() {
    let url = new_url();
    let (one, two) = (open(&url).await, open(&format!("{url}?schema=second")).await);
    let name = topic(&one, "orders", 1).await;
    assert_eq!(name, topic(&two, "orders", 1).await);
    one.append(&name, vec![event(0, 1), event(0, 2)]).await.unwrap();
    two.append(&name, vec![event(0, 3)]).await.unwrap();
    assert_eq!(read_all(&one, &name, 0).await.len(), 2);
    assert_eq!(read_all(&two, &name, 0).await.len(), 1);
}
