//! The requests of JetStream that the store needs, on a plain connection.
//!
//! They are written out here instead of taken from a client library, because the store depends on details of
//! theirs: which of them only the leader of a stream answers, and what every server since 2.9 understands.

use std::collections::HashMap;

use async_nats::{Client, HeaderMap, Request};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use photon_core::error::{StoreError, StoreErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::denials::Denials;
use super::error::{denied, error, request_failed, turned_down};
use super::journal::End;

/// "No message found" and "stream not found": where there is no stream, there is no message.
const NO_MESSAGE: u64 = 10037;
const NO_STREAM: u64 = 10059;
/// "Sequence not found", of a message that is to be deleted.
const NO_SEQUENCE: u64 = 10043;
/// "Stream name already in use", as another one.
const NAME_IN_USE: u64 = 10058;
/// "Wrong last sequence".
const WRONG_LAST: u64 = 10071;

const EXPECTED_LAST: &str = "Nats-Expected-Last-Subject-Sequence";
/// The entry of a journal that another one comes after, see `journal`.
const AFTER: &str = "Photon-After";

/// What JetStream says when it turns a request down.
#[derive(Debug, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    pub(super) code: u64,
    #[serde(default)]
    pub(super) err_code: u64,
    #[serde(default)]
    pub(super) description: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer<T> {
    Error { error: ApiError },
    Good(T),
}

/// What is known of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct StreamInfo {
    pub(super) config: StreamConfig,
    pub(super) state: StreamState,
}

/// The settings of a stream that Photon sets or depends on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StreamConfig {
    pub(super) name: String,
    #[serde(default)]
    pub(super) description: String,
    #[serde(default)]
    pub(super) subjects: Vec<String>,
    pub(super) retention: String,
    pub(super) storage: String,
    pub(super) num_replicas: usize,
    pub(super) max_consumers: i64,
    pub(super) max_msgs: i64,
    pub(super) max_bytes: i64,
    pub(super) max_age: i64,
    #[serde(default = "unlimited")]
    pub(super) max_msgs_per_subject: i64,
    #[serde(default = "unlimited")]
    pub(super) max_msg_size: i64,
    pub(super) discard: String,
    #[serde(default)]
    pub(super) duplicate_window: i64,
    #[serde(default)]
    pub(super) allow_direct: bool,
}

fn unlimited() -> i64 {
    -1
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamState {
    #[serde(default)]
    pub(super) last_seq: u64,
    #[serde(default)]
    pub(super) last_ts: String,
    #[serde(default)]
    pub(super) subjects: Option<HashMap<String, u64>>,
}

/// A stored message.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) seq: u64,
    /// The entry that it comes after; 0 without one.
    pub(super) after: u64,
    pub(super) data: Bytes,
}

#[derive(Deserialize)]
struct GetAnswer {
    message: RawMessage,
}

#[derive(Deserialize)]
struct RawMessage {
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

/// What became of a message.
#[derive(Debug, Deserialize)]
pub(super) struct PubAck {
    pub(super) seq: u64,
    #[serde(default)]
    pub(super) duplicate: bool,
}

#[derive(Deserialize)]
pub(super) struct Consumer {
    pub(super) name: String,
    pub(super) delivered: Delivered,
}

#[derive(Deserialize)]
pub(super) struct Delivered {
    pub(super) stream_seq: u64,
}

#[derive(Deserialize)]
pub(super) struct AccountInfo {}

/// JetStream behind a connection.
#[derive(Debug, Clone)]
pub(super) struct JetStream {
    pub(super) client: Client,
    pub(super) denials: Denials,
}

impl JetStream {
    pub(super) async fn account(&self) -> Result<AccountInfo, StoreError> {
        let what = "JetStream cannot be used";
        self.ask(what, "$JS.API.INFO", Value::Null, false).await?.map_err(|answer| turned_down(what, &answer))
    }

    /// Makes a stream. `None` if there is one of this name with other settings.
    pub(super) async fn make_stream(&self, config: &StreamConfig) -> Result<Option<StreamInfo>, StoreError> {
        let what = format!("stream {:?} cannot be made", config.name);
        let subject = format!("$JS.API.STREAM.CREATE.{}", config.name);
        match self.ask(&what, &subject, json!(config), false).await? {
            Ok(info) => Ok(Some(info)),
            Err(ApiError { err_code: NAME_IN_USE, .. }) => Ok(None),
            Err(answer) => Err(turned_down(&what, &answer)),
        }
    }

