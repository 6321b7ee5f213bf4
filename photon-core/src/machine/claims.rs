//! Which shards an instance holds of those that are its own, and who stands in the way of the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::lease::Observer;
use super::outage::Outage;
use crate::ids::{Incarnation, Shard, SubscriptionId};
use crate::store::{Claim, Fence, MemberInfo, ShardClaim};
use crate::time::Mono;

/// Claims the wanted shards of one subscription and keeps to what the store answers.
///
/// The order of calls: [`handle_joined`](Self::handle_joined) once the process is a member; then, whenever
/// [`poll_claims`](Self::poll_claims) gives claims, send them and report the end exactly once with
/// [`handle_answers`](Self::handle_answers) or [`handle_failed`](Self::handle_failed). Take what changed from
/// [`poll_change`](Self::poll_change), and call again at [`next_wake`](Self::next_wake). When the membership
/// ends, [`handle_left`](Self::handle_left).
///
/// A shard that somebody else holds is asked for again, until it is free, or its holder may be replaced:
/// it is known to be dead, or did not renew for a ttl. A holder that renews is a conflict, reported once.
#[derive(Debug)]
pub struct Claims {
    subscription: SubscriptionId,
    ttl: Duration,
    me: Option<Incarnation>,
    shards: BTreeMap<Shard, Standing>,
    incumbents: BTreeMap<Incarnation, Observer>,
    /// When the shards that are not held are claimed again.
    seek_at: Mono,
    /// When the shards that are held are compared with the store again.
    verify_at: Mono,
    in_flight: bool,
    outage: Outage,
    changes: VecDeque<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Held(Fence),
    /// Not held; the one in the way, if it is known.
    Wanted(Option<Incarnation>),
}

/// What the store said to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The shard is the caller's.
    Granted(Fence),
    /// Somebody else holds it.
    Held {
        /// Who.
        by: MemberInfo,
        /// Whether its process is known to be gone: it ran on this host, and does not any more.
        dead: bool,
    },
}

/// Something that the subscription or a person must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These shards are held now, under these fences.
    Assigned(Vec<(Shard, Fence)>),
    /// These shards are not held any more: stop working on them.
    Lost(Vec<Shard>),
    /// Another live instance holds these shards. Reported once for each holder.
    Conflict {
        /// What it holds of the wanted shards.
        shards: Vec<Shard>,
        /// Who.
        incumbent: MemberInfo,
    },
}

impl Claims {
    /// Nothing is claimed before [`handle_joined`](Self::handle_joined). The ttl must be the same for all
    /// instances of a service.
    pub fn new(subscription: SubscriptionId, wanted: impl IntoIterator<Item = Shard>, ttl: Duration) -> Self {
        Self {
            subscription,
            ttl,
            me: None,
            shards: wanted.into_iter().map(|shard| (shard, Standing::Wanted(None))).collect(),
            incumbents: BTreeMap::new(),
            seek_at: Mono::default(),
            verify_at: Mono::default(),
            in_flight: false,
            outage: Outage::default(),
            changes: VecDeque::new(),
        }
    }

    /// The process is a member, as this incarnation. What an earlier one held is lost.
    pub fn handle_joined(&mut self, incarnation: Incarnation, now: Mono) {
        if self.me != Some(incarnation) {
            self.handle_left();
            self.me = Some(incarnation);
            self.seek_at = now;
        }
    }

    /// The process is a member no more, or must act as if it were not: everything is lost.
    pub fn handle_left(&mut self) {
        self.me = None;
        self.in_flight = false;
        let lost = self.shards.iter_mut().filter_map(|(shard, standing)| match standing {
            Standing::Held(_) => {
                *standing = Standing::Wanted(None);
                Some(*shard)
            }
            Standing::Wanted(_) => None,
        });
        let lost = lost.collect();
        self.report(Vec::new(), lost);
    }

    /// The claims to send now, if any; they count as in flight.
    #[must_use]
    pub fn poll_claims(&mut self, now: Mono) -> Option<Vec<Claim>> {
        if self.next_wake()? > now {
            return None;
        }
        let (seek, verify) = (now >= self.seek_at, now >= self.verify_at);
        let claims: Vec<_> = (self.shards.iter())
            .filter_map(|(&shard, standing)| {
                let replace = match standing {
                    Standing::Held(_) if verify => None,
                    Standing::Wanted(incumbent) if seek => {
                        incumbent.and_then(|who| self.incumbents.get(&who)?.may_replace(now))
                    }
                    _ => return None,
                };
                let shard = ShardClaim { subscription: self.subscription.clone(), shard };
                Some(Claim { shard, replace })
            })
            .collect();
        if seek {
            self.seek_at = now + self.ttl / 10;
        }
        if verify {
            self.verify_at = now + self.ttl * 2;
        }
        self.in_flight = true;
        Some(claims)
    }

