//! What this process remembers of its subscriptions, and what becomes of it when somebody empties or removes the state
//! stream: they are made known again where they stood.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{Seq, Shard, SubscriptionId};
use photon_core::store::Registration;

use super::Inner;
use super::records::SubscriptionRecord;

/// How long a server may take to remove the files of a stream, after it says that there is none: of one that is made anew
/// before, servers of 2.9 remove the files, too.
const REMOVAL: Duration = Duration::from_secs(1);

/// The subscriptions that were registered here.
#[derive(Default)]
pub(super) struct Remembered(Mutex<HashMap<SubscriptionId, Memory>>);

struct Memory {
    registration: Registration,
    life: u64,
    /// Up to where each shard was seen to be settled.
    reached: Vec<u64>,
}

impl Remembered {
    fn lock(&self) -> MutexGuard<'_, HashMap<SubscriptionId, Memory>> {
        // Nothing that runs under the lock can panic half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn registered(&self, registration: &Registration, record: &SubscriptionRecord) {
        let (registration, life) = (registration.clone(), record.life);
        let memory = Memory { life, reached: record.starts.clone(), registration };
        let mut all = self.lock();
        match all.get_mut(&memory.registration.subscription) {
            Some(known) if known.life == life => known.registration = memory.registration,
            _ => drop(all.insert(memory.registration.subscription.clone(), memory)),
        }
    }

    /// An owner goes on from here, which may lie before where an earlier one was.
    pub(super) fn loaded(&self, id: &SubscriptionId, shard: Shard, watermark: Seq) {
        self.change(id, shard, |reached| *reached = watermark.0);
    }

    pub(super) fn committed(&self, id: &SubscriptionId, shard: Shard, watermark: Seq) {
        self.change(id, shard, |reached| *reached = watermark.0.max(*reached));
    }

    /// It was forgotten on purpose.
    pub(super) fn forgotten(&self, id: &SubscriptionId) {
        self.lock().remove(id);
    }

    fn change(&self, id: &SubscriptionId, shard: Shard, change: impl FnOnce(&mut u64)) {
        if let Some(memory) = self.lock().get_mut(id)
            && let Some(reached) = memory.reached.get_mut(usize::from(shard.0))
        {
            change(reached);
        }
    }
}

impl Inner {
    /// Registers a subscription again, of which nothing is left, if it was registered here: from where it was seen last.
    pub(super) async fn register_anew(
        &self,
        id: &SubscriptionId,
    ) -> Result<Option<SubscriptionRecord>, StoreError> {
        let remembered = {
            let all = self.remembered.lock();
            all.get(id).map(|memory| (memory.registration.clone(), memory.life, memory.reached.clone()))
        };
        let Some((registration, life, reached)) = remembered else { return Ok(None) };
        let new = self.begin(&registration, life + 1, 0, &reached).await?;
        let record = self.settle(id).await?;
        self.remembered.registered(&registration, &record);
        if new {
            tracing::error!(
                subscription = %id, stream = %self.state,
                "the position of the subscription was gone from the NATS server: it goes on from where this process saw \
                 it last; parked deliveries and dead letters are lost. Was the stream emptied or removed?",
            );
        }
        Ok(Some(record))
    }

    /// Whether somebody removed a stream, and is done with it.
    pub(super) async fn is_gone(&self, stream: &str) -> Result<bool, StoreError> {
        if self.js.stream(stream).await?.is_some() {
            return Ok(false);
        }
        tokio::time::sleep(REMOVAL).await;
        Ok(self.js.stream(stream).await?.is_none())
    }

    /// Makes the state stream anew if a write failed because somebody removed it.
    pub(super) async fn make_state_if_gone(&self, error: &StoreError) {
        if error.kind() != StoreErrorKind::Unavailable {
            return;
        }
        let _one = self.mending.lock().await;
        if !matches!(self.is_gone(&self.state).await, Ok(true)) {
            return;
        }
        match self.make_state().await {
            Ok(_) => tracing::error!(
                stream = %self.state,
                "the stream with all positions, parked deliveries and dead letters was gone from the NATS server and was \
                 made anew. Who removed it?",
            ),
            Err(error) => tracing::debug!(%error, "the state stream cannot be made anew for now"),
        }
    }
}
