//! Which instance works which shard.
//!
//! All functions are pure: instances that see the same agree without talking. `spread` is a number that differs
//! between subscriptions and is the same on every instance, see [`spread_of`]: it keeps many topics of few
//! shards from all falling to the first instance.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{Incarnation, Shard, SubscriptionId};

/// The shards that are one instance's own, for as long as it is configured so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StaticShare {
    /// Every `count`-th shard. All instances are given the same count and each its own index.
    Nth {
        /// Which of the instances this is, from 0.
        index: u32,
        /// How many instances there are, at least 1.
        count: u32,
    },
    /// These shards, of every topic. Whoever lists them sees to it that each shard is in one list.
    Listed(Vec<Shard>),
}

impl Default for StaticShare {
    /// The only instance: all shards.
    fn default() -> Self {
        StaticShare::Nth { index: 0, count: 1 }
    }
}

/// A share that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadShare {
    /// The count is 0.
    #[error("a group of 0 instances has nobody to work: set the count to 1 or more")]
    NoInstance,
    /// The index is not below the count.
    #[error("instance {index} does not exist in a group of {count}: the index goes from 0 to {}", .count - 1)]
    NoSuchInstance {
        /// The index that was given.
        index: u32,
        /// The count that was given.
        count: u32,
    },
    /// The topic has fewer shards.
    #[error("shard {shard} was listed for this instance, but the topic has {shards} shards, from 0 on")]
    NoSuchShard {
        /// The shard that was listed.
        shard: Shard,
        /// How many the topic has.
        shards: u16,
    },
}

impl StaticShare {
    /// What is wrong with the share itself, whatever the topic.
    pub fn check(&self) -> Result<(), BadShare> {
        match *self {
            StaticShare::Nth { count: 0, .. } => Err(BadShare::NoInstance),
            StaticShare::Nth { index, count } if index >= count => {
                Err(BadShare::NoSuchInstance { index, count })
            }
            _ => Ok(()),
        }
    }

    /// The instance's own shards of a topic with `shards` shards, ascending, each once. None is possible if
    /// there are more instances than shards.
    pub fn shards_of(&self, shards: u16, spread: u64) -> Result<Vec<Shard>, BadShare> {
        self.check()?;
        match self {
            StaticShare::Nth { index, count } => {
                let (count, offset) = (u64::from(*count), spread % u64::from(*count));
                let owner = |shard: u16| (u64::from(shard) + offset) % count;
                Ok((0..shards).filter(|shard| owner(*shard) == u64::from(*index)).map(Shard).collect())
            }
            StaticShare::Listed(list) => {
                if let Some(&shard) = list.iter().find(|shard| shard.0 >= shards) {
                    return Err(BadShare::NoSuchShard { shard, shards });
                }
                let mut list = list.clone();
                list.sort_unstable();
                list.dedup();
                Ok(list)
            }
        }
    }
}

/// The `spread` of a subscription: a hash of its names that never changes.
pub fn spread_of(subscription: &SubscriptionId) -> u64 {
    xxh3_64(subscription.to_string().as_bytes())
}

/// Deals the shards out to the live members: `owners` says by shard who has it now, the answer by shard who
/// should.
///
/// Members get equally many, or one more; as many shards as that allows stay where they are. The order of
/// `members` and repetitions in it do not matter. Empty if there is no member.
pub fn leased(owners: &[Option<Incarnation>], members: &[Incarnation], spread: u64) -> Vec<Incarnation> {
    let mut members = members.to_vec();
    members.sort_unstable();
    members.dedup();
    if members.is_empty() {
        return Vec::new();
    }
    let start = usize::try_from(spread % members.len() as u64).unwrap_or(0);
    members.rotate_left(start);

    let mut room = rooms(owners, &members);
    let mut dealt: Vec<Option<Incarnation>> =
        owners.iter().map(|owner| owner.filter(|owner| take(&mut room, *owner))).collect();
    // The rooms add up to the number of shards, so there is one for each that nobody kept.
    let mut free = members.iter().flat_map(|member| {
        let left = room.get(member).copied().unwrap_or(0);
        std::iter::repeat_n(*member, left)
    });
    for owner in &mut dealt {
        *owner = owner.or_else(|| free.next());
    }
    dealt.into_iter().flatten().collect()
}

/// How many shards each member should have. Those that have most now may have one more than the others, so
/// that the fewest shards move; equals go by the order of `members`.
fn rooms(owners: &[Option<Incarnation>], members: &[Incarnation]) -> BTreeMap<Incarnation, usize> {
    let mut has: BTreeMap<Incarnation, usize> = members.iter().map(|member| (*member, 0)).collect();
    for owner in owners.iter().flatten() {
        if let Some(count) = has.get_mut(owner) {
            *count += 1;
        }
    }
    let mut by_load = members.to_vec();
    by_load.sort_by_key(|member| std::cmp::Reverse(has.get(member).copied().unwrap_or(0)));
    let (base, more) = (owners.len() / members.len(), owners.len() % members.len());
    by_load.into_iter().enumerate().map(|(i, member)| (member, base + usize::from(i < more))).collect()
}

