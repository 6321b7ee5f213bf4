//! Members and what they hold.
//!
//! Rows of claims are locked in the order of (topic, position, shard), before anything else of a subscription.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Incarnation, InstanceId, Shard, SubscriptionId};
use photon_core::store::{Claim, ClaimResult, Fence, Leases, Member, MemberInfo, ShardClaim};
use photon_core::time::Timestamp;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::columns::{decode_member, encode_member};

use super::PostgresStore;
use super::error::{Effect, Target, Trouble};
use super::log::shard;
use super::param::params;
use super::schema::Schema;

/// The fences that are current, by shard, of those that are asked for; nobody can take one until the transaction
/// ends.
pub(super) async fn current(
    client: &Client,
    schema: &Schema,
    subscription: &SubscriptionId,
    shards: &[i32],
) -> Result<HashMap<Shard, Fence>, Trouble> {
    let statement = "SELECT shard, epoch, holder FROM @claim
                     WHERE topic = $1 AND position = $2 AND shard = ANY ($3) AND holder IS NOT NULL
                     ORDER BY shard FOR SHARE";
    let (topic, position) = (subscription.topic.as_str(), subscription.position_name());
    let rows = client.query_typed(&schema.sql(statement), params![topic, position, shards.to_vec()]).await?;
    rows.iter().map(|row| Ok((shard(row.try_get(0)?), fence(row)?))).collect()
}

/// Takes grants back, of these shards or of all: claims after it have greater epochs.
pub(super) async fn take_back(
    client: &Client,
    schema: &Schema,
    subscription: &SubscriptionId,
    shards: Option<Vec<i32>>,
) -> Result<(), Trouble> {
    let (topic, position) = (subscription.topic.as_str(), subscription.position_name());
    let which = "FROM @claim WHERE topic = $1 AND position = $2 AND ($3 IS NULL OR shard = ANY ($3))";
    let lock = format!("SELECT FROM (SELECT {which} ORDER BY shard FOR UPDATE) locked");
    client.query_typed(&schema.sql(&lock), params![topic, position, shards]).await?;
    let update = "UPDATE @claim SET holder = NULL, owner = NULL WHERE topic = $1 AND position = $2
                  AND ($3 IS NULL OR shard = ANY ($3))";
    client.execute_typed(&schema.sql(update), params![topic, position, shards]).await?;
    Ok(())
}

/// A fence, from the columns epoch and holder behind the first.
fn fence(row: &Row) -> Result<Fence, tokio_postgres::Error> {
    let epoch: i64 = row.try_get(1)?;
    Ok(Fence { epoch: epoch.unsigned_abs(), token: Incarnation(row.try_get(2)?) })
}

async fn holders(
    client: &Client,
    schema: &Schema,
    subscription: &SubscriptionId,
) -> Result<Vec<(Shard, Fence)>, Trouble> {
    let statement = "SELECT shard, epoch, holder FROM @claim
                     WHERE topic = $1 AND position = $2 AND holder IS NOT NULL ORDER BY shard";
    let (topic, position) = (subscription.topic.as_str(), subscription.position_name());
    let rows = client.query_typed(&schema.sql(statement), params![topic, position]).await?;
    rows.iter().map(|row| Ok((shard(row.try_get(0)?), fence(row)?))).collect()
}

/// Members by their incarnations, or every one.
async fn members(
    client: &Client,
    schema: &Schema,
    target: &Target,
    only: Option<Vec<Uuid>>,
) -> Result<Vec<MemberInfo>, Trouble> {
    let statement = "SELECT incarnation, instance, host, pid, process_start, heartbeat, joined FROM @member
                     WHERE $1 IS NULL OR incarnation = ANY ($1)";
    let rows = client.query_typed(&schema.sql(statement), params![only]).await?;
    rows.iter().map(|row| read_member(row, target)).collect()
}

fn read_member(row: &Row, target: &Target) -> Result<MemberInfo, Trouble> {
    let text = |column| -> Result<String, Trouble> {
        Ok(String::from_utf8_lossy(row.try_get(column)?).into_owned())
    };
    let instance: &str = row.try_get(1)?;
    let instance =
        InstanceId::new(instance).map_err(|error| target.strange("a member").with_source(error))?;
    let (pid, heartbeat): (i64, i64) = (row.try_get(3)?, row.try_get(5)?);
    let member = Member {
        incarnation: Incarnation(row.try_get(0)?),
        instance,
        host: text(2)?,
        pid: u32::try_from(pid).unwrap_or(0),
        process_start: text(4)?,
    };
    Ok(MemberInfo { member, heartbeat: heartbeat.unsigned_abs(), joined: Timestamp(row.try_get(6)?) })
}

