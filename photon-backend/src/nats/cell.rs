//! What is known about one shard of a subscription: who may write, how far it got, what is stored beside the log.
//!
//! It is the sum of the entries of its journal. An entry holds everything (a *full* one) or what changed: the
//! few numbers always, and of the stored deliveries those that were touched. Nothing here does I/O.

use std::collections::BTreeSet;

use bytes::Bytes;
use photon_core::envelope::{BadEnvelope, get_bytes, get_varint, put_bytes, put_varint};
use photon_core::error::StoreError;
use photon_core::event::Event;
use photon_core::handler::DeadReason;
use photon_core::headers::Headers;
use photon_core::ids::{EventId, Incarnation, InstanceId, Seq, Shard, SubscriptionId, TopicName};
use photon_core::store::{
    Checkpoint, Failure, Fence, Lane, Member, ResetOutcome, RowState, SeqRange, ShardCommit, ShardOutcome,
    Stage, StoredDelivery, Trial,
};
use photon_core::time::Timestamp;
use uuid::Uuid;

use crate::position::{Place, ShardPosition};

const VERSION: u8 = 1;

/// A shard of a subscription. The stored deliveries in it are stripped: see [`strip`].
#[derive(Default)]
pub(super) struct Cell {
    pub(super) epoch: u64,
    pub(super) holder: Option<Incarnation>,
    /// Who it was granted to, kept until the work ended in order.
    pub(super) owner: Option<Member>,
    /// The owner before, if its work did not.
    unended: Option<Member>,
    /// The life of the subscription that the position belongs to, see `SubscriptionRecord::life`.
    pub(super) life: u64,
    /// Whether the position is its own; until then the subscription is at its start.
    pub(super) begun: bool,
    pub(super) position: ShardPosition,
}

/// The places that a change touches, each with the digest of the delivery that was stored there before.
#[derive(Default)]
pub(super) struct Touched {
    seqs: BTreeSet<Seq>,
    before: Vec<(Seq, u128)>,
}

impl Touched {
    fn touch(&mut self, cell: &Cell, seq: Seq) {
        if self.seqs.insert(seq)
            && let Some(digest) = cell.digest(seq)
        {
            self.before.push((seq, digest));
        }
    }

    /// The deliveries whose content is not needed any more after the change.
    pub(super) fn dropped<'a>(&'a self, cell: &'a Cell) -> impl Iterator<Item = (Seq, u128)> + 'a {
        self.before.iter().copied().filter(|(seq, digest)| cell.digest(*seq) != Some(*digest))
    }
}

impl Cell {
    pub(super) fn is_current(&self, fence: Fence) -> bool {
        self.epoch == fence.epoch && self.holder == Some(fence.token)
    }

    pub(super) fn fence(&self) -> Option<Fence> {
        Some(Fence { epoch: self.epoch, token: self.holder? })
    }

    /// Gives it to an owner that does not hold it.
    pub(super) fn grant(&mut self, member: &Member) -> Fence {
        self.epoch += 1;
        self.holder = Some(member.incarnation);
        self.unended = self.owner.replace(member.clone());
        Fence { epoch: self.epoch, token: member.incarnation }
    }

    /// Takes it back; the work on it ended in order.
    pub(super) fn release(&mut self) {
        (self.holder, self.owner) = (None, None);
    }

    /// The owner before the present one, if its work did not end in order.
    pub(super) fn unended(&self) -> Option<Member> {
        self.unended.clone().filter(|_| self.holder.is_some())
    }

    /// How far the subscription got; `start` is where it started.
    pub(super) fn checkpoint(&self, start: Seq) -> Checkpoint {
        if self.begun {
            self.position.checkpoint.clone()
        } else {
            Checkpoint { watermark: start, ranges: Vec::new() }
        }
    }

    fn begin(&mut self, life: u64, start: Seq) {
        if !self.begun {
            self.position.checkpoint = self.checkpoint(start);
            (self.begun, self.life) = (true, life);
        }
    }

    /// Writes a commit whose puts are stripped. The fence was checked.
    pub(super) fn commit(
        &mut self,
        (life, start): (u64, Seq),
        commit: &ShardCommit,
        touched: &mut Touched,
    ) -> ShardOutcome {
        self.begin(life, start);
        let places = commit.puts.iter().map(|put| put.event.seq).chain(commit.ends.iter().map(|end| end.seq));
        for seq in places {
            touched.touch(self, seq);
        }
        self.position.write(commit)
    }

