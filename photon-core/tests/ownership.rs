//! Instances with the same static index, a model of the store and a virtual clock: nobody that lives is
//! replaced, nobody that is replaced goes on, and somebody always takes over in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use photon_core::ids::{GroupName, Incarnation, InstanceId, Shard, SubscriptionId, TopicName};
use photon_core::machine::claims::{Answer, Change, Claims};
use photon_core::machine::lease::Holder;
use photon_core::store::{Claim, Fence, Member, MemberInfo};
use photon_core::time::{Mono, Timestamp};
use proptest::prelude::*;
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);
const SHARDS: [Shard; 3] = [Shard(0), Shard(1), Shard(2)];

/// The store of section "leases" of the contract, in a few lines.
#[derive(Default)]
struct Store {
    away: bool,
    heartbeats: BTreeMap<Incarnation, u64>,
    held: BTreeMap<Shard, Fence>,
    epochs: BTreeMap<Shard, u64>,
    /// Grants that replaced a member: who, and when.
    replaced: Vec<(Incarnation, Mono)>,
}

impl Store {
    fn claim(&mut self, me: Incarnation, claim: &Claim, now: Mono) -> Result<Fence, Incarnation> {
        let shard = claim.shard.shard;
        if let Some(fence) = self.held.get(&shard) {
            let holder = fence.token;
            if holder == me {
                return Ok(*fence);
            }
            if let Some(heartbeat) = self.heartbeats.get(&holder) {
                if claim.replace != Some((holder, *heartbeat)) {
                    return Err(holder);
                }
                self.replaced.push((holder, now));
            }
        }
        let epoch = self.epochs.entry(shard).or_default();
        *epoch += 1;
        let fence = Fence { epoch: *epoch, token: me };
        self.held.insert(shard, fence);
        Ok(fence)
    }

    fn leave(&mut self, who: Incarnation) {
        self.heartbeats.remove(&who);
        self.held.retain(|_, fence| fence.token != who);
    }
}

/// One process.
struct Process {
    incarnation: Incarnation,
    holder: Holder,
    claims: Claims,
    working: BTreeMap<Shard, Fence>,
    frozen: bool,
    /// When it was last not able to run or to reach the store.
    cut_off: Option<Mono>,
    conflicts: BTreeMap<Incarnation, u32>,
}

#[derive(Default)]
struct World {
    now: Mono,
    started: u128,
    store: Store,
    running: BTreeMap<u8, Process>,
    killed: Vec<Incarnation>,
    cut_off: BTreeMap<Incarnation, Mono>,
}

#[derive(Debug, Clone)]
enum Op {
    Start(u8),
    Stop(u8),
    Kill(u8),
    Freeze(u8),
    Thaw(u8),
    Outage(bool),
    Run(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0u8..3;
    prop_oneof![
        4 => slot.clone().prop_map(Op::Start),
        1 => slot.clone().prop_map(Op::Stop),
        1 => slot.clone().prop_map(Op::Kill),
        1 => slot.clone().prop_map(Op::Freeze),
        2 => slot.prop_map(Op::Thaw),
        1 => any::<bool>().prop_map(Op::Outage),
        8 => (1u8..200).prop_map(Op::Run),
    ]
}

impl World {
    fn fresh(&mut self) -> Incarnation {
        self.started += 1;
        let incarnation = Incarnation(Uuid::from_u128(self.started));
        self.store.heartbeats.insert(incarnation, 1);
        incarnation
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Start(slot) if !self.running.contains_key(slot) && !self.store.away => {
                let incarnation = self.fresh();
                let topic = SubscriptionId::new(TopicName::new("t").unwrap(), GroupName::new("g").unwrap());
                let mut claims = Claims::new(topic, SHARDS, TTL);
                claims.handle_joined(incarnation, self.now);
                let process = Process {
                    incarnation,
                    holder: Holder::new(TTL, self.now),
                    claims,
                    working: BTreeMap::new(),
                    frozen: false,
                    cut_off: None,
                    conflicts: BTreeMap::new(),
                };
                self.running.insert(*slot, process);
            }
            Op::Stop(slot) => {
                let runs = self.running.get(slot).is_some_and(|process| !process.frozen);
                if runs && !self.store.away {
                    let process = self.running.remove(slot).unwrap();
                    self.store.leave(process.incarnation);
                }
            }
            Op::Kill(slot) => {
                self.killed.extend(self.running.remove(slot).map(|process| process.incarnation));
            }
            Op::Freeze(slot) => {
                self.running.entry(*slot).and_modify(|process| process.frozen = true);
            }
            Op::Thaw(slot) => {
                self.running.entry(*slot).and_modify(|process| process.frozen = false);
            }
            Op::Outage(away) => self.store.away = *away,
            Op::Run(steps) => (0..*steps).for_each(|_| self.step()),
            Op::Start(_) => {}
        }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let slots: Vec<_> = self.running.keys().copied().collect();
        for slot in slots {
            let mut process = self.running.remove(&slot).unwrap();
            if process.frozen || self.store.away {
                process.cut_off = Some(self.now);
            }
            if let Some(at) = process.cut_off {
                self.cut_off.insert(process.incarnation, at);
            }
            if !process.frozen {
                self.renew(&mut process);
                self.claim(&mut process);
            }
            self.running.insert(slot, process);
        }
        self.check();
    }

