//! Stored deliveries as values. `lua/rows.lua` reads the first fields, too.

use bytes::{Buf, Bytes};
use photon_core::envelope::{BadEnvelope, Envelope, get_bytes, put_bytes};
use photon_core::event::Event;
use photon_core::handler::DeadReason;
use photon_core::ids::{Seq, Shard, TopicName};
use photon_core::store::{Failure, Lane, RowState, StoredDelivery};
use photon_core::time::Timestamp;

/// How many bytes [`decode_state`] reads.
const STATE_BYTES: usize = 17;

/// What is at the beginning of every row.
pub(super) struct RowHead {
    pub(super) version: u64,
    pub(super) state: RowState,
    pub(super) attempts: u32,
    first_failed: Option<Timestamp>,
    last_failed: Option<Timestamp>,
    deferred_since: Option<Timestamp>,
    pub(super) lane: Lane,
}

/// A value that is not a row.
#[derive(Debug)]
pub(super) struct Strange;

impl From<BadEnvelope> for Strange {
    fn from(_: BadEnvelope) -> Self {
        Strange
    }
}

/// The lane with its length before it: how lanes are looked up.
pub(super) fn encode_lane(lane: &Lane, out: &mut Vec<u8>) {
    let lane = lane.to_bytes();
    let length = u32::try_from(lane.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&lane);
}

/// The row as it is stored under a version.
pub(super) fn encode(row: &StoredDelivery, version: u64) -> Vec<u8> {
    let Event { id, key, headers, payload, time, .. } = &row.event;
    let mut out = Vec::with_capacity(payload.len() + row.failure.error.len() + 256);
    out.extend_from_slice(&version.to_be_bytes());
    let (state, due) = match row.state {
        RowState::Parked { due } => (0, due.0),
        RowState::Waiting => (1, 0),
        RowState::Dead { blocks: false } => (2, 0),
        RowState::Dead { blocks: true } => (3, 0),
    };
    out.push(state);
    out.extend_from_slice(&due.to_be_bytes());
    out.extend_from_slice(&row.attempts.to_be_bytes());
    let Failure { error, reason, first_failed, last_failed, deferred_since } = &row.failure;
    for time in [first_failed, last_failed, deferred_since] {
        out.push(u8::from(time.is_some()));
        out.extend_from_slice(&time.map_or(0, |time| time.0).to_be_bytes());
    }
    encode_lane(&row.lane(), &mut out);
    let reason = reason.map_or("", DeadReason::as_str).as_bytes();
    out.push(u8::try_from(reason.len()).unwrap_or(0));
    out.extend_from_slice(reason);
    out.extend_from_slice(&time.0.to_be_bytes());
    put_bytes(&mut out, error.as_bytes());
    let (key, headers, payload) = (key.clone(), headers.clone(), payload.clone());
    Envelope { id: *id, key, headers, payload }.encode(&mut out);
    out
}

/// Reads the state from the beginning of a row.
pub(super) fn decode_state(row: &[u8]) -> Result<RowState, Strange> {
    let head = row.get(..STATE_BYTES).ok_or(Strange)?;
    let due = Timestamp(i64::from_be_bytes(head[9..].try_into().map_err(|_| Strange)?));
    match head[8] {
        0 => Ok(RowState::Parked { due }),
        1 => Ok(RowState::Waiting),
        2 => Ok(RowState::Dead { blocks: false }),
        3 => Ok(RowState::Dead { blocks: true }),
        _ => Err(Strange),
    }
}

/// Reads the beginning of a row off, up to its lane.
pub(super) fn decode_head(row: &mut Bytes) -> Result<RowHead, Strange> {
    let state = decode_state(row)?;
    let version = row.try_get_u64().map_err(|_| Strange)?;
    row.advance(STATE_BYTES - 8);
    let attempts = row.try_get_u32().map_err(|_| Strange)?;
    let mut time = || -> Result<Option<Timestamp>, Strange> {
        let is_set = row.try_get_u8().map_err(|_| Strange)? == 1;
        let time = row.try_get_i64().map_err(|_| Strange)?;
        Ok(is_set.then_some(Timestamp(time)))
    };
    let (first_failed, last_failed, deferred_since) = (time()?, time()?, time()?);
    let length = row.try_get_u32().map_err(|_| Strange)? as usize;
    let lane = take(row, length)?;
    let lane = Lane::from_bytes(&lane).ok_or(Strange)?;
    Ok(RowHead { version, state, attempts, first_failed, last_failed, deferred_since, lane })
}

/// Reads a whole row.
pub(super) fn decode(
    topic: &TopicName,
    shard: Shard,
    seq: Seq,
    mut row: Bytes,
) -> Result<StoredDelivery, Strange> {
    let head = decode_head(&mut row)?;
    let length = usize::from(row.try_get_u8().map_err(|_| Strange)?);
    let reason = take(&mut row, length)?;
    let time = Timestamp(row.try_get_i64().map_err(|_| Strange)?);
    let error = String::from_utf8(get_bytes(&mut row)?.into()).map_err(|_| Strange)?;
    let Envelope { id, key, headers, payload } = Envelope::decode(row)?;
    Ok(StoredDelivery {
        event: Event { id, topic: topic.clone(), shard, seq, key, headers, payload, time },
        state: head.state,
        attempts: head.attempts,
        failure: Failure {
            error,
            reason: std::str::from_utf8(&reason).ok().and_then(DeadReason::from_name),
            first_failed: head.first_failed,
            last_failed: head.last_failed,
            deferred_since: head.deferred_since,
        },
        version: head.version,
    })
}

fn take(bytes: &mut Bytes, length: usize) -> Result<Bytes, Strange> {
    if bytes.len() < length { Err(Strange) } else { Ok(bytes.split_to(length)) }
}