    pub(super) fn reset(
        &mut self,
        (life, start): (u64, Seq),
        after: Seq,
        touched: &mut Touched,
    ) -> ResetOutcome {
        self.begin(life, start);
        self.touch_after(after, touched);
        self.release();
        self.position.reset(after)
    }

    /// Forgets everything but the epoch, if it belongs to this life or an earlier one.
    pub(super) fn clear(&mut self, life: u64, touched: &mut Touched) -> bool {
        if self.life > life {
            return false;
        }
        self.touch_after(Seq::ZERO, touched);
        *self = Self { epoch: self.epoch, life: life + 1, ..Self::default() };
        true
    }

    pub(super) fn redrive(&mut self, seqs: &[Seq], now: Timestamp, touched: &mut Touched) {
        for seq in seqs {
            touched.touch(self, *seq);
            self.position.rows.redrive(*seq, now);
        }
    }

    pub(super) fn discard(&mut self, seqs: &[Seq], touched: &mut Touched) {
        for seq in seqs {
            touched.touch(self, *seq);
            let covered = self.position.checkpoint.covers(*seq);
            self.position.rows.close(*seq, covered);
        }
    }

    fn touch_after(&self, after: Seq, touched: &mut Touched) {
        let places: Vec<Seq> = self.position.rows.places().map(|(seq, _)| seq).collect();
        for seq in places.into_iter().filter(|seq| *seq > after) {
            touched.touch(self, seq);
        }
    }

    fn digest(&self, seq: Seq) -> Option<u128> {
        self.position.rows.get(seq).and_then(digest)
    }

    /// The entry that holds everything.
    pub(super) fn encode_full(&self) -> Vec<u8> {
        let mut out = self.encode_numbers();
        let places: Vec<(Seq, Place)> = self.position.rows.places().collect();
        put_places(&mut out, places.into_iter());
        out
    }

    /// The entry that holds what a change touched.
    pub(super) fn encode_change(&self, touched: &Touched) -> Vec<u8> {
        let mut out = self.encode_numbers();
        put_places(&mut out, touched.seqs.iter().map(|seq| (*seq, self.position.rows.place(*seq))));
        out
    }

    fn encode_numbers(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.epoch);
        put_option(&mut out, self.holder.as_ref(), |out, holder| out.extend_from_slice(holder.0.as_bytes()));
        for member in [&self.owner, &self.unended] {
            put_option(&mut out, member.as_ref(), put_member);
        }
        put_varint(&mut out, self.life);
        out.push(u8::from(self.begun));
        put_varint(&mut out, self.position.resets);
        put_varint(&mut out, self.position.checkpoint.watermark.0);
        put_varint(&mut out, self.position.checkpoint.ranges.len() as u64);
        let mut last = self.position.checkpoint.watermark.0;
        for range in &self.position.checkpoint.ranges {
            put_varint(&mut out, range.first.0.wrapping_sub(last));
            put_varint(&mut out, range.last.0.wrapping_sub(range.first.0));
            last = range.last.0;
        }
        put_varint(&mut out, self.position.trials.len() as u64);
        for trial in &self.position.trials {
            put_varint(&mut out, trial.seq.0);
            put_varint(&mut out, trial.crashes.into());
            out.push(match trial.stage {
                Stage::Waits => 0,
                Stage::Among => 1,
                Stage::Alone => 2,
            });
        }
        out
    }

    /// Adds an entry. A full one belongs on an empty cell.
    pub(super) fn apply(&mut self, topic: &TopicName, shard: Shard, entry: Bytes) -> Result<(), BadEnvelope> {
        let mut bytes = entry;
        let head = Head::read(&mut bytes)?;
        (self.epoch, self.holder) = (head.epoch, head.holder);
        self.owner = get_option(&mut bytes, get_member)?;
        self.unended = get_option(&mut bytes, get_member)?;
        self.life = get_varint(&mut bytes)?;
        self.begun = byte(&mut bytes)? != 0;
        self.position.resets = get_varint(&mut bytes)?;
        let watermark = Seq(get_varint(&mut bytes)?);
        let mut last = watermark.0;
        let mut ranges = Vec::new();
        for _ in 0..get_varint(&mut bytes)? {
            let first = last.wrapping_add(get_varint(&mut bytes)?);
            last = first.wrapping_add(get_varint(&mut bytes)?);
            ranges.push(SeqRange { first: Seq(first), last: Seq(last) });
        }
        self.position.checkpoint = Checkpoint { watermark, ranges };
        let trials = get_varint(&mut bytes)?;
        self.position.trials = (0..trials).map(|_| get_trial(&mut bytes)).collect::<Result<_, _>>()?;
        let mut seq = 0;
        for _ in 0..get_varint(&mut bytes)? {
            seq += get_varint(&mut bytes)?;
            let place = get_place(&mut bytes, topic, shard, Seq(seq))?;
            self.position.rows.set_place(Seq(seq), place);
        }
        self.position.rows.sweep(watermark);
        Ok(())
    }
}

