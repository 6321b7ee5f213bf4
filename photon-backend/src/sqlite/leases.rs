//! Members and what they hold.

use std::collections::HashMap;

use async_trait::async_trait;
use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Incarnation, InstanceId, Shard, SubscriptionId};
use photon_core::store::{Claim, ClaimResult, Fence, Leases, Member, MemberInfo, ShardClaim};
use photon_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use crate::columns::{decode_member, encode_member};

use super::error::{File, Trouble};
use super::writer::Transaction;
use super::{SMALL_WRITE, SqliteStore};

/// One member by its incarnation, or every one without.
const MEMBERS: &str = "
    SELECT incarnation, instance, host, pid, process_start, heartbeat, joined FROM photon_member
    WHERE ?1 IS NULL OR incarnation = ?1";

/// The last grant of a shard.
#[derive(Default)]
struct Grant {
    epoch: u64,
    holder: Option<Incarnation>,
}

/// Whether the fence is the one that was granted last, and was not given back.
pub(super) fn is_current(
    conn: &Connection,
    subscription: &SubscriptionId,
    shard: Shard,
    fence: Fence,
) -> rusqlite::Result<bool> {
    let grant = grant(conn, subscription, shard)?;
    Ok(grant.epoch == fence.epoch && grant.holder == Some(fence.token))
}

/// Takes every grant of a subscription back.
pub(super) fn take_back_all(conn: &Connection, subscription: &SubscriptionId) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE photon_claim SET holder = NULL, owner = NULL WHERE topic = ?1 AND position = ?2",
    )?
    .execute([subscription.topic.as_str(), &subscription.position_name()])?;
    Ok(())
}

/// Takes the grant of one shard back: a claim after it has a greater epoch.
pub(super) fn take_back(
    conn: &Connection,
    subscription: &SubscriptionId,
    shard: Shard,
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE photon_claim SET holder = NULL, owner = NULL
         WHERE topic = ?1 AND position = ?2 AND shard = ?3",
    )?
    .execute(params![subscription.topic.as_str(), subscription.position_name(), shard.0])?;
    Ok(())
}

fn holders(conn: &Connection, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, Trouble> {
    let held = conn
        .prepare_cached(
            "SELECT shard, epoch, holder FROM photon_claim
             WHERE topic = ?1 AND position = ?2 AND holder IS NOT NULL ORDER BY shard",
        )?
        .query_map([subscription.topic.as_str(), &subscription.position_name()], |row| {
            let token = Incarnation(Uuid::from_bytes(row.get(2)?));
            Ok((Shard(row.get(0)?), Fence { epoch: row.get(1)?, token }))
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(held)
}

fn grant(conn: &Connection, subscription: &SubscriptionId, shard: Shard) -> rusqlite::Result<Grant> {
    let grant = conn
        .prepare_cached(
            "SELECT epoch, holder FROM photon_claim WHERE topic = ?1 AND position = ?2 AND shard = ?3",
        )?
        .query_row(params![subscription.topic.as_str(), subscription.position_name(), shard.0], |row| {
            let holder: Option<[u8; 16]> = row.get(1)?;
            Ok(Grant { epoch: row.get(0)?, holder: holder.map(|id| Incarnation(Uuid::from_bytes(id))) })
        })
        .optional()?;
    Ok(grant.unwrap_or_default())
}

/// By shard, the owner before the present one, if its work did not end in order.
pub(super) fn unended(
    conn: &Connection,
    file: &File,
    subscription: &SubscriptionId,
) -> Result<HashMap<Shard, Member>, Trouble> {
    let mut statement = conn.prepare_cached(
        "SELECT shard, unended FROM photon_claim
         WHERE topic = ?1 AND position = ?2 AND holder IS NOT NULL AND unended IS NOT NULL",
    )?;
    let mut rows = statement.query([subscription.topic.as_str(), &subscription.position_name()])?;
    let mut all = HashMap::new();
    while let Some(row) = rows.next()? {
        let bytes: Vec<u8> = row.get(1)?;
        let member = decode_member(bytes.into()).ok_or_else(|| {
            file.error(StoreErrorKind::Corrupt, "it names an owner of a shard that is none")
        })?;
        all.insert(Shard(row.get(0)?), member);
    }
    Ok(all)
}

fn members(conn: &Connection, file: &File, only: Option<Incarnation>) -> Result<Vec<MemberInfo>, Trouble> {
    let mut statement = conn.prepare_cached(MEMBERS)?;
    let mut rows = statement.query([only.as_ref().map(|only| only.0.as_bytes())])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read_member(row, file)?);
    }
    Ok(all)
}

fn member(conn: &Connection, file: &File, incarnation: Incarnation) -> Result<Option<MemberInfo>, Trouble> {
    Ok(members(conn, file, Some(incarnation))?.pop())
}

fn read_member(row: &Row<'_>, file: &File) -> Result<MemberInfo, Trouble> {
    let instance: String = row.get(1)?;
    let instance = InstanceId::new(instance).map_err(|error| {
        file.error(StoreErrorKind::Corrupt, format!("it lists a member that is none: {error}"))
    })?;
    let member = Member {
        incarnation: Incarnation(Uuid::from_bytes(row.get(0)?)),
        instance,
        host: row.get(2)?,
        pid: row.get(3)?,
        process_start: row.get(4)?,
    };
    Ok(MemberInfo { member, heartbeat: row.get(5)?, joined: Timestamp(row.get(6)?) })
}

fn not_a_member(incarnation: Incarnation) -> Trouble {
    let message =
        format!("incarnation {incarnation} is not a member: stop its work and join as a new incarnation");
    StoreError::new(StoreErrorKind::Fenced, message).into()
}

fn join(tx: &mut Transaction<'_>, member: &Member) -> Result<(), Trouble> {
    // Joining again is the repetition of a call whose answer got lost: the heartbeat never goes back.
    tx.conn
        .prepare_cached(
            "INSERT INTO photon_member VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6) ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            member.incarnation.0.as_bytes(),
            member.instance.as_str(),
            member.host,
            member.pid,
            member.process_start,
            tx.now.0
        ])?;
    Ok(())
}

