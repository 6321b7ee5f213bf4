//! Bad input: each gets an error that names the thing and what to do, and loses nothing.

use std::path::Path;

use photon::prelude::*;
use photon::{BoxError, Error, Photon};
use photon_backend::sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

use crate::support::instance::{eventually, within};
use crate::support::{Act, Engine, Probe, World, step};

on_embedded_engines!(
    a_value_that_cannot_be_serialised_is_named,
    publishing_after_the_shutdown_is_refused_and_loses_nothing,
);

#[topic(name = "unserialisable")]
#[derive(Deserialize)]
struct Unserialisable {}

impl Serialize for Unserialisable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("it is made of smoke"))
    }
}

async fn a_value_that_cannot_be_serialised_is_named(world: World) {
    let photon = world.publisher().await;
    let error = photon.publish(&Unserialisable {}).await.unwrap_err();
    let text = format!("{error:?}");
    assert!(
        text.contains("Unserialisable` cannot be encoded as application/json: it is made of smoke"),
        "{text}"
    );
    let error = photon.publish_all([Unserialisable {}]).await.unwrap_err();
    assert!(error.stored().is_empty());
    photon.publish(&step("k", 0, Act::Done)).await.unwrap();
}

async fn publishing_after_the_shutdown_is_refused_and_loses_nothing(world: World) {
    let instance = world.start(["main"]).await;
    let photon = instance.photon.clone();
    photon.publish(&step("k", 0, Act::Done)).await.unwrap();
    instance.drain().await.unwrap();
    let errors = [
        photon.publish(&step("k", 1, Act::Done)).await.unwrap_err(),
        photon.publish(&step("k", 1, Act::Done)).wait().await.unwrap_err(),
        photon.publish_all([step("k", 1, Act::Done)]).await.unwrap_err(),
        photon.publisher().publish(&step("k", 1, Act::Done)).await.unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, Error::Closed), "{error:?}");
        assert!(text.contains("was shut down") && text.contains("nothing was stored"), "{text}");
    }
    world.start(["main"]).await.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [0]);
}

/// What opening a file says.
async fn refusal(path: &Path) -> String {
    match within(Photon::builder().sqlite(path).build()).await {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => format!("{error:?}"),
    }
}

fn assert_tells(text: &str, path: &Path, parts: &[&str]) {
    assert!(text.contains(&*path.to_string_lossy()), "the file is not named: {text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
}

/// A file with one handled event and one that waits.
async fn used_file(path: &Path) {
    let world = World::new(Engine::sqlite_at(path)).await;
    let instance = world.start(["main"]).await;
    instance.photon.publish(&step("k", 0, Act::Done)).await.unwrap();
    instance.drain().await.unwrap();
    world.publisher().await.publish(&step("k", 1, Act::Done)).await.unwrap();
    drop(world);
    // The last one that closes the file removes its journal.
    let journal = path.with_extension("db-wal");
    eventually("the file is closed", async || !journal.exists()).await;
}

/// The waiting event is still there.
async fn assert_usable(path: &Path) {
    let world = World::new(Engine::sqlite_at(path)).await;
    world.start(["main"]).await.drain().await.unwrap();
    assert_eq!(world.probe.done("main")["k"], [1]);
}

#[tokio::test]
async fn a_database_of_another_program_is_left_alone() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("other.db");
    let other = Connection::open(&path)?;
    other.execute_batch("create table letters (text); insert into letters values ('Dear Ann')")?;
    drop(other);
    let before = std::fs::read(&path)?;
    assert_tells(&refusal(&path).await, &path, &["another program"]);
    assert_eq!(std::fs::read(&path)?, before);
    Ok(())
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_left_alone() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("photon.db");
    used_file(&path).await;
    let file = Connection::open(&path)?;
    let version: i64 = file.query_row("pragma user_version", [], |row| row.get(0))?;
    file.pragma_update(None, "user_version", version + 1)?;
    assert_tells(&refusal(&path).await, &path, &["newer"]);
    file.pragma_update(None, "user_version", version)?;
    drop(file);
    assert_usable(&path).await;
    Ok(())
}

