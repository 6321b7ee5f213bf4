//! The servers and the proxy that the tests of engines stand on.

use std::process::ExitCode;
use std::time::Duration;

use photon_backend::servers::{Nats, Postgres, PostgresOptions, Proxy, Redis, suite};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn main() -> ExitCode {
    let missing = [Postgres::missing(), Nats::missing(), Redis::missing()].into_iter().flatten().next();
    suite::run(
        missing,
        photon_backend::server_tests![
            postgres_keeps_its_data_through_a_kill,
            nats_and_redis_answer_after_a_kill,
            a_server_ends_with_the_process_that_started_it,
            a_frozen_server_goes_on_after_a_thaw,
            the_proxy_cuts_stalls_refuses_and_truncates,
        ],
    )
}

async fn postgres_keeps_its_data_through_a_kill() {
    let postgres = Postgres::start_new(&PostgresOptions::new());
    let (one, two) = (postgres.new_database(), postgres.new_database());
    assert_ne!(one, two);
    postgres.sql(&one, "CREATE TABLE t (n int); INSERT INTO t VALUES (7)");
    assert_eq!(postgres.sql(&one, "SHOW fsync"), "on");
    postgres.crash();
    assert_eq!(postgres.sql(&one, "SELECT n FROM t"), "7");
    postgres.stop();
    postgres.start();
    assert_eq!(postgres.sql(&one, "SELECT n FROM t"), "7");
    let dir = postgres.dir().to_owned();
    drop(postgres);
    assert!(!dir.exists(), "its directory is removed");
}

async fn nats_and_redis_answer_after_a_kill() {
    let (nats, redis) = (Nats::start_new(&[]), Redis::start_new(&[]));
    let dirs = [nats.dir().to_owned(), redis.dir().to_owned()];
    let (nats_pid, redis_pid) = (nats.pid(), redis.pid());
    let mut client = TcpStream::connect(redis.addr()).await.unwrap();
    client.write_all(b"SET a 1\r\n").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'+');
    nats.crash();
    redis.crash();
    assert!(nats.pid() != nats_pid && redis.pid() != redis_pid, "they are new processes");
    let mut client = TcpStream::connect(redis.addr()).await.unwrap();
    client.write_all(b"GET a\r\n").await.unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, *b"$1\r\n1");
    nats.stop();
    redis.stop();
    drop((nats, redis));
    assert!(dirs.iter().all(|dir| !dir.exists()), "their directories are removed");
}

/// The process that is killed is a child that starts a server and never ends.
async fn a_server_ends_with_the_process_that_started_it() {
    if std::env::var_os("PHOTON_TEST_CHILD").is_some() {
        let redis = Redis::start_new(&[]);
        println!("started {} {} end", redis.pid(), redis.dir().display());
        std::future::pending::<()>().await;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_server_ends_with_the_process_that_started_it", "--nocapture"])
        .env("PHOTON_TEST_CHILD", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let output = std::io::BufReader::new(child.stdout.take().unwrap());
    let line = std::io::BufRead::lines(output).map(Result::unwrap).find(|line| line.starts_with("started "));
    let line = line.expect("the child starts a server");
    let [_, pid, dir, _] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let (pid, dir) = (std::path::Path::new("/proc").join(pid), std::path::Path::new(dir));
    assert!(pid.exists() && dir.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the server and its directory are gone", || !pid.exists() && !dir.exists()).await;
}

async fn a_frozen_server_goes_on_after_a_thaw() {
    let redis = Redis::start_new(&[]);
    let mut client = TcpStream::connect(redis.addr()).await.unwrap();
    redis.freeze();
    client.write_all(b"PING\r\n").await.unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(100), client.read_u8()).await;
    assert!(silent.is_err(), "a frozen server does not answer");
    redis.thaw();
    assert_eq!(client.read_u8().await.unwrap(), b'+');
}

async fn the_proxy_cuts_stalls_refuses_and_truncates() {
    let redis = Redis::start_new(&[]);
    let proxy = Proxy::before(redis.addr()).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    ping(&mut client).await.unwrap();

    proxy.stall();
    client.write_all(b"PING\r\n").await.unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(100), client.read_u8()).await;
    assert!(silent.is_err(), "nothing passes");
    proxy.forward();
    assert_eq!(client.read_u8().await.unwrap(), b'+');
    let mut rest = [0; 6];
    client.read_exact(&mut rest).await.unwrap();

    proxy.cut_after(3);
    client.write_all(b"PING\r\n").await.unwrap();
    let mut answer = Vec::new();
    assert!(client.read_to_end(&mut answer).await.is_err(), "the connection is reset");
    assert_eq!(answer, b"+PO");
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    ping(&mut client).await.unwrap();

    proxy.refuse();
    wait_for("open connections are cut", || proxy.connections() == 0).await;
    assert!(ping(&mut client).await.is_err());
    let refused = || std::net::TcpStream::connect(proxy.addr()).is_err();
    wait_for("new ones are refused", refused).await;
    proxy.forward();
    wait_for("they are accepted again", || !refused()).await;
    wait_for("closed ones are not counted", || proxy.connections() == 0).await;
}

async fn ping(client: &mut TcpStream) -> std::io::Result<()> {
    client.write_all(b"PING\r\n").await?;
    let mut answer = [0; 7];
    client.read_exact(&mut answer).await?;
    assert_eq!(answer, *b"+PONG\r\n");
    Ok(())
}

async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), waiting).await.is_ok(), "waited in vain: {what}");
}
