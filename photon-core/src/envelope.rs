//! The binary form of headers and events in engines that have no columns for them.
//!
//! Integers are unsigned LEB128. Headers are a count, then name and value, each with its length before it.
//! An event is a version byte, its id (16 bytes), a flag for the key, the key, the headers, and the payload
//! to the end. Any bytes fit, so that every engine gives back what it was given.

use bytes::{Buf, Bytes};
use uuid::Uuid;

use crate::headers::Headers;
use crate::ids::{EventId, Key};

const VERSION: u8 = 1;

/// Stored bytes that are not an envelope, or not one that this version can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored bytes are not a Photon envelope: {0}")]
pub struct BadEnvelope(&'static str);

impl BadEnvelope {
    /// Says what is wrong with the bytes.
    pub fn new(reason: &'static str) -> Self {
        Self(reason)
    }
}

/// What an envelope holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The event's id.
    pub id: EventId,
    /// The event's key.
    pub key: Option<Key>,
    /// The event's headers.
    pub headers: Headers,
    /// The event's payload.
    pub payload: Bytes,
}

impl Envelope {
    /// Appends the binary form to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.payload.len() + 64);
        out.push(VERSION);
        out.extend_from_slice(self.id.0.as_bytes());
        match &self.key {
            None => out.push(0),
            Some(key) => {
                out.push(1);
                put_bytes(out, key.as_bytes());
            }
        }
        encode_headers(&self.headers, out);
        out.extend_from_slice(&self.payload);
    }

    /// Reads the binary form; key, header values and payload share `bytes`.
    pub fn decode(mut bytes: Bytes) -> Result<Self, BadEnvelope> {
        if take(&mut bytes, 1)?[0] != VERSION {
            return Err(BadEnvelope("its version is unknown"));
        }
        let id = take(&mut bytes, 16)?;
        let id = EventId(Uuid::from_slice(&id).map_err(|_| BadEnvelope("the id is cut short"))?);
        let key = match take(&mut bytes, 1)?[0] {
            0 => None,
            1 => Some(Key::new(get_bytes(&mut bytes)?)),
            _ => return Err(BadEnvelope("the key flag is unknown")),
        };
        let headers = get_headers(&mut bytes)?;
        Ok(Envelope { id, key, headers, payload: bytes })
    }
}

/// Appends the binary form of `headers` to `out`.
pub fn encode_headers(headers: &Headers, out: &mut Vec<u8>) {
    put_varint(out, headers.len() as u64);
    for (name, value) in headers.iter() {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value);
    }
}

/// Reads headers one after another and shares equal ones: events of a topic mostly have the same.
#[derive(Debug, Default)]
pub struct HeadersDecoder {
    last: Option<(Box<[u8]>, Headers)>,
}

impl HeadersDecoder {
    /// Reads what [`encode_headers`] wrote.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Headers, BadEnvelope> {
        if let Some((raw, headers)) = &self.last
            && **raw == *bytes
        {
            return Ok(headers.clone());
        }
        let mut rest = Bytes::copy_from_slice(bytes);
        let headers = get_headers(&mut rest)?;
        if !rest.is_empty() {
            return Err(BadEnvelope("bytes follow the headers"));
        }
        self.last = Some((bytes.into(), headers.clone()));
        Ok(headers)
    }
}

fn get_headers(bytes: &mut Bytes) -> Result<Headers, BadEnvelope> {
    let count = get_varint(bytes)?;
    let mut headers = Headers::new();
    for _ in 0..count {
        let name = get_bytes(bytes)?;
        let name = std::str::from_utf8(&name).map_err(|_| BadEnvelope("a header name is not UTF-8"))?;
        headers.insert(name, get_bytes(bytes)?);
    }
    Ok(headers)
}

/// Appends an unsigned LEB128 integer.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

/// Reads an unsigned LEB128 integer.
pub fn get_varint(bytes: &mut Bytes) -> Result<u64, BadEnvelope> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(BadEnvelope("a number is too long"))
}

/// Appends `value` with its length before it.
pub fn put_bytes(out: &mut Vec<u8>, value: &[u8]) {
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Reads bytes with their length before them.
pub fn get_bytes(bytes: &mut Bytes) -> Result<Bytes, BadEnvelope> {
    let len = usize::try_from(get_varint(bytes)?).map_err(|_| BadEnvelope("a length is too large"))?;
    take(bytes, len)
}

fn take(bytes: &mut Bytes, len: usize) -> Result<Bytes, BadEnvelope> {
    if bytes.remaining() < len {
        return Err(BadEnvelope("it is cut short"));
    }
    Ok(bytes.split_to(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn p11_an_envelope_gives_back_any_bytes(
            id: u128,
            key: Option<Vec<u8>>,
            headers in proptest::collection::vec((".{1,20}", any::<Vec<u8>>()), 0..5),
            payload: Vec<u8>,
        ) {
            let envelope = Envelope {
                id: EventId(Uuid::from_u128(id)),
                key: key.map(Key::new),
                headers: headers.into_iter().collect(),
                payload: payload.into(),
            };
            let mut bytes = Vec::new();
            envelope.encode(&mut bytes);
            prop_assert_eq!(Envelope::decode(bytes.into()).unwrap(), envelope);
        }

        #[test]
        fn nonsense_never_panics(bytes: Vec<u8>) {
            let _ = Envelope::decode(bytes.clone().into());
            let _ = HeadersDecoder::default().decode(&bytes);
        }
    }
}