/// The beginning of an entry: who may write.
pub(super) struct Head {
    pub(super) epoch: u64,
    pub(super) holder: Option<Incarnation>,
}

impl Head {
    pub(super) fn read(bytes: &mut Bytes) -> Result<Self, BadEnvelope> {
        if byte(bytes)? != VERSION {
            return Err(bad("its version is unknown"));
        }
        let epoch = get_varint(bytes)?;
        let holder = get_option(bytes, |bytes| Ok(Incarnation(get_uuid(bytes)?)))?;
        Ok(Self { epoch, holder })
    }
}

fn put_member(out: &mut Vec<u8>, member: &Member) {
    out.extend_from_slice(member.incarnation.0.as_bytes());
    put_bytes(out, member.instance.as_str().as_bytes());
    put_bytes(out, member.host.as_bytes());
    put_varint(out, member.pid.into());
    put_bytes(out, member.process_start.as_bytes());
}

fn get_member(bytes: &mut Bytes) -> Result<Member, BadEnvelope> {
    let incarnation = Incarnation(get_uuid(bytes)?);
    let instance =
        InstanceId::new(get_text(bytes)?).map_err(|_| bad("the name of an instance is not usable"))?;
    let (host, pid, process_start) = (get_text(bytes)?, get_u32(bytes)?, get_text(bytes)?);
    Ok(Member { incarnation, instance, host, pid, process_start })
}

fn get_trial(bytes: &mut Bytes) -> Result<Trial, BadEnvelope> {
    let (seq, crashes) = (Seq(get_varint(bytes)?), get_u32(bytes)?);
    let stage = match byte(bytes)? {
        0 => Stage::Waits,
        1 => Stage::Among,
        2 => Stage::Alone,
        _ => return Err(bad("the stage of a trial is unknown")),
    };
    Ok(Trial { seq, crashes, stage })
}

fn put_places(out: &mut Vec<u8>, places: impl ExactSizeIterator<Item = (Seq, Place)>) {
    put_varint(out, places.len() as u64);
    let mut last = 0;
    for (seq, place) in places {
        put_varint(out, seq.0 - last);
        last = seq.0;
        match place {
            Place::Empty => out.push(0),
            Place::Mark => out.push(1),
            Place::Row(row) => {
                out.push(2);
                put_row(out, &row);
            }
        }
    }
}

fn get_place(bytes: &mut Bytes, topic: &TopicName, shard: Shard, seq: Seq) -> Result<Place, BadEnvelope> {
    match byte(bytes)? {
        0 => Ok(Place::Empty),
        1 => Ok(Place::Mark),
        2 => Ok(Place::Row(Box::new(get_row(bytes, topic, shard, seq)?))),
        _ => Err(bad("what lies at a place is unknown")),
    }
}

fn put_row(out: &mut Vec<u8>, row: &StoredDelivery) {
    put_bytes(out, &row.lane().to_bytes());
    out.extend_from_slice(row.event.id.0.as_bytes());
    put_time(out, row.event.time);
    put_bytes(out, &row.event.payload);
    put_varint(out, row.version);
    match row.state {
        RowState::Parked { due } => {
            out.push(0);
            put_time(out, due);
        }
        RowState::Waiting => out.push(1),
        RowState::Dead { blocks } => out.push(2 + u8::from(blocks)),
    }
    put_varint(out, row.attempts.into());
    let failure = &row.failure;
    put_option(out, failure.reason.as_ref(), |out, reason| put_bytes(out, reason.as_str().as_bytes()));
    for time in [failure.first_failed, failure.last_failed, failure.deferred_since] {
        put_option(out, time.as_ref(), |out, time| put_time(out, *time));
    }
}

