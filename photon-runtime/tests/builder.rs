//! Making a Photon, and what keeps one from being made or started.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Order, memory};
use photon_backend::memory::MemoryStore;
use photon_core::descriptor::HandlerDescriptor;
use photon_core::handler::{FromDelivery, Outcome, State};
use photon_core::options::{Mode, Options};
use photon_core::registry::Registry;
use photon_core::topic::Topic;
use photon_runtime::{Error, Photon, PhotonBuilder, Publisher, variables};

const HANDLER: HandlerDescriptor = HandlerDescriptor {
    name: "charge",
    module: "shop::billing",
    topic: "orders.placed",
    descriptor: Some(Order::DESCRIPTOR),
    group: Some("billing"),
    mode: Mode::Group,
    options: Options::NONE,
    call: |_| Box::pin(async { Ok(Outcome::Done) }),
    needs: |_| {},
    file: "src/billing.rs",
    line: 12,
};

#[derive(Clone)]
struct Cards;

static CHARGE: HandlerDescriptor = HandlerDescriptor {
    needs: |needs| {
        State::<Cards>::needs(needs);
        Publisher::needs(needs);
    },
    ..HANDLER
};
static NOTIFY: HandlerDescriptor =
    HandlerDescriptor { name: "notify", file: "src/mail.rs", line: 40, ..HANDLER };
static DIGEST: HandlerDescriptor = HandlerDescriptor {
    name: "digest",
    group: None,
    mode: Mode::Durable,
    options: Options { concurrency: Some(0), ..Options::NONE },
    file: "src/mail.rs",
    line: 55,
    ..HANDLER
};

