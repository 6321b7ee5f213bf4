//! What happens when servers and connections fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use photon_backend::nats::NatsStore;
use photon_backend::servers::{Nats, Proxy, Server};
use photon_core::error::StoreErrorKind;
use photon_core::ids::{GroupName, Incarnation, InstanceId, Seq, Shard, SubscriptionId, TopicName};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoint, Checkpoints, Claim, ClaimResult, Commit, EventLog, Fence, Leases, Member, Registration,
    ShardClaim, ShardCommit, ShardOutcome,
};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;
use uuid::Uuid;

use crate::common::{Publishers, nothing_is_lost_when_it_is_killed};
use crate::support::{event, numbers, open, options, read_all, topic, wait_for};

/// An owner of one shard, as one process after another.
struct Owner {
    store: NatsStore,
    id: SubscriptionId,
    incarnation: Incarnation,
    fence: Fence,
}

impl Owner {
    async fn take(store: &NatsStore, id: &SubscriptionId, replace: Option<Incarnation>) -> Option<Self> {
        let incarnation = Incarnation(Uuid::new_v4());
        let member = Member {
            incarnation,
            instance: InstanceId::new("one").unwrap(),
            host: String::new(),
            pid: 1,
            process_start: String::new(),
        };
        store.join(&member).await.ok()?;
        if let Some(before) = replace {
            store.leave(before).await.ok()?;
        }
        let shard = ShardClaim { subscription: id.clone(), shard: Shard(0) };
        match store.claim(incarnation, &[Claim { shard, replace: None }]).await.ok()?.pop()? {
            ClaimResult::Granted(fence) => {
                Some(Self { store: store.clone(), id: id.clone(), incarnation, fence })
            }
            ClaimResult::Held(_) => None,
        }
    }

    /// Moves the watermark. `None`: it is not known whether it did.
    async fn commit(&self, watermark: u64) -> Option<ShardOutcome> {
        let checkpoint = Checkpoint { watermark: Seq(watermark), ranges: Vec::new() };
        let shard = ShardCommit {
            shard: Shard(0),
            fence: self.fence,
            puts: Vec::new(),
            checkpoint,
            ends: Vec::new(),
            trials: Vec::new(),
        };
        let commit = Commit { subscription: self.id.clone(), shards: vec![shard] };
        self.store.commit(&commit).await.ok()?.pop()
    }
}

async fn register(store: &NatsStore, topic: &TopicName) -> SubscriptionId {
    let id = SubscriptionId::new(topic.clone(), GroupName::new("billing").unwrap());
    let registration = Registration {
        subscription: id.clone(),
        start: Start::Earliest,
        mode: Mode::Group,
        expire_after: None,
    };
    store.register(&registration).await.unwrap();
    id
}

/// Killed with -9 under load and restarted, several times: what was acknowledged is there, once and in order; what
/// was not is there only if the store had said that it may be.
pub(crate) async fn p01_nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let server = spawn_blocking(|| Nats::start_new(&[])).await.unwrap();
    let store = open(&server.url()).await;
    nothing_is_lost_when_it_is_killed(server, &store).await;
}

/// The event is stored, the answer is cut off in the middle: the publisher hears that it does not know.
pub(crate) async fn an_answer_that_is_cut_off_is_unknown() {
    let server = Nats::start_new(&[]);
    let proxy = Proxy::before(server.addr()).await.unwrap();
    let store = open(&format!("nats://{}", proxy.addr())).await;
    let direct = open(&server.url()).await;
    let name = topic(&store, "orders", 1).await;
    let mut unknown = false;
    for number in 0..20 {
        let connected = || async { store.bounds(&name).await.is_ok() };
        wait_for("the connection is there", connected).await;
        proxy.cut_after(8);
        let appended = store.append(&name, vec![event(0, number)]).await;
        let stored = numbers(&read_all(&direct, &name, 0).await).contains(&number);
        match appended.map_err(|error| error.kind()) {
            Ok(_) => assert!(stored, "acknowledged, and not stored"),
            Err(StoreErrorKind::Unavailable) => assert!(!stored, "it was said that nothing was written"),
            Err(kind) => {
                assert_eq!(kind, StoreErrorKind::Unknown);
                unknown |= stored;
            }
        }
        proxy.forward();
        if unknown {
            break;
        }
    }
    assert!(unknown, "an answer was cut off");
    let back = || async { store.append(&name, vec![event(0, u64::MAX)]).await.is_ok() };
    wait_for("it takes events again", back).await;
    let stored = numbers(&read_all(&direct, &name, 0).await);
    assert!(stored.windows(2).all(|w| w[0] < w[1]), "each once: {stored:?}");
}

