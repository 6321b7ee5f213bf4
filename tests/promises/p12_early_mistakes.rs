//! P12: mistakes are found at compile time (see the tests of `tests/ui`), else at start, all at once.
use photon::prelude::*;
use photon::{Error, Options, Photon};

use crate::support::{Probe, World};

on_every_engine!(
    p12_a_start_lists_all_problems_with_their_places,
    p12_a_failed_start_has_changed_nothing_and_can_be_repeated,
    p12_a_changed_shard_count_is_a_problem_of_the_topic,
    p12_a_program_without_handlers_is_told_so,
    p12_a_second_executor_is_refused,
);

#[derive(Clone)]
struct Database;

#[topic(name = "twins", shards = 2)]
#[derive(Serialize, Deserialize)]
struct Twin {}

const FIRST: u32 = line!() + 1;
#[subscribe(group = "twins")]
async fn first(_: Twin) {}

const SECOND: u32 = line!() + 1;
#[subscribe(group = "twins")]
async fn second(_: Twin) {}

const NEEDY: u32 = line!() + 1;
#[subscribe(group = "needy", durable)]
async fn needy(_: Twin, State(_): State<Database>) {}

/// One line of the list for each problem, with single spaces.
fn lines(error: &Error) -> Vec<String> {
    let text = error.to_string();
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn place(line: u32) -> String {
    format!("{}:{line}", file!())
}

async fn p12_a_start_lists_all_problems_with_their_places(world: World) {
    let photon = Photon::builder()
        .store(world.store.clone())
        .only(["twins", "needy"])
        .options(Options { concurrency: Some(9), window: Some(3), max_attempts: Some(0), ..Options::NONE })
        .build()
        .await
        .unwrap();
    let error = photon.start_executor().await.unwrap_err();
    let lines = lines(&error);
    assert_eq!(lines[0], "Photon cannot start: 9 problems", "{error}");
    let has = |at: u32, parts: &[&str]| {
        let found =
            lines.iter().any(|line| line.starts_with(&place(at)) && parts.iter().all(|p| line.contains(p)));
        assert!(found, "{at} {parts:?} in {error}");
    };
    has(SECOND, &["second", "same subscription (\"twins\", \"twins\") as first at", &place(FIRST)]);
    has(NEEDY, &["needy", "needs State<Database>", ".state("]);
    has(NEEDY, &["is durable", ".instance(", "PHOTON_INSTANCE"]);
    for at in [FIRST, SECOND, NEEDY] {
        has(at, &["window is 3, less than concurrency 9: raise window"]);
        has(at, &["max_attempts is 0, allowed are 1 to 1000"]);
    }
    // The same without a start.
    assert_eq!(photon.check().unwrap_err().to_string(), error.to_string());
}

async fn p12_a_failed_start_has_changed_nothing_and_can_be_repeated(world: World) {
    let photon =
        Photon::builder().store(world.store.clone()).only(["needy"]).instance("one").build().await.unwrap();
    for _ in 0..2 {
        let error = photon.start_executor().await.unwrap_err();
        assert!(matches!(error, Error::Start(_)), "{error:?}");
    }
    assert_eq!(world.store.list().await.unwrap(), []);
    assert!(world.store.members().await.unwrap().is_empty());
}

async fn p12_a_changed_shard_count_is_a_problem_of_the_topic(world: World) {
    let before = Photon::builder()
        .store(world.store.clone())
        .only(["main"])
        .state(Probe::default())
        .build()
        .await
        .unwrap();
    before.publish_raw(photon::DynamicTopic::new("steps").unwrap().shards(4), "x").await.unwrap();
    let spec = photon::store::TopicSpec {
        name: photon::TopicName::new("twins").unwrap(),
        shards: 5,
        key: None,
        generation: photon::Generation(uuid::Uuid::from_u128(1)),
    };
    world.store.ensure_topic(&spec).await.unwrap();
    let error = before.start_executor().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(file!()) && text.contains("\"twins\""), "{text}");
    assert!(text.contains('5') && text.contains('2'), "{text}");
}

async fn p12_a_program_without_handlers_is_told_so(world: World) {
    let nothing =
        || Photon::builder().store(world.store.clone()).registry(photon::Registry::new(vec![], vec![]));
    let error = nothing().build().await.unwrap().start_executor().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("use my_handlers as _;") && text.contains("manifest!"), "{text}");
    let photon = nothing().allow_no_handlers().build().await.unwrap();
    let executor = photon.start_executor().await.unwrap();
    photon.publish_raw("raw", "x").await.unwrap();
    assert!(executor.drain().await.unwrap().is_clean());
}

async fn p12_a_second_executor_is_refused(world: World) {
    let instance = world.start(["main"]).await;
    let error = instance.photon.start_executor().await.unwrap_err();
    assert!(
        matches!(error, Error::Conflict(_)) && error.to_string().contains("build another Photon"),
        "{error:?}"
    );
    let photon = instance.photon.clone();
    instance.drain().await.unwrap();
    let error = photon.start_executor().await.unwrap_err();
    assert!(matches!(error, Error::Conflict(_) | Error::Closed), "{error:?}");
}
