//! The Postgres store against the bare client's best loops.
//!
//! ```sh
//! cargo run --release -p photon-bench --bin postgres
//! ```
//!
//! Starts a private server with `fsync` and `synchronous_commit` on; `off` as the argument sets the latter to that.
//! Both sides write payloads of 200 bytes, 512 a statement, one statement at a time. The bare loop inserts ready columns
//! by `unnest`, with a prepared statement, into a table with the same columns and the same primary key, spread over as
//! many shards. Handled: a second connection asks for the 512 rows after its position and writes the position after
//! each, against a subscription that counts. Rounds alternate; what counts is the median of the ratios. The temporary
//! directory should lie on a disk.

use std::sync::Arc;

use anyhow::Result;
use photon_backend::postgres::{PostgresOptions, PostgresStore};
use photon_backend::servers::{self, Postgres};
use photon_bench::{BATCH, BATCHES, PAYLOAD, appends, handled};
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

const HEADERS: [u8; 1] = [0];

/// Writes into a table of its own.
struct Writer {
    client: Client,
    insert: Statement,
    shards: usize,
    /// The rows of each shard.
    rows: i64,
}

impl Writer {
    async fn new(url: &str, table: &str, shards: usize) -> Result<Self> {
        let client = connect(url).await?;
        client
            .batch_execute(&format!(
                "CREATE TABLE {table} (topic int4 NOT NULL, shard int4 NOT NULL, seq int8 NOT NULL,
                    time int8 NOT NULL, id uuid NOT NULL, key bytea, headers bytea NOT NULL,
                    payload bytea NOT NULL, PRIMARY KEY (topic, shard, seq))"
            ))
            .await?;
        let insert = client
            .prepare(&format!(
                "INSERT INTO {table} SELECT 1, u.shard, u.seq, 0, u.id, NULL, u.headers, u.payload
                 FROM unnest($1::int4[], $2::int8[], $3::uuid[], $4::bytea[], $5::bytea[])
                     u(shard, seq, id, headers, payload)"
            ))
            .await?;
        Ok(Self { client, insert, shards, rows: 0 })
    }

    async fn append(&mut self) -> Result<()> {
        let each = BATCH / self.shards;
        let shards: Vec<i32> = (0..i32::try_from(self.shards)?).flat_map(|shard| vec![shard; each]).collect();
        let rows = i64::try_from(each)?;
        let seqs: Vec<i64> = (0..self.shards).flat_map(|_| self.rows + 1..=self.rows + rows).collect();
        let ids: Vec<Uuid> = seqs.iter().map(|_| Uuid::now_v7()).collect();
        let (headers, payloads) = (vec![&HEADERS[..]; BATCH], vec![&PAYLOAD[..]; BATCH]);
        self.client.execute(&self.insert, &[&shards, &seqs, &ids, &headers, &payloads]).await?;
        self.rows += rows;
        Ok(())
    }
}

/// Reads a table on a connection of its own.
struct Reader {
    client: Client,
    read: Statement,
    keep: Statement,
    position: i64,
}

impl Reader {
    async fn new(url: &str, table: &str) -> Result<Self> {
        let client = connect(url).await?;
        client.batch_execute("CREATE TABLE place (at int8 NOT NULL); INSERT INTO place VALUES (0)").await?;
        let read = format!(
            "SELECT seq, time, id, key, headers, payload FROM {table}
             WHERE topic = 1 AND shard = 0 AND seq > $1 ORDER BY seq LIMIT {BATCH}"
        );
        let (read, keep) = (client.prepare(&read).await?, client.prepare("UPDATE place SET at = $1").await?);
        Ok(Self { client, read, keep, position: 0 })
    }

    /// Reads on until a round is read. There is nothing to wait on, so it asks again at once.
    async fn follow(&mut self) -> Result<()> {
        let mut seen = 0;
        while seen < BATCH * BATCHES {
            let rows = self.client.query(&self.read, &[&self.position]).await?;
            let Some(last) = rows.last() else { continue };
            self.position = last.try_get(0)?;
            for row in &rows {
                let payload: &[u8] = row.try_get(5)?;
                seen += usize::from(std::hint::black_box(payload).len() == PAYLOAD.len());
            }
            self.client.execute(&self.keep, &[&self.position]).await?;
        }
        Ok(())
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::main]
async fn main() -> Result<()> {
    let commit = std::env::args().nth(1).unwrap_or_else(|| "on".to_owned());
    let options = servers::PostgresOptions::new().set("synchronous_commit", &commit);
    let server = Postgres::start_new(&options);
    let url = server.url("postgres");
    let store = PostgresStore::open(PostgresOptions::from_url(&url)?).await?;
    println!("synchronous_commit {commit}");
    for shards in [1, 8] {
        let mut writer = Writer::new(&url, &format!("bare_{shards}"), shards.into()).await?;
        appends(&store, "Postgres", shards, async || writer.append().await).await?;
    }
    let mut writer = Writer::new(&url, "bare_handled", 1).await?;
    let mut reader = Reader::new(&url, "bare_handled").await?;
    let bare = async || {
        let writing = async {
            for _ in 0..BATCHES {
                writer.append().await?;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(writing, reader.follow())?;
        Ok(())
    };
    handled(Arc::new(store), "Postgres", bare).await
}
