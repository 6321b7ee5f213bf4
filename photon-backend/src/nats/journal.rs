//! Entries of the state stream that follow one another: of each subject, one after the last.
//!
//! The server stores an entry only if the last of its subject is the one that the writer saw. In a stream with
//! replicas that check is not part of the consensus: two entries can both pass it when they come close together or
//! a leader changes. So each entry also names the one that it comes after, and what counts is the *first* entry
//! that comes after a counting one; others are never applied. A writer looks whether its own is the one before it
//! says that it is done.

use bytes::Bytes;
use photon_core::error::{StoreError, StoreErrorKind};

use super::Inner;
use super::api::Stored;
use super::error::error;

/// The end of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct End {
    /// The last entry that counts; 0 if there is none.
    pub(super) counts: u64,
    /// The last entry.
    pub(super) last: u64,
}

impl Inner {
    /// The last entry of a subject that counts, where each replaces the ones before.
    pub(super) async fn last_entry(&self, subject: &str) -> Result<Option<(End, Stored)>, StoreError> {
        let Some(last) = self.js.last(&self.state, subject).await? else { return Ok(None) };
        let end = last.seq;
        if !self.replicated {
            return Ok(Some((End { counts: end, last: end }, last)));
        }
        let Some(mut counts) = self.successor(subject, last.after).await? else { return Ok(None) };
        while counts.seq < end
            && let Some(next) = self.successor(subject, counts.seq).await?
        {
            counts = next;
        }
        Ok(Some((End { counts: counts.seq, last: end.max(counts.seq) }, counts)))
    }

    /// The entry that counts after one that does.
    pub(super) async fn successor(&self, subject: &str, after: u64) -> Result<Option<Stored>, StoreError> {
        let mut seen = after;
        while let Some(entry) = self.js.next(&self.state, subject, seen).await? {
            if entry.after == after {
                return Ok(Some(entry));
            }
            seen = entry.seq;
        }
        Ok(None)
    }

    /// Stores an entry at the end of a journal. `None` if the end is another one.
    pub(super) async fn put_entry(
        &self,
        what: &str,
        subject: &str,
        end: End,
        data: Bytes,
    ) -> Result<Option<End>, StoreError> {
        let stored = match self.js.put_entry(what, subject, end, data).await {
            Ok(stored) => stored,
            Err(error) => {
                self.make_state_if_gone(&error).await;
                return Err(error);
            }
        };
        let Some(seq) = stored else { return Ok(None) };
        let stored = End { counts: seq, last: seq };
        if !self.replicated {
            return Ok(Some(stored));
        }
        let first = self.successor(subject, end.counts).await.map_err(|source| {
            let message = format!("{what}: it may be done or not");
            error(StoreErrorKind::Unknown, message).with_source(source)
        })?;
        Ok(first.filter(|first| first.seq == seq).map(|_| stored))
    }
}
