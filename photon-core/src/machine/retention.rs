//! Up to where the records of a shard may be removed.

use std::time::Duration;

use crate::ids::Seq;
use crate::options::Mode;
use crate::store::{Bounds, SubscriptionInfo};
use crate::time::Timestamp;

/// What is kept of a topic although every subscription has settled it. Both rules hold at once; without any,
/// only what is not settled is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// Records that the store took in less than this long ago.
    pub age: Option<Duration>,
    /// Records in so many last places of each shard. Places can be empty, so that it may be fewer records.
    pub places: Option<u64>,
}

impl Keep {
    /// What is older than this may go by [`age`](Self::age): ask
    /// [`position_at`](crate::store::EventLog::position_at) for it and pass the answer on. `None` without that
    /// rule.
    pub fn cutoff(&self, now: Timestamp) -> Option<Timestamp> {
        let age = i64::try_from(self.age?.as_micros()).unwrap_or(i64::MAX);
        Some(Timestamp(now.0.saturating_sub(age)))
    }
}

/// How far one subscription got in the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// Every record up to here is settled.
    pub watermark: Seq,
    /// Whether its position counts no more, see [`is_expired`].
    pub expired: bool,
}

/// Whether the position of a subscription may be forgotten: it is `durable`, has an `expire_after`, and was not
/// active for that long. `now` is the clock that wrote [`active`](SubscriptionInfo::active): the store's.
pub fn is_expired(subscription: &SubscriptionInfo, now: Timestamp) -> bool {
    subscription.mode == Mode::Durable
        && subscription.expire_after.is_some_and(|limit| now.since(subscription.active) > limit)
}

/// The last place up to which the records of a shard may be removed, or `None` if there is nothing to remove.
///
/// `readers` are all known subscriptions of the topic; `aged` is the last place before [`Keep::cutoff`], and is
/// needed if that is set: without it nothing may go. Without any reader that counts only a rule of `keep` gives
/// records up; if it has none either, everything stays for a first subscription.
///
/// A subscription can become known between the list and the removal: list again after the floor was made
/// public, and remove up to the lesser of both answers.
pub fn trim_through(readers: &[Reader], keep: Keep, aged: Option<Seq>, bounds: Bounds) -> Option<Seq> {
    let settled = readers.iter().filter(|reader| !reader.expired).map(|reader| reader.watermark).min();
    let by_age = keep.age.map(|_| aged.unwrap_or(Seq::ZERO));
    let by_places = keep.places.map(|places| Seq(bounds.end.0.saturating_sub(places)));
    // A watermark cannot pass the end, unless the log lost its end; then nothing new may go.
    let through = [settled, by_age, by_places].into_iter().flatten().min()?.min(bounds.end);
    (through > bounds.floor).then_some(through)
}

/// The last place up to which the records of a shard may be removed although nobody may have settled them: `overdue` is
/// the last place before the limit of their age, `None` without one.
pub fn trim_overdue(overdue: Option<Seq>, bounds: Bounds) -> Option<Seq> {
    overdue.map(|through| through.min(bounds.end)).filter(|through| *through > bounds.floor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{GroupName, Shard, SubscriptionId, TopicName};
    use proptest::prelude::*;

    fn bounds(floor: u64, end: u64) -> Bounds {
        Bounds { shard: Shard(0), floor: Seq(floor), end: Seq(end) }
    }

    proptest! {
        /// The oracle asks of every single place whether anybody still needs it.
        #[test]
        fn p01_only_what_nobody_needs_is_trimmed(
            readers in proptest::collection::vec((0u64..40, any::<bool>()), 0..5),
            age: bool,
            aged in proptest::option::of(0u64..40),
            places in proptest::option::of(0u64..40),
            floor in 0u64..20,
            length in 0u64..20,
        ) {
            let end = floor + length;
            let readers: Vec<_> =
                readers.iter().map(|&(w, expired)| Reader { watermark: Seq(w), expired }).collect();
            let keep = Keep { age: age.then_some(Duration::from_secs(1)), places };
            let through = trim_through(&readers, keep, aged.map(Seq), bounds(floor, end));

            let needed = |place: u64| {
                let counted: Vec<_> = readers.iter().filter(|reader| !reader.expired).collect();
                let read = counted.iter().any(|reader| place > reader.watermark.0);
                let young = age && aged.is_none_or(|aged| place > aged);
                let last = places.is_some_and(|places| place + places > end);
                let no_rule = counted.is_empty() && !age && places.is_none();
                read || young || last || no_rule
            };
            let free = (floor + 1..=end).take_while(|place| !needed(*place)).last();
            prop_assert_eq!(through, free.map(Seq));
        }
    }

    #[test]
    fn only_durable_positions_expire() {
        let id = SubscriptionId::new(TopicName::new("t").unwrap(), GroupName::new("g").unwrap());
        let info = |mode, expire_after| SubscriptionInfo {
            subscription: id.clone(),
            mode,
            registered: Timestamp(0),
            active: Timestamp(5_000_000),
            expire_after,
            paused: None,
        };
        let second = Some(Duration::from_secs(1));
        assert!(is_expired(&info(Mode::Durable, second), Timestamp(6_000_001)));
        assert!(!is_expired(&info(Mode::Durable, second), Timestamp(6_000_000)));
        assert!(
            !is_expired(&info(Mode::Durable, second), Timestamp(0)),
            "a clock that went back expires nothing"
        );
        assert!(!is_expired(&info(Mode::Durable, None), Timestamp::MAX));
        assert!(!is_expired(&info(Mode::Group, second), Timestamp::MAX));
    }

    #[test]
    fn what_is_overdue_goes_whoever_needs_it() {
        assert_eq!(trim_overdue(Some(Seq(7)), bounds(3, 9)), Some(Seq(7)));
        assert_eq!(trim_overdue(Some(Seq(12)), bounds(3, 9)), Some(Seq(9)));
        assert_eq!(trim_overdue(Some(Seq(3)), bounds(3, 9)), None);
        assert_eq!(trim_overdue(None, bounds(3, 9)), None);
    }

    #[test]
    fn the_cutoff_lies_one_age_back() {
        let keep = |age| Keep { age: Some(age), places: None };
        assert_eq!(keep(Duration::from_secs(1)).cutoff(Timestamp(3_000_000)), Some(Timestamp(2_000_000)));
        assert_eq!(keep(Duration::MAX).cutoff(Timestamp(-7)), Some(Timestamp(i64::MIN)));
        assert_eq!(Keep::default().cutoff(Timestamp(0)), None);
    }
}
