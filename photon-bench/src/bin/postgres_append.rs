//! Appends of the Postgres store against the bare client's best loop.
//!
//! ```sh
//! cargo run --release -p photon-bench --bin postgres_append
//! ```
//!
//! Starts a private server with `fsync` and `synchronous_commit` on. Both write payloads of 200 bytes, 512 a
//! statement, one statement at a time, over one connection. The bare loop inserts ready columns by `unnest`, with a
//! prepared statement, into a table with the same columns and the same primary key. Rounds alternate; what counts is
//! the median of the ratios. The temporary directory should lie on a disk.

use std::time::Instant;

use anyhow::Result;
use photon_backend::postgres::{PostgresOptions, PostgresStore};
use photon_backend::servers::{self, Postgres};
use photon_core::event::NewEvent;
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Generation, Shard, TopicName};
use photon_core::store::{EventLog, TopicSpec};
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

const BATCH: usize = 512;
const BATCHES: u32 = 40;
const ROUNDS: usize = 9;
const PAYLOAD: [u8; 200] = [b'x'; 200];
const HEADERS: [u8; 1] = [0];

struct Bare {
    client: Client,
    insert: Statement,
    next: i64,
}

impl Bare {
    async fn new(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute(
                "CREATE TABLE bare (topic int4 NOT NULL, shard int4 NOT NULL, seq int8 NOT NULL,
                    time int8 NOT NULL, id uuid NOT NULL, key bytea, headers bytea NOT NULL,
                    payload bytea NOT NULL, PRIMARY KEY (topic, shard, seq))",
            )
            .await?;
        let insert = client
            .prepare(
                "INSERT INTO bare SELECT 1, 0, u.seq, 0, u.id, NULL, u.headers, u.payload
                 FROM unnest($1::int8[], $2::uuid[], $3::bytea[], $4::bytea[]) u(seq, id, headers, payload)",
            )
            .await?;
        Ok(Self { client, insert, next: 1 })
    }

    async fn append(&mut self) -> Result<()> {
        let end = self.next + i64::try_from(BATCH)?;
        let seqs: Vec<i64> = (self.next..end).collect();
        let ids: Vec<Uuid> = seqs.iter().map(|_| Uuid::now_v7()).collect();
        let (headers, payloads) = (vec![&HEADERS[..]; BATCH], vec![&PAYLOAD[..]; BATCH]);
        self.client.execute(&self.insert, &[&seqs, &ids, &headers, &payloads]).await?;
        self.next = end;
        Ok(())
    }
}

fn batch(shards: u16) -> Vec<NewEvent> {
    let event = |number: usize| NewEvent {
        id: EventId(Uuid::now_v7()),
        shard: Shard(u16::try_from(number % usize::from(shards)).unwrap_or(0)),
        key: None,
        headers: Headers::new(),
        payload: bytes::Bytes::from_static(&PAYLOAD),
        dedup_id: None,
    };
    (0..BATCH).map(event).collect()
}

async fn topic(store: &PostgresStore, name: &str, shards: u16) -> Result<TopicName> {
    let name = TopicName::new(name)?;
    let spec = TopicSpec { name: name.clone(), shards, key: None, generation: Generation(Uuid::new_v4()) };
    store.ensure_topic(&spec).await?;
    Ok(name)
}

#[tokio::main]
async fn main() -> Result<()> {
    let server = Postgres::start_new(&servers::PostgresOptions::new());
    let url = server.url("postgres");
    let store = PostgresStore::open(PostgresOptions::from_url(&url)?).await?;
    let mut bare = Bare::new(&url).await?;
    for shards in [1, 8] {
        let name = topic(&store, &format!("bench-{shards}"), shards).await?;
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        // The first round warms both up.
        for round in 0..=ROUNDS {
            let began = Instant::now();
            for _ in 0..BATCHES {
                bare.append().await?;
            }
            let of_bare = began.elapsed().as_secs_f64();
            let began = Instant::now();
            for _ in 0..BATCHES {
                store.append(&name, batch(shards)).await?;
            }
            let of_store = began.elapsed().as_secs_f64();
            if round > 0 {
                ratios.push(of_bare / of_store);
                rates.push(f64::from(BATCHES) * 512.0 / of_store);
            }
        }
        ratios.sort_by(f64::total_cmp);
        rates.sort_by(f64::total_cmp);
        println!(
            "{shards} shards: {:.0} events/s, {:.0} % of the bare loop (median of {ROUNDS}, {:.0} to {:.0} %)",
            rates[ROUNDS / 2],
            ratios[ROUNDS / 2] * 100.0,
            ratios[0] * 100.0,
            ratios[ROUNDS - 1] * 100.0
        );
    }
    Ok(())
}
