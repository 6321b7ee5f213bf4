//! Where a subscription is to go on.

use photon_core::ids::{Seq, Shard, TopicName};
use photon_core::store;
use photon_core::time::Timestamp;

use crate::error::{Error, Result};
use crate::inner::Inner;

/// Where a subscription is to go on, see [`reset_to`](crate::SubscriptionHandle::reset_to).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// With the oldest event that is kept.
    Earliest,
    /// With the next event that is published.
    Latest,
    /// With the first event that the store took in at this time or later.
    At(Timestamp),
    /// In one shard, with the event at this place or the next one after it. The other shards go on where they are.
    Seq(Shard, Seq),
}

/// What became of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardReset {
    /// The shard.
    pub shard: Shard,
    /// It goes on after this place.
    pub after: Seq,
    /// How many parked deliveries and dead letters were removed, because their events are read again.
    pub removed: u64,
}

/// The position as places of the shards of a topic.
pub(crate) async fn resets(
    inner: &Inner,
    topic: &TopicName,
    position: Position,
) -> Result<Vec<store::ShardReset>> {
    let bounds = inner.store.bounds(topic).await?;
    let reset = |shard, after| store::ShardReset { shard, after, fence: None };
    Ok(match position {
        Position::Earliest => bounds.iter().map(|bounds| reset(bounds.shard, Seq::ZERO)).collect(),
        Position::Latest => bounds.iter().map(|bounds| reset(bounds.shard, Seq::MAX)).collect(),
        Position::At(time) => {
            let places = inner.store.position_at(topic, time).await?;
            bounds.iter().zip(places).map(|(bounds, after)| reset(bounds.shard, after)).collect()
        }
        Position::Seq(shard, seq) => {
            let Some(bounds) = bounds.iter().find(|bounds| bounds.shard == shard) else {
                let count = bounds.len();
                return Err(Error::refused(format!(
                    "topic \"{topic}\" has no shard {shard}: its {count} shards count from 0"
                )));
            };
            if seq == Seq::ZERO || seq.0 > bounds.end.0 + 1 {
                let (first, next) = (bounds.floor.0 + 1, bounds.end.0 + 1);
                return Err(Error::refused(format!(
                    "shard {shard} of topic \"{topic}\" has no place {seq}: give one from {first} to {next}"
                )));
            }
            vec![reset(shard, Seq(seq.0 - 1))]
        }
    })
}
