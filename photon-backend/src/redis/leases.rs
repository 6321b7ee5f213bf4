//! Members and what they hold.

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use futures::future::try_join_all;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Incarnation, Shard, SubscriptionId};
use photon_core::store::{Claim, ClaimResult, Fence, Leases, Member, MemberInfo, ShardClaim};
use photon_core::time::Timestamp;
use redis::Value;
use uuid::Uuid;

use super::RedisStore;
use super::error::{Effect, Trouble};
use super::link::Use;
use super::scripts;
use crate::columns::{decode_member, encode_member};

/// Reads a member, with the date that the script put before it.
pub(super) fn decode_joined(mut bytes: Bytes) -> Option<(Member, Timestamp)> {
    let blank = bytes.iter().position(|byte| *byte == b' ')?;
    let joined = std::str::from_utf8(&bytes.split_to(blank)).ok()?.parse().ok()?;
    bytes.advance(1);
    Some((decode_member(bytes)?, Timestamp(joined)))
}

fn parse_incarnation(text: &str) -> Option<Incarnation> {
    Uuid::parse_str(text).ok().map(Incarnation)
}

impl RedisStore {
    /// What the caller gets of work that only members may do.
    fn for_member<T>(&self, incarnation: Incarnation, result: Result<T, Trouble>) -> Result<T, StoreError> {
        if matches!(result, Err(Trouble::Stranger)) {
            let reason = format!(
                "incarnation {incarnation} is not a member: stop its work and join as a new incarnation"
            );
            return Err(self.target().error(StoreErrorKind::Fenced, reason));
        }
        self.plain(result)
    }

    fn member_info(
        &self,
        incarnation: &str,
        stored: Vec<u8>,
        heartbeat: u64,
    ) -> Result<MemberInfo, StoreError> {
        let (member, joined) = decode_joined(stored.into())
            .ok_or_else(|| self.target().strange(format!("the member {incarnation:?}")))?;
        Ok(MemberInfo { member, heartbeat, joined })
    }

    async fn claim_one(&self, incarnation: Incarnation, claim: &Claim) -> Result<ClaimResult, StoreError> {
        let inner = &self.inner;
        let [members, beats] = inner.keys.members();
        let ShardClaim { subscription, shard } = &claim.shard;
        let keys = [members, beats, inner.keys.held(incarnation), inner.keys.position(subscription, *shard)];
        let (replace, beat) = claim
            .replace
            .map_or_else(Default::default, |(holder, beat)| (holder.0.to_string(), beat.to_string()));
        let answer = inner.links.run(Use::Control, Effect::Write, &scripts::CLAIM, &keys, |command| {
            command.arg(incarnation.0.to_string()).arg(replace).arg(beat);
        });
        let answer: Vec<Value> = self.for_member(incarnation, answer.await)?;
        let strange = || self.target().strange(format!("the grant of {subscription} in shard {shard}"));
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
            Value::SimpleString(text) => Some(text.clone()),
            _ => None,
        };
        match &answer[..] {
            [_, epoch] => {
                let epoch = text(epoch).and_then(|epoch| epoch.parse().ok()).ok_or_else(strange)?;
                Ok(ClaimResult::Granted(Fence { epoch, token: incarnation }))
            }
            [_, holder, Value::BulkString(member), beat] => {
                let holder = text(holder).ok_or_else(strange)?;
                let beat = text(beat).and_then(|beat| beat.parse().ok()).ok_or_else(strange)?;
                Ok(ClaimResult::Held(self.member_info(&holder, member.clone(), beat)?))
            }
            _ => Err(strange()),
        }
    }
}

#[async_trait]
impl Leases for RedisStore {
    async fn join(&self, member: &Member) -> Result<(), StoreError> {
        let keys = self.inner.keys.members();
        let joined = self.inner.links.run(Use::Control, Effect::Write, &scripts::JOIN, &keys, |command| {
            command.arg(member.incarnation.0.to_string()).arg(encode_member(member));
        });
        self.plain::<u8>(joined.await).map(drop)
    }

    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let keys = self.inner.keys.members();
        let beat = self.inner.links.run(Use::Control, Effect::Write, &scripts::HEARTBEAT, &keys, |command| {
            command.arg(incarnation.0.to_string());
        });
        self.for_member::<u64>(incarnation, beat.await).map(drop)
    }

    async fn claim(
        &self,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        if claims.is_empty() {
            let [members, _] = self.inner.keys.members();
            let mut command = redis::cmd("HEXISTS");
            command.arg(members).arg(incarnation.0.to_string());
            let is_member = self.inner.links.ask(Use::Control, Effect::Read, &command).await;
            let is_member = self.plain(is_member)?;
            let result = if is_member { Ok(Vec::new()) } else { Err(Trouble::Stranger) };
            return self.for_member(incarnation, result);
        }
        try_join_all(claims.iter().map(|claim| self.claim_one(incarnation, claim))).await
    }

    async fn release(&self, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError> {
        let inner = &self.inner;
        let mut keys = vec![inner.keys.held(incarnation)];
        keys.extend(shards.iter().map(|claim| inner.keys.position(&claim.subscription, claim.shard)));
        let released = inner.links.run(Use::Control, Effect::Write, &scripts::RELEASE, &keys, |command| {
            command.arg(incarnation.0.to_string());
        });
        self.plain::<u8>(released.await).map(drop)
    }

    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let [members, beats] = self.inner.keys.members();
        let keys = [members, beats, self.inner.keys.held(incarnation)];
        let left = self.inner.links.run(Use::Control, Effect::Write, &scripts::LEAVE, &keys, |command| {
            command.arg(incarnation.0.to_string());
        });
        self.plain::<u8>(left.await).map(drop)
    }

    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError> {
        let inner = &self.inner;
        let Some(topic) = self.find_topic(&subscription.topic).await? else { return Ok(Vec::new()) };
        let mut ask = redis::pipe();
        for shard in topic.shard_numbers() {
            ask.cmd("HMGET").arg(inner.keys.position(subscription, shard)).arg("epoch").arg("holder");
        }
        let found = inner.links.ask(Use::Control, Effect::Read, &ask).await;
        let found: Vec<(Option<u64>, Option<String>)> = self.plain(found)?;
        let holder = |(shard, (epoch, holder)): (Shard, (Option<u64>, Option<String>))| {
            Some((shard, Fence { epoch: epoch?, token: parse_incarnation(&holder?)? }))
        };
        Ok(topic.shard_numbers().zip(found).filter_map(holder).collect())
    }

    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError> {
        let [members, beats] = self.inner.keys.members();
        let mut ask = redis::pipe();
        ask.cmd("HGETALL").arg(members).cmd("HGETALL").arg(beats);
        let found = self.inner.links.ask(Use::Control, Effect::Read, &ask).await;
        let (members, beats): (Vec<(String, Vec<u8>)>, std::collections::HashMap<String, u64>) =
            self.plain(found)?;
        let info = |(incarnation, stored): (String, Vec<u8>)| {
            let beat = beats.get(&incarnation).copied().unwrap_or(0);
            self.member_info(&incarnation, stored, beat)
        };
        let mut infos = members.into_iter().map(info).collect::<Result<Vec<_>, _>>()?;
        infos.sort_unstable_by_key(|info| info.member.incarnation);
        Ok(infos)
    }
}
