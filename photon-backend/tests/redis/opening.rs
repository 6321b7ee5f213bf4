//! Opening a store, and the mistakes that people make with it.

use photon_backend::redis::{Durability, RedisStore};
use photon_backend::servers::Redis;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::store::EventLog;

use crate::support::{event, new_url, open, options, other_program, prefix, read_all, run, server, topic};

/// Opens a store that cannot be opened.
async fn refusal(url: &str) -> StoreError {
    let error = RedisStore::open(options(url)).await.expect_err("it cannot be opened");
    let shown = format!("{error} {error:?} {}", photon_core::error::chain(&error));
    assert!(!shown.contains("hunter2"), "the password is shown: {shown}");
    error
}

async fn assert_refused(url: &str, kind: StoreErrorKind, parts: &[&str]) {
    let error = refusal(url).await;
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} in: {error}");
    }
}

pub(crate) async fn p01_a_server_that_would_lose_events_is_refused() {
    let redis = Redis::start_new(&[]);
    let url = redis.url();
    let mut admin = other_program(&url).await;
    open(&url).await;
    for (setting, value, part, accepted) in [
        ("appendfsync", "everysec", "CONFIG SET appendfsync always", "durability=everysec"),
        ("appendonly", "no", "CONFIG SET appendonly yes", "durability=memory"),
        ("maxmemory-policy", "allkeys-lru", "CONFIG SET maxmemory-policy noeviction", ""),
    ] {
        let before = run(&mut admin, &["CONFIG", "GET", setting]).await;
        let (_, before): (String, String) = redis::from_redis_value(before).unwrap();
        run(&mut admin, &["CONFIG", "SET", setting, value]).await;
        assert_refused(&url, StoreErrorKind::Refused, &[part, accepted]).await;
        if !accepted.is_empty() {
            open(&format!("{url}?{accepted}")).await;
        }
        run(&mut admin, &["CONFIG", "SET", setting, &before]).await;
    }
    let memory = options(&url).durability(Durability::Memory);
    RedisStore::open(memory).await.expect("less is asked for than there is");
}

pub(crate) async fn mistakes_in_the_url_are_named_without_the_password() {
    let addr = server().addr();
    let wrong = ["check user and password"];
    assert_refused(&format!("redis://:hunter22@{addr}"), StoreErrorKind::Denied, &wrong).await;
    assert_refused(&format!("redis://nobody:hunter2@{addr}"), StoreErrorKind::Denied, &wrong).await;
    assert_refused(&format!("redis://{addr}"), StoreErrorKind::Denied, &["give a user and a password"]).await;
    // The server speaks no TLS.
    let error = refusal(&format!("rediss://:hunter2@localhost:{}", addr.port())).await;
    assert!(error.to_string().contains("tls"), "{error}");
    // Nobody listens there.
    let closed = Redis::start_new(&[]);
    let url = closed.url();
    drop(closed);
    assert_refused(&url, StoreErrorKind::Unavailable, &["host, port"]).await;
    assert_refused("redis://no-such-host.invalid?tls=off", StoreErrorKind::Unavailable, &["no-such-host"])
        .await;
}

