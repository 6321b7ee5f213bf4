//! Codecs: how a value becomes a payload. The content type travels in the header
//! [`CONTENT_TYPE`](crate::headers::CONTENT_TYPE).

use std::any::type_name;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{DecodeError, EncodeError};
use crate::event::Event;
use crate::headers;

/// The content type of JSON payloads.
pub const JSON: &str = "application/json";

/// Appends `value` as JSON to `out`.
pub fn encode_json<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    serde_json::to_writer(out, value).map_err(|error| EncodeError {
        type_name: type_name::<T>(),
        content_type: JSON,
        source: error.into(),
    })
}

/// Reads the payload of `event` as JSON. An event that states another content type is refused; one that
/// states none is taken for JSON.
pub fn decode_json<T: DeserializeOwned>(event: &Event) -> Result<T, DecodeError> {
    let refuse = |source| DecodeError { type_name: type_name::<T>(), source };
    match event.headers.get(headers::CONTENT_TYPE) {
        None | Some(JSON) => {}
        Some(other) => return Err(refuse(format!("its content type is {other:?}, not {JSON:?}").into())),
    }
    serde_json::from_slice(&event.payload).map_err(|error| refuse(error.into()))
}