    fn renew(&mut self, process: &mut Process) {
        if process.holder.must_stop(self.now) {
            process.claims.handle_left();
            drain(process);
            if !self.store.away {
                self.store.leave(process.incarnation);
                process.incarnation = self.fresh();
                process.cut_off = None;
                process.holder = Holder::new(TTL, self.now);
                process.claims.handle_joined(process.incarnation, self.now);
            }
        } else if self.now >= process.holder.next_heartbeat() {
            if self.store.away {
                process.holder.handle_failed(self.now);
            } else {
                *self.store.heartbeats.get_mut(&process.incarnation).unwrap() += 1;
                process.holder.handle_renewed(self.now, self.now);
            }
        }
    }

    fn claim(&mut self, process: &mut Process) {
        let me = process.incarnation;
        while let Some(claims) = process.claims.poll_claims(self.now) {
            if self.store.away {
                process.claims.handle_failed(self.now);
                continue;
            }
            let answers: Vec<_> = claims
                .iter()
                .map(|claim| match self.store.claim(me, claim, self.now) {
                    Ok(fence) => (claim.shard.shard, Answer::Granted(fence)),
                    Err(holder) => (claim.shard.shard, self.held_by(holder)),
                })
                .collect();
            process.claims.handle_answers(me, answers, self.now);
        }
        drain(process);
    }

    fn held_by(&self, holder: Incarnation) -> Answer {
        let member = Member {
            incarnation: holder,
            instance: InstanceId::new("instance-0").unwrap(),
            host: "host".to_owned(),
            pid: 1,
            process_start: String::new(),
        };
        let heartbeat = self.store.heartbeats[&holder];
        let dead = self.killed.contains(&holder);
        Answer::Held { by: MemberInfo { member, heartbeat, joined: Timestamp(0) }, dead }
    }

    fn check(&self) {
        for (who, at) in &self.store.replaced {
            if !self.killed.contains(who) {
                let cut_off = self.cut_off.get(who).unwrap_or_else(|| {
                    panic!("{who} was replaced at {at:?}, but it ran and reached the store all the time")
                });
                assert!(at.since(*cut_off) <= TTL, "{who} was replaced at {at:?}, long after it was back");
            }
        }
        for process in self.running.values().filter(|process| !process.frozen) {
            for (shard, fence) in &process.working {
                if !process.holder.must_stop(self.now) {
                    assert_eq!(self.store.held.get(shard), Some(fence), "worked without the right to");
                }
            }
            assert!(process.conflicts.values().all(|times| *times == 1), "a conflict is said once");
        }
    }

    fn workers(&self, shard: Shard) -> usize {
        self.running.values().filter(|process| process.working.contains_key(&shard)).count()
    }
}

fn drain(process: &mut Process) {
    while let Some(change) = process.claims.poll_change() {
        match change {
            Change::Assigned(shards) => {
                for (shard, fence) in shards {
                    let before = process.working.insert(shard, fence);
                    assert_eq!(before, None, "assigned twice without a loss between");
                }
            }
            Change::Lost(shards) => {
                for shard in shards {
                    assert!(process.working.remove(&shard).is_some(), "lost what it had not");
                }
            }
            Change::Conflict { shards, incumbent } => {
                assert!(!shards.is_empty());
                *process.conflicts.entry(incumbent.member.incarnation).or_default() += 1;
            }
        }
    }
    assert!(process.claims.held().eq(process.working.iter().map(|(shard, fence)| (*shard, *fence))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn p09_nobody_that_lives_is_replaced_and_somebody_always_works(ops in proptest::collection::vec(op(), 1..60)) {
        let mut world = World::default();
        for op in &ops {
            world.apply(op);
        }
        // Whatever happened: with the store back and somebody running, every shard is worked by exactly one.
        world.store.away = false;
        for slot in 0..3 {
            world.apply(&Op::Thaw(slot));
        }
        world.apply(&Op::Start(0));
        world.apply(&Op::Run(200));
        world.apply(&Op::Run(100));
        for shard in SHARDS {
            prop_assert_eq!(world.workers(shard), 1, "shard {}", shard);
        }
        // And nobody takes it from the one who has it.
        let epochs = world.store.epochs.clone();
        world.apply(&Op::Run(200));
        prop_assert_eq!(&world.store.epochs, &epochs);
    }
}

/// Deploys one after another: the new process starts first, then the old one stops.
#[test]
fn p09_a_rolling_restart_never_fences_in_turn() {
    let mut world = World::default();
    world.apply(&Op::Start(0));
    world.apply(&Op::Run(10));
    for round in 0u8..10 {
        let (old, new) = (round % 2, (round + 1) % 2);
        world.apply(&Op::Start(new));
        world.apply(&Op::Run(200));
        assert_eq!(world.store.epochs[&Shard(0)], u64::from(round) + 1, "the old one works on");
        world.apply(&Op::Stop(old));
        world.apply(&Op::Run(11));
        assert_eq!(
            world.store.epochs[&Shard(0)],
            u64::from(round) + 2,
            "taken over within a tenth of the ttl"
        );
    }
    assert!(world.store.replaced.is_empty());
}

/// A process on this host that is gone is replaced at the first look, a silent one elsewhere after one ttl.
#[test]
fn a_dead_owner_is_replaced_at_once_and_a_silent_one_after_a_ttl() {
    for (op, within) in [(Op::Kill(0), 1), (Op::Freeze(0), 100)] {
        let mut world = World::default();
        world.apply(&Op::Start(0));
        world.apply(&Op::Run(50));
        world.apply(&op);
        world.apply(&Op::Start(1));
        world.apply(&Op::Run(within));
        assert_eq!(world.store.epochs[&Shard(0)], 1 + u64::from(within == 1), "{op:?}");
        world.apply(&Op::Run(1));
        assert_eq!(world.store.epochs[&Shard(0)], 2, "{op:?}");
    }
}
