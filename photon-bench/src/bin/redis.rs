//! The Redis store against the bare client's best loop.
//!
//! ```sh
//! cargo run --release -p photon-bench --bin redis
//! ```
//!
//! Starts a private server with `appendonly yes` and `appendfsync always`; `everysec` as the argument sets the latter
//! to that. All write payloads of 200 bytes, 512 at a time, and wait for the answer before the next. The bare loop
//! sends 512 `XADD` in one pipeline, to as many streams as the topic has shards. Handled: a second connection reads with `XREAD BLOCK`, 512 at a time, and writes
//! its position after each, against `publish_all` and a subscription that counts. Rounds alternate; what counts is the
//! median of the ratios. The temporary directory should lie on a disk.

use std::sync::Arc;

use anyhow::Result;
use photon_backend::redis::{Durability, RedisOptions, RedisStore};
use photon_backend::servers::Redis;
use photon_bench::{BATCH, BATCHES, PAYLOAD, appends, handled};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;

async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

async fn bare_append(connection: &mut MultiplexedConnection, shards: u16) -> Result<()> {
    let mut pipeline = redis::pipe();
    for number in 0..BATCH {
        let stream = format!("bare{}", number % usize::from(shards));
        pipeline.cmd("XADD").arg(stream).arg("*").arg("e").arg(&PAYLOAD[..]).ignore();
    }
    Ok(pipeline.query_async(connection).await?)
}

/// Appends on one connection and reads on another, until everything is read.
async fn bare_handled(writer: &mut MultiplexedConnection, reader: &mut MultiplexedConnection) -> Result<()> {
    redis::cmd("DEL").arg("bare0").query_async::<()>(writer).await?;
    let writing = async {
        for _ in 0..BATCHES {
            bare_append(writer, 1).await?;
        }
        anyhow::Ok(())
    };
    let reading = async {
        let (mut last, mut seen) = ("0".to_owned(), 0);
        while seen < BATCH * BATCHES {
            let mut command = redis::cmd("XREAD");
            command.arg("COUNT").arg(BATCH).arg("BLOCK").arg(0).arg("STREAMS").arg("bare0").arg(&last);
            let found: StreamReadReply = command.query_async(reader).await?;
            for entry in found.keys.into_iter().flat_map(|stream| stream.ids) {
                let payload: Vec<u8> = entry.get("e").unwrap_or_default();
                seen += usize::from(std::hint::black_box(payload).len() == PAYLOAD.len());
                last = entry.id;
            }
            redis::cmd("SET").arg("position").arg(&last).query_async::<()>(reader).await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(writing, reading)?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let fsync = std::env::args().nth(1).unwrap_or_else(|| "always".to_owned());
    let server = Redis::start_new(&["--appendfsync", &fsync]);
    let url = server.url();
    let options = RedisOptions::from_url(&url)?.durability(Durability::EverySecond);
    let store = RedisStore::open(options).await?;
    let (mut writer, mut reader) = (connect(&url).await?, connect(&url).await?);
    println!("appendfsync {fsync}");
    for shards in [1, 8] {
        appends(&store, "Redis", shards, async || bare_append(&mut writer, shards).await).await?;
    }
    handled(Arc::new(store), "Redis", async || bare_handled(&mut writer, &mut reader).await).await
}
