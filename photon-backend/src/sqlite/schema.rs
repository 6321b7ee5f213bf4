//! The tables, and how a file gets them.
//!
//! Events lie in one table in commit order, whatever their topic: that is the only order in which SQLite
//! takes rows in at full speed. Their seq is their place in that table. A segment says which run of places
//! one append filled in one shard, and when; reading a shard goes from segment to segment. So a batch costs
//! one index row a shard and not one an event.

use photon_core::error::StoreErrorKind;
use rusqlite::Connection;

use super::error::{File, Trouble};

/// "Phtn": marks the file as Photon's.
const APPLICATION_ID: i32 = 0x5068_746e;

/// The statements that lead from each version to the next; a file of version n has seen the first n.
/// Entries are never changed once released, only added.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE photon_meta (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        -- The last place that was given out, as far as the events do not show it any more.
        last_seq INTEGER NOT NULL
    );
    INSERT INTO photon_meta VALUES (1, 0);

    CREATE TABLE photon_topic (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        shards INTEGER NOT NULL,
        key TEXT,
        generation BLOB NOT NULL
    );
    -- floor: trimmed up to here. last, time: of the last event that was trimmed.
    CREATE TABLE photon_shard (
        topic INTEGER NOT NULL,
        shard INTEGER NOT NULL,
        floor INTEGER NOT NULL,
        last INTEGER NOT NULL,
        time INTEGER NOT NULL,
        PRIMARY KEY (topic, shard)
    ) WITHOUT ROWID;
    CREATE TABLE photon_event (
        seq INTEGER PRIMARY KEY,
        id BLOB NOT NULL,
        key BLOB,
        headers BLOB NOT NULL,
        payload BLOB NOT NULL
    );
    CREATE TABLE photon_segment (
        topic INTEGER NOT NULL,
        shard INTEGER NOT NULL,
        last INTEGER NOT NULL,
        first INTEGER NOT NULL,
        time INTEGER NOT NULL,
        PRIMARY KEY (topic, shard, last)
    ) WITHOUT ROWID;
    -- By age: the rowid grows.
    CREATE TABLE photon_dedup (
        n INTEGER PRIMARY KEY,
        topic INTEGER NOT NULL,
        shard INTEGER NOT NULL,
        dedup_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        time INTEGER NOT NULL,
        UNIQUE (topic, shard, dedup_id)
    );

    CREATE TABLE photon_subscription (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        topic INTEGER NOT NULL,
        position TEXT NOT NULL,
        mode INTEGER NOT NULL,
        registered INTEGER NOT NULL,
        active INTEGER NOT NULL,
        expire_after INTEGER,
        revision INTEGER NOT NULL,
        UNIQUE (topic, position)
    );
    CREATE TABLE photon_checkpoint (
        subscription INTEGER NOT NULL,
        shard INTEGER NOT NULL,
        start INTEGER NOT NULL,
        watermark INTEGER NOT NULL,
        ranges BLOB NOT NULL,
        PRIMARY KEY (subscription, shard)
    ) WITHOUT ROWID;

    -- state: 0 parked, 1 waiting, 2 dead, 3 dead and blocking its lane, 4 the mark of one that ended.
    CREATE TABLE photon_delivery (
        subscription INTEGER NOT NULL,
        shard INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        version INTEGER NOT NULL,
        state INTEGER NOT NULL,
        due INTEGER,
        attempts INTEGER NOT NULL,
        lane BLOB,
        reason TEXT,
        first_failed INTEGER,
        last_failed INTEGER,
        deferred_since INTEGER,
        time INTEGER,
        id BLOB,
        error TEXT,
        headers BLOB,
        payload BLOB,
        PRIMARY KEY (subscription, shard, seq)
    ) WITHOUT ROWID;
    CREATE INDEX photon_delivery_live ON photon_delivery (subscription, shard, lane, seq)
        WHERE state IN (0, 1, 3);
    CREATE INDEX photon_delivery_dead ON photon_delivery (subscription, shard, seq, lane, state)
        WHERE state IN (2, 3);
    CREATE INDEX photon_delivery_mark ON photon_delivery (subscription, shard, seq) WHERE state = 4;
    -- The lanes with live rows: the first of them and how many there are.
    CREATE TABLE photon_lane (
        subscription INTEGER NOT NULL,
        shard INTEGER NOT NULL,
        lane BLOB NOT NULL,
        head INTEGER NOT NULL,
        rows INTEGER NOT NULL,
        PRIMARY KEY (subscription, shard, lane)
    ) WITHOUT ROWID;
    CREATE INDEX photon_lane_head ON photon_lane (subscription, shard, head);

    CREATE TABLE photon_member (
        incarnation BLOB PRIMARY KEY,
        instance TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        process_start TEXT NOT NULL,
        heartbeat INTEGER NOT NULL,
        joined INTEGER NOT NULL
    ) WITHOUT ROWID;
    -- A row is never removed: its epoch must not start over.
    CREATE TABLE photon_claim (
        topic TEXT NOT NULL,
        position TEXT NOT NULL,
        shard INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        holder BLOB,
        PRIMARY KEY (topic, position, shard)
    ) WITHOUT ROWID;
    CREATE INDEX photon_claim_holder ON photon_claim (holder) WHERE holder IS NOT NULL;