pub(crate) async fn a_missing_right_is_named() {
    let url = new_url();
    let mut admin = other_program(&url).await;
    let prefix = prefix(&url);
    run(&mut admin, &["ACL", "SETUSER", "guest", "on", ">hunter2", "~other:*", "+@all"]).await;
    let guest = url.replace("redis://:", "redis://guest:");
    assert_refused(&guest, StoreErrorKind::Denied, &["keys", prefix]).await;
    let keys = format!("~{prefix}:*");
    run(&mut admin, &["ACL", "SETUSER", "guest", "resetkeys", &keys, "-xadd"]).await;
    assert_refused(&guest, StoreErrorKind::Denied, &["XADD", prefix]).await;
    // It may not ask how the server is set.
    run(&mut admin, &["ACL", "SETUSER", "guest", "+xadd", "-config"]).await;
    assert_refused(&guest, StoreErrorKind::Refused, &["CONFIG GET", "durability=everysec"]).await;
    // Without the right to send messages it works, too: readers look from time to time.
    let store = open(&format!("{guest}&durability=everysec")).await;
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 0)]).await.unwrap();
    run(&mut admin, &["ACL", "SETUSER", "guest", "-evalsha"]).await;
    let error = store.append(&name, vec![event(0, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    run(&mut admin, &["ACL", "SETUSER", "guest", "+evalsha"]).await;
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    assert_eq!(read_all(&store, &name, 0).await.len(), 2);
}

pub(crate) async fn a_command_without_its_name_is_named() {
    let redis = Redis::start_new(&["--rename-command", "XTRIM", ""]);
    assert_refused(&redis.url(), StoreErrorKind::Refused, &["XTRIM", "rename-command"]).await;
}

pub(crate) async fn a_cluster_is_refused() {
    let redis = Redis::start_new(&["--cluster-enabled", "yes"]);
    assert_refused(&redis.url(), StoreErrorKind::Refused, &["cluster"]).await;
}

pub(crate) async fn a_replica_is_refused() {
    let primary = Redis::start_new(&[]);
    let port = primary.addr().port().to_string();
    let replica = Redis::start_new(&["--replicaof", "127.0.0.1", &port]);
    assert_refused(&replica.url(), StoreErrorKind::Refused, &["replica", "primary"]).await;
}

pub(crate) async fn keys_of_somebody_else_are_left_alone() {
    let url = new_url();
    let mut admin = other_program(&url).await;
    let key = format!("{}:format", prefix(&url));
    run(&mut admin, &["RPUSH", &key, "theirs"]).await;
    assert_refused(&url, StoreErrorKind::Corrupt, &["WRONGTYPE", "prefix=NAME"]).await;
    run(&mut admin, &["DEL", &key]).await;
    run(&mut admin, &["SET", &key, "99"]).await;
    assert_refused(&url, StoreErrorKind::Corrupt, &["99", "newer version"]).await;
    assert_eq!(run(&mut admin, &["GET", &key]).await, redis::Value::BulkString(b"99".to_vec()));
}

pub(crate) async fn prefixes_and_databases_are_logs_of_their_own() {
    let url = new_url();
    let addr = server().addr();
    let urls = [url.clone(), new_url(), url.replace(&format!("{addr}/"), &format!("{addr}/1"))];
    for (number, url) in (1..).zip(&urls) {
        let store = open(url).await;
        let name = topic(&store, "orders", 1).await;
        store.append(&name, (0..number).map(|number| event(0, number)).collect()).await.unwrap();
    }
    for (number, url) in (1..).zip(&urls) {
        let store = open(url).await;
        let name = topic(&store, "orders", 1).await;
        assert_eq!(read_all(&store, &name, 0).await.len(), number, "{url}");
    }
}

/// A file of the tests. The certificates are for tests alone: `server.pem` for the name localhost, by `ca.pem`.
fn certificate(name: &str) -> String {
    format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

pub(crate) async fn connections_are_encrypted_and_the_server_is_who_it_says() {
    let port = free_port();
    let (certificate_file, key, authority) =
        (certificate("server.pem"), certificate("server.key"), certificate("ca.pem"));
    let port_text = port.to_string();
    let args = ["--tls-port", &port_text, "--tls-cert-file", &certificate_file, "--tls-key-file", &key];
    let more = ["--tls-ca-cert-file", &authority, "--tls-auth-clients", "no"];
    let _redis = Redis::start_new(&[args.as_slice(), &more].concat());
    let store = open(&format!("rediss://localhost:{port}?tls_ca={authority}")).await;
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    assert_eq!(read_all(&store, &name, 0).await.len(), 1);
    // Not by an authority that the system trusts, and not for this name.
    let hint = ["tls_ca=FILE", "tls=off"];
    assert_refused(&format!("rediss://localhost:{port}"), StoreErrorKind::Denied, &hint).await;
    let other_name = format!("rediss://127.0.0.1:{port}?tls_ca={authority}");
    assert_refused(&other_name, StoreErrorKind::Denied, &hint).await;
    let missing = "rediss://localhost?tls_ca=/no/such/file.pem";
    assert_refused(missing, StoreErrorKind::Refused, &["/no/such/file.pem"]).await;
}
