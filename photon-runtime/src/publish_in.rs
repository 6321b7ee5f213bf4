//! Publishing within a transaction of the user.

#[cfg(feature = "postgres")]
use photon_backend::postgres::PostgresTransaction;
#[cfg(feature = "sqlite")]
use photon_backend::sqlite::{SqliteStore, rusqlite};
use photon_core::event::NewEvent;
use photon_core::ids::EventId;

use crate::error::{Error, Result};
use crate::publish::Draft;
#[cfg(feature = "sqlite")]
use crate::publish::Receipt;
use crate::publisher::Core;

/// Stages an event in a transaction.
#[cfg(feature = "postgres")]
pub(crate) async fn stage<T: PostgresTransaction>(
    core: &Core,
    draft: Draft,
    id: EventId,
    transaction: &mut T,
) -> Result<EventId> {
    let _room = core.gate.enter(draft.payload.len()).await?;
    let Some(outbox) = core.store.as_outbox() else {
        return Err(Error::refused(format!(
            "the engine {} cannot publish within a transaction: use Postgres, or publish after the commit",
            core.store.engine()
        )));
    };
    let info = draft.entry.ensure(&*core.store, &core.random).await?;
    let shard = draft.shard(id, info.shards);
    let Draft { entry, key, headers, payload, dedup_id, .. } = draft;
    let event = NewEvent { id, shard, key, headers, payload, dedup_id };
    let staged = outbox.stage(&entry.name, std::slice::from_ref(&event)).await?;
    transaction.stage(&staged).await.map_err(|source| Error::Refused {
        message: format!(
            "an event of topic \"{}\" could not be written within the transaction: it must be one of the database \
             that holds the log, whose user may write there; roll it back",
            entry.name
        ),
        source: Some(source),
    })?;
    tracing::trace!(topic = %entry.name, event = %id, shard = shard.0, "staged");
    Ok(id)
}

/// Appends an event in a transaction of SQLite.
#[cfg(feature = "sqlite")]
pub(crate) fn append(core: &Core, draft: Draft, id: EventId, conn: &rusqlite::Connection) -> Result<Receipt> {
    if core.gate.is_closed() {
        return Err(Error::Closed);
    }
    let Some(store) = core.extensions.get::<SqliteStore>() else {
        return Err(Error::refused(format!(
            "the engine {} cannot publish within a transaction of SQLite: keep the log in the file of the transaction, \
             or publish after the commit",
            core.store.engine()
        )));
    };
    let spec = draft.entry.spec(&core.random);
    let mut at = None;
    let place = store.append_in(conn, &spec, |info| {
        let shard = draft.shard(id, info.shards);
        at = Some(shard);
        let Draft { key, headers, payload, dedup_id, .. } = draft;
        NewEvent { id, shard, key, headers, payload, dedup_id }
    })?;
    let shard = at.ok_or_else(|| Error::refused("the store appended nothing: report it"))?;
    Ok(Receipt { id, shard, seq: place.seq, duplicate: place.duplicate })
}
