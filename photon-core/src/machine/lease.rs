//! How long an owner may work without word from the store, and how others find that it is gone.
//!
//! Both sides measure on their own monotonic clock. The owner counts from the moment it *sent* its last
//! successful renewal and stops a margin before the ttl; an observer counts from the moment it *received* the
//! heartbeat that then stood still, for the whole ttl. So the owner has stopped before anybody replaces it. A
//! process that is frozen in between, or a machine that is suspended, cannot stop; the fence refuses what it
//! writes later.

use std::time::Duration;

use crate::ids::{Incarnation, InstanceId};
use crate::store::{Member, MemberInfo};
use crate::time::Mono;

/// The ttl of a member that does not say.
pub const DEFAULT_TTL: Duration = Duration::from_secs(5);

/// The owner's side: when to renew, and when to stop.
#[derive(Debug, Clone)]
pub struct Holder {
    ttl: Duration,
    renewed: Mono,
    next: Mono,
    ended: bool,
}

impl Holder {
    /// A member whose join was sent at `sent` and succeeded.
    pub fn new(ttl: Duration, sent: Mono) -> Self {
        Self { ttl, renewed: sent, next: sent + ttl / 3, ended: false }
    }

    /// When all work must have stopped, unless a renewal succeeds before: four fifths of the ttl after the last
    /// one was sent.
    pub fn deadline(&self) -> Mono {
        self.renewed + self.ttl / 5 * 4
    }

    /// Whether all work must stop. Once it is so it stays so: others may have taken over. Join again as a new
    /// incarnation.
    pub fn must_stop(&self, now: Mono) -> bool {
        self.ended || now >= self.deadline()
    }

    /// When to send the next renewal: a third of the ttl after the last success, a tenth after a failure.
    pub fn next_heartbeat(&self) -> Mono {
        self.next
    }

    /// How long to wait for the answer to a renewal before it counts as failed.
    pub fn patience(&self) -> Duration {
        self.ttl / 3
    }

    /// The renewal that was sent at `sent` succeeded. One that succeeds too late does not help any more.
    pub fn handle_renewed(&mut self, sent: Mono, now: Mono) {
        if self.must_stop(now) {
            self.ended = true;
        } else {
            self.renewed = self.renewed.max(sent);
            self.next = self.renewed + self.ttl / 3;
        }
    }

    /// A renewal failed or got no answer in time.
    pub fn handle_failed(&mut self, now: Mono) {
        self.next = now + self.ttl / 10;
    }

    /// The store said that it does not know the member.
    pub fn handle_unknown(&mut self) {
        self.ended = true;
    }
}

/// The observer's side: whether the owner that stands in the way is still there.
#[derive(Debug, Clone)]
pub struct Observer {
    ttl: Duration,
    info: MemberInfo,
    /// When this heartbeat was first seen.
    since: Mono,
    /// When it was first known to be dead.
    dead: Option<Mono>,
    /// It renewed after it had been called dead: the process table cannot be trusted about it.
    distrusted: bool,
    reported: bool,
}

impl Observer {
    /// The owner was first seen at `now`, the moment the answer came. `dead`: its process is known to be gone.
    pub fn new(ttl: Duration, info: MemberInfo, dead: bool, now: Mono) -> Self {
        Self { ttl, info, since: now, dead: dead.then_some(now), distrusted: false, reported: false }
    }

    /// The owner was seen again, with this heartbeat; `dead` as in [`new`](Self::new). Returns whether this is
    /// the first proof that it lives: a conflict to report, once.
    #[must_use]
    pub fn handle_sample(&mut self, heartbeat: u64, dead: bool, now: Mono) -> bool {
        let moved = heartbeat != self.info.heartbeat;
        if moved {
            self.distrusted |= self.dead.take().is_some();
            self.info.heartbeat = heartbeat;
            self.since = now;
        }
        let dead = dead && !self.distrusted;
        self.dead = dead.then_some(self.dead.unwrap_or(now));
        moved && !dead && !std::mem::replace(&mut self.reported, true)
    }

    /// When it may be replaced if it does not renew: as soon as it is known to be dead, else after a ttl.
    pub fn replaceable_at(&self) -> Mono {
        self.dead.unwrap_or(self.since + self.ttl)
    }

    /// The holder to replace and the heartbeat at which it stood still, if it may be replaced: for
    /// [`Claim::replace`](crate::store::Claim::replace), in a claim that is sent at `now` or later.
    pub fn may_replace(&self, now: Mono) -> Option<(Incarnation, u64)> {
        (now >= self.replaceable_at()).then_some((self.info.member.incarnation, self.info.heartbeat))
    }

    /// The owner as it was last seen.
    pub fn info(&self) -> &MemberInfo {
        &self.info
    }
}

/// What is known about the process that an owner ran in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It runs: the owner was stopped, cut off or fenced.
    Lives,
    /// It is gone.
    Gone,
    /// It ran somewhere else.
    Unknown,
}

