//! Members that are gone and did not leave are made unknown, so that their entries do not pile up.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use photon_core::error::StoreError;
use photon_core::ids::Incarnation;
use photon_core::machine::lease::Observer;

use super::membership::{Shared, in_time};
use super::process;
use crate::config::LONGEST_TTL;

/// How long a round waits for the next.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(600);
/// Who does not renew for so long is gone, also if it belongs to a service with another ttl.
const SILENCE: Duration = Duration::from_secs(2 * LONGEST_TTL.as_secs());

/// Goes through the members from time to time. Errors wait for the next round: nothing depends on it.
pub(super) async fn forget_the_dead(shared: &Shared, me: Incarnation) -> Infallible {
    let mut watched = BTreeMap::new();
    loop {
        if let Err(error) = round(shared, me, &mut watched).await {
            tracing::debug!(%error, "members that are gone stay known for now");
        }
        shared.clock.sleep_until(shared.clock.mono() + BETWEEN_ROUNDS).await;
    }
}

async fn round(
    shared: &Shared,
    me: Incarnation,
    watched: &mut BTreeMap<Incarnation, Observer>,
) -> Result<(), StoreError> {
    let members = in_time(shared.clock, shared.ttl, "members", shared.leases.members()).await?;
    let now = shared.clock.mono();
    watched.retain(|who, _| members.iter().any(|info| info.member.incarnation == *who));
    for info in members {
        let who = info.member.incarnation;
        let (heartbeat, dead) = (info.heartbeat, process::is_dead(&info.member));
        let instance = info.member.instance.clone();
        let observer = watched.entry(who).or_insert_with(|| Observer::new(SILENCE, info, dead, now));
        // A live member is no conflict here.
        let _ = observer.handle_sample(heartbeat, dead, now);
        if who != me && observer.may_replace(now).is_some() {
            in_time(shared.clock, shared.ttl, "leave", shared.leases.leave(who)).await?;
            tracing::debug!(%instance, incarnation = %who, "forgot a member that is gone");
        }
    }
    Ok(())
}
