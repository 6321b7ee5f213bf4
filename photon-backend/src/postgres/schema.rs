//! The tables, and how a database gets them.

use photon_core::error::{StoreError, StoreErrorKind};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::error::{Effect, Target, Trouble};
use super::param::params;
use super::pool::Session;

/// The oldest server that is good enough, as `server_version_num` has it.
const OLDEST_SERVER: i32 = 140_000;

/// The statements that lead from each version to the next; a schema of version n has seen the first n. Entries
/// are never changed once released, only added.
const MIGRATIONS: &[&str] = &[include_str!("schema/1.sql")];

/// Statements with the name of the schema in place of each `@`.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    name: String,
    prefix: String,
}

impl Schema {
    /// A schema whose name was found to need no quotes.
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), prefix: format!("\"{name}\".") }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The statement for this schema.
    pub(super) fn sql(&self, statement: &str) -> String {
        statement.replace('@', &self.prefix)
    }
}

/// What a database holds under the name of the schema.
enum Found {
    /// No schema, or one without a table of ours.
    Nothing,
    /// Photon's tables of this version.
    Version(usize),
    /// A table `meta` that is not ours.
    Foreign,
}

/// Checks the server and brings the schema to the latest version. Many may do it at once: one does the work. With
/// nothing to do it needs no right but to read.
pub(super) async fn prepare(
    session: &Session<'_>,
    schema: &Schema,
    target: &Target,
) -> Result<(), StoreError> {
    let client = session.client();
    session.run(Effect::Read, check_server(client, target)).await?;
    let found = session.run(Effect::Read, look(client, schema)).await?;
    if is_current(&found, schema, target)? {
        return Ok(());
    }
    session.transact(migrate(client, schema, target)).await
}

async fn check_server(client: &Client, target: &Target) -> Result<(), Trouble> {
    let row = client
        .query_typed_one(
            "SELECT current_setting('server_version_num')::int4, current_setting('server_version')",
            &[],
        )
        .await?;
    if row.try_get::<_, i32>(0)? >= OLDEST_SERVER {
        return Ok(());
    }
    let version: String = row.try_get(1)?;
    let reason = format!("it is version {version}, Photon needs 14 or later: upgrade it");
    Err(target.error(StoreErrorKind::Refused, reason).into())
}

async fn look(client: &Client, schema: &Schema) -> Result<Found, Trouble> {
    let columns = client
        .query_typed_one(
            "SELECT count(*) FILTER (WHERE column_name IN ('photon_version', 'photon')), count(*)
             FROM information_schema.columns WHERE table_schema = $1 AND table_name = 'meta'",
            params![schema.name()],
        )
        .await?;
    match (columns.try_get::<_, i64>(0)?, columns.try_get::<_, i64>(1)?) {
        (_, 0) => return Ok(Found::Nothing),
        (2, 2) => {}
        _ => return Ok(Found::Foreign),
    }
    let row = client.query_typed_opt(&schema.sql("SELECT photon_version FROM @meta"), &[]).await?;
    let Some(row) = row else { return Ok(Found::Foreign) };
    Ok(usize::try_from(row.try_get::<_, i32>(0)?).map_or(Found::Foreign, Found::Version))
}

/// Whether nothing is to be done.
fn is_current(found: &Found, schema: &Schema, target: &Target) -> Result<bool, StoreError> {
    match *found {
        Found::Version(version) if version > MIGRATIONS.len() => {
            let reason = format!(
                "its schema {} has version {version}, this program knows versions up to {}: run a newer Photon",
                schema.name(),
                MIGRATIONS.len()
            );
            Err(target.error(StoreErrorKind::Corrupt, reason))
        }
        Found::Version(version) => Ok(version == MIGRATIONS.len()),
        Found::Nothing => Ok(false),
        Found::Foreign => Err(foreign(schema, target, "meta")),
    }
}

fn foreign(schema: &Schema, target: &Target, table: &str) -> StoreError {
    let reason = format!(
        "its schema {} holds a {table} that is not Photon's: give Photon a schema of its own with schema=NAME",
        schema.name()
    );
    target.error(StoreErrorKind::Corrupt, reason)
}

async fn migrate(client: &Client, schema: &Schema, target: &Target) -> Result<(), Trouble> {
    client
        .query_typed(
            "SELECT pg_advisory_xact_lock(hashtextextended('photon schema ' || $1, 0))",
            params![schema.name()],
        )
        .await?;
    // Somebody else may have done it meanwhile.
    let found = look(client, schema).await?;
    if is_current(&found, schema, target)? {
        return Ok(());
    }
    let version = match found {
        Found::Version(version) => version,
        Found::Nothing | Found::Foreign => {
            make_schema(client, schema).await?;
            0
        }
    };
    for migration in &MIGRATIONS[version..] {
        client
            .batch_execute(&schema.sql(&without_comments(migration)))
            .await
            .map_err(|error| taken(error, schema, target))?;
    }
    client
        .execute_typed(
            &schema.sql("UPDATE @meta SET photon_version = $1"),
            params![i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)],
        )
        .await?;
    Ok(())
}

/// Makes the schema, if it is not there: to name one that is needs no right to make schemas.
async fn make_schema(client: &Client, schema: &Schema) -> Result<(), Trouble> {
    let there =
        client.query_typed_one("SELECT to_regnamespace($1) IS NOT NULL", params![schema.name()]).await?;
    if !there.try_get::<_, bool>(0)? {
        client.batch_execute(&format!("CREATE SCHEMA \"{}\"", schema.name())).await?;
    }
    let meta = "CREATE TABLE @meta (photon bool PRIMARY KEY CHECK (photon), photon_version int4 NOT NULL);
                INSERT INTO @meta VALUES (true, 0)";
    client.batch_execute(&schema.sql(meta)).await?;
    Ok(())
}

/// A statement that makes something found the name in use.
fn taken(error: tokio_postgres::Error, schema: &Schema, target: &Target) -> Trouble {
    match error.as_db_error() {
        Some(db) if matches!(*db.code(), SqlState::DUPLICATE_TABLE | SqlState::DUPLICATE_FUNCTION) => {
            let reason = format!(
                "its schema {} holds something that is not Photon's ({}): give Photon a schema of its own with schema=NAME",
                schema.name(),
                db.message()
            );
            target.error(StoreErrorKind::Corrupt, reason).with_source(error).into()
        }
        _ => error.into(),
    }
}

/// Comments may hold an `@`.
fn without_comments(sql: &str) -> String {
    sql.lines().filter(|line| !line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n")
}
