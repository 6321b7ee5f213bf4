//! Cases of who works on what.

use std::time::Duration;

use photon::Clock;
use photon_backend::nats::NatsOptions;
use photon_backend::postgres::PostgresOptions;
use photon_backend::redis::RedisOptions;
use photon_backend::servers::{self, Nats, Postgres, Redis};

use crate::log;
use crate::support::engines::Home;
use crate::support::instance::eventually;
use crate::support::{Act, Engine, Entry, World, step};

on_every_engine!(case_same_index_twice, case_long_handler);
on_engine!("postgres", case_long_handler_on_an_impatient_postgres);
on_engine!("nats", case_long_handler_on_an_impatient_nats);
on_engine!("redis", case_long_handler_on_an_impatient_redis);

fn conflicts(instance: &str) -> Vec<String> {
    let mut lines = log().lines_with("standing by until it ends");
    lines.retain(|line| line.contains(&format!("instance={instance} ")));
    lines
}

async fn case_same_index_twice(world: World) {
    let name = format!("twin-{}", world.engine.name);
    let start = async || {
        let name = name.clone();
        world.plan(["main"]).with(move |b| b.instance(name)).start().await
    };
    let first = start().await;
    first.photon.publish(&step("k", 0, Act::Done)).await.unwrap();
    world.probe.until_done("main", 1).await;
    // The second stands by while the first lives, and takes over when it leaves.
    let second = start().await;
    second.photon.publish_all((1..20).map(|n| step("k", n, Act::Done))).await.unwrap();
    world.probe.until_done("main", 20).await;
    let workers = |seen: &[Entry]| {
        let mut workers: Vec<u32> = seen.iter().map(|entry| entry.by).collect();
        workers.dedup();
        workers.len()
    };
    assert_eq!(workers(&world.probe.entries()), 1);
    // It says so, once, and who the other one is.
    eventually("the conflict is reported", async || !conflicts(&name).is_empty()).await;
    assert_eq!(conflicts(&name).len(), 1, "{:#?}", conflicts(&name));
    assert!(conflicts(&name)[0].contains(&format!("pid={} ", std::process::id())), "{:?}", conflicts(&name));
    assert!(first.stop().await.is_clean());
    second.photon.publish(&step("k", 20, Act::Done)).await.unwrap();
    world.probe.until_done("main", 21).await;
    second.drain().await.unwrap();
    assert_eq!(workers(&world.probe.entries()), 2);
    assert_eq!(world.probe.done("main")["k"], (0..21).collect::<Vec<_>>());
}

async fn case_long_handler(world: World) {
    let instance = world.start(["main"]).await;
    // Three times the lease, which is more than everything that an impatient server waits for.
    let long = u64::try_from(world.engine.lease_ttl().as_millis()).unwrap() * 3;
    instance.photon.publish(&step("long", 0, Act::Sleep(long))).await.unwrap();
    world.probe.until("it runs", |seen| !seen.is_empty()).await;
    let rival = world.start(["main"]).await;
    world.probe.until_done("main", 1).await;
    instance.drain().await.unwrap();
    rival.drain().await.unwrap();
    assert_eq!(world.probe.of("main", "long", 0).len(), 2);
}

async fn on(name: &'static str, home: Box<dyn Home>) -> World {
    World::new(Engine { name, home, clock: Clock::system(), paused: false }).await
}

async fn case_long_handler_on_an_impatient_postgres(_: World) {
    let settings = servers::PostgresOptions::new()
        .set("idle_session_timeout", "2s")
        .set("idle_in_transaction_session_timeout", "2s")
        .set("statement_timeout", "2s")
        .set("lock_timeout", "2s");
    let server = Postgres::start_new(&settings);
    let options = PostgresOptions::from_url(&server.url("postgres")).unwrap();
    case_long_handler(on("postgres", Box::new(options.timeout(Duration::from_secs(2)))).await).await;
}

async fn case_long_handler_on_an_impatient_nats(_: World) {
    let server = Nats::start_new(&[]);
    let config = "max_payload: 8MB\nping_interval: \"1s\"\nping_max: 1\n";
    std::fs::write(server.dir().join("nats.conf"), config).unwrap();
    server.crash();
    let options = NatsOptions::from_url(&server.url()).unwrap();
    case_long_handler(on("nats", Box::new(options.request_timeout(Duration::from_secs(2)))).await).await;
}

async fn case_long_handler_on_an_impatient_redis(_: World) {
    let server = Redis::start_new(&["--timeout", "1"]);
    let options = RedisOptions::from_url(&server.url()).unwrap();
    case_long_handler(on("redis", Box::new(options.timeout(Duration::from_secs(2)))).await).await;
}
