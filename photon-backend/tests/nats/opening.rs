//! What a server must be like, and what is said if it is not.

use std::path::Path;

use photon_backend::nats::{NatsOptions, NatsStore};
use photon_backend::servers::Nats;
use photon_core::error::{StoreErrorKind, chain};
use photon_core::headers::MAX_HEADERS_BYTES;
use photon_core::ids::{Generation, Key, MAX_KEY_BYTES, TopicName};
use photon_core::store::{EventLog, TopicSpec};
use uuid::Uuid;

use crate::support::{event, numbers, open, options, read_all, topic};

/// Opening must fail in this way, with a message that names the next step and no password.
async fn refused(options: NatsOptions, kind: StoreErrorKind, part: &str) {
    let error = NatsStore::open(options).await.expect_err("it must not open");
    let text = chain(&error);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(part) && !text.contains("hunter2"), "{text}");
}

pub(crate) async fn p12_what_is_wrong_with_the_server_is_said_at_open() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    refused(options(&format!("nats://{nobody}")), StoreErrorKind::Unavailable, "nobody answers there").await;

    let server = Nats::start_new(&["--user", "me", "--pass", "hunter2"]);
    let addr = server.addr();
    refused(options(&format!("nats://{addr}")), StoreErrorKind::Denied, "name a user").await;
    let wrong = format!("nats://me:hunter21@{addr}");
    refused(options(&wrong), StoreErrorKind::Denied, "check user and password").await;
    let good = format!("nats://me:hunter2@{addr}");
    let store = open(&good).await;
    assert!(!format!("{store:?}").contains("hunter2"));
    assert_eq!(store.payload_limit(), 1 << 20);
    refused(options(&good).payload_limit(8 << 20), StoreErrorKind::Refused, "max_payload: 9437184").await;

    let program = ["/usr/sbin/nats-server", "/usr/bin/nats-server", "nats-server"];
    let program =
        program.iter().map(Path::new).find(|path| path.exists()).unwrap_or(Path::new("nats-server"));
    let plain = Nats::start_program(program, &[]);
    refused(options(&plain.url()), StoreErrorKind::Unavailable, "-js").await;
}

/// A file of the tests: `server.pem` is for the name localhost, by `ca.pem`.
fn certificate(name: &str) -> String {
    format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

pub(crate) async fn connections_are_encrypted_and_the_server_is_who_it_says() {
    let (authority, own, key) = (certificate("ca.pem"), certificate("server.pem"), certificate("server.key"));
    let server = Nats::start_new(&["--tls", "--tlscert", &own, "--tlskey", &key]);
    let port = server.addr().port();
    let store = open(&format!("tls://localhost:{port}?ca={authority}")).await;
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [1]);
    // Not by an authority that the system trusts, and not for this name.
    for other in [format!("tls://localhost:{port}"), format!("tls://127.0.0.1:{port}?ca={authority}")] {
        refused(options(&other), StoreErrorKind::Denied, "ca=").await;
    }
    refused(options("tls://localhost?ca=/no/such/file.pem"), StoreErrorKind::Refused, "/no/such/file.pem")
        .await;
}

pub(crate) async fn tokens_and_keys_are_ways_to_log_in() {
    let server = Nats::start_new(&["--auth", "hunter2"]);
    open(&format!("nats://hunter2@{}", server.addr())).await;
    open(&format!("{}?token=hunter2", server.url())).await;
    refused(options(&format!("{}?token=hunter21", server.url())), StoreErrorKind::Denied, "check the token")
        .await;

    // A pair of keys for this test alone.
    let (seed, public) = (
        "SUAE3JY72G3XDKGHVLPQFZXCJLZNDUHGMW6UI7AR42NCHVUOXMCQ2LZPBI",
        "UBWSVBW4K7ZMHY62DXO7KPLFVFU2AOM35KKTPAHVDSHJDJDK3KVYFDLF",
    );
    let directory = tempfile::tempdir().unwrap();
    let users = directory.path().join("users.conf");
    let users_text = format!("max_payload: 8MB\nauthorization {{ users: [ {{ nkey: {public} }} ] }}\n");
    std::fs::write(&users, users_text).unwrap();
    let server = Nats::start_new(&["-c", users.to_str().unwrap()]);
    let (right, wrong) = (directory.path().join("right.nk"), directory.path().join("wrong.nk"));
    std::fs::write(&right, seed).unwrap();
    std::fs::write(&wrong, "no seed").unwrap();
    open(&format!("{}?nkey={}", server.url(), right.display())).await;
    let unreadable = format!("{}?nkey={}", server.url(), wrong.display());
    refused(options(&unreadable), StoreErrorKind::Denied, "wrong.nk").await;
    refused(options(&server.url()), StoreErrorKind::Denied, "name a user").await;
}