fn get_row(
    bytes: &mut Bytes,
    topic: &TopicName,
    shard: Shard,
    seq: Seq,
) -> Result<StoredDelivery, BadEnvelope> {
    let lane = Lane::from_bytes(&get_bytes(bytes)?).ok_or_else(|| bad("a lane cannot be read"))?;
    let id = EventId(get_uuid(bytes)?);
    let time = get_time(bytes)?;
    let digest = Bytes::copy_from_slice(&get_bytes(bytes)?);
    let version = get_varint(bytes)?;
    let state = match byte(bytes)? {
        0 => RowState::Parked { due: get_time(bytes)? },
        1 => RowState::Waiting,
        dead @ (2 | 3) => RowState::Dead { blocks: dead == 3 },
        _ => return Err(bad("a state is unknown")),
    };
    let attempts = get_u32(bytes)?;
    let reason = get_option(bytes, get_bytes)?;
    let reason = reason.and_then(|name| DeadReason::from_name(std::str::from_utf8(&name).ok()?));
    let mut time_or_none = || get_option(bytes, get_time);
    let failure = Failure {
        error: String::new(),
        reason,
        first_failed: time_or_none()?,
        last_failed: time_or_none()?,
        deferred_since: time_or_none()?,
    };
    let key = match lane {
        Lane::Key(key) => Some(key),
        Lane::Single(_) => None,
    };
    let event =
        Event { id, topic: topic.clone(), shard, seq, key, headers: Headers::new(), payload: digest, time };
    Ok(StoredDelivery { event, state, attempts, failure, version })
}

/// Takes the large parts out of a delivery: headers, payload and error. Instead of the payload it has the digest
/// of them, under which they are stored beside it.
pub(super) fn strip(row: &StoredDelivery, digest: u128) -> StoredDelivery {
    let mut row = row.clone();
    row.event.headers = Headers::new();
    row.event.payload = Bytes::copy_from_slice(&digest.to_be_bytes());
    row.failure.error = String::new();
    row
}

/// The digest of a stripped delivery.
pub(super) fn digest(row: &StoredDelivery) -> Option<u128> {
    Some(u128::from_be_bytes(row.event.payload.as_ref().try_into().ok()?))
}

pub(super) fn put_option<T>(out: &mut Vec<u8>, value: Option<&T>, put: impl FnOnce(&mut Vec<u8>, &T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn get_option<T>(
    bytes: &mut Bytes,
    get: impl FnOnce(&mut Bytes) -> Result<T, BadEnvelope>,
) -> Result<Option<T>, BadEnvelope> {
    if byte(bytes)? == 0 { Ok(None) } else { get(bytes).map(Some) }
}

pub(super) fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.0.to_be_bytes());
}

pub(super) fn get_time(bytes: &mut Bytes) -> Result<Timestamp, BadEnvelope> {
    Ok(Timestamp(i64::from_be_bytes(array(bytes)?)))
}

fn get_uuid(bytes: &mut Bytes) -> Result<Uuid, BadEnvelope> {
    Ok(Uuid::from_bytes(array(bytes)?))
}

fn get_text(bytes: &mut Bytes) -> Result<String, BadEnvelope> {
    String::from_utf8(get_bytes(bytes)?.to_vec()).map_err(|_| bad("a text is not UTF-8"))
}

fn get_u32(bytes: &mut Bytes) -> Result<u32, BadEnvelope> {
    u32::try_from(get_varint(bytes)?).map_err(|_| bad("a number is too large"))
}

fn byte(bytes: &mut Bytes) -> Result<u8, BadEnvelope> {
    array(bytes).map(|[byte]| byte)
}

pub(super) fn array<const N: usize>(bytes: &mut Bytes) -> Result<[u8; N], BadEnvelope> {
    if bytes.len() < N {
        return Err(bad("it is cut short"));
    }
    bytes.split_to(N).as_ref().try_into().map_err(|_| bad("it is cut short"))
}

pub(super) fn bad(reason: &'static str) -> BadEnvelope {
    BadEnvelope::new(reason)
}

/// The error of an entry that cannot be read.
pub(super) fn unreadable(id: &SubscriptionId, shard: Shard, source: BadEnvelope) -> StoreError {
    let message = format!(
        "what is stored about shard {shard} of subscription {id} cannot be read: it was written by a newer \
         version, or by another program"
    );
    super::error::error(photon_core::error::StoreErrorKind::Corrupt, message).with_source(source)
}
