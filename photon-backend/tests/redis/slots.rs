//! What a cluster would ask of the keys.

use photon_backend::redis::RedisStore;
use photon_backend::servers::Redis;
use photon_core::ids::{GroupName, Seq, Shard, SubscriptionId};
use photon_core::store::{EventLog, Sideline};
use redis::aio::MultiplexedConnection;

use crate::cases::{commit, own, register};
use crate::support::{event, open, other_program, read_all, run, topic};

/// What a publisher and an owner do all the time: append, read, commit, and look for stored deliveries.
async fn work(store: &RedisStore, subscription: &SubscriptionId, fence: photon_core::store::Fence) {
    let name = &subscription.topic;
    let mut deduplicated = event(2, 3);
    deduplicated.dedup_id = Some("once".to_owned());
    let events = vec![event(0, 0), event(1, 1), event(2, 2), deduplicated];
    store.append(name, events).await.unwrap();
    for shard in 0..3 {
        read_all(store, name, shard).await;
    }
    commit(store, subscription, fence, Seq(1)).await;
    store.heads(subscription, Shard(0), Seq::ZERO, 10).await.unwrap();
    store.rows_in(subscription, Shard(0), Seq::ZERO, Seq(10)).await.unwrap();
    store.announce_trim(name, Shard(0), Seq(1)).await.unwrap();
    store.trim(name, Shard(0), Seq(1)).await.unwrap();
}

/// The keys of every script that the server ran since its slow log took everything.
async fn scripts_that_ran(admin: &mut MultiplexedConnection) -> Vec<Vec<String>> {
    type Entry = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let entries = run(admin, &["SLOWLOG", "GET", "-1"]).await;
    let entries: Vec<Entry> = redis::from_redis_value(entries).unwrap();
    let keys = |(_, _, _, command, ..): Entry| {
        let words: Vec<String> = command.iter().map(|word| String::from_utf8_lossy(word).into()).collect();
        let count = words.get(2).and_then(|count| count.parse::<usize>().ok())?;
        (words[0] == "EVALSHA").then(|| words[3..3 + count].to_vec())
    };
    entries.into_iter().filter_map(keys).collect()
}

async fn slot(admin: &mut MultiplexedConnection, key: &str) -> redis::Value {
    run(admin, &["CLUSTER", "KEYSLOT", key]).await
}

/// A script of the hot path touches the keys of one shard, and a cluster would have all of them in one slot.
pub(crate) async fn the_scripts_of_the_hot_path_keep_to_one_slot() {
    let (redis, cluster) = (Redis::start_new(&[]), Redis::start_new(&["--cluster-enabled", "yes"]));
    let (store, mut admin) = (open(&redis.url()).await, other_program(&redis.url()).await);
    let mut judge = other_program(&cluster.url()).await;
    let name = topic(&store, "orders", 3).await;
    let subscription = SubscriptionId::new(name, GroupName::new("billing").unwrap());
    register(&store, &subscription).await;
    let fence = own(&store, &subscription).await;
    run(&mut admin, &["CONFIG", "SET", "slowlog-max-len", "10000"]).await;
    run(&mut admin, &["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await;
    work(&store, &subscription, fence).await;
    run(&mut admin, &["CONFIG", "SET", "slowlog-log-slower-than", "-1"]).await;
    let scripts = scripts_that_ran(&mut admin).await;
    assert!(scripts.len() >= 8, "{scripts:?}");
    for keys in scripts {
        let first = slot(&mut judge, &keys[0]).await;
        for key in &keys {
            assert_eq!(slot(&mut judge, key).await, first, "one script touches {keys:?}");
        }
    }
}