    /// What the leader of a stream knows of it; `None` if there is no such stream.
    pub(super) async fn stream(&self, name: &str) -> Result<Option<StreamInfo>, StoreError> {
        self.stream_with(name, Value::Null).await
    }

    /// The subjects with messages that match.
    pub(super) async fn subjects(&self, stream: &str, filter: &str) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        loop {
            let page = json!({ "subjects_filter": filter, "offset": found.len() });
            let info = self.stream_with(stream, page).await?;
            let page = info.and_then(|info| info.state.subjects).unwrap_or_default();
            if page.is_empty() {
                return Ok(found);
            }
            let last = page.len() < PAGE;
            found.extend(page.into_keys());
            if last {
                return Ok(found);
            }
        }
    }

    async fn stream_with(&self, name: &str, body: Value) -> Result<Option<StreamInfo>, StoreError> {
        let what = format!("stream {name:?} cannot be looked at");
        match self.ask(&what, &format!("$JS.API.STREAM.INFO.{name}"), body, false).await? {
            Ok(info) => Ok(Some(info)),
            Err(ApiError { err_code: NO_STREAM, .. }) => Ok(None),
            Err(answer) => Err(turned_down(&what, &answer)),
        }
    }

    /// The last message of a subject, as the leader of the stream has it.
    pub(super) async fn last(&self, stream: &str, subject: &str) -> Result<Option<Stored>, StoreError> {
        self.get(stream, json!({ "last_by_subj": subject })).await
    }

    /// The first message of a subject after a sequence, as the leader of the stream has it.
    pub(super) async fn next(
        &self,
        stream: &str,
        subject: &str,
        after: u64,
    ) -> Result<Option<Stored>, StoreError> {
        self.get(stream, json!({ "seq": after + 1, "next_by_subj": subject })).await
    }

    /// The message of a sequence, as the leader of the stream has it.
    pub(super) async fn at(&self, stream: &str, seq: u64) -> Result<Option<Stored>, StoreError> {
        self.get(stream, json!({ "seq": seq })).await
    }

    async fn get(&self, stream: &str, body: Value) -> Result<Option<Stored>, StoreError> {
        let what = format!("stream {stream:?} cannot be read");
        let subject = format!("$JS.API.STREAM.MSG.GET.{stream}");
        let answer: Result<GetAnswer, ApiError> = self.ask(&what, &subject, body, false).await?;
        let message = match answer {
            Ok(answer) => answer.message,
            Err(ApiError { err_code: NO_MESSAGE | NO_STREAM, .. }) => return Ok(None),
            Err(answer) => return Err(turned_down(&what, &answer)),
        };
        let decode = |text: &str| {
            let bytes = BASE64_STANDARD.decode(text);
            bytes.map_err(|source| garbled(&what).with_source(source))
        };
        let after = after(&decode(&message.hdrs)?);
        Ok(Some(Stored { seq: message.seq, after, data: decode(&message.data)?.into() }))
    }