/// Every wait ends: with a server that says nothing, and with one that is not there.
pub(crate) async fn p10_a_server_that_stalls_fails_in_time_and_comes_back() {
    let server = Nats::start_new(&[]);
    let proxy = Proxy::before(server.addr()).await.unwrap();
    let store = open(&format!("nats://{}", proxy.addr())).await;
    let name = topic(&store, "orders", 1).await;
    store.append(&name, vec![event(0, 0)]).await.unwrap();
    proxy.stall();
    let began = Instant::now();
    let error = store.append(&name, vec![event(0, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    let error = store.bounds(&name).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
    proxy.refuse();
    let refused = || async {
        let error = store.append(&name, vec![event(0, 2)]).await.err();
        error.is_some_and(|error| {
            error.kind() == StoreErrorKind::Unavailable && error.to_string().contains("away")
        })
    };
    wait_for("it is told that the server is away", refused).await;
    proxy.forward();
    let back = || async { store.append(&name, vec![event(0, 3)]).await.is_ok() };
    wait_for("it comes back", back).await;
    let stored = numbers(&read_all(&store, &name, 0).await);
    assert!(stored.windows(2).all(|w| w[0] < w[1]), "each once and in order: {stored:?}");
}

/// Three servers that keep every stream together.
fn cluster() -> Vec<Nats> {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ports = [free(), free(), free()];
    let routes: Vec<String> = ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
    let routes = routes.join(",");
    (0..3)
        .map(|number| {
            let (name, listen) = (format!("n{number}"), format!("nats://127.0.0.1:{}", ports[number]));
            let args = ["--name", &name, "--cluster_name", "c", "--cluster", &listen, "--routes", &routes];
            Nats::start_new(&args)
        })
        .collect()
}

/// The number of the server that leads a stream.
async fn leader(client: &async_nats::Client, stream: &str) -> Option<usize> {
    let answer = client.request(format!("$JS.API.STREAM.INFO.{stream}"), "".into()).await.ok()?;
    let info: serde_json::Value = serde_json::from_slice(&answer.payload).ok()?;
    info["cluster"]["leader"].as_str()?.strip_prefix('n')?.parse().ok()
}

/// The leader of the log and that of the state are killed in turn; events are published and progress is written
/// meanwhile, by one owner after another.
pub(crate) async fn p01_p09_a_cluster_loses_nothing_when_its_leaders_are_killed() {
    let mut servers = spawn_blocking(cluster).await.unwrap();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("nats://{}?replicas=3", hosts.join(","));
    let opens = || async { NatsStore::open(options(&url)).await.is_ok() };
    wait_for("the cluster has a leader", opens).await;
    let store = open(&url).await;
    let name = topic(&store, "orders", 2).await;
    let id = register(&store, &name).await;
    let addresses: Vec<String> = hosts.iter().map(|host| format!("nats://{host}")).collect();
    let client = async_nats::ConnectOptions::new()
        .request_timeout(Some(Duration::from_secs(2)))
        .max_reconnects(None)
        .connect(addresses)
        .await
        .unwrap();
    let publishers = Publishers::start(&store, &name, 2);
    let owners = Owners::start(&store, &id);
    for stream in ["photon-log-orders", "photon-state", "photon-log-orders", "photon-state"] {
        publishers.go_on().await;
        owners.go_on().await;
        let mut leads = None;
        wait_for("the stream has a leader", async || {
            leads = leader(&client, stream).await;
            leads.is_some()
        })
        .await;
        let leads = leads.unwrap();
        servers = on_server(servers, leads, Server::kill).await;
        let other_leads = || async { leader(&client, stream).await.is_some_and(|now| now != leads) };
        wait_for("another server leads the stream", other_leads).await;
        servers = on_server(servers, leads, Server::start).await;
    }
    publishers.go_on().await;
    owners.go_on().await;
    let written = owners.stop().await;
    let loads = || async { store.load(&id).await.is_ok() };
    wait_for("the state can be read", loads).await;
    let found = store.load(&id).await.unwrap()[0].checkpoint.watermark.0;
    assert!(found >= written, "the progress is at {found}, and {written} was written");
    publishers.stop_and_check().await;
}

/// Does something to one of the servers that blocks the thread.
async fn on_server(servers: Vec<Nats>, index: usize, act: fn(&Server)) -> Vec<Nats> {
    let acted = spawn_blocking(move || {
        act(&servers[index]);
        servers
    });
    acted.await.unwrap()
}

/// One owner after another.
struct Owners {
    task: JoinHandle<()>,
    /// The last progress that is known to be written.
    written: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
}

impl Owners {
    fn start(store: &NatsStore, id: &SubscriptionId) -> Self {
        let (stop, stopped) = watch::channel(false);
        let written = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(own(store.clone(), id.clone(), written.clone(), stopped));
        Self { task, written, stop }
    }

    async fn go_on(&self) {
        let before = self.written.load(Ordering::Relaxed);
        // At least one of them is replaced on the way.
        let goes_on = || async { self.written.load(Ordering::Relaxed) >= before + 40 };
        wait_for("owners write progress", goes_on).await;
    }

    async fn stop(self) -> u64 {
        self.stop.send_replace(true);
        self.task.await.unwrap();
        self.written.load(Ordering::Relaxed)
    }
}

/// Writes progress as one owner after another, each of whom is replaced while it still believes to own the shard.
async fn own(store: NatsStore, id: SubscriptionId, written: Arc<AtomicU64>, stop: watch::Receiver<bool>) {
    let mut next = 0;
    let mut before: Option<Owner> = None;
    while !*stop.borrow() {
        let replaced = before.as_ref().map(|owner| owner.incarnation);
        let Some(owner) = Owner::take(&store, &id, replaced).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if let Some(late) = &before {
            let outcome = late.commit(next + 1_000_000).await;
            assert!(matches!(outcome, None | Some(ShardOutcome::Fenced)), "a late owner wrote: {outcome:?}");
        }
        for _ in 0..20 {
            next += 1;
            match owner.commit(next).await {
                Some(ShardOutcome::Committed { .. }) => written.store(next, Ordering::Relaxed),
                Some(ShardOutcome::Fenced) => panic!("the owner of the shard was fenced"),
                None => {}
            }
        }
        let found = store.load(&id).await.map(|loaded| loaded[0].checkpoint.watermark.0);
        assert!(
            found.as_ref().is_ok_and(|found| (written.load(Ordering::Relaxed)..=next).contains(found))
                || found.is_err(),
            "{found:?}"
        );
        before = Some(owner);
    }
}
