//! The cells of subscriptions, kept up to date with their journals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::try_join_all;
use photon_core::envelope::{BadEnvelope, get_varint, put_varint};
use photon_core::error::StoreError;
use photon_core::ids::{Shard, SubscriptionId};

use super::Inner;
use super::api::Stored;
use super::cell::{Cell, Head, Touched, unreadable};
use super::journal::End;
use super::records::{contended, wait_for_others};

/// With so few stored deliveries every entry of a journal is a full one, and its last is all of it.
const SMALL: usize = 64;
/// A full entry is written at least so often.
const CHANGES: u32 = 128;
const TRIES: u32 = 200;

/// All cells that were looked at.
#[derive(Default)]
pub(super) struct Cells(Mutex<HashMap<(SubscriptionId, Shard), Arc<Slot>>>);

type Slot = tokio::sync::Mutex<Option<Loaded>>;

/// A cell as of an entry.
pub(super) struct Loaded {
    pub(super) cell: Cell,
    /// That entry.
    end: End,
    /// The last full entry.
    base: u64,
    /// How many entries followed it, their bytes, and its own.
    changes: u32,
    changed_bytes: usize,
    full_bytes: usize,
}

/// What a change of a cell comes to.
pub(super) enum Step<R> {
    /// Nothing was changed. It is asked again if the cell was not up to date.
    Keep(R),
    /// The cell was changed.
    Write(R),
}

/// The frame of an entry in its message.
struct Frame {
    /// The full entry that it builds on; 0 if it is one.
    base: u64,
    content: Content,
}

enum Content {
    Whole(Bytes),
    /// In these messages.
    Parts(Vec<u64>),
}

impl Frame {
    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        put_varint(&mut out, self.base);
        match &self.content {
            Content::Whole(bytes) => {
                put_varint(&mut out, 0);
                out.extend_from_slice(bytes);
            }
            Content::Parts(parts) => {
                put_varint(&mut out, parts.len() as u64);
                for part in parts {
                    put_varint(&mut out, *part);
                }
            }
        }
        out.into()
    }

    fn decode(mut bytes: Bytes) -> Result<Self, BadEnvelope> {
        let base = get_varint(&mut bytes)?;
        let parts = get_varint(&mut bytes)?;
        if parts == 0 {
            return Ok(Self { base, content: Content::Whole(bytes) });
        }
        let parts = (0..parts).map(|_| get_varint(&mut bytes)).collect::<Result<_, _>>()?;
        Ok(Self { base, content: Content::Parts(parts) })
    }
}

impl Inner {
    fn slot(&self, id: &SubscriptionId, shard: Shard) -> Arc<Slot> {
        let mut cells = self.cells.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(cells.entry((id.clone(), shard)).or_default())
    }

    /// Looks at a cell as the leader of the stream has it.
    pub(super) async fn look<R>(
        &self,
        id: &SubscriptionId,
        shard: Shard,
        look: impl FnOnce(&Cell) -> R,
    ) -> Result<R, StoreError> {
        let slot = self.slot(id, shard);
        let mut slot = slot.lock().await;
        let loaded = self.refresh(id, shard, slot.take()).await?;
        let result = look(&loaded.cell);
        *slot = Some(loaded);
        Ok(result)
    }

    /// Changes a cell. `change` first runs on what this process knows of it, and again when that turns out to be
    /// out of date: the entry is stored only if it comes after the last one.
    pub(super) async fn change_cell<R>(
        &self,
        id: &SubscriptionId,
        shard: Shard,
        what: &str,
        mut change: impl FnMut(&mut Cell, &mut Touched) -> Step<R>,
    ) -> Result<R, StoreError> {
        let slot = self.slot(id, shard);
        let mut slot = slot.lock().await;
        // While it is being changed the slot is empty: a future that is dropped leaves nothing half done.
        let mut known = slot.take();
        for attempt in 0..TRIES {
            let fresh = known.is_none() || attempt > 0;
            let mut loaded = match known.take() {
                Some(loaded) if attempt == 0 => loaded,
                other => self.refresh(id, shard, other).await?,
            };
            let mut touched = Touched::default();
            let result = match change(&mut loaded.cell, &mut touched) {
                Step::Keep(result) if fresh => {
                    *slot = Some(loaded);
                    return Ok(result);
                }
                Step::Keep(_) => {
                    known = Some(loaded);
                    continue;
                }
                Step::Write(result) => result,
            };
            if self.write(id, shard, what, &mut loaded, &touched).await? {
                *slot = Some(loaded);
                return Ok(result);
            }
            wait_for_others(attempt).await;
        }
        Err(contended(what))
    }

    /// Stores what changed. `false` if another entry came first.
    async fn write(
        &self,
        id: &SubscriptionId,
        shard: Shard,
        what: &str,
        loaded: &mut Loaded,
        touched: &Touched,
    ) -> Result<bool, StoreError> {
        let mut full =
            loaded.cell.position.rows.len() <= SMALL || loaded.base == 0 || loaded.changes >= CHANGES;
        let mut entry = Bytes::new();
        if !full {
            entry = loaded.cell.encode_change(touched).into();
            full = loaded.changed_bytes + entry.len() > loaded.full_bytes;
        }
        if full {
            entry = loaded.cell.encode_full().into();
        }
        let bytes = entry.len();
        let (first_part, content) = self.divide(id, shard, what, entry).await?;
        let frame = Frame { base: if full { 0 } else { loaded.base }, content };
        let subject = self.names.cell(id, shard);
        let Some(end) = self.put_entry(what, &subject, loaded.end, frame.encode()).await? else {
            return Ok(false);
        };
        let (had_changes, seq) = (loaded.changes > 0, end.counts);
        loaded.end = end;
        if full {
            (loaded.base, loaded.full_bytes, loaded.changes, loaded.changed_bytes) = (seq, bytes, 0, 0);
            if had_changes {
                self.tidy(self.names.parts(id, shard), first_part.unwrap_or(seq));
                self.tidy(subject, seq);
            } else {
                self.tidy_sometimes(&subject, seq);
            }
        } else {
            loaded.changes += 1;
            loaded.changed_bytes += bytes;
        }
        self.tidy_bodies(id, shard, &loaded.cell, touched, seq);
        Ok(true)
    }

