//! Positions of subscriptions.

use std::time::Duration;

use async_trait::async_trait;
use futures::future::{join_all, try_join_all};
use photon_core::error::StoreError;
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::options::{Mode, Start};
use photon_core::store::{
    Checkpoints, Commit, CommitOutcome, Paused, Registered, Registration, ResetOutcome, ShardOutcome,
    ShardReset, StoredCheckpoint, SubscriptionInfo,
};
use photon_core::time::Timestamp;

use super::RedisStore;
use super::error::{Effect, Trouble};
use super::keys::{parse_subscription, subscription_name};
use super::known::{Topic, mending, unregistered};
use super::leases::decode_joined;
use super::link::Use;
use super::{commit, scripts};
use crate::columns::decode_trials;

/// Watermark, ranges, trials, whether anybody holds it, the owner before, and how often it was reset.
type PositionFields =
    (Option<String>, Option<String>, Option<Vec<u8>>, Option<String>, Option<Vec<u8>>, Option<u64>);

/// Reason and date of a pause, as they are stored.
type PauseFields = (Option<String>, Option<i64>);

fn read_pause((reason, since): PauseFields) -> Option<Paused> {
    Some(Paused { reason: reason?, since: Timestamp(since?) })
}

fn encode_mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Group => "group",
        Mode::Durable => "durable",
        Mode::Ephemeral => "ephemeral",
    }
}

fn decode_mode(mode: &str) -> Option<Mode> {
    [Mode::Group, Mode::Durable, Mode::Ephemeral].into_iter().find(|known| encode_mode(*known) == mode)
}

impl RedisStore {
    /// Makes a subscription known, and what is missing of it. `reached`: the engine forgot it, and this is how far it
    /// had come.
    pub(super) async fn register_in(
        &self,
        topic: &Topic,
        registration: &Registration,
        reached: Option<&[u64]>,
    ) -> Result<Registered, Trouble> {
        let inner = &self.inner;
        let subscription = &registration.subscription;
        let mut keys = vec![
            inner.keys.topic(&topic.name),
            inner.keys.subscription(subscription),
            inner.keys.subscriptions(),
        ];
        for shard in topic.shard_numbers() {
            keys.push(inner.keys.shard(&topic.name, shard));
            keys.push(inner.keys.log(&topic.name, shard));
            keys.push(inner.keys.position(subscription, shard));
        }
        let (start, time) = match registration.start {
            Start::Earliest => ("earliest", 0),
            Start::Latest => ("latest", 0),
            Start::At(time) => ("at", time.0),
        };
        let expire = registration.expire_after.map(|expire| expire.as_micros().to_string());
        let answer: Vec<u64> = inner
            .links
            .run(Use::Control, Effect::Write, &scripts::REGISTER, &keys, |command| {
                command.arg(topic.shards).arg(start).arg(time).arg(encode_mode(registration.mode));
                command.arg(expire.unwrap_or_default()).arg(subscription_name(subscription));
                command.arg(u8::from(reached.is_some()));
                for index in 0..usize::from(topic.shards) {
                    command.arg(reached.and_then(|reached| reached.get(index)).copied().unwrap_or(0));
                }
            })
            .await?;
        match answer.split_first() {
            Some((new, starts)) if starts.len() == usize::from(topic.shards) => {
                Ok(Registered { new: *new == 1, starts: starts.iter().copied().map(Seq).collect() })
            }
            _ => Err(self.target().strange(format!("the starts of {subscription}")).into()),
        }
    }

