//! The shards that are the instance's own by configuration, held under leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use photon_core::error::{StoreError, StoreErrorKind, chain};
use photon_core::ids::{Incarnation, Shard, SubscriptionId};
use photon_core::machine::claims::{Answer, Change, Claims};
use photon_core::store::{Claim, ClaimResult, Fence, MemberInfo, ShardClaim};
use photon_core::time::Mono;
use tokio::sync::{mpsc, oneshot, watch};

use super::membership::{Membership, in_time};
use super::process;

/// What a subscription's loop must know about its shards. A shard is assigned and lost in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Assignment {
    /// These shards are held from now on, under these fences.
    Assigned(Vec<(Shard, Fence)>),
    /// These shards are not held any more: stop their work. It costs no attempt.
    Lost(Vec<Shard>),
}

/// The side of a subscription's loop. Dropping it ends the coordinator; what it holds stays held until the
/// process leaves.
#[derive(Debug)]
pub(crate) struct Ownership {
    assignments: mpsc::UnboundedReceiver<Assignment>,
    requests: mpsc::UnboundedSender<Request>,
}

#[derive(Debug)]
enum Request {
    Release(Vec<Shard>, oneshot::Sender<Result<(), StoreError>>),
    Fenced(Shard, Fence),
}

impl Ownership {
    /// The next assignment or loss; `None` once the coordinator has ended. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Assignment> {
        self.assignments.recv().await
    }

    /// Gives shards back after their work has ended and its checkpoints are written. They are not claimed again.
    ///
    /// # Errors
    /// Those of the store. The shards then stay with this process until it leaves or is replaced.
    pub(crate) async fn release(&self, shards: Vec<Shard>) -> Result<(), StoreError> {
        let (done, answer) = oneshot::channel();
        if self.requests.send(Request::Release(shards, done)).is_err() {
            // Ended: the membership is gone, and everything with it.
            return Ok(());
        }
        answer.await.unwrap_or(Ok(()))
    }

    /// Reports that the store refused a write under this fence. The loss is then told, and the shard is claimed
    /// again.
    pub(crate) fn fenced(&self, shard: Shard, fence: Fence) {
        // Ended: there is nobody left to claim it.
        let _ = self.requests.send(Request::Fenced(shard, fence));
    }
}

/// Claims and keeps the shards of one subscription for this instance. Run it beside the subscription's loop.
#[derive(Debug)]
pub(crate) struct StaticCoordinator {
    membership: Arc<Membership>,
    standing: watch::Receiver<Option<Incarnation>>,
    subscription: SubscriptionId,
    claims: Claims,
    // Not bounded, and needs not be: it takes an outage of a whole ttl to make one entry more.
    assignments: mpsc::UnboundedSender<Assignment>,
    requests: mpsc::UnboundedReceiver<Request>,
}

impl StaticCoordinator {
    /// A coordinator for `wanted`, see
    /// [`StaticShare::shards_of`](photon_core::machine::assignment::StaticShare::shards_of), and the side of the
    /// subscription's loop. Nothing is claimed before [`run`](Self::run).
    pub(crate) fn new(
        membership: Arc<Membership>,
        subscription: SubscriptionId,
        wanted: impl IntoIterator<Item = Shard>,
    ) -> (Self, Ownership) {
        let (assignments, told) = mpsc::unbounded_channel();
        let (asks, requests) = mpsc::unbounded_channel();
        let claims = Claims::new(subscription.clone(), wanted, membership.shared().ttl);
        let standing = membership.standing();
        let coordinator = Self { membership, standing, subscription, claims, assignments, requests };
        (coordinator, Ownership { assignments: told, requests: asks })
    }

