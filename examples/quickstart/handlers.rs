//! The three subscriptions. Each gets every commit, has a place of its own in the log, and fails on its own.

use indicatif::ProgressBar;
use photon::prelude::*;

use crate::chat::{ChatRoom, PostError};
use crate::commit::{Commit, Text};
use crate::tables::Tables;

/// Shows that a delivery is settled.
#[derive(Clone)]
pub struct Settled(pub ProgressBar);

/// Keeps the projection: what each author did.
#[subscribe(group = "authors", retry(max_attempts = 1000, backoff = "exponential(20ms..1s)"))]
pub async fn count(
    commit: Commit,
    State(tables): State<Tables>,
    State(settled): State<Settled>,
) -> rusqlite::Result<()> {
    tables.count(commit).await?;
    settled.0.inc(1);
    Ok(())
}

/// Tells the chat room about the commit. The room is often busy; then it is tried again, and the author's later
/// commits wait their turn.
#[subscribe(
    group = "chat",
    concurrency = 32,
    retry(max_attempts = 1000, backoff = "exponential(5ms..1s)", jitter = 0.2)
)]
pub async fn announce(
    commit: Commit,
    State(room): State<ChatRoom>,
    State(settled): State<Settled>,
) -> Result<(), PostError> {
    room.post(&commit).await?;
    settled.0.inc(1);
    Ok(())
}

/// Refuses what a tool could not read. Trying again would not help: such a commit is a dead letter at once.
#[subscribe(group = "review")]
pub async fn review(commit: Commit, State(settled): State<Settled>) -> Result<(), Malformed> {
    settled.0.inc(1);
    Malformed::find(&commit).map_or(Ok(()), Err)
}

/// What is wrong with a commit.
#[derive(Debug, thiserror::Error, Failure)]
pub enum Malformed {
    #[error("the author has no name")]
    #[failure(permanent)]
    NoName,
    #[error("the author has no e-mail address")]
    #[failure(permanent)]
    NoAddress,
    #[error("the time cannot be read")]
    #[failure(permanent)]
    NoTime,
    #[error("the message is empty")]
    #[failure(permanent)]
    NoMessage,
    #[error("the {0} is not UTF-8, and the commit declares no other encoding")]
    #[failure(permanent)]
    Encoding(&'static str),
}

impl Malformed {
    fn find(commit: &Commit) -> Option<Self> {
        let author = commit.author.as_bytes();
        let name_ends = author.iter().rposition(|&byte| byte == b'<').unwrap_or(author.len());
        let (name, address) = author.split_at(name_ends);
        let undeclared = commit.encoding.is_none();
        [
            (name.trim_ascii().is_empty(), Self::NoName),
            (address.len() <= "<>".len(), Self::NoAddress),
            (commit.time.is_none(), Self::NoTime),
            (commit.message.as_bytes().trim_ascii().is_empty(), Self::NoMessage),
            (undeclared && matches!(commit.author, Text::Bytes(_)), Self::Encoding("author")),
            (undeclared && matches!(commit.message, Text::Bytes(_)), Self::Encoding("message")),
        ]
        .into_iter()
        .find_map(|(wrong, what)| wrong.then_some(what))
    }
}
