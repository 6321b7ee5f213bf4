//! What the handlers of the simulation do: for each event of each group a small play that follows from the seed.

use std::sync::Arc;
use std::time::Duration;

use photon_backend::memory::MemoryStore;
use photon_core::descriptor::HandlerDescriptor;
use photon_core::handler::{Delivery, HandlerError, HandlerFuture, HandlerResult, Needs, Outcome};
use photon_core::options::{Mode, Options};
use photon_core::store::Sideline;
use tokio::sync::Notify;

use crate::event::{STEPS, number};
use crate::history::{End, Place};
use crate::judge::Shared;
use crate::scenario::{TIMEOUT, TIMEOUT_MS};

/// What a handler knows of the run it takes part in.
#[derive(Clone)]
pub(crate) struct Probe {
    pub(crate) judge: Shared,
    pub(crate) store: MemoryStore,
    pub(crate) seed: u64,
    /// Of a hundred events, how many make trouble.
    pub(crate) unruly: u32,
    /// Of a thousand events, how many end the process.
    pub(crate) killers: u32,
    /// Ends the process.
    pub(crate) kill: Arc<Notify>,
}

impl Probe {
    /// Whether the handlers of an event end their process.
    fn kills(&self, n: u32) -> bool {
        fastrand::Rng::with_seed(self.seed ^ (u64::from(n) << 16) ^ 0x6b11).u32(0..1_000) < self.killers
    }
}

/// One step of a play.
#[derive(Debug, Clone, Copy)]
enum Act {
    Done,
    Fail,
    RetryAfter(u64),
    Permanent,
    Panic,
    TimeOut,
    Defer(u64),
}

/// The subscriptions of the simulation.
pub(crate) static HANDLERS: [HandlerDescriptor; 2] = [handler("lenient"), handler("strict")];

const fn handler(group: &'static str) -> HandlerDescriptor {
    HandlerDescriptor {
        name: "play",
        module: "photon_sim",
        topic: "steps",
        descriptor: Some(&STEPS),
        group: Some(group),
        mode: Mode::Group,
        options: Options::NONE,
        call: play,
        needs: no_needs,
        file: file!(),
        line: line!(),
    }
}

fn no_needs(_: &mut Needs) {}

fn play(delivery: Delivery) -> HandlerFuture {
    Box::pin(async move {
        let Some(probe) = delivery.extension::<Probe>().cloned() else {
            return Err(HandlerError::permanent("the simulation gave no probe"));
        };
        let id = &delivery.shared.subscription;
        let place: Place = (delivery.event.shard.0, delivery.event.seq.0);
        let rows = probe.store.get(id, delivery.event.shard, &[delivery.event.seq]).await.unwrap_or_default();
        let n = number(&delivery.event.payload);
        let mut guard = Guard::begin(&probe, &delivery, place, rows.first());
        let mut rng =
            fastrand::Rng::with_seed(probe.seed ^ (u64::from(n) << 8) ^ group_number(id.group.as_str()));
        let prompt = probe.judge.lock().is_prompt(n);
        let acts = if prompt { Vec::new() } else { acts(&mut rng, probe.unruly) };
        // How long it takes differs from run to run.
        let seed = rng.u64(..) ^ (u64::from(guard.played) << 32) ^ u64::from(delivery.attempt);
        rng.seed(seed);
        for _ in 0..rng.u8(0..4) {
            tokio::task::yield_now().await;
        }
        if rng.u8(0..3) == 0 {
            tokio::time::sleep(Duration::from_millis(rng.u64(1..120))).await;
        }
        if !prompt && probe.kills(n) && probe.judge.lock().is_deadly(guard.run) {
            probe.kill.notify_one();
            return std::future::pending().await;
        }
        let act = acts.get(guard.played as usize).copied().unwrap_or(Act::Done);
        perform(act, &mut guard).await
    })
}

async fn perform(act: Act, guard: &mut Guard) -> HandlerResult {
    match act {
        Act::Done => {
            guard.end(End::Done);
            Ok(Outcome::Done)
        }
        Act::Fail => {
            guard.end(End::Failed);
            Err(HandlerError::retry("it failed"))
        }
        Act::RetryAfter(ms) => {
            guard.end(End::Failed);
            Err(HandlerError::retry_after(Duration::from_millis(ms), "it failed for a while"))
        }
        Act::Permanent => {
            guard.end(End::Permanent);
            Err(HandlerError::permanent("it failed for good"))
        }
        Act::Panic => {
            guard.end(End::Failed);
            // Quiet: the hook of the process would print thousands.
            std::panic::resume_unwind(Box::new("it panicked"))
        }
        Act::TimeOut => {
            tokio::time::sleep(TIMEOUT * 100).await;
            Ok(Outcome::Done)
        }
        Act::Defer(ms) => {
            guard.end(End::Deferred);
            Ok(Outcome::defer(Duration::from_millis(ms), "not yet"))
        }
    }
}

fn group_number(group: &str) -> u64 {
    u64::try_from(group.len()).unwrap_or(0) << 40
}

/// What becomes of the first attempts of an event; later ones end well.
fn acts(rng: &mut fastrand::Rng, unruly: u32) -> Vec<Act> {
    if rng.u32(0..100) >= unruly {
        return Vec::new();
    }
    let count = rng.usize(1..=6);
    let kind = rng.u8(0..8);
    let mut act = || match kind {
        0..=2 => Act::Fail,
        3 => Act::RetryAfter(rng.u64(10..1_500)),
        4 => Act::Permanent,
        5 => Act::Defer(rng.u64(10..1_000)),
        _ => match rng.u8(0..7) {
            0..=1 => Act::Fail,
            2 => Act::RetryAfter(rng.u64(10..1_500)),
            3 => Act::Permanent,
            4 => Act::Panic,
            5 => Act::TimeOut,
            _ => Act::Defer(rng.u64(10..1_000)),
        },
    };
    (0..count).map(|_| act()).collect()
}

/// Tells the judge how a run ended, also when it is dropped.
struct Guard {
    judge: Shared,
    run: usize,
    began: u64,
    /// How often the event was played to an end before.
    played: u32,
    ended: bool,
}

impl Guard {
    fn begin(
        probe: &Probe,
        delivery: &Delivery,
        place: Place,
        row: Option<&photon_core::store::StoredDelivery>,
    ) -> Self {
        let group = delivery.shared.subscription.group.as_str();
        let mut judge = probe.judge.lock();
        let (run, played) = judge.begin(group, place, delivery.attempt, delivery.fence, row);
        let began = judge.time();
        drop(judge);
        Self { judge: probe.judge.clone(), run, began, played, ended: false }
    }

    fn end(&mut self, end: End) {
        self.ended = true;
        self.judge.lock().end(self.run, end);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            let mut judge = self.judge.lock();
            let late = judge.time() >= self.began + TIMEOUT_MS;
            judge.end(self.run, if late { End::Failed } else { End::Cut });
        }
    }
}
