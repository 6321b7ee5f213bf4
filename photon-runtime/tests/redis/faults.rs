//! One fault each.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use photon_backend::redis::{RedisOptions, RedisStore};
use photon_backend::servers::{Proxy, Redis};
use photon_runtime::Photon;

use crate::common::Engine;
use crate::service::Service;

/// Of a topic that says nothing about them.
const SHARDS: u16 = photon_core::topic::DEFAULT_SHARDS;
/// How long an operation may take in these tests.
const TIMEOUT: Duration = Duration::from_secs(3);

impl Engine for Redis {
    async fn start(topic: &str) -> Service<Self> {
        // The tests switch this user off; the default one stays for them.
        let user = ["--user", "service", "on", ">secret", "~*", "&*", "+@all"];
        let redis = tokio::task::spawn_blocking(move || Redis::start_new(&user)).await.unwrap();
        let proxy = Proxy::before(redis.addr()).await.unwrap();
        let options = RedisOptions::from_url(&format!("redis://service:secret@{}", proxy.addr())).unwrap();
        let store = RedisStore::open(options.timeout(TIMEOUT)).await.unwrap();
        Service::over(topic, redis, proxy, Arc::new(store)).await
    }
}

impl Service<Redis> {
    /// A command of another program.
    fn command(&self, text: &str) {
        command(self.server.addr(), text);
    }
}

pub(crate) async fn the_url_alone_is_enough() {
    let redis = Redis::start_new(&[]);
    for builder in [Photon::builder().redis(redis.url()), Photon::builder().from_url(&redis.url())] {
        let photon = builder.build().await.unwrap();
        assert_eq!(photon.store().engine(), "redis");
        photon.publish_raw("notes", "hello").await.unwrap();
    }
    redis.kill();
    let error =
        Photon::builder().redis(format!("redis://:hunter2@{}", redis.addr())).build().await.unwrap_err();
    let shown = format!("{error:?}");
    assert!(shown.contains(&redis.addr().to_string()) && !shown.contains("hunter2"), "{shown}");
}

pub(crate) async fn the_rights_are_revoked() {
    let mut service = Redis::start("revoked").await;
    for (revoke, give_back) in [
        // The first one closes the connections of the user, too.
        ("ACL SETUSER service off", "ACL SETUSER service on"),
        ("ACL SETUSER service -evalsha -xrange", "ACL SETUSER service +evalsha +xrange"),
        ("ACL SETUSER service resetkeys", "ACL SETUSER service ~*"),
    ] {
        service.interruptions += 1;
        service.command(revoke);
        if revoke.ends_with("off") {
            service.command("CLIENT KILL USER service");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        service.command(give_back);
        service.goes_on().await;
    }
    service.check().await;
}

pub(crate) async fn clients_are_killed() {
    let mut service = Redis::start("clients").await;
    for _ in 0..5 {
        for kind in ["normal", "pubsub"] {
            service.interruptions += 1;
            service.command(&format!("CLIENT KILL TYPE {kind} SKIPME yes"));
            service.goes_on().await;
        }
    }
    service.check().await;
}

pub(crate) async fn engine_forgot_everything() {
    let mut service = Redis::start("flushed").await;
    for times in 1..=3 {
        service.interruptions += 1;
        service.command("FLUSHALL");
        service.lost_what_was().await;
        // Else the next one would take away what is just read again.
        service.has_caught_up_after("a position of the subscription was gone", times).await;
    }
    service.check().await;
}

pub(crate) async fn engine_forgot_the_log() {
    let mut service = Redis::start("trimmed").await;
    for _ in 0..3 {
        service.interruptions += 1;
        for shard in 0..SHARDS {
            service.command(&format!("XTRIM photon:{{trimmed/{shard}}}:log MAXLEN 0"));
        }
        service.lost_what_was().await;
        service.goes_on().await;
    }
    for shard in 0..SHARDS {
        service.command(&format!("DEL photon:{{trimmed/{shard}}}:log"));
    }
    service.lost_what_was().await;
    service.goes_on().await;
    service.check().await;
}

/// What is known of the subscription and of who works on it, each kind by itself, and then all of it.
pub(crate) async fn engine_forgot_the_groups() {
    let mut service = Redis::start("groups").await;
    let positions = (0..SHARDS).map(|shard| format!("photon:{{groups/{shard}}}:position/group"));
    let kinds = [
        positions.collect::<Vec<_>>().join(" "),
        "photon:{groups}:subscription/group".to_owned(),
        "photon:subscriptions".to_owned(),
        "photon:members photon:heartbeats".to_owned(),
        "photon:{groups}:topic".to_owned(),
    ];
    for keys in kinds.iter().chain([&kinds.join(" ")]) {
        service.interruptions += 1;
        service.command(&format!("DEL {keys}"));
        service.goes_on().await;
        let all = format!(":{}", keys.split(' ').count());
        let is_known = || command(service.server.addr(), &format!("EXISTS {keys}")).trim() == all;
        crate::service::wait_for(&format!("it is known again: {keys}"), is_known).await;
        service.goes_on().await;
    }
    service.check().await;
}

/// What another program does: a command in one line.
fn command(addr: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(format!("{text}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 256];
    let read = stream.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(!answer.is_empty() && !answer.starts_with('-'), "{text}: {answer}");
    answer
}
