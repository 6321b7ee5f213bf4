//! How stores write what their engine has no form of its own for.

use bytes::{Buf, Bytes};
use photon_core::envelope::{BadEnvelope, get_varint, put_varint};
use photon_core::ids::{Incarnation, InstanceId, Seq};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use photon_core::store::{Checkpoint, SeqRange};
use photon_core::store::{Member, Stage, Trial};
use uuid::Uuid;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
/// Ranges are stored as their number and the distances between their ends.
pub(crate) fn encode_ranges(checkpoint: &Checkpoint) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, checkpoint.ranges.len() as u64);
    let mut before = checkpoint.watermark.0;
    for range in &checkpoint.ranges {
        put_varint(&mut out, range.first.0.wrapping_sub(before));
        put_varint(&mut out, range.last.0.wrapping_sub(range.first.0));
        before = range.last.0;
    }
    out
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
/// Reads back what [`encode_ranges`] wrote.
pub(crate) fn decode_ranges(watermark: Seq, mut bytes: Bytes) -> Result<Vec<SeqRange>, BadEnvelope> {
    let mut before = watermark.0;
    (0..get_varint(&mut bytes)?)
        .map(|_| {
            let first = before.wrapping_add(get_varint(&mut bytes)?);
            before = first.wrapping_add(get_varint(&mut bytes)?);
            Ok(SeqRange { first: Seq(first), last: Seq(before) })
        })
        .collect()
}

/// Trials are stored one after another: place, crashes, stage.
pub(crate) fn encode_trials(trials: &[Trial]) -> Vec<u8> {
    let mut out = Vec::new();
    for trial in trials {
        put_varint(&mut out, trial.seq.0);
        put_varint(&mut out, trial.crashes.into());
        put_varint(
            &mut out,
            match trial.stage {
                Stage::Waits => 0,
                Stage::Among => 1,
                Stage::Alone => 2,
            },
        );
    }
    out
}

/// Reads back what [`encode_trials`] wrote.
pub(crate) fn decode_trials(mut bytes: Bytes) -> Result<Vec<Trial>, BadEnvelope> {
    let mut trials = Vec::new();
    while !bytes.is_empty() {
        trials.push(Trial {
            seq: Seq(get_varint(&mut bytes)?),
            crashes: u32::try_from(get_varint(&mut bytes)?).unwrap_or(u32::MAX),
            stage: match get_varint(&mut bytes)? {
                1 => Stage::Among,
                2 => Stage::Alone,
                _ => Stage::Waits,
            },
        });
    }
    Ok(trials)
}

/// A member as an owner is kept: incarnation and process number, then the texts with their lengths.
pub(crate) fn encode_member(member: &Member) -> Vec<u8> {
    let mut out = member.incarnation.0.as_bytes().to_vec();
    put_varint(&mut out, member.pid.into());
    for text in [member.instance.as_str(), &member.host, &member.process_start] {
        put_varint(&mut out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    }
    out
}

/// Reads back what [`encode_member`] wrote.
pub(crate) fn decode_member(mut bytes: Bytes) -> Option<Member> {
    let incarnation = bytes.get(..16)?.try_into().ok()?;
    bytes.advance(16);
    let pid = u32::try_from(get_varint(&mut bytes).ok()?).ok()?;
    let mut text = || {
        let length = usize::try_from(get_varint(&mut bytes).ok()?).ok()?;
        let text = bytes.get(..length).and_then(|text| String::from_utf8(text.to_vec()).ok())?;
        bytes.advance(length);
        Some(text)
    };
    let (instance, host, process_start) = (text()?, text()?, text()?);
    Some(Member {
        incarnation: Incarnation(Uuid::from_bytes(incarnation)),
        instance: InstanceId::new(instance).ok()?,
        host,
        pid,
        process_start,
    })
}