fn heartbeat(tx: &mut Transaction<'_>, incarnation: Incarnation) -> Result<(), Trouble> {
    let raised = tx
        .conn
        .prepare_cached("UPDATE photon_member SET heartbeat = heartbeat + 1 WHERE incarnation = ?1")?
        .execute([incarnation.0.as_bytes()])?;
    if raised == 0 { Err(not_a_member(incarnation)) } else { Ok(()) }
}

fn claim_all(
    tx: &mut Transaction<'_>,
    incarnation: Incarnation,
    claims: &[Claim],
) -> Result<Vec<ClaimResult>, Trouble> {
    let Some(info) = member(tx.conn, tx.file, incarnation)? else {
        return Err(not_a_member(incarnation));
    };
    let owner = encode_member(&info.member);
    claims.iter().map(|wish| claim(tx, incarnation, &owner, wish)).collect()
}

fn claim(
    tx: &mut Transaction<'_>,
    incarnation: Incarnation,
    owner: &[u8],
    wish: &Claim,
) -> Result<ClaimResult, Trouble> {
    let ShardClaim { subscription, shard } = &wish.shard;
    let mut grant = grant(tx.conn, subscription, *shard)?;
    if grant.holder != Some(incarnation) {
        let holder = match grant.holder {
            Some(holder) => member(tx.conn, tx.file, holder)?,
            None => None,
        };
        if let Some(holder) = holder
            && wish.replace != Some((holder.member.incarnation, holder.heartbeat))
        {
            return Ok(ClaimResult::Held(holder));
        }
        grant = Grant { epoch: grant.epoch + 1, holder: Some(incarnation) };
        tx.conn
            .prepare_cached(
                "INSERT INTO photon_claim (topic, position, shard, epoch, holder, owner)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT DO UPDATE SET epoch = excluded.epoch, holder = excluded.holder,
                     owner = excluded.owner, unended = owner",
            )?
            .execute(params![
                subscription.topic.as_str(),
                subscription.position_name(),
                shard.0,
                grant.epoch,
                incarnation.0.as_bytes(),
                owner
            ])?;
    }
    Ok(ClaimResult::Granted(Fence { epoch: grant.epoch, token: incarnation }))
}

fn release(tx: &mut Transaction<'_>, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), Trouble> {
    let mut update = tx.conn.prepare_cached(
        "UPDATE photon_claim SET holder = NULL, owner = NULL
         WHERE topic = ?1 AND position = ?2 AND shard = ?3 AND holder = ?4",
    )?;
    for ShardClaim { subscription, shard } in shards {
        update.execute(params![
            subscription.topic.as_str(),
            subscription.position_name(),
            shard.0,
            incarnation.0.as_bytes()
        ])?;
    }
    Ok(())
}

fn leave(tx: &mut Transaction<'_>, incarnation: Incarnation) -> Result<(), Trouble> {
    let id = [incarnation.0.as_bytes()];
    tx.conn.prepare_cached("UPDATE photon_claim SET holder = NULL WHERE holder = ?1")?.execute(id)?;
    tx.conn.prepare_cached("DELETE FROM photon_member WHERE incarnation = ?1")?.execute(id)?;
    Ok(())
}

#[async_trait]
impl Leases for SqliteStore {
    async fn join(&self, member: &Member) -> Result<(), StoreError> {
        let member = member.clone();
        self.inner.writer.run(SMALL_WRITE, move |tx| join(tx, &member)).await
    }

    async fn heartbeat(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.inner.writer.run(SMALL_WRITE, move |tx| heartbeat(tx, incarnation)).await
    }

    async fn claim(
        &self,
        incarnation: Incarnation,
        claims: &[Claim],
    ) -> Result<Vec<ClaimResult>, StoreError> {
        let claims = claims.to_vec();
        self.inner.writer.run(SMALL_WRITE, move |tx| claim_all(tx, incarnation, &claims)).await
    }

    async fn release(&self, incarnation: Incarnation, shards: &[ShardClaim]) -> Result<(), StoreError> {
        let shards = shards.to_vec();
        self.inner.writer.run(SMALL_WRITE, move |tx| release(tx, incarnation, &shards)).await
    }

    async fn leave(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.inner.writer.run(SMALL_WRITE, move |tx| leave(tx, incarnation)).await
    }

    async fn holders(&self, subscription: &SubscriptionId) -> Result<Vec<(Shard, Fence)>, StoreError> {
        let subscription = subscription.clone();
        self.inner.readers.run(move |snapshot| holders(snapshot.conn, &subscription)).await
    }

    async fn members(&self) -> Result<Vec<MemberInfo>, StoreError> {
        self.inner.readers.run(|snapshot| members(snapshot.conn, snapshot.file, None)).await
    }
}