#[tokio::test]
async fn a_database_that_was_cut_short_is_refused_and_left_as_it_is() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("photon.db");
    used_file(&path).await;
    let whole = std::fs::read(&path)?;
    for kept in [50, whole.len() / 2] {
        std::fs::write(&path, &whole[..kept])?;
        let text = refusal(&path).await;
        assert_tells(&text, &path, &["restore a copy"]);
        assert_eq!(std::fs::read(&path)?, whole[..kept], "{kept}");
    }
    std::fs::write(&path, &whole)?;
    assert_usable(&path).await;
    Ok(())
}

#[tokio::test]
async fn a_locked_database_is_waited_for_and_then_named() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("photon.db");
    used_file(&path).await;
    let options = SqliteOptions::new().lock_timeout(std::time::Duration::from_millis(100));
    let store = SqliteStore::open(&path, options).await?;
    let photon = Photon::builder().store(std::sync::Arc::new(store)).state(Probe::default()).build().await?;
    let lock = Connection::open(&path)?;
    lock.execute_batch("begin immediate")?;
    let error = within(async { photon.publish(&step("k", 2, Act::Done)).await }).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)) && error.is_transient(), "{error:?}");
    assert_tells(&format!("{error:?}"), &path, &["locked by another process for 100ms", "lock_timeout"]);
    lock.execute_batch("rollback")?;
    drop((lock, photon));
    assert_usable(&path).await;
    Ok(())
}

#[tokio::test]
async fn a_full_database_says_so_and_goes_on_when_there_is_room() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("photon.db");
    let options = SqliteOptions::new().max_size(512 * 1024);
    let store = std::sync::Arc::new(SqliteStore::open(&path, options).await?);
    let photon = Photon::builder().store(store.clone()).build().await?;
    let mut stored = 0;
    let error = loop {
        match photon.publish_raw("bulk", vec![7; 20_000]).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100);
    };
    assert!(matches!(error, Error::Full(_)), "{error:?}");
    assert_tells(&format!("{error:?}"), &path, &["no room: free some", "max_size"]);
    photon.close().await;
    drop(photon);
    store.close().await;
    let roomy = Photon::builder().sqlite(&path).build().await?;
    roomy.publish_raw("bulk", vec![7; 20_000]).await?;
    assert_eq!(World::new(Engine::sqlite_at(&path)).await.events("bulk").await.len(), stored + 1);
    Ok(())
}

#[tokio::test]
async fn a_path_that_cannot_be_a_database_is_named() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    assert_tells(&refusal(directory.path()).await, directory.path(), &[]);
    let nowhere = directory.path().join("no/such/directory/photon.db");
    assert_tells(&refusal(&nowhere).await, &nowhere, &[]);
    assert!(!directory.path().join("no").exists());
    let text = directory.path().join("letter.txt");
    std::fs::write(&text, "Dear Ann, ".repeat(500))?;
    assert_tells(&refusal(&text).await, &text, &["not a database", "a file of its own"]);
    assert_eq!(std::fs::read(&text)?, "Dear Ann, ".repeat(500).as_bytes());
    Ok(())
}

#[tokio::test]
async fn every_mistake_of_the_builder_is_told_at_once() {
    let error = Photon::builder()
        .memory()
        .from_url("mysql://me:hunter2@host/db")
        .instance("no name")
        .group(3, 3)
        .max_payload(0)
        .lease_ttl(std::time::Duration::from_millis(1))
        .state(1u8)
        .state(2u8)
        .only(["no-such-group"])
        .build()
        .await
        .unwrap_err();
    let text = error.to_string();
    for part in [
        "mysql://***@host/db",
        "no name",
        "instance 3 of 3",
        "largest payload",
        "500ms to 1h",
        "u8",
        "no-such-group",
    ] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}