    /// Stores what does not fit in one message in several, beforehand. Returns the first of them.
    async fn divide(
        &self,
        id: &SubscriptionId,
        shard: Shard,
        what: &str,
        mut entry: Bytes,
    ) -> Result<(Option<u64>, Content), StoreError> {
        let limit = self.part_limit();
        if entry.len() <= limit {
            return Ok((None, Content::Whole(entry)));
        }
        let mut pieces = Vec::new();
        while !entry.is_empty() {
            pieces.push(entry.split_to(limit.min(entry.len())));
        }
        let subject = self.names.parts(id, shard);
        let stored = pieces.into_iter().map(|piece| self.js.put(what, subject.clone(), None, piece));
        let parts: Vec<u64> = try_join_all(stored).await?.into_iter().map(|ack| ack.seq).collect();
        Ok((parts.iter().min().copied(), Content::Parts(parts)))
    }

    /// The cell up to its last entry that counts, from what is known of it.
    async fn refresh(
        &self,
        id: &SubscriptionId,
        shard: Shard,
        known: Option<Loaded>,
    ) -> Result<Loaded, StoreError> {
        let subject = self.names.cell(id, shard);
        for attempt in 0..TRIES {
            let Some(last) = self.js.last(&self.state, &subject).await? else { return Ok(Loaded::empty()) };
            if known.as_ref().is_some_and(|known| known.end.last == last.seq) {
                return Ok(known.unwrap_or_else(Loaded::empty));
            }
            if let Some(loaded) = self.replay(id, shard, &subject, last).await? {
                return Ok(loaded);
            }
            wait_for_others(attempt).await;
        }
        Err(contended(&format!("shard {shard} of subscription {id} cannot be read")))
    }

    /// The sum of the entries that count. `None` if some were removed meanwhile.
    async fn replay(
        &self,
        id: &SubscriptionId,
        shard: Shard,
        subject: &str,
        last: Stored,
    ) -> Result<Option<Loaded>, StoreError> {
        let unreadable = |source| unreadable(id, shard, source);
        let frame = Frame::decode(last.data.clone()).map_err(unreadable)?;
        let end = last.seq;
        let mut start = last;
        if self.replicated || frame.base != 0 {
            // The last one may not count, but then another one does that comes after the same.
            let Some(first) = self.successor(subject, start.after).await? else { return Ok(None) };
            let frame = Frame::decode(first.data.clone()).map_err(unreadable)?;
            start = first;
            if frame.base != 0 {
                let Some(base) = self.js.at(&self.state, frame.base).await? else { return Ok(None) };
                start = base;
            }
        }
        let mut loaded = Loaded::empty();
        let mut entry = start;
        loop {
            let seen = entry.seq;
            let counts = loaded.end.counts == 0 || entry.after == loaded.end.counts;
            if counts && !self.add(id, shard, &mut loaded, entry).await? {
                return Ok(None);
            }
            loaded.end.last = seen;
            if seen >= end {
                return Ok(Some(loaded));
            }
            let Some(next) = self.js.next(&self.state, subject, seen).await? else { return Ok(None) };
            entry = next;
        }
    }

    async fn add(
        &self,
        id: &SubscriptionId,
        shard: Shard,
        loaded: &mut Loaded,
        entry: Stored,
    ) -> Result<bool, StoreError> {
        let unreadable = |source| unreadable(id, shard, source);
        let frame = Frame::decode(entry.data).map_err(unreadable)?;
        if loaded.end.counts == 0 && frame.base != 0 {
            return Ok(false);
        }
        let Some(content) = self.join(frame.content).await? else { return Ok(false) };
        let bytes = content.len();
        if frame.base == 0 {
            *loaded = Loaded { base: entry.seq, full_bytes: bytes, ..Loaded::empty() };
        } else {
            loaded.changes += 1;
            loaded.changed_bytes += bytes;
        }
        loaded.cell.apply(&id.topic, shard, content).map_err(unreadable)?;
        loaded.end = End { counts: entry.seq, last: entry.seq };
        Ok(true)
    }

    async fn join(&self, content: Content) -> Result<Option<Bytes>, StoreError> {
        let parts = match content {
            Content::Whole(bytes) => return Ok(Some(bytes)),
            Content::Parts(parts) => parts,
        };
        let parts = try_join_all(parts.into_iter().map(|part| self.js.at(&self.state, part))).await?;
        let parts: Option<Vec<Bytes>> = parts.into_iter().map(|part| Some(part?.data)).collect();
        Ok(parts.map(|parts| parts.concat().into()))
    }

    /// Who may write, as the last entry of a journal says: a hint, for the entry may be one that does not count.
    pub(super) async fn peek(&self, subject: &str) -> Result<Option<Head>, StoreError> {
        let Some(last) = self.js.last(&self.state, subject).await? else { return Ok(None) };
        let head = async {
            let frame = Frame::decode(last.data).ok()?;
            let mut content = self.join(frame.content).await.ok()??;
            Head::read(&mut content).ok()
        };
        Ok(head.await)
    }
}

impl Loaded {
    fn empty() -> Self {
        Self {
            cell: Cell::default(),
            end: End::default(),
            base: 0,
            changes: 0,
            changed_bytes: 0,
            full_bytes: 0,
        }
    }
}
