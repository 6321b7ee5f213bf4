//! One fault each.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use photon_backend::nats::{NatsOptions, NatsStore};
use photon_backend::servers::{Nats, Proxy};
use photon_runtime::{Error, Photon};

use crate::common::Engine;
use crate::service::Service;

/// What the server lets in.
const USER: &str = "max_payload: 8MB\nauthorization { users: [{ user: service, password: secret }] }\n";
/// The same, after the password was changed.
const REVOKED: &str = "max_payload: 8MB\nauthorization { users: [{ user: service, password: other }] }\n";

/// One for what is done to a stream, and one for a server that breaks off because of it.
const POSSIBLE: u32 = 2;

impl Engine for Nats {
    async fn start(topic: &str) -> Service<Self> {
        start(topic, || Nats::start_new(&[])).await
    }
}

async fn start(topic: &str, server: impl FnOnce() -> Nats + Send + 'static) -> Service<Nats> {
    let nats = tokio::task::spawn_blocking(|| {
        let nats = server();
        nats.configure(USER);
        nats
    });
    let nats = nats.await.unwrap();
    let proxy = Proxy::before(nats.addr()).await.unwrap();
    let options = NatsOptions::from_url(&format!("nats://service:secret@{}", proxy.addr())).unwrap();
    let store = NatsStore::open(options.request_timeout(Duration::from_secs(3))).await.unwrap();
    Service::over(topic, nats, proxy, Arc::new(store)).await
}

pub(crate) async fn the_url_alone_is_enough() {
    let nats = Nats::start_new(&[]);
    for builder in [Photon::builder().nats(nats.url()), Photon::builder().from_url(&nats.url())] {
        let photon = builder.build().await.unwrap();
        assert_eq!(photon.store().engine(), "nats");
        photon.publish_raw("notes", "hello").await.unwrap();
    }
    // A server with its own defaults takes less than Photon does elsewhere: then that is the limit, and it is told.
    nats.configure("");
    let photon = Photon::builder().nats(nats.url()).build().await.unwrap();
    photon.publish_raw("notes", vec![0; 820 << 10]).await.unwrap();
    let error = photon.publish_raw("notes", vec![0; (820 << 10) + 1]).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 839_680, .. }), "{error:?}");
    let demanding = Photon::builder().nats(nats.url()).max_payload(1 << 20);
    let error = demanding.build().await.unwrap_err();
    assert!(error.to_string().contains("max_payload: 2097152"), "{error:?}");
    nats.kill();
    let url = format!("nats://me:hunter2@{}", nats.addr());
    let error = Photon::builder().nats(url).build().await.unwrap_err();
    let shown = format!("{error:?}");
    assert!(shown.contains(&nats.addr().to_string()) && !shown.contains("hunter2"), "{shown}");
}

/// The password is changed, with a restart, and changed back.
pub(crate) async fn the_rights_are_revoked() {
    let mut service = Nats::start("revoked").await;
    for _ in 0..2 {
        service.interruptions += 1;
        service = service.with_server(|nats| nats.configure(REVOKED)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        service = service.with_server(|nats| nats.configure(USER)).await;
        service.goes_on().await;
    }
    service.check().await;
}

/// The log is emptied, and then removed.
pub(crate) async fn engine_forgot_the_log() {
    let mut service = start("trimmed", Nats::start_supervised).await;
    for act in ["PURGE", "DELETE", "DELETE"] {
        service.interruptions += POSSIBLE;
        manage(service.server.addr(), act, "photon-log-trimmed").await;
        service.lost_what_was().await;
        service.goes_on().await;
    }
    service.check().await;
}

/// What is known of subscriptions and of who works on them is emptied, and then removed.
pub(crate) async fn engine_forgot_the_groups() {
    let mut service = start("groups", Nats::start_supervised).await;
    for act in ["PURGE", "DELETE", "PURGE"] {
        service.interruptions += POSSIBLE;
        manage(service.server.addr(), act, "photon-state").await;
        service.goes_on().await;
    }
    service.check().await;
}

pub(crate) async fn engine_forgot_everything() {
    let mut service = start("flushed", Nats::start_supervised).await;
    for times in 1..=3 {
        service.interruptions += POSSIBLE;
        // The log first: else what is read again would be lost half-way.
        manage(service.server.addr(), "DELETE", "photon-log-flushed").await;
        manage(service.server.addr(), "DELETE", "photon-state").await;
        service.lost_what_was().await;
        service.has_caught_up_after("the position of the subscription was gone", times).await;
    }
    service.check().await;
}

/// What another program does to a stream, as soon as it is there.
async fn manage(addr: SocketAddr, act: &str, stream: &str) {
    crate::service::wait_for(&format!("{act} {stream}"), || is_done(addr, act, stream)).await;
}

fn is_done(addr: SocketAddr, act: &str, stream: &str) -> bool {
    let Ok(mut connection) = TcpStream::connect(addr) else { return false };
    let login = r#"{"verbose":false,"user":"service","pass":"secret"}"#;
    let request = format!("PUB $JS.API.STREAM.{act}.{stream} answer 0\r\n\r\n");
    if write!(connection, "CONNECT {login}\r\nSUB answer 1\r\n{request}").is_err() {
        return false;
    }
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    lines.find(|line| line.starts_with('{')).is_some_and(|answer| answer.contains(r#""success":true"#))
}