fn with(handlers: &[&'static HandlerDescriptor]) -> PhotonBuilder {
    memory().registry(Registry::new(handlers.to_vec(), vec![Order::DESCRIPTOR]))
}

async fn config_error(builder: PhotonBuilder) -> String {
    match builder.build().await {
        Err(Error::Config(problems)) => problems.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn without_an_engine_the_error_says_what_to_call() {
    let error = config_error(Photon::builder()).await;
    assert!(
        error.contains(".sqlite(") && error.contains(".memory()") && error.contains("PHOTON_URL"),
        "{error}"
    );
}

#[tokio::test]
async fn two_engines_contradict_each_other() {
    let error = config_error(memory().store(Arc::new(MemoryStore::new()))).await;
    assert!(error.contains(".memory() and .store(...)"), "{error}");
    let error = config_error(memory().memory()).await;
    assert!(error.contains("2 times"), "{error}");
}

#[tokio::test]
async fn p12_all_mistakes_of_the_builder_are_listed_at_once() {
    let builder = memory()
        .from_url("mysql://me:hunter2@host/db")
        .instance("pod 1")
        .group(3, 3)
        .max_payload(0)
        .lease_ttl(Duration::ZERO)
        .drain_timeout(Duration::MAX)
        .state(7u32)
        .state(8u32)
        .only(["nobody"]);
    let error = config_error(builder).await;
    for part in [
        "8 problems",
        "no engine for \"mysql\"",
        "instance id \"pod 1\"",
        "instance 3 of 3 does not exist",
        "largest payload is 0",
        "lease time",
        "drain timeout",
        "u32 is given twice",
        "no handler has the group \"nobody\"",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert!(!error.contains("hunter2"));
}

#[tokio::test]
async fn the_settings_can_be_read_back() {
    let photon = memory()
        .instance("pod-1")
        .group(1, 3)
        .max_payload(77)
        .drain_timeout(Duration::from_secs(1))
        .lease_ttl(Duration::from_secs(2))
        .allow_no_handlers()
        .options(Options { prefetch: Some(3), ..Options::NONE })
        .options(Options { window: Some(30), ..Options::NONE })
        .build()
        .await
        .unwrap();
    let config = photon.config();
    assert_eq!(config.instance.as_ref().unwrap().as_str(), "pod-1");
    assert_eq!((config.group.index, config.group.count, config.max_payload), (1, 3, Some(77)));
    assert_eq!((config.drain_timeout, config.lease_ttl), (Duration::from_secs(1), Duration::from_secs(2)));
    let options =
        config.options(&Options { prefetch: Some(9), timeout: Some(Duration::MAX), ..Options::NONE });
    assert_eq!((options.prefetch, options.window, options.timeout), (Some(3), Some(30), Some(Duration::MAX)));
    photon.check().unwrap();
}

#[tokio::test]
async fn engines_are_named_by_url() {
    let photon = Photon::builder().from_url("memory:").build().await.unwrap();
    assert_eq!(photon.store().engine(), "memory");
    assert!(format!("{photon:?}").contains("memory"));
}

#[cfg(not(feature = "sqlite"))]
#[tokio::test]
async fn an_engine_that_was_not_built_in_is_named() {
    let error = Photon::builder().from_url("sqlite:orders.db").build().await.unwrap_err().to_string();
    assert!(error.contains("enable the feature \"sqlite\""), "{error}");
}

/// Runs one test of this file again in a process with these variables.
fn again_with(test: &str, variables: &[(&str, &str)]) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test]).env("PHOTON_SIM_CHILD", "1").envs(variables.iter().copied());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn is_child() -> bool {
    std::env::var_os("PHOTON_SIM_CHILD").is_some()
}

#[tokio::test]
async fn the_environment_is_read_when_asked_for_and_wins() {
    if !is_child() {
        let variables = [("PHOTON_URL", "memory:"), ("PHOTON_MAX_PAYLOAD", "2KiB"), ("PHOTON_WINDOW", "9")];
        return again_with("the_environment_is_read_when_asked_for_and_wins", &variables);
    }
    let builder = || Photon::builder().max_payload(7).options(Options { window: Some(8), ..Options::NONE });
    let options = Options { window: Some(7), prefetch: Some(7), ..Options::NONE };
    let without = builder().memory().build().await.unwrap();
    assert_eq!((without.config().max_payload, without.config().options(&options).window), (Some(7), Some(8)));
    let with = builder().from_url("sqlite:never-opened.db").from_env().unwrap().build().await.unwrap();
    assert_eq!(with.store().engine(), "memory");
    let merged = with.config().options(&options);
    assert_eq!((with.config().max_payload, merged.window, merged.prefetch), (Some(2_048), Some(9), Some(7)));
}

#[test]
fn p12_mistakes_in_the_environment_are_found() {
    if !is_child() {
        let variables = [("PHOTON_URL", "mysql://me:hunter2@host"), ("PHOTON_WINDOWS", "9")];
        return again_with("p12_mistakes_in_the_environment_are_found", &variables);
    }
    let Err(Error::Config(problems)) = Photon::builder().from_env() else { panic!("it was accepted") };
    let text = problems.to_string();
    assert!(text.contains("mysql://***@host") && text.contains("did you mean PHOTON_WINDOW?"), "{text}");
}

#[tokio::test]
async fn p12_a_timeout_that_somebody_asked_for_fits_into_the_drain() {
    let with_drain = async |drain: Duration, timeout: Option<Duration>| {
        let options = Options { timeout, ..Options::NONE };
        let photon =
            with(&[&CHARGE]).state(Cards).drain_timeout(drain).options(options).build().await.unwrap();
        photon.check().map_err(|error| error.to_string())
    };
    let (long, short) = (Duration::from_secs(9), Duration::from_secs(5));
    let error = with_drain(short, Some(long)).await.unwrap_err();
    assert!(error.contains("timeout 9s, over the drain limit of 5s"), "{error}");
    for (drain, timeout) in [(long, Some(short)), (short, None), (Duration::ZERO, Some(long))] {
        with_drain(drain, timeout).await.unwrap();
    }
}

#[tokio::test]
async fn p12_the_check_lists_all_problems_with_their_places() {
    let photon = with(&[&CHARGE, &NOTIFY, &DIGEST]).build().await.unwrap();
    let error = photon.check().unwrap_err();
    assert!(matches!(error, Error::Start(_)));
    let error = error.to_string();
    for part in [
        "Photon cannot start: 4 problems",
        "src/billing.rs:12  charge  needs State<Cards>",
        "src/mail.rs:40     notify  same subscription",
        "src/mail.rs:55     digest  concurrency is 0",
        "src/mail.rs:55     digest  is durable",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let options = Options { concurrency: Some(4), ..Options::NONE };
    let fixed = with(&[&CHARGE, &DIGEST]).state(Cards).instance("pod-1").options(options);
    fixed.build().await.unwrap().check().unwrap();
}

#[tokio::test]
async fn unlinked_handlers_the_check_says_how_to_link_them() {
    let error = with(&[]).build().await.unwrap().check().unwrap_err().to_string();
    assert!(error.contains("use my_handlers as _;") && error.contains(".allow_no_handlers()"), "{error}");
    with(&[]).allow_no_handlers().build().await.unwrap().check().unwrap();
}

#[tokio::test]
async fn only_some_groups_can_be_worked_for() {
    let photon = with(&[&CHARGE, &DIGEST]).only(["shop::billing::digest"]).build().await.unwrap();
    let names: Vec<_> = photon.registry().handlers.iter().map(|handler| handler.name).collect();
    assert_eq!(names, ["digest"]);
}

#[test]
fn the_environment_variables_are_documented() {
    assert!(variables().len() > 20);
    assert!(
        variables().iter().all(|variable| variable.name.starts_with("PHOTON_") && !variable.doc.is_empty())
    );
}
