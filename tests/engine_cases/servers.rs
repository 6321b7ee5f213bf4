//! Cases of one kind of server.

use std::time::{Duration, Instant};

use photon::Clock;
use photon_backend::postgres::PostgresOptions;
use photon_backend::servers::{self, Postgres};

use crate::support::instance::eventually;
use crate::support::{Act, Engine, World, step};

on_engine!("postgres", case_listener_killed);

/// How long a subscription waits for a notification before it looks by itself.
const POLL: Duration = Duration::from_millis(1_500);
/// What an event takes beside that on a machine that does other things, too.
const SLACK: Duration = Duration::from_secs(2);

/// The connection that listens is ended again and again while events are published: each is handled within the poll
/// interval.
async fn case_listener_killed(_: World) {
    let server = Postgres::start_new(&servers::PostgresOptions::new().set("fsync", "off"));
    let options = PostgresOptions::from_url(&server.url("postgres")).unwrap().poll_interval(POLL);
    let home = Box::new(options);
    let world = World::new(Engine { name: "postgres", home, clock: Clock::system(), paused: false }).await;
    let instance = world.start(["main"]).await;
    let publisher = world.publisher().await;
    let (mut killed, mut slowest) = (0, Duration::ZERO);
    for n in 0..40 {
        killed += kill_listeners(&server);
        let began = Instant::now();
        publisher.publish(&step("k", n, Act::Done)).await.unwrap();
        killed += kill_listeners(&server);
        world.probe.until_done("main", usize::try_from(n + 1).unwrap()).await;
        slowest = slowest.max(began.elapsed());
    }
    assert!(killed >= 10, "{killed} connections were ended");
    assert!(slowest < POLL + SLACK, "an event took {slowest:?}");
    assert_eq!(world.probe.done("main")["k"], (0..40).collect::<Vec<_>>());
    // And it listens again.
    eventually("somebody listens", async || kill_listeners(&server) > 0).await;
    instance.drain().await.unwrap();
}

/// Ends the connections that listen, and says how many there were.
fn kill_listeners(server: &Postgres) -> u32 {
    let statement =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    server.sql("postgres", statement).parse().unwrap()
}