    async fn load_all(
        &self,
        topic: &Topic,
        subscription: &SubscriptionId,
    ) -> Result<Vec<StoredCheckpoint>, Trouble> {
        let inner = &self.inner;
        let mut ask = redis::pipe();
        for shard in topic.shard_numbers() {
            let position = inner.keys.position(subscription, shard);
            ask.cmd("HMGET").arg(position);
            for field in ["watermark", "ranges", "trials", "holder", "unended", "resets"] {
                ask.arg(field);
            }
        }
        let found: Vec<PositionFields> = inner.links.ask(Use::Control, Effect::Read, &ask).await?;
        let stored = |(shard, found): (Shard, PositionFields)| {
            let (watermark, ranges, trials, holder, unended, resets) = found;
            let watermark = watermark.ok_or(Trouble::NoSubscription)?;
            let strange = || self.target().strange(format!("the checkpoint of {subscription}"));
            let checkpoint = commit::decode_checkpoint(&watermark, &ranges.unwrap_or_default());
            let trials = decode_trials(trials.unwrap_or_default().into());
            let unended = unended.filter(|_| holder.is_some()).map(|unended| decode_joined(unended.into()));
            Ok(StoredCheckpoint {
                shard,
                checkpoint: checkpoint.ok_or_else(strange)?,
                trials: trials.map_err(|error| strange().with_source(error))?,
                unended: match unended {
                    None => None,
                    Some(member) => Some(member.ok_or_else(strange)?.0),
                },
                resets: resets.unwrap_or(0),
            })
        };
        topic.shard_numbers().zip(found).map(stored).collect()
    }

    async fn reset_shard(
        &self,
        subscription: &SubscriptionId,
        reset: &ShardReset,
    ) -> Result<ResetOutcome, Trouble> {
        let inner = &self.inner;
        let keys = &inner.keys;
        let keys = self.row_keys(
            [
                keys.shard(&subscription.topic, reset.shard),
                keys.position(subscription, reset.shard),
                keys.subscription(subscription),
            ],
            subscription,
            reset.shard,
        );
        let (epoch, token) = reset
            .fence
            .map_or_else(Default::default, |fence| (fence.epoch.to_string(), fence.token.0.to_string()));
        let answer: Vec<String> = inner
            .links
            .run(Use::Control, Effect::Write, &scripts::RESET, &keys, |command| {
                command.arg(4).arg(reset.after.0).arg(epoch).arg(token);
            })
            .await?;
        let number = |index: usize| answer.get(index).and_then(|text| text.parse().ok());
        match (number(1), number(2)) {
            (Some(after), Some(removed)) => {
                inner.known.set_back(subscription, reset.shard, Seq(after));
                Ok(ResetOutcome::Reset { after: Seq(after), removed })
            }
            _ => Ok(ResetOutcome::Fenced),
        }
    }

    async fn pause_or_resume(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, Trouble> {
        let inner = &self.inner;
        let keys = [inner.keys.subscription(subscription)];
        let before: PauseFields = inner
            .links
            .run(Use::Control, Effect::Write, &scripts::PAUSE, &keys, |command| {
                command
                    .arg(if reason.is_some() { "pause" } else { "resume" })
                    .arg(reason.unwrap_or_default());
            })
            .await?;
        Ok(read_pause(before))
    }

    /// What is known about a subscription; `None` if it was forgotten meanwhile.
    async fn info(&self, name: &str) -> Result<Option<SubscriptionInfo>, StoreError> {
        type Fields = (Option<String>, Option<i64>, Option<i64>, Option<String>, Option<String>, Option<i64>);
        let inner = &self.inner;
        let strange = || self.target().strange(format!("the subscription {name:?}"));
        let subscription = parse_subscription(name).ok_or_else(strange)?;
        let Some(topic) = self.find_topic(&subscription.topic).await? else { return Ok(None) };
        let mut ask = redis::pipe();
        ask.cmd("HMGET").arg(inner.keys.subscription(&subscription));
        for field in ["mode", "registered", "active", "expire", "pause_reason", "pause_since"] {
            ask.arg(field);
        }
        let fields = inner.links.ask(Use::Control, Effect::Read, &ask).await;
        let (fields,): (Fields,) = self.plain(fields)?;
        let (Some(mode), Some(registered), Some(active), expire, reason, since) = fields else {
            return Ok(None);
        };
        let mut ask = redis::pipe();
        for shard in topic.shard_numbers() {
            ask.cmd("HGET").arg(inner.keys.position(&subscription, shard)).arg("active");
        }
        let committed = inner.links.ask(Use::Control, Effect::Read, &ask).await;
        let committed: Vec<Option<i64>> = self.plain(committed)?;
        let active = committed.into_iter().flatten().fold(active, i64::max);
        Ok(Some(SubscriptionInfo {
            mode: decode_mode(&mode).ok_or_else(strange)?,
            registered: Timestamp(registered),
            active: Timestamp(active),
            expire_after: expire.and_then(|expire| expire.parse().ok()).map(Duration::from_micros),
            paused: read_pause((reason, since)),
            subscription,
        }))
    }
}

#[async_trait]
impl Checkpoints for RedisStore {
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let subscription = &registration.subscription;
        let topic = self.topic(&subscription.topic).await?;
        let registered = mending!(self, topic, None, self.register_in(&topic, registration, None))?;
        self.inner.known.register(registration, &registered);
        Ok(registered)
    }