    /// Stores an entry of a journal. `None` if its end is another one.
    pub(super) async fn put_entry(
        &self,
        what: &str,
        subject: &str,
        end: End,
        data: Bytes,
    ) -> Result<Option<u64>, StoreError> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_LAST, end.last.to_string());
        headers.insert(AFTER, end.counts.to_string());
        match self.publish(what, subject.to_owned(), Some(headers), data).await? {
            Ok(ack) => Ok(Some(ack.seq)),
            Err(ApiError { err_code: WRONG_LAST, .. }) => Ok(None),
            Err(answer) => Err(turned_down(what, &answer)),
        }
    }

    /// Stores a message.
    pub(super) async fn put(
        &self,
        what: &str,
        subject: String,
        headers: Option<HeaderMap>,
        data: Bytes,
    ) -> Result<PubAck, StoreError> {
        self.publish(what, subject, headers, data).await?.map_err(|answer| turned_down(what, &answer))
    }

    async fn publish(
        &self,
        what: &str,
        subject: String,
        headers: Option<HeaderMap>,
        data: Bytes,
    ) -> Result<Result<PubAck, ApiError>, StoreError> {
        let request = Request::new().payload(data);
        let request = match headers {
            Some(headers) => request.headers(headers),
            None => request,
        };
        self.send(what, subject, request, true).await
    }

    /// Removes the messages of a subject before a sequence, oldest first. `replicated`: the stream has replicas.
    ///
    /// Servers before 2.9.18 that are restarted in a cluster take a purge of one subject that they find in their
    /// log for one of the whole stream (nats-server issue 4196). There the messages are removed one by one.
    pub(super) async fn remove_before(
        &self,
        stream: &str,
        replicated: bool,
        filter: &str,
        before: u64,
    ) -> Result<(), StoreError> {
        if !replicated || self.client.is_server_compatible(2, 9, 18) {
            return self.purge(stream, filter, before).await;
        }
        let mut seen = 0;
        while let Some(message) =
            self.next(stream, filter, seen).await?.filter(|message| message.seq < before)
        {
            self.delete(stream, message.seq).await?;
            seen = message.seq;
        }
        Ok(())
    }

    async fn purge(&self, stream: &str, filter: &str, before: u64) -> Result<(), StoreError> {
        let what = format!("messages cannot be removed from stream {stream:?}");
        let subject = format!("$JS.API.STREAM.PURGE.{stream}");
        // Without a sequence it is all of them.
        let body = match before {
            u64::MAX => json!({ "filter": filter }),
            _ => json!({ "filter": filter, "seq": before }),
        };
        let answer: Result<Value, ApiError> = self.ask(&what, &subject, body, true).await?;
        answer.map(drop).map_err(|answer| turned_down(&what, &answer))
    }

    async fn delete(&self, stream: &str, seq: u64) -> Result<(), StoreError> {
        let what = format!("a message cannot be removed from stream {stream:?}");
        let subject = format!("$JS.API.STREAM.MSG.DELETE.{stream}");
        let body = json!({ "seq": seq, "no_erase": true });
        match self.ask::<Value>(&what, &subject, body, true).await? {
            // Somebody else removed it.
            Ok(_) | Err(ApiError { err_code: NO_MESSAGE | NO_SEQUENCE, .. }) => Ok(()),
            Err(answer) => Err(turned_down(&what, &answer)),
        }
    }

    pub(super) async fn make_consumer(&self, stream: &str, config: Value) -> Result<Consumer, StoreError> {
        let what = format!("stream {stream:?} cannot be read");
        let body = json!({ "stream_name": stream, "config": config });
        let subject = format!("$JS.API.CONSUMER.CREATE.{stream}");
        self.ask(&what, &subject, body, false).await?.map_err(|answer| turned_down(&what, &answer))
    }

    /// Lets a consumer go; one that stays is removed by the server when it is idle.
    pub(super) async fn drop_consumer(&self, stream: &str, name: &str) {
        let _ = self.client.publish(format!("$JS.API.CONSUMER.DELETE.{stream}.{name}"), Bytes::new()).await;
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        subject: &str,
        body: Value,
        changes: bool,
    ) -> Result<Result<T, ApiError>, StoreError> {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        self.send(what, subject.to_owned(), Request::new().payload(body), changes).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        what: &str,
        subject: String,
        request: Request,
        changes: bool,
    ) -> Result<Result<T, ApiError>, StoreError> {
        if self.client.connection_state() != async_nats::connection::State::Connected {
            // Not handed to the client, which would send it when it is connected again.
            let reason = "the NATS server is away: try again when it is back";
            return Err(error(StoreErrorKind::Unavailable, format!("{what}: {reason}")));
        }
        let answer = self.client.send_request(subject.clone(), request).await;
        let answer = answer.map_err(|source| match self.denials.take(&subject) {
            Some(said) => denied(what, &said).with_source(source),
            None => request_failed(what, changes, source),
        })?;
        match serde_json::from_slice(&answer.payload) {
            Ok(Answer::Good(answer)) => Ok(Ok(answer)),
            Ok(Answer::Error { error }) => Ok(Err(error)),
            Err(source) => Err(garbled(what).with_source(source)),
        }
    }
}

/// So many subjects come in one answer.
const PAGE: usize = 100_000;

fn garbled(what: &str) -> StoreError {
    let reason = "the answer cannot be read: is it a NATS server of version 2.9 or newer that answers?";
    error(StoreErrorKind::Corrupt, format!("{what}: {reason}"))
}

/// The entry that a message comes after, from its headers.
fn after(headers: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(headers);
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let value = lines.find(|(name, _)| name.trim().eq_ignore_ascii_case(AFTER));
    value.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}