/// Whether an owner that did not give its shard back ended in a crash.
///
/// Of a process elsewhere nothing can be seen. If the same instance runs anew, it was started again, so the one
/// before has ended; another instance may have taken the shard from an owner that was only cut off.
pub fn is_crash(before: &Member, fate: Fate, successor: &InstanceId) -> bool {
    match fate {
        Fate::Lives => false,
        Fate::Gone => true,
        Fate::Unknown => before.instance == *successor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;
    use proptest::prelude::*;
    use uuid::Uuid;

    const TTL: Duration = Duration::from_secs(5);

    fn info(heartbeat: u64) -> MemberInfo {
        let member = Member {
            incarnation: Incarnation(Uuid::from_u128(1)),
            instance: InstanceId::new("a").unwrap(),
            host: String::new(),
            pid: 1,
            process_start: String::new(),
        };
        MemberInfo { member, heartbeat, joined: Timestamp(0) }
    }

    #[test]
    fn a_stopped_or_fenced_owner_is_not_a_crash() {
        let before = info(1).member;
        let other = InstanceId::new("b").unwrap();
        for successor in [&before.instance, &other] {
            assert!(!is_crash(&before, Fate::Lives, successor));
            assert!(is_crash(&before, Fate::Gone, successor));
        }
        assert!(is_crash(&before, Fate::Unknown, &before.instance));
        assert!(!is_crash(&before, Fate::Unknown, &other));
    }

    proptest! {
        /// An owner and an observer, who both may be frozen at times; requests and answers travel for any time
        /// and get lost. Whenever the observer may replace the heartbeat that the store still has, the owner
        /// has already stopped.
        #[test]
        fn p09_nobody_is_replaced_before_it_stopped(
            steps in proptest::collection::vec((0u64..2_500_000, 0u64..1_600_000, 0u8..6, any::<bool>()), 1..60),
        ) {
            let start = Mono(1_000_000);
            let mut holder = Holder::new(TTL, start);
            let mut stored = 1;
            let mut now = start;
            let mut observer: Option<Observer> = None;
            for (wait, travel, fate, looks) in steps {
                let sent = now + Duration::from_micros(wait);
                now = sent + Duration::from_micros(travel);
                if !holder.must_stop(sent) && sent >= holder.next_heartbeat() {
                    let (arrives, answered) = (fate < 3, fate < 2);
                    stored += u64::from(arrives);
                    if answered { holder.handle_renewed(sent, now) } else { holder.handle_failed(now) }
                }
                match &mut observer {
                    _ if !looks => {}
                    None => observer = Some(Observer::new(TTL, info(stored), false, now)),
                    Some(observer) => {
                        let may = observer.may_replace(now).is_some_and(|(_, seen)| seen == stored);
                        prop_assert!(!may || holder.must_stop(now));
                        let _ = observer.handle_sample(stored, false, now);
                    }
                }
            }
        }

        #[test]
        fn a_holder_that_had_to_stop_never_goes_on(
            steps in proptest::collection::vec((0u64..3_000_000, 0u64..3_000_000), 1..40),
        ) {
            let mut holder = Holder::new(TTL, Mono(0));
            let (mut now, mut stopped) = (Mono(0), false);
            for (wait, travel) in steps {
                let sent = now + Duration::from_micros(wait);
                now = sent + Duration::from_micros(travel);
                stopped |= holder.must_stop(sent) || holder.must_stop(now);
                holder.handle_renewed(sent, now);
                prop_assert_eq!(holder.must_stop(now), stopped);
            }
        }
    }

    #[test]
    fn renewals_count_from_when_they_were_sent() {
        let mut holder = Holder::new(TTL, Mono(0));
        assert_eq!(holder.deadline(), Mono(4_000_000));
        holder.handle_failed(Mono(1_700_000));
        assert_eq!(holder.next_heartbeat(), Mono(2_200_000));
        holder.handle_renewed(Mono(2_200_000), Mono(3_900_000));
        assert_eq!(holder.deadline(), Mono(6_200_000));
        assert!(!holder.must_stop(Mono(6_199_999)) && holder.must_stop(Mono(6_200_000)));
        holder.handle_unknown();
        assert!(holder.must_stop(Mono(3_900_000)));
    }

    #[test]
    fn a_conflict_is_reported_once_and_watching_goes_on() {
        let mut observer = Observer::new(TTL, info(3), false, Mono(0));
        assert_eq!(observer.may_replace(Mono(4_999_999)), None);
        assert!(observer.handle_sample(4, false, Mono(1_000_000)), "it lives");
        assert!(!observer.handle_sample(5, false, Mono(3_000_000)), "said already");
        assert_eq!(observer.may_replace(Mono(7_999_999)), None);
        assert_eq!(observer.may_replace(Mono(8_000_000)), Some((info(0).member.incarnation, 5)));
    }

    #[test]
    fn what_renews_is_not_dead() {
        let mut observer = Observer::new(TTL, info(3), true, Mono(0));
        assert!(observer.may_replace(Mono(0)).is_some());
        assert!(observer.handle_sample(4, true, Mono(10)), "a wrong proof");
        assert!(!observer.handle_sample(4, true, Mono(20)));
        assert_eq!(observer.may_replace(Mono(20)), None);
        assert!(observer.may_replace(Mono(5_000_010)).is_some());
    }

    #[test]
    fn an_owner_that_dies_while_it_is_watched_is_replaced_at_once() {
        let mut observer = Observer::new(TTL, info(3), false, Mono(0));
        assert!(!observer.handle_sample(3, true, Mono(10)));
        assert_eq!(observer.replaceable_at(), Mono(10));
        assert!(!observer.handle_sample(3, true, Mono(20)));
        assert_eq!(observer.replaceable_at(), Mono(10), "known since then");

        let mut observer = Observer::new(TTL, info(3), false, Mono(0));
        assert!(!observer.handle_sample(4, true, Mono(10)), "its last renewal, then it died: no conflict");
        assert!(observer.may_replace(Mono(10)).is_some());
    }
}
