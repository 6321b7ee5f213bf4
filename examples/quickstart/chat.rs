//! The flaky thing: a chat room that takes the first line of each commit, and is now and then too busy.

use photon::prelude::*;

use crate::commit::Commit;
use crate::tables::Tables;

/// Why a post did not go through.
#[derive(Debug, thiserror::Error, Failure)]
pub enum PostError {
    #[error("the chat room is busy")]
    #[failure(retry)]
    Busy,
    #[error("the chat room lost its memory")]
    #[failure(retry)]
    Memory(#[from] rusqlite::Error),
}

/// The chat room. It remembers what it took and what it refused, as a real one would on its own server.
///
/// It refuses about one post in sixteen, the first time or the first two times. Which ones follows from the
/// commit alone: so however often this program is killed in between, at the end the same posts have been refused
/// equally often, and the numbers of two runs can be compared.
#[derive(Clone)]
pub struct ChatRoom {
    memory: Tables,
}

impl ChatRoom {
    pub fn new(memory: Tables) -> Self {
        Self { memory }
    }

    /// Posts the commit. A post that comes twice stands there once.
    pub async fn post(&self, commit: &Commit) -> Result<(), PostError> {
        let refusals = Self::refusals(&commit.hash);
        if refusals > 0 && self.memory.refuse(commit.hash.clone(), refusals).await? {
            return Err(PostError::Busy);
        }
        let message = commit.message.to_string();
        let subject = message.chars().take(72).collect();
        self.memory.post(commit.hash.clone(), subject).await?;
        Ok(())
    }

    /// How often the post of this commit is refused before it is taken.
    fn refusals(hash: &str) -> u32 {
        match hash.get(..2).and_then(|start| u8::from_str_radix(start, 16).ok()) {
            Some(0..4) => 2,
            Some(4..16) => 1,
            _ => 0,
        }
    }
}
