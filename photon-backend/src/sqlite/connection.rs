//! Opening connections.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use photon_core::error::StoreErrorKind;
use rusqlite::{Connection, OpenFlags};

use super::error::{File, Trouble, is_busy, refused};
use super::options::{Durability, SqliteOptions};
use super::{schema, tx};

/// The first SQLite that does not damage a write-ahead log which two connections reset at once.
const OLDEST_SQLITE: i32 = 3_051_003;
/// More than the statements there are.
const CACHED_STATEMENTS: usize = 96;

thread_local! {
    /// How long the connections of this thread wait for locks of others. Each connection is of one thread, and older
    /// versions of rusqlite take a handler without a state.
    static PATIENCE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Since when this thread waits.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Sets how long the connections of this thread wait for locks of others.
pub(super) fn wait_for_locks(limit: Duration) {
    PATIENCE.set(limit);
}

/// Called when a lock is taken, with the number of calls before: whether to try again.
fn busy(count: i32) -> bool {
    let now = Instant::now();
    let since = if count == 0 { now } else { SINCE.get().unwrap_or(now) };
    SINCE.set(Some(since));
    if since.elapsed() >= PATIENCE.get() {
        return false;
    }
    std::thread::sleep(pause(count, since));
    true
}

/// Opens the connection that writes: checks the file, makes it ready for use, brings it to the latest version.
pub(super) fn open_writer(file: &File, options: &SqliteOptions) -> Result<Connection, Trouble> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        let version = rusqlite::version();
        let reason = format!(
            "SQLite {version} is linked, which can damage a file that several connections write: build with \
             the bundled one, or with 3.51.3 or later"
        );
        return Err(file.error(StoreErrorKind::Refused, reason).into());
    }
    check_path(file)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let mut conn = connect(file, flags)?;
    tx::guard(&mut conn)?;
    if conn.is_readonly("main")? {
        let reason = "it is read-only: allow this user to write the file and its directory";
        return Err(file.error(StoreErrorKind::Denied, reason).into());
    }
    let version = {
        let snapshot = conn.unchecked_transaction()?;
        schema::identify(&snapshot, file, options.shared)?
    };
    use_wal(&conn, file)?;
    if !version.is_current(options.shared) {
        schema::migrate(&conn, file, options.shared)?;
    }
    tune_writer(&conn, options)?;
    // Reading opens the write-ahead log.
    schema::identify(&conn, file, options.shared)?;
    file.opened();
    Ok(conn)
}

/// Opens a connection that reads. The writer has checked the file.
pub(super) fn open_reader(file: &File) -> Result<Connection, Trouble> {
    // Reading needs the right to write, too: a reader may have to recover the write-ahead log.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let conn = connect(file, flags)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

fn connect(file: &File, flags: OpenFlags) -> Result<Connection, Trouble> {
    #[allow(unused_mut, reason = "older versions of rusqlite take no mutable connection")]
    let mut conn = Connection::open_with_flags(file.path(), flags)?;
    wait_for_locks(file.lock_timeout());
    conn.busy_handler(Some(busy as fn(i32) -> bool))?;
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(conn)
}

/// How long to wait before the lock is tried again: short, because holders are quick, and uneven, so that
/// processes which wait do not meet each time.
fn pause(count: i32, since: Instant) -> Duration {
    let uneven = since.elapsed().subsec_nanos() % 1_000;
    let base = if count < 8 { 500 } else { 2_000 };
    Duration::from_micros(base + u64::from(uneven))
}

fn check_path(file: &File) -> Result<(), Trouble> {
    let path = file.path();
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        let message = format!(
            "{:?} is not the name of a file: name one, or take the memory store",
            path.display().to_string()
        );
        return Err(refused(message).into());
    }
    if path.is_dir() {
        let reason = "it is a directory: name a file in it";
        return Err(file.error(StoreErrorKind::Refused, reason).into());
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && parent.try_exists().is_ok_and(|exists| !exists) => {
            let reason = format!("the directory {} does not exist: make it", parent.display());
            Err(file.error(StoreErrorKind::Refused, reason).into())
        }
        _ => Ok(()),
    }
}

/// Switches the file to a write-ahead log. SQLite does not call the busy handler for that.
fn use_wal(conn: &Connection, file: &File) -> Result<(), Trouble> {
    let since = Instant::now();
    loop {
        let mode = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        match mode {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                let reason = format!(
                    "its filesystem allows no write-ahead log (journal mode {mode}): put it on a local disk"
                );
                return Err(file.error(StoreErrorKind::Refused, reason).into());
            }
            Err(error) if is_busy(&error) && since.elapsed() < file.lock_timeout() => {
                std::thread::sleep(pause(8, since));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn tune_writer(conn: &Connection, options: &SqliteOptions) -> Result<(), Trouble> {
    let synchronous = match options.durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    conn.pragma_update(None, "synchronous", synchronous)?;
    // Where a plain fsync does not reach the disk (macOS), this one does.
    let full_sync = options.durability == Durability::Full;
    conn.pragma_update(None, "fullfsync", full_sync)?;
    conn.pragma_update(None, "checkpoint_fullfsync", full_sync)?;
    // The writer decides itself when to copy the log into the database.
    conn.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    conn.pragma_update(None, "cache_size", -8_192)?;
    if let Some(bytes) = options.max_size {
        let page: u64 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = (bytes / page.max(1)).clamp(1, 4_294_967_294);
        conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    Ok(())
}
