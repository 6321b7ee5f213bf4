//! Events that say what their handlers do, and the handlers.

use std::time::Duration;

use photon::prelude::*;

use super::probe::{Probe, What};

/// What a handler does with an event.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub enum Act {
    #[default]
    Done,
    /// Gives others a chance before it ends.
    Yield(u32),
    /// Ends when the test opens this gate.
    Wait(String),
    /// Never ends.
    Hang,
    /// Sleeps for so many milliseconds.
    Sleep(u64),
    /// Fails in its first attempts, so many.
    Fail(u32),
    /// Fails until the test opens this gate.
    Gated(String),
    /// Fails in its first attempt, and asks to be tried again after so many milliseconds.
    FailAfter(u64),
    /// Fails for good.
    Refuse,
    /// Fails for good, until the test opens this gate.
    RefuseUntil(String),
    /// Panics in its first attempts, before it waits for anything.
    PanicAtOnce(u32),
    /// Panics in its first attempts, after it waited.
    PanicLater(u32),
    /// Panics with a value that is no text.
    PanicOddly,
    /// Holds something that panics when it is dropped: at the end of the handler, or when it is broken off.
    Bomb { hang: bool },
    /// Asks once to be offered again after so many milliseconds.
    Defer(u64),
}

/// Hides the panics that an [`Act`] asked for: they would drown the others where the harness captures nothing.
pub fn keep_planned_panics_quiet() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.location().is_none_or(|place| place.file() != file!()) {
            tell(info);
        }
    }));
}

/// An event with a key.
#[topic(name = "steps", key = key, shards = 4)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub key: String,
    pub n: u64,
    pub act: Act,
    /// Makes it larger.
    #[serde(default)]
    pub padding: String,
}

/// An event without a key.
#[topic(name = "loose", shards = 4)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loose {
    pub n: u64,
    pub act: Act,
}

/// The same in a topic of one shard, where all places are in one row.
#[topic(name = "single", key = key, shards = 1)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Single {
    pub key: String,
    pub n: u64,
    pub act: Act,
}

pub fn single(key: &str, n: u64, act: Act) -> Single {
    Single { key: key.to_owned(), n, act }
}

pub fn step(key: &str, n: u64, act: Act) -> Step {
    Step { key: key.to_owned(), n, act, padding: String::new() }
}

pub fn loose(n: u64, act: Act) -> Loose {
    Loose { n, act }
}

#[subscribe(group = "main")]
async fn main_steps(step: Step, cx: Context, State(probe): State<Probe>) -> Result<Outcome, HandlerError> {
    act_out("main", &step.key, step.n, &step.act, &cx, &probe).await
}

/// Another subscription of the same topic, which minds its own business.
#[subscribe(group = "other")]
async fn other_steps(step: Step, cx: Context, State(probe): State<Probe>) -> Result<Outcome, HandlerError> {
    act_out("other", &step.key, step.n, &Act::Done, &cx, &probe).await
}

#[subscribe(group = "loose")]
async fn loose_ones(loose: Loose, cx: Context, State(probe): State<Probe>) -> Result<Outcome, HandlerError> {
    act_out("loose", "", loose.n, &loose.act, &cx, &probe).await
}

#[subscribe(group = "single")]
async fn singles(event: Single, cx: Context, State(probe): State<Probe>) -> Result<Outcome, HandlerError> {
    act_out("single", &event.key, event.n, &event.act, &cx, &probe).await
}

/// Publishes an event for each that it gets.
#[subscribe(group = "chain")]
async fn chain(
    step: Step,
    cx: Context,
    State(probe): State<Probe>,
    out: Publisher,
) -> Result<(), HandlerError> {
    let run = probe.begin("chain", &step.key, step.n, cx.attempt());
    if let Act::Wait(gate) = &step.act {
        probe.pass(gate).await;
    }
    out.publish(&loose(step.n, Act::Done)).await?;
    run.end(What::Done);
    Ok(())
}

#[subscribe(group = "each", durable)]
async fn each(step: Step, cx: Context, State(probe): State<Probe>) -> Result<Outcome, HandlerError> {
    act_out("each", &step.key, step.n, &step.act, &cx, &probe).await
}

/// Panics while it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("while it was dropped");
    }
}

/// Takes what not every event has.
struct Tenant;

impl FromDelivery for Tenant {
    async fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        match delivery.headers().get("tenant") {
            Some("panic") => panic!("extractor"),
            Some(_) => Ok(Tenant),
            None => Err(HandlerError::permanent("no header \"tenant\"")),
        }
    }
}

#[subscribe(group = "picky")]
async fn picky(
    step: Step,
    _: Tenant,
    cx: Context,
    State(probe): State<Probe>,
) -> Result<Outcome, HandlerError> {
    act_out("picky", &step.key, step.n, &step.act, &cx, &probe).await
}

/// The group of the ephemeral subscription, which cannot be named.
pub const LIVE: &str = concat!(module_path!(), "::live");

#[subscribe(ephemeral)]
async fn live(step: Step, cx: Context, State(probe): State<Probe>) -> Result<Outcome, HandlerError> {
    act_out("live", &step.key, step.n, &step.act, &cx, &probe).await
}

async fn act_out(
    group: &'static str,
    key: &str,
    n: u64,
    act: &Act,
    cx: &Context,
    probe: &Probe,
) -> Result<Outcome, HandlerError> {
    let attempt = cx.attempt();
    let deferred_before = || probe.of(group, key, n).iter().any(|entry| entry.what == What::Deferred);
    let run = probe.begin(group, key, n, attempt);
    match act {
        Act::Yield(times) => {
            for _ in 0..*times {
                tokio::task::yield_now().await;
            }
        }
        Act::Wait(gate) => probe.pass(gate).await,
        Act::Hang => std::future::pending::<()>().await,
        Act::Sleep(ms) => tokio::time::sleep(Duration::from_millis(*ms)).await,
        Act::PanicAtOnce(times) if attempt <= *times => panic!("at once"),
        Act::PanicOddly => std::panic::panic_any(7),
        Act::Bomb { hang } => {
            let _bomb = Bomb;
            if *hang {
                std::future::pending::<()>().await;
            }
            return Ok(Outcome::Done);
        }
        Act::PanicLater(times) if attempt <= *times => {
            tokio::task::yield_now().await;
            panic!("later");
        }
        Act::Fail(times) if attempt <= *times => {
            run.end(What::Failed);
            return Err(HandlerError::retry(format!("attempt {attempt} of {key}:{n} failed")));
        }
        Act::Gated(gate) if !probe.is_open(gate) => {
            run.end(What::Failed);
            return Err(HandlerError::retry("not mended"));
        }
        Act::FailAfter(ms) if attempt == 1 => {
            run.end(What::Failed);
            return Err(HandlerError::retry_after(Duration::from_millis(*ms), "busy"));
        }
        Act::Refuse => {
            run.end(What::Failed);
            return Err(HandlerError::permanent("refused"));
        }
        Act::RefuseUntil(gate) if !probe.is_open(gate) => {
            run.end(What::Failed);
            return Err(HandlerError::permanent(format!("{gate} is closed")));
        }
        Act::Defer(ms) if !deferred_before() => {
            run.end(What::Deferred);
            return Ok(Outcome::defer(Duration::from_millis(*ms), "not yet"));
        }
        _ => {}
    }
    run.end(What::Done);
    Ok(Outcome::Done)
}