/// Somebody who may not use JetStream, or not the subjects of Photon.
pub(crate) async fn a_missing_permission_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("users.conf");
    let user = |name: &str, allow: &str| {
        format!(
            r#"{{ user: {name}, password: hunter2, permissions: {{ publish: {allow}, subscribe: ">" }} }}"#
        )
    };
    let users = [
        user("nothing", r#""other.>""#),
        user("no_log", r#"["$JS.API.>", "photon.state.>"]"#),
        user("all", r#"["$JS.API.>", "photon.>"]"#),
    ];
    let text = format!("max_payload: 8MB\nauthorization {{ users: [ {} ] }}\n", users.join("\n"));
    std::fs::write(&config, text).unwrap();
    let server = Nats::start_new(&["-c", config.to_str().unwrap()]);
    let url = |name: &str| format!("nats://{name}:hunter2@{}", server.addr());
    refused(options(&url("nothing")), StoreErrorKind::Denied, "$JS.API.INFO").await;
    let store = open(&url("all")).await;
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    let error = open(&url("no_log")).await.append(&name, vec![event(0, 2)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(chain(&error).contains("photon.log.orders"), "{}", chain(&error));
}

pub(crate) async fn a_stream_that_is_not_what_photon_makes_is_refused() {
    let server = Nats::start_new(&[]);
    let client = async_nats::connect(server.url()).await.unwrap();
    let make = async |name: &str, subjects: &str, more: &str| {
        let config = format!(r#"{{"name":"{name}","subjects":["{subjects}"],"storage":"file"{more}}}"#);
        let answer = client.request(format!("$JS.API.STREAM.CREATE.{name}"), config.into()).await.unwrap();
        assert!(!String::from_utf8_lossy(&answer.payload).contains("error"), "{answer:?}");
    };
    make("other-state", "other.state.>", "").await;
    refused(options(&server.url()).namespace("other"), StoreErrorKind::Refused, "was not made by").await;
    make("all", "wide.>", "").await;
    refused(options(&server.url()).namespace("wide"), StoreErrorKind::Refused, "overlap").await;

    let store = open(&server.url()).await;
    let spec = |name: &str| {
        let name = TopicName::new(name).unwrap();
        TopicSpec { name, shards: 2, key: None, generation: Generation(Uuid::new_v4()) }
    };
    make("photon-log-a", "photon.log.a.*", "").await;
    let error = store.ensure_topic(&spec("a")).await.unwrap_err();
    assert!(error.to_string().contains("was not made by Photon"), "{error}");
    let ours = r#","description":"Photon topic, version 1, 2 shards, generation 00000000-0000-0000-0000-000000000001""#;
    make("photon-log-b", "photon.log.b.*", &format!(r#"{ours},"max_age":60000000000"#)).await;
    let error = store.ensure_topic(&spec("b")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("max_age is 60000000000"), "{error}");
}

/// What others publish is skipped and counted, and stands in nobody's way.
pub(crate) async fn messages_of_others_are_skipped_and_counted() {
    let server = Nats::start_new(&[]);
    let store = open(&server.url()).await;
    let name = topic(&store, "orders", 2).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let foreign = async |shard: &str, bytes: &'static [u8]| {
        let answer = client.request(format!("photon.log.orders.{shard}"), bytes.into()).await.unwrap();
        assert!(String::from_utf8_lossy(&answer.payload).contains("seq"), "{answer:?}");
    };
    store.append(&name, vec![event(0, 1)]).await.unwrap();
    foreign("0", b"{}").await;
    foreign("0", b"Ph\x01\x05cut short").await;
    foreign("7", b"a shard that is not there").await;
    foreign("x", b"").await;
    store.append(&name, vec![event(0, 2), event(1, 3)]).await.unwrap();
    foreign("0", b"at the end").await;
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [1, 2]);
    assert!(store.skipped_messages() >= 3, "{} were counted", store.skipped_messages());
    assert_eq!(numbers(&read_all(&store, &name, 1).await), [3]);
    store.append(&name, vec![event(0, 4)]).await.unwrap();
    assert_eq!(numbers(&read_all(&store, &name, 0).await), [1, 2, 4]);
}

/// What it takes by itself is less than what Photon takes elsewhere: it opens all the same, and says its limit.
pub(crate) async fn a_server_with_its_own_defaults_opens() {
    let server = Nats::start_new(&[]);
    server.configure("");
    let store = open(&server.url()).await;
    assert_eq!(store.payload_limit(), 820 << 10);
    let name = topic(&store, "orders", 1).await;
    let mut largest = event(0, 0);
    largest.payload = vec![7; store.payload_limit()].into();
    largest.key = Some(Key::new(vec![1; MAX_KEY_BYTES]));
    largest.headers.insert("h", vec![2; MAX_HEADERS_BYTES - 100]);
    store.append(&name, vec![largest.clone()]).await.unwrap();
    let stored = read_all(&store, &name, 0).await;
    assert_eq!((&stored[0].payload, &stored[0].key), (&largest.payload, &largest.key));
    // Who asks for more is told what to set.
    refused(options(&server.url()).payload_limit(1 << 20), StoreErrorKind::Refused, "max_payload: 2097152")
        .await;
    // So little that nothing would fit.
    server.configure("max_payload: 100KB");
    refused(options(&server.url()), StoreErrorKind::Refused, "max_payload: 1048576").await;
}

pub(crate) async fn an_event_over_the_limit_of_the_server_is_refused_alone() {
    let server = Nats::start_new(&[]);
    let store = open(&server.url()).await;
    let name = topic(&store, "orders", 1).await;
    let mut large = event(0, 1);
    large.payload = vec![0; 9 << 20].into();
    let error = store.append(&name, vec![event(0, 0), large]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("max_payload"), "{error}");
    assert_eq!(read_all(&store, &name, 0).await.len(), 0, "a refused batch stores nothing");
}