fn take(room: &mut BTreeMap<Incarnation, usize>, member: Incarnation) -> bool {
    match room.get_mut(&member) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{GroupName, TopicName};
    use proptest::prelude::*;
    use uuid::Uuid;

    fn member(n: u8) -> Incarnation {
        Incarnation(Uuid::from_u128(u128::from(n)))
    }

    fn loads(dealt: &[Incarnation], members: &[Incarnation]) -> Vec<usize> {
        members.iter().map(|member| dealt.iter().filter(|owner| *owner == member).count()).collect()
    }

    /// The most shards that can stay, by trying every balanced way of dealing.
    fn most_that_stay(owners: &[Option<Incarnation>], members: &[Incarnation]) -> usize {
        let ways = members.len().pow(u32::try_from(owners.len()).unwrap());
        let balanced = |dealt: &[Incarnation]| {
            let loads = loads(dealt, members);
            loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1
        };
        (0..ways)
            .map(|mut way| {
                let next = |_| {
                    let owner = members[way % members.len()];
                    way /= members.len();
                    owner
                };
                owners.iter().map(next).collect::<Vec<_>>()
            })
            .filter(|dealt| balanced(dealt))
            .map(|dealt| dealt.iter().zip(owners).filter(|(now, before)| Some(**now) == **before).count())
            .max()
            .unwrap()
    }

    proptest! {
        #[test]
        fn static_shares_cover_each_shard_once_and_evenly(count in 1u32..40, shards in 0u16..200, spread: u64) {
            let mut all = Vec::new();
            let mut sizes = Vec::new();
            for index in 0..count {
                let share = StaticShare::Nth { index, count }.shards_of(shards, spread).unwrap();
                prop_assert!(share.is_sorted());
                sizes.push(share.len());
                all.extend(share);
            }
            all.sort_unstable();
            prop_assert_eq!(all, (0..shards).map(Shard).collect::<Vec<_>>());
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }

        #[test]
        fn dealing_is_balanced_and_the_same_everywhere(
            owners in proptest::collection::vec(proptest::option::of(0u8..12), 0..100),
            members in proptest::collection::btree_set(0u8..12, 1..8),
            spread: u64,
        ) {
            let owners: Vec<_> = owners.into_iter().map(|owner| owner.map(member)).collect();
            let members: Vec<_> = members.into_iter().map(member).collect();
            let dealt = leased(&owners, &members, spread);
            prop_assert_eq!(dealt.len(), owners.len());
            let loads = loads(&dealt, &members);
            prop_assert_eq!(loads.iter().sum::<usize>(), owners.len(), "only members get shards");
            prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1);

            let mut shuffled = members.clone();
            shuffled.reverse();
            shuffled.push(members[0]);
            prop_assert_eq!(&leased(&owners, &shuffled, spread), &dealt);

            let settled: Vec<_> = dealt.iter().copied().map(Some).collect();
            prop_assert_eq!(leased(&settled, &members, spread), dealt, "a settled group does not move");
        }

        #[test]
        fn dealing_moves_as_few_shards_as_balance_allows(
            owners in proptest::collection::vec(proptest::option::of(0u8..4), 0..7),
            members in proptest::collection::btree_set(0u8..4, 1..4),
            spread: u64,
        ) {
            let owners: Vec<_> = owners.into_iter().map(|owner| owner.map(member)).collect();
            let members: Vec<_> = members.into_iter().map(member).collect();
            let dealt = leased(&owners, &members, spread);
            let stayed = dealt.iter().zip(&owners).filter(|(now, before)| Some(**now) == **before).count();
            prop_assert_eq!(stayed, most_that_stay(&owners, &members));
        }
    }

    #[test]
    fn many_small_topics_spread_over_the_group() {
        let members: Vec<_> = (0..4).map(member).collect();
        let (mut by_index, mut by_lease) = ([0; 4], [0; 4]);
        for n in 0..400 {
            let topic = TopicName::new(format!("t{n}")).unwrap();
            let spread = spread_of(&SubscriptionId::new(topic, GroupName::new("g").unwrap()));
            for (index, count) in by_index.iter_mut().enumerate() {
                let share = StaticShare::Nth { index: u32::try_from(index).unwrap(), count: 4 };
                *count += share.shards_of(1, spread).unwrap().len();
            }
            let owner = leased(&[None], &members, spread)[0];
            by_lease[members.iter().position(|member| *member == owner).unwrap()] += 1;
        }
        assert!(
            by_index.iter().chain(&by_lease).all(|count| (70..=130).contains(count)),
            "{by_index:?} {by_lease:?}"
        );
    }

    #[test]
    fn shares_that_do_not_fit_are_refused() {
        let nth = |index, count| StaticShare::Nth { index, count }.check().unwrap_err().to_string();
        assert_eq!(nth(3, 3), "instance 3 does not exist in a group of 3: the index goes from 0 to 2");
        assert_eq!(nth(0, 0), "a group of 0 instances has nobody to work: set the count to 1 or more");
        let list =
            |list: &[u16]| StaticShare::Listed(list.iter().copied().map(Shard).collect()).shards_of(4, 9);
        assert_eq!(list(&[3, 0, 3]), Ok(vec![Shard(0), Shard(3)]));
        assert_eq!(
            list(&[1, 4]).unwrap_err().to_string(),
            "shard 4 was listed for this instance, but the topic has 4 shards, from 0 on"
        );
        assert_eq!(StaticShare::default().shards_of(3, 7), Ok(vec![Shard(0), Shard(1), Shard(2)]));
        assert!(leased(&[None], &[], 0).is_empty());
    }
}
