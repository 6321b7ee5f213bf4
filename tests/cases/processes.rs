//! Cases of several processes on one SQLite file. The processes are this test binary, started again.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use photon::Seq;

use crate::support::instance::{eventually, within};
use crate::support::{Act, Engine, World, single};

const FILE: &str = "PHOTON_TEST_FILE";

fn start(file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--ignored", "--nocapture"])
        .env(FILE, file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Not a test: what the other process does.
#[tokio::test]
#[ignore = "run by the tests of this file, in processes of their own"]
async fn child() {
    let Ok(file) = std::env::var(FILE) else { return };
    let world = World::new(Engine::sqlite_at(file)).await;
    let _instance = world.start(["single"]).await;
    world.probe.until("the last one runs", |seen| seen.iter().any(|e| e.n == 5)).await;
    println!("ready");
    // It is told to end what it runs, which it reads when it is awake again.
    tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await.unwrap().unwrap();
    world.probe.open("gate");
    std::future::pending::<()>().await;
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Kills the child at the end of the test, however it ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(unix)]
#[tokio::test]
async fn case_same_index_twice_stopped_and_woken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("photon.db");
    let world = World::new(Engine::sqlite_at(&path)).await;
    let publisher = world.publisher().await;
    publisher.publish_all((0..5).map(|n| single("k", n, Act::Done))).await.unwrap();
    publisher.publish(&single("late", 5, Act::Wait("gate".to_owned()))).await.unwrap();
    let mut child = Killed(start(&path));
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    let ready = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        while !line.contains("ready") && out.read_line(&mut line).unwrap() > 0 {}
        line
    });
    let ready = within(ready).await.unwrap();
    assert!(ready.contains("ready"), "the child did not start: {ready}");
    eventually("five are written down", async || world.checkpoint().await.watermark == Seq(5)).await;
    // It stands still in the middle of the handler.
    signal(&child.0, "-STOP");
    publisher.publish_all((6..10).map(|n| single("k", n, Act::Done))).await.unwrap();
    // The same index again: it waits for one lease time, then it takes over, with what the late one was at.
    let second = world.start(["single"]).await;
    world.probe.until_done("single", 4).await;
    eventually("9 is written down", async || world.checkpoint().await.covers(Seq(10))).await;
    assert_eq!(world.probe.of("single", "late", 5).len(), 1, "the second is at it");
    child.0.stdin.take().unwrap().write_all(b"x").unwrap();
    signal(&child.0, "-CONT");
    // The late one ends its handler, finds out that it lost everything, joins again, and stands by. Its word about
    // the event does not count: that is the second's, which is still at it. What comes is the second's, too.
    eventually("it is a member again", async || world.store.members().await.unwrap().len() >= 2).await;
    for n in 10..20 {
        publisher.publish(&single("k", n, Act::Done)).await.unwrap();
        world.probe.until_done("single", usize::try_from(n - 5).unwrap()).await;
        let checkpoint = world.checkpoint().await;
        assert!(checkpoint.watermark == Seq(5) && !checkpoint.covers(Seq(6)), "{checkpoint:?}");
    }
    drop(child);
    world.probe.open("gate");
    second.drain().await.unwrap();
    assert_eq!(world.probe.done("single")["late"], [5]);
    assert_eq!(world.probe.done("single")["k"], (6..20).collect::<Vec<_>>());
    assert_eq!(world.checkpoint().await.watermark, Seq(20));
}