    /// When [`poll_claims`](Self::poll_claims) has something to send; it may be past. `None` while claims are in
    /// flight, or without membership or shards.
    pub fn next_wake(&self) -> Option<Mono> {
        self.me?;
        if self.in_flight {
            return None;
        }
        let wakes = self.shards.values().map(|standing| match standing {
            Standing::Held(_) => self.verify_at,
            Standing::Wanted(_) => self.seek_at,
        });
        Some(wakes.min()?.max(self.outage.retry_at()))
    }

    /// The store answered to claims that `sender` sent. Returns how long it had been away, if it had.
    pub fn handle_answers(
        &mut self,
        sender: Incarnation,
        answers: impl IntoIterator<Item = (Shard, Answer)>,
        now: Mono,
    ) -> Option<Duration> {
        if self.me != Some(sender) {
            return None;
        }
        self.in_flight = false;
        let (mut assigned, mut lost, mut conflicts) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (shard, answer) in answers {
            let Some(standing) = self.shards.get(&shard).copied() else {
                continue;
            };
            if let Standing::Held(fence) = standing
                && answer != Answer::Granted(fence)
            {
                lost.push(shard);
            }
            let standing_now = match answer {
                Answer::Granted(fence) => {
                    if standing != Standing::Held(fence) {
                        assigned.push((shard, fence));
                    }
                    Standing::Held(fence)
                }
                Answer::Held { by, dead } => {
                    let who = by.member.incarnation;
                    if self.observe(by, dead, now) {
                        conflicts.insert(who);
                    }
                    Standing::Wanted(Some(who))
                }
            };
            self.shards.insert(shard, standing_now);
        }
        self.forget_incumbents();
        let soonest = self.incumbents.values().map(Observer::replaceable_at).filter(|at| *at >= now).min();
        self.seek_at = self.seek_at.min(soonest.unwrap_or(self.seek_at));
        self.report(assigned, lost);
        for who in conflicts {
            self.report_conflict(who);
        }
        self.outage.handle_succeeded(now)
    }

    /// The claims in flight failed or got no answer. Returns whether the log should mention it.
    pub fn handle_failed(&mut self, now: Mono) -> bool {
        if !self.in_flight {
            return false;
        }
        self.in_flight = false;
        self.seek_at = self.seek_at.min(now);
        self.verify_at = self.verify_at.min(now);
        self.outage.handle_failed(now)
    }

    /// The store refused a write under this fence: somebody else holds the shard.
    pub fn handle_fenced(&mut self, shard: Shard, fence: Fence, now: Mono) {
        if self.shards.get(&shard) == Some(&Standing::Held(fence)) {
            self.shards.insert(shard, Standing::Wanted(None));
            self.seek_at = self.seek_at.min(now);
            self.report(Vec::new(), vec![shard]);
        }
    }

    /// These shards are wanted no more; the caller gives them back to the store.
    pub fn handle_released(&mut self, shards: &[Shard]) {
        self.shards.retain(|shard, _| !shards.contains(shard));
        self.forget_incumbents();
    }

    /// The next thing to tell. Take all of them after each call.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// The shards that are held, with their fences.
    pub fn held(&self) -> impl Iterator<Item = (Shard, Fence)> {
        self.shards.iter().filter_map(|(shard, standing)| match standing {
            Standing::Held(fence) => Some((*shard, *fence)),
            Standing::Wanted(_) => None,
        })
    }

    fn observe(&mut self, info: MemberInfo, dead: bool, now: Mono) -> bool {
        let who = info.member.incarnation;
        if let Some(observer) = self.incumbents.get_mut(&who) {
            return observer.handle_sample(info.heartbeat, dead, now);
        }
        self.incumbents.insert(who, Observer::new(self.ttl, info, dead, now));
        false
    }

    fn forget_incumbents(&mut self) {
        let in_the_way: BTreeSet<_> = self
            .shards
            .values()
            .filter_map(|standing| match standing {
                Standing::Wanted(who) => *who,
                Standing::Held(_) => None,
            })
            .collect();
        self.incumbents.retain(|who, _| in_the_way.contains(who));
    }

    /// Losses go first: a shard in both lists was lost, then given again.
    fn report(&mut self, assigned: Vec<(Shard, Fence)>, lost: Vec<Shard>) {
        if !lost.is_empty() {
            self.changes.push_back(Change::Lost(lost));
        }
        if !assigned.is_empty() {
            self.changes.push_back(Change::Assigned(assigned));
        }
    }

    fn report_conflict(&mut self, who: Incarnation) {
        let standing = Standing::Wanted(Some(who));
        let shards = self.shards.iter().filter(|(_, s)| **s == standing).map(|(shard, _)| *shard).collect();
        if let Some(observer) = self.incumbents.get(&who) {
            self.changes.push_back(Change::Conflict { shards, incumbent: observer.info().clone() });
        }
    }
}

#[cfg(test)]
mod tests;