    async fn load(&self, subscription: &SubscriptionId) -> Result<Vec<StoredCheckpoint>, StoreError> {
        let Some(topic) = self.find_topic(&subscription.topic).await? else {
            return Err(unregistered(subscription));
        };
        let stored = mending!(self, topic, Some(subscription), self.load_all(&topic, subscription))?;
        for stored in &stored {
            self.inner.known.reach(subscription, stored.shard, stored.checkpoint.watermark);
        }
        Ok(stored)
    }

    async fn commit(&self, commit: &Commit) -> Result<CommitOutcome, StoreError> {
        let subscription = &commit.subscription;
        let Some(topic) = self.find_topic(&subscription.topic).await? else {
            return Ok(vec![ShardOutcome::Fenced; commit.shards.len()]);
        };
        commit::check(subscription, &commit.shards, &topic)?;
        let shards = commit.shards.iter().map(async |shard| {
            mending!(self, topic, Some(subscription), self.commit_shard(subscription, shard))
        });
        join_all(shards).await.into_iter().collect()
    }

    async fn reset(
        &self,
        subscription: &SubscriptionId,
        shards: &[ShardReset],
    ) -> Result<Vec<ResetOutcome>, StoreError> {
        let Some(topic) = self.find_topic(&subscription.topic).await? else {
            return Err(unregistered(subscription));
        };
        for reset in shards {
            topic.check(reset.shard)?;
        }
        let mut outcomes = Vec::with_capacity(shards.len());
        for reset in shards {
            outcomes.push(mending!(self, topic, Some(subscription), self.reset_shard(subscription, reset))?);
        }
        Ok(outcomes)
    }

    async fn pause(
        &self,
        subscription: &SubscriptionId,
        reason: Option<&str>,
    ) -> Result<Option<Paused>, StoreError> {
        let Some(topic) = self.find_topic(&subscription.topic).await? else {
            return Err(unregistered(subscription));
        };
        mending!(self, topic, Some(subscription), self.pause_or_resume(subscription, reason))
    }

    async fn paused(&self, subscription: &SubscriptionId) -> Result<Option<Paused>, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.inner.keys.subscription(subscription)).arg("pause_reason").arg("pause_since");
        let fields = self.inner.links.ask(Use::Control, Effect::Read, &command).await;
        Ok(read_pause(self.plain(fields)?))
    }

    async fn list(&self) -> Result<Vec<SubscriptionInfo>, StoreError> {
        let mut command = redis::cmd("SMEMBERS");
        let names =
            self.inner.links.ask(Use::Control, Effect::Read, command.arg(self.inner.keys.subscriptions()));
        let names: Vec<String> = self.plain(names.await)?;
        let infos = try_join_all(names.iter().map(|name| self.info(name))).await?;
        let mut infos: Vec<SubscriptionInfo> = infos.into_iter().flatten().collect();
        infos.sort_unstable_by(|one, other| one.subscription.cmp(&other.subscription));
        Ok(infos)
    }

    async fn forget(&self, subscription: &SubscriptionId) -> Result<(), StoreError> {
        let inner = &self.inner;
        inner.known.forget(subscription);
        let Some(topic) = self.find_topic(&subscription.topic).await? else { return Ok(()) };
        let mut keys = vec![inner.keys.subscription(subscription), inner.keys.subscriptions()];
        for shard in topic.shard_numbers() {
            keys.extend(self.row_keys([inner.keys.position(subscription, shard)], subscription, shard));
        }
        let forgotten = inner.links.run(Use::Control, Effect::Write, &scripts::FORGET, &keys, |command| {
            command.arg(subscription_name(subscription));
        });
        self.plain::<u8>(forgotten.await).map(drop)
    }
}