",
    "
    ALTER TABLE photon_subscription ADD COLUMN pause_reason TEXT;
    ALTER TABLE photon_subscription ADD COLUMN pause_since INTEGER;
    ALTER TABLE photon_checkpoint ADD COLUMN resets INTEGER NOT NULL DEFAULT 0;
    -- Up to here it was announced that records are going to be trimmed.
    ALTER TABLE photon_shard ADD COLUMN announced INTEGER NOT NULL DEFAULT 0;
",
    "
    -- Deliveries on trial after a crash; empty if there are none.
    ALTER TABLE photon_checkpoint ADD COLUMN trials BLOB NOT NULL DEFAULT x'';
    -- Who the shard was granted to, until the work ended in order; the owner before, if its work did not.
    ALTER TABLE photon_claim ADD COLUMN owner BLOB;
    ALTER TABLE photon_claim ADD COLUMN unended BLOB;
",
];

/// What a file says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// How many of the migrations it has seen, 0 for none.
    number: usize,
    /// Whether that is written in a table, because the file is an application's.
    in_table: bool,
}

impl Version {
    /// Whether there is nothing to do. `shared`: whether the file is an application's.
    pub(super) fn is_current(self, shared: bool) -> bool {
        self.number == MIGRATIONS.len() && (self.in_table || !shared)
    }
}

/// Finds out what the file is. It changes nothing. `shared`: whether it may be an application's.
pub(super) fn identify(conn: &Connection, file: &File, shared: bool) -> Result<Version, Trouble> {
    if let Some(version) = version_in_table(conn)? {
        return Ok(Version { number: known_version(version, file)?, in_table: true });
    }
    let application: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version: i32 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if application == APPLICATION_ID {
        return Ok(Version { number: known_version(version, file)?, in_table: false });
    }
    let tables = |which: &str| -> rusqlite::Result<bool> {
        conn.query_row(&format!("SELECT EXISTS (SELECT 1 FROM sqlite_schema {which})"), [], |row| row.get(0))
    };
    let is_empty = application == 0 && version == 0 && !tables("")?;
    if !is_empty && !shared {
        let reason = "it belongs to another program: give Photon a file of its own, or say that the file is yours with \
                      SqliteOptions::shared (\"sqlite:file?shared=true\" in a URL)";
        return Err(file.error(StoreErrorKind::Corrupt, reason).into());
    }
    if !is_empty && tables("WHERE name LIKE 'photon\\_%' ESCAPE '\\'")? {
        let reason =
            "it holds tables that are named like Photon's and are not: rename those that start with photon_";
        return Err(file.error(StoreErrorKind::Corrupt, reason).into());
    }
    Ok(Version { number: 0, in_table: false })
}

/// Checks that the file, as a connection of the user's sees it, has the latest version.
pub(super) fn check_current(conn: &Connection, file: &File) -> Result<(), Trouble> {
    if identify(conn, file, true)?.number == MIGRATIONS.len() {
        return Ok(());
    }
    let reason = "it holds no log of this version, as the transaction sees it: begin the transaction after Photon was \
                  built";
    Err(file.error(StoreErrorKind::Refused, reason).into())
}

/// The version of a file that is an application's.
fn version_in_table(conn: &Connection) -> rusqlite::Result<Option<i32>> {
    let is_there: bool = conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'photon_version')",
        [],
        |row| row.get(0),
    )?;
    if !is_there {
        return Ok(None);
    }
    conn.query_row("SELECT version FROM photon_version", [], |row| row.get(0)).map(Some)
}

fn known_version(version: i32, file: &File) -> Result<usize, Trouble> {
    let latest = MIGRATIONS.len();
    match usize::try_from(version) {
        Ok(version) if (1..=latest).contains(&version) => Ok(version),
        _ => {
            let reason = format!(
                "it has version {version}, this program knows versions up to {latest}: run a newer Photon on it"
            );
            Err(file.error(StoreErrorKind::Corrupt, reason).into())
        }
    }
}

/// Brings the file to the latest version. Several processes may do it at once: one does the work.
pub(super) fn migrate(conn: &Connection, file: &File, shared: bool) -> Result<(), Trouble> {
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let done = migrate_within(conn, file, shared);
    if done.is_err() && !conn.is_autocommit() {
        // The first error says more than one of the way back.
        let _ = conn.execute_batch("ROLLBACK");
    }
    done
}

fn migrate_within(conn: &Connection, file: &File, shared: bool) -> Result<(), Trouble> {
    let version = identify(conn, file, shared)?;
    for migration in &MIGRATIONS[version.number..] {
        conn.execute_batch(migration)?;
    }
    if !version.is_current(shared) {
        write_version(conn, shared || version.in_table)?;
    }
    conn.execute_batch("COMMIT")?;
    Ok(())
}

fn write_version(conn: &Connection, in_table: bool) -> rusqlite::Result<()> {
    if in_table {
        conn.execute_batch(
            "CREATE TABLE IF NOT EXISTS photon_version (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER NOT NULL)",
        )?;
        conn.execute("INSERT OR REPLACE INTO photon_version VALUES (1, ?1)", [MIGRATIONS.len()])?;
    } else {
        conn.pragma_update(None, "application_id", APPLICATION_ID)?;
        conn.pragma_update(None, "user_version", MIGRATIONS.len())?;
    }
    Ok(())
}