    /// Runs until the [`Ownership`] is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            self.follow_membership();
            self.tell();
            if let Some(claims) = self.claims.poll_claims(self.now()) {
                self.claim(claims).await;
                continue;
            }
            let wake = self.claims.next_wake();
            let clock = self.membership.shared().clock;
            tokio::select! {
                biased;
                // The sender lives as long as the membership, which is kept here.
                _ = self.standing.changed() => {}
                request = self.requests.recv() => match request {
                    Some(request) => self.serve(request).await,
                    None => return,
                },
                () = clock.sleep_until(wake.unwrap_or_default()), if wake.is_some() => {}
            }
        }
    }

    fn now(&self) -> Mono {
        self.membership.shared().clock.mono()
    }

    fn follow_membership(&mut self) {
        let standing = *self.standing.borrow_and_update();
        match standing {
            Some(me) if self.membership.may_work(me) => self.claims.handle_joined(me, self.now()),
            _ => self.claims.handle_left(),
        }
    }

    fn tell(&mut self) {
        while let Some(change) = self.claims.poll_change() {
            let told = match change {
                Change::Assigned(shards) => {
                    tracing::debug!(subscription = %self.subscription, shards = ?numbers(shards.iter().map(|(s, _)| s)), "shards assigned");
                    self.assignments.send(Assignment::Assigned(shards))
                }
                Change::Lost(shards) => {
                    tracing::debug!(subscription = %self.subscription, shards = ?numbers(&shards), "shards lost");
                    self.assignments.send(Assignment::Lost(shards))
                }
                Change::Conflict { shards, incumbent } => {
                    self.warn(&shards, &incumbent);
                    Ok(())
                }
            };
            // Not heard: the loop is gone, and `run` sees it.
            let _ = told;
        }
    }

    fn warn(&self, shards: &[Shard], incumbent: &MemberInfo) {
        tracing::warn!(
            subscription = %self.subscription,
            shards = ?numbers(shards),
            instance = %incumbent.member.instance,
            pid = incumbent.member.pid,
            host = incumbent.member.host,
            since = %incumbent.joined,
            "another live instance holds shards of this one: standing by until it ends; \
             give each instance an index or shards of its own",
        );
    }

    async fn claim(&mut self, claims: Vec<Claim>) {
        let Some(me) = *self.standing.borrow() else {
            return self.claims.handle_left();
        };
        let shared = self.membership.shared();
        let answer = tokio::select! {
            biased;
            answer = in_time(shared.clock, shared.ttl, "claim", shared.leases.claim(me, &claims)) => answer,
            // Nothing that is granted to it now counts.
            _ = self.standing.changed() => return,
        };
        let now = shared.clock.mono();
        match answer.and_then(|results| pair(claims, results)) {
            // A process that was frozen while it waited for the answer.
            Ok(_) if !self.membership.may_work(me) => self.claims.handle_left(),
            Ok(answers) => {
                if let Some(lasted) = self.claims.handle_answers(me, answers, now) {
                    tracing::info!(subscription = %self.subscription, ?lasted, "claims are answered again");
                }
            }
            Err(error) => {
                if error.kind() == StoreErrorKind::Fenced {
                    self.membership.doubt();
                }
                if self.claims.handle_failed(now) {
                    let error = chain(&error);
                    tracing::warn!(subscription = %self.subscription, error, "claim failed, trying again");
                }
            }
        }
    }

    async fn serve(&mut self, request: Request) {
        match request {
            Request::Fenced(shard, fence) => self.claims.handle_fenced(shard, fence, self.now()),
            Request::Release(shards, done) => {
                self.claims.handle_released(&shards);
                // The loop may have stopped listening; the shards are given back all the same.
                let _ = done.send(self.give_back(shards).await);
            }
        }
    }

    async fn give_back(&self, shards: Vec<Shard>) -> Result<(), StoreError> {
        let Some(me) = *self.standing.borrow() else {
            return Ok(());
        };
        let claims: Vec<_> = shards
            .into_iter()
            .map(|shard| ShardClaim { subscription: self.subscription.clone(), shard })
            .collect();
        let shared = self.membership.shared();
        in_time(shared.clock, shared.ttl, "release", shared.leases.release(me, &claims)).await
    }
}

fn pair(claims: Vec<Claim>, results: Vec<ClaimResult>) -> Result<Vec<(Shard, Answer)>, StoreError> {
    if claims.len() != results.len() {
        let message = format!(
            "the store gave {} answers to {} claims: report this as a fault of the store",
            results.len(),
            claims.len()
        );
        return Err(StoreError::new(StoreErrorKind::Corrupt, message));
    }
    // One look an incumbent, which may hold many shards.
    let mut dead = BTreeMap::new();
    let mut answer = |result| match result {
        ClaimResult::Granted(fence) => Answer::Granted(fence),
        ClaimResult::Held(by) => {
            let dead = dead.entry(by.member.incarnation).or_insert_with(|| process::is_dead(&by.member));
            Answer::Held { dead: *dead, by }
        }
    };
    Ok(claims.into_iter().zip(results).map(|(claim, result)| (claim.shard.shard, answer(result))).collect())
}

fn numbers<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> Vec<u16> {
    shards.into_iter().map(|shard| shard.0).collect()
}