/// The owner of a shard that never gave it back.
pub(super) fn read_owner(bytes: &[u8], target: &Target) -> Result<Member, Trouble> {
    let owner = decode_member(bytes::Bytes::copy_from_slice(bytes));
    Ok(owner.ok_or_else(|| target.strange("the owner of a shard"))?)
}

fn not_a_member(incarnation: Incarnation) -> StoreError {
    let message =
        format!("incarnation {incarnation} is not a member: stop its work and join as a new incarnation");
    StoreError::new(StoreErrorKind::Fenced, message)
}

/// Shards of subscriptions as columns.
#[derive(Default)]
struct Places {
    topics: Vec<String>,
    positions: Vec<String>,
    shards: Vec<i32>,
}

impl Places {
    fn new<'a>(shards: impl IntoIterator<Item = &'a ShardClaim>) -> Self {
        let mut places = Self::default();
        for ShardClaim { subscription, shard } in shards {
            places.topics.push(subscription.topic.to_string());
            places.positions.push(subscription.position_name());
            places.shards.push(i32::from(shard.0));
        }
        places
    }
}

/// Where a grant lies: topic, position, shard.
type Place = (String, String, i32);

fn place(claim: &ShardClaim) -> Place {
    let subscription = &claim.subscription;
    (subscription.topic.to_string(), subscription.position_name(), i32::from(claim.shard.0))
}

/// The last grant of a shard.
#[derive(Clone, Copy)]
struct Grant {
    epoch: i64,
    holder: Option<Uuid>,
}

async fn claim_all(
    client: &Client,
    schema: &Schema,
    target: &Target,
    incarnation: Incarnation,
    claims: &[Claim],
) -> Result<Vec<ClaimResult>, Trouble> {
    let known = schema.sql("SELECT FROM @member WHERE incarnation = $1 FOR KEY SHARE");
    client.query_typed_opt(&known, params![incarnation.0]).await?;
    let info = members(client, schema, target, Some(vec![incarnation.0])).await?.pop();
    let owner = encode_member(&info.ok_or_else(|| not_a_member(incarnation))?.member);
    let mut grants = lock_grants(client, schema, claims).await?;
    let holders: HashSet<Uuid> = grants.values().filter_map(|grant| grant.holder).collect();
    let holders = members(client, schema, target, Some(holders.into_iter().collect())).await?;
    let mut results = Vec::with_capacity(claims.len());
    let mut taken = Vec::new();
    for wish in claims {
        let place = place(&wish.shard);
        let Some(grant) = grants.get_mut(&place) else {
            return Err(target.strange(format!("the claim of {}", wish.shard.subscription)).into());
        };
        results.push(decide(incarnation, wish, grant, &holders, || taken.push(place)));
    }
    write_grants(client, schema, incarnation, &owner, &taken, &grants).await?;
    Ok(results)
}

fn decide(
    incarnation: Incarnation,
    wish: &Claim,
    grant: &mut Grant,
    members: &[MemberInfo],
    take: impl FnOnce(),
) -> ClaimResult {
    if grant.holder != Some(incarnation.0) {
        let holder = members.iter().find(|info| Some(info.member.incarnation.0) == grant.holder);
        if let Some(holder) = holder
            && wish.replace != Some((holder.member.incarnation, holder.heartbeat))
        {
            return ClaimResult::Held(holder.clone());
        }
        *grant = Grant { epoch: grant.epoch + 1, holder: Some(incarnation.0) };
        take();
    }
    ClaimResult::Granted(Fence { epoch: grant.epoch.unsigned_abs(), token: incarnation })
}

/// The grants of all shards that are wished for, locked.
async fn lock_grants(
    client: &Client,
    schema: &Schema,
    claims: &[Claim],
) -> Result<HashMap<Place, Grant>, Trouble> {
    let places = Places::new(claims.iter().map(|claim| &claim.shard));
    let insert = "INSERT INTO @claim (topic, position, shard, epoch)
                  SELECT DISTINCT u.topic, u.position, u.shard, 0 FROM unnest($1, $2, $3) u(topic, position, shard)
                  WHERE NOT EXISTS (SELECT FROM @claim c WHERE c.topic = u.topic AND c.position = u.position
                                    AND c.shard = u.shard)
                  ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING";
    let parameters = params![places.topics, places.positions, places.shards];
    client.execute_typed(&schema.sql(insert), parameters).await?;
    let lock = "SELECT topic, position, shard, epoch, holder FROM @claim
                WHERE (topic, position, shard) IN (SELECT * FROM unnest($1, $2, $3))
                ORDER BY topic, position, shard FOR UPDATE";
    let rows = client.query_typed(&schema.sql(lock), parameters).await?;
    rows.iter()
        .map(|row| {
            let place = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            Ok((place, Grant { epoch: row.try_get(3)?, holder: row.try_get(4)? }))
        })
        .collect()
}

