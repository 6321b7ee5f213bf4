//! What a server says, as errors of a store.

use async_nats::RequestErrorKind;
use photon_core::error::{StoreError, StoreErrorKind};

use super::api::ApiError;

pub(super) fn error(kind: StoreErrorKind, message: impl Into<String>) -> StoreError {
    StoreError::new(kind, message)
}

/// A request that got no answer from JetStream. `what` names what was asked for, `changes` whether the server
/// may have carried it out nevertheless.
pub(super) fn request_failed(what: &str, changes: bool, source: async_nats::RequestError) -> StoreError {
    let (kind, reason) = match source.kind() {
        RequestErrorKind::TimedOut if changes => (
            StoreErrorKind::Unknown,
            "the answer of the NATS server did not come in time: it may be done or not",
        ),
        RequestErrorKind::TimedOut => {
            (StoreErrorKind::Unavailable, "the NATS server did not answer in time: try again")
        }
        RequestErrorKind::NoResponders => (
            StoreErrorKind::Unavailable,
            "no NATS server answers for it: its stream has no leader just now, or JetStream is off (start the \
             server with -js), or the account lacks it",
        ),
        RequestErrorKind::MaxPayloadExceeded => (
            StoreErrorKind::Refused,
            "it is larger than the NATS server takes: raise max_payload in its configuration",
        ),
        _ if changes => {
            (StoreErrorKind::Unknown, "the connection to the NATS server broke: it may be done or not")
        }
        _ => (StoreErrorKind::Unavailable, "the connection to the NATS server broke: try again"),
    };
    error(kind, format!("{what}: {reason}")).with_source(source)
}

/// A request that the server did not pass on: nothing was changed. `said` names the subject.
pub(super) fn denied(what: &str, said: &str) -> StoreError {
    let message = format!(
        "{what}: the NATS server says \"{said}\": let the user publish to $JS.API.> and to the subjects of the \
         namespace, and subscribe to _INBOX.>"
    );
    error(StoreErrorKind::Denied, message)
}

fn is_about_room(description: &str) -> bool {
    let description = description.to_lowercase();
    ["maximum", "exceeded", "space", "quota", "insufficient"].iter().any(|word| description.contains(word))
}

/// A request that JetStream turned down: nothing was changed.
pub(super) fn turned_down(what: &str, answer: &ApiError) -> StoreError {
    let ApiError { code, err_code, description } = answer;
    let (kind, hint) = match (*err_code, *code) {
        // The stream cannot store it or be made, for whatever reason: it may be about to be removed.
        (10049 | 10077, _) if !is_about_room(description) => (StoreErrorKind::Unavailable, "try again"),
        // Resources of the account, of the server, of the stream.
        (10002 | 10023 | 10028 | 10047 | 10049 | 10054 | 10077, _) => (
            StoreErrorKind::Full,
            "free room, or raise the limits of JetStream, of the account or of the stream",
        ),
        (10039 | 10076, _) => (StoreErrorKind::Denied, "enable JetStream for the server and the account"),
        (_, 500 | 503) => (StoreErrorKind::Unavailable, "try again"),
        (_, 403) => (StoreErrorKind::Denied, "give the user the permission"),
        _ => (StoreErrorKind::Refused, "compare the stream with what Photon makes, see docs/engines.md"),
    };
    error(kind, format!("{what}: the NATS server says \"{description}\" ({err_code}): {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p10_what_fails_for_lack_of_room_is_full_and_the_rest_is_tried_again() {
        let kind = |description: &str| {
            let answer = ApiError { code: 503, err_code: 10077, description: description.to_owned() };
            turned_down("events cannot be stored", &answer).kind()
        };
        assert_eq!(kind("maximum bytes exceeded"), StoreErrorKind::Full);
        assert_eq!(kind("write 2.blk: no space left on device"), StoreErrorKind::Full);
        assert_eq!(
            kind("Error creating msg block file: no such file or directory"),
            StoreErrorKind::Unavailable
        );
    }
}