async fn write_grants(
    client: &Client,
    schema: &Schema,
    incarnation: Incarnation,
    owner: &[u8],
    taken: &[Place],
    grants: &HashMap<Place, Grant>,
) -> Result<(), Trouble> {
    if taken.is_empty() {
        return Ok(());
    }
    let mut places = Places::default();
    let mut epochs = Vec::new();
    for place in taken {
        let (topic, position, shard) = place.clone();
        places.topics.push(topic);
        places.positions.push(position);
        places.shards.push(shard);
        epochs.push(grants.get(place).map_or(0, |grant| grant.epoch));
    }
    let update = "UPDATE @claim c SET epoch = u.epoch, holder = $5, unended = owner, owner = $6
                  FROM unnest($1, $2, $3, $4) u(topic, position, shard, epoch)
                  WHERE c.topic = u.topic AND c.position = u.position AND c.shard = u.shard";
    let parameters = params![places.topics, places.positions, places.shards, epochs, incarnation.0, owner];
    client.execute_typed(&schema.sql(update), parameters).await?;
    Ok(())
}

async fn release(
    client: &Client,
    schema: &Schema,
    incarnation: Incarnation,
    shards: &[ShardClaim],
) -> Result<(), Trouble> {
    let places = Places::new(shards);
    let lock = "SELECT FROM (SELECT FROM @claim
                    WHERE (topic, position, shard) IN (SELECT * FROM unnest($1, $2, $3)) AND holder = $4
                    ORDER BY topic, position, shard FOR UPDATE) locked";
    let update = "UPDATE @claim SET holder = NULL, owner = NULL
                  WHERE (topic, position, shard) IN (SELECT * FROM unnest($1, $2, $3)) AND holder = $4";
    let parameters = params![places.topics, places.positions, places.shards, incarnation.0];
    client.query_typed(&schema.sql(lock), parameters).await?;
    client.execute_typed(&schema.sql(update), parameters).await?;
    Ok(())
}

async fn leave(client: &Client, schema: &Schema, incarnation: Incarnation) -> Result<(), Trouble> {
    for statement in [
        "SELECT FROM (SELECT FROM @claim WHERE holder = $1 ORDER BY topic, position, shard FOR UPDATE) locked",
        "UPDATE @claim SET holder = NULL WHERE holder = $1",
        "DELETE FROM @member WHERE incarnation = $1",
    ] {
        client.query_typed(&schema.sql(statement), params![incarnation.0]).await?;
    }
    Ok(())
}

#[async_trait]
impl Leases for PostgresStore {
    async fn join(&self, member: &Member) -> Result<(), StoreError> {
        // Joining again is the repetition of a call whose answer got lost: the heartbeat never goes back.
        let statement = self.inner.schema.sql(
            "INSERT INTO @member (incarnation, instance, host, pid, process_start, heartbeat, joined)
             VALUES ($1, $2, $3, $4, $5, 1, @now()) ON CONFLICT DO NOTHING",
        );
        let Member { incarnation, instance, host, pid, process_start } = member;
        let parameters = params![
            incarnation.0,
            instance.as_str(),
            host.as_bytes(),
            i64::from(*pid),
            process_start.as_bytes()
        ];
        let session = self.inner.reserved.session().await?;
        session.run(Effect::Write, session.client().execute_typed(&statement, parameters)).await?;
        Ok(())
    }

    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let statement =
            self.inner.schema.sql("UPDATE @member SET heartbeat = heartbeat + 1 WHERE incarnation = $1");
        let session = self.inner.reserved.session().await?;
        let parameters = params![incarnation.0];
        let raising = session.client().execute_typed(&statement, parameters);
        if session.run(Effect::Write, raising).await? == 0 { Err(not_a_member(incarnation)) } else { Ok(()) }
    }

    async fn claim(
        &self,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        let session = self.inner.reserved.session().await?;
        let (schema, target) = (&self.inner.schema, &self.inner.target);
        session.transact(claim_all(session.client(), schema, target, incarnation, claims)).await
    }

    async fn release(&self, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError> {
        let session = self.inner.reserved.session().await?;
        session.transact(release(session.client(), &self.inner.schema, incarnation, shards)).await
    }

    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let session = self.inner.reserved.session().await?;
        session.transact(leave(session.client(), &self.inner.schema, incarnation)).await
    }

    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError> {
        let session = self.inner.reserved.session().await?;
        session.run(Effect::Read, holders(session.client(), &self.inner.schema, subscription)).await
    }

    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError> {
        let session = self.inner.reserved.session().await?;
        let (schema, target) = (&self.inner.schema, &self.inner.target);
        session.run(Effect::Read, members(session.client(), schema, target, None)).await
    }
}
