//! Random histories, every answer compared with the model's.

use photon_core::event::NewEvent;
use photon_core::ids::{Incarnation, Key, Seq, Shard, SubscriptionId};
use photon_core::options::Start;
use photon_core::store::{
    Claim, ClaimResult, DeadLetterFilter, Fence, Lane, Page, ReadLimit, ResetOutcome, RowEnd, RowState,
    Select, SeqRange, ShardCommit, ShardOutcome, ShardReset, Stage, StoredDelivery, Trial,
};
use photon_core::time::Timestamp;
use uuid::Uuid;

use super::fixture::{any_dead, commit_shard};
use super::kit::{Kit, Topic, event, member_info, new_member, shard_claim};
use super::model::{Model, ModelShard};
use super::verdict::{Outcome, Violation};
use crate::rng::Rng;

const SHARDS: u16 = 2;
const STEPS: usize = 120;
const KEYS: [Option<&str>; 4] = [None, Some(""), Some("a"), Some("b")];

pub(super) async fn random_histories_match_the_model(kit: Kit<'_>) -> Outcome {
    for round in 0..kit.rounds {
        let seed = kit.seed.wrapping_add(u64::from(round));
        let mut history = History::new(&kit, seed).await?;
        for step in 0..STEPS {
            let done = history.step().await;
            done.map_err(|v| v.context(format!("seed {seed}, step {step} ({})", history.last)))?;
        }
        let whole = history.compare_all().await;
        whole.map_err(|v| v.context(format!("seed {seed}, at the end")))?;
    }
    Ok(())
}

struct History {
    topic: Topic,
    subscriptions: Vec<SubscriptionId>,
    model: Model,
    rng: Rng,
    /// Makes every row differ from every other.
    counter: u32,
    last: &'static str,
}

impl History {
    async fn new(kit: &Kit<'_>, seed: u64) -> Outcome<Self> {
        let topic = kit.topic(SHARDS).await?;
        let mut subscriptions = Vec::new();
        for group in ["one", "two"] {
            subscriptions.push(topic.register(group, Start::Earliest).await?.0);
        }
        let model = Model::new(SHARDS, subscriptions.len());
        Ok(Self { topic, subscriptions, model, rng: Rng::new(seed), counter: 0, last: "" })
    }

    async fn step(&mut self) -> Outcome {
        match self.rng.below(20) {
            0..4 => self.append().await,
            4 => self.trim().await,
            5..8 => self.lease().await,
            8..13 => self.commit().await,
            13 => self.operate().await,
            14 => match self.rng.below(3) {
                0 => self.reset().await,
                _ => self.operate().await,
            },
            15..17 => self.read().await,
            _ => self.look().await,
        }
    }

    fn shard(&mut self) -> usize {
        self.rng.below(usize::from(SHARDS))
    }

    /// A place of an event of the shard, or now and then none.
    fn place(&mut self, shard: usize) -> Seq {
        let events = &self.model.log[shard].events;
        let index = self.rng.below(events.len() + 1);
        events.get(index).map_or(Seq::ZERO, |event| event.seq)
    }

    fn subscription(&mut self) -> usize {
        self.rng.below(self.subscriptions.len())
    }

    fn member(&mut self) -> Option<Incarnation> {
        let index = self.rng.below(self.model.members.len());
        self.model.members.keys().nth(index).copied()
    }

    async fn append(&mut self) -> Outcome {
        self.last = "append";
        let mut batch = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let key = KEYS[self.rng.below(KEYS.len())].map(Key::new);
            let dedup_id = self.rng.chance(300_000).then(|| format!("id {}", self.rng.below(4)));
            self.counter += 1;
            let new = event(number(self.shard()), u64::from(self.counter));
            batch.push(NewEvent { key, dedup_id, ..new });
        }
        let receipts = self.topic.append_any(batch.clone()).await?;
        for (new, receipt) in batch.into_iter().zip(receipts) {
            let log = &mut self.model.log[usize::from(new.shard.0)];
            let first = new.dedup_id.as_ref().and_then(|id| log.dedup.get(id)).copied();
            ensure_eq!(receipt.duplicate, first.is_some(), "whether {:?} is a duplicate", new.dedup_id);
            if let Some(first) = first {
                ensure_eq!(receipt.seq, first, "the place of a duplicate");
                continue;
            }
            ensure!(receipt.seq > log.end, "place {} after {}", receipt.seq, log.end);
            log.end = receipt.seq;
            log.dedup.extend(new.dedup_id.clone().map(|id| (id, receipt.seq)));
            let before = Seq(receipt.seq.0 - 1);
            let (mut records, _) =
                self.topic.read(new.shard.0, before, ReadLimit { records: 1, bytes: 1 }).await?;
            let stored = records.pop().ok_or_else(|| Violation::new("an appended event is not there"))?;
            ensure_eq!(
                (stored.seq, stored.id),
                (receipt.seq, new.id),
                "the event at the place of its receipt"
            );
            ensure!(
                stored.key == new.key && stored.payload == new.payload && stored.headers == new.headers,
                "the event came back changed: {stored:?}"
            );
            self.model.log[usize::from(new.shard.0)].events.push(stored);
        }
        Ok(())
    }

    async fn trim(&mut self) -> Outcome {
        self.last = "trim";
        let shard = self.shard();
        let through = self.place(shard);
        self.topic.store.trim(&self.topic.name, Shard(number(shard)), through).await?;
        let log = &mut self.model.log[shard];
        log.floor = log.floor.max(through);
        Ok(())
    }

    async fn read(&mut self) -> Outcome {
        self.last = "read";
        let shard = self.shard();
        let after = self.place(shard);
        let limit = ReadLimit { records: self.rng.below(6), bytes: 1 + self.rng.below(12) };
        let (records, read) = self.topic.read(number(shard), after, limit).await?;
        let log = &self.model.log[shard];
        let mut expected = log.after(after);
        let mut bytes = 0;
        let fits = expected.iter().take_while(|event| {
            let wanted = bytes < limit.bytes;
            bytes += event.payload.len();
            wanted
        });
        let count = fits.count().min(limit.records.max(1));
        let whole = count == expected.len();
        expected.truncate(count);
        ensure!(
            records == expected,
            "a read after {after} with {limit:?}: {records:?}, expected {expected:?}"
        );
        ensure_eq!((read.floor, read.end), (log.floor, log.end), "floor and end");
        let last = records.last().map_or(after, |event| event.seq);
        ensure!(read.through >= last, "through {} is before {last}", read.through);
        let next = log.after(last).first().map_or(log.end, |event| Seq(event.seq.0 - 1));
        let most = if whole { log.end.max(after) } else { next };
        ensure!(read.through <= most, "through {} leaves out what comes after {most}", read.through);
        Ok(())
    }

    async fn lease(&mut self) -> Outcome {
        let store = std::sync::Arc::clone(&self.topic.store);
        let what = self.rng.below(12);
        let Some(member) = self.member().filter(|_| what > 0) else {
            self.last = "join";
            let member = new_member()?;
            store.join(&member).await?;
            self.model.members.insert(member.incarnation, 1);
            return Ok(());
        };
        let (subscription, shard) = (self.subscription(), self.shard());
        let claim = shard_claim(&self.subscriptions[subscription], number(shard));
        match what {
            1 => {
                self.last = "leave";
                store.leave(member).await?;
                self.model.members.remove(&member);
                self.model.release(member, None);
            }
            2 => {
                self.last = "release";
                store.release(member, &[claim]).await?;
                self.model.release(member, Some((subscription, Shard(number(shard)))));
            }
            3..5 => {
                self.last = "heartbeat";
                store.heartbeat(member).await?;
                *self.model.members.entry(member).or_default() += 1;
            }
            _ => {
                self.last = "claim";
                let known = self.member().map(|other| (other, self.model.members[&other]));
                let replace = known.map(|(other, beat)| (other, beat + u64::from(self.rng.chance(300_000))));
                let replace = replace.filter(|_| self.rng.chance(500_000));
                self.claim(member, subscription, Claim { shard: claim, replace }).await?;
            }
        }
        let info = member_info(&*store, member).await?;
        let beat = self.model.members.get(&member).copied();
        ensure_eq!(info.map(|info| info.heartbeat), beat, "the heartbeat after {}", self.last);
        Ok(())
    }

    async fn claim(&mut self, member: Incarnation, subscription: usize, claim: Claim) -> Outcome {
        let shard = usize::from(claim.shard.shard.0);
        let refused_by = self.model.refuses(subscription, &claim).filter(|holder| *holder != member);
        let answers = self.topic.store.claim(member, &[claim]).await?;
        let position = &mut self.model.subscriptions[subscription][shard];
        match (answers.as_slice(), refused_by) {
            ([ClaimResult::Held(info)], Some(holder)) => {
                ensure_eq!(info.member.incarnation, holder, "who holds the shard");
            }
            ([ClaimResult::Granted(fence)], None) if position.holder == Some(member) => {
                ensure_eq!(Some(*fence), position.fence(), "the fence of a holder that claims again");
            }
            ([ClaimResult::Granted(fence)], None) => {
                ensure!(fence.epoch > position.epoch, "epoch {} after {}", fence.epoch, position.epoch);
                ensure_eq!(fence.token, member, "the token of the fence");
                (position.epoch, position.holder) = (fence.epoch, Some(member));
                position.unended = position.owner.replace(member);
            }
            (answers, _) => {
                return Err(Violation::new(format!("the answer is {answers:?}, the holder {refused_by:?}")));
            }
        }
        Ok(())
    }

    async fn commit(&mut self) -> Outcome {
        self.last = "commit";
        let (subscription, shard) = (self.subscription(), self.shard());
        let commit = self.make_commit(subscription, shard);
        let outcome =
            commit_shard(&*self.topic.store, &self.subscriptions[subscription], commit.clone()).await?;
        let outcome = match outcome {
            ShardOutcome::Committed { conflicts } => Some(conflicts.into_iter().collect()),
            ShardOutcome::Fenced => None,
        };
        let expected = self.model.subscriptions[subscription][shard].commit(&commit);
        ensure_eq!(outcome, expected, "conflicts, or none if fenced");
        if let Some(conflicts) = expected {
            let puts = commit.puts.iter().map(|put| put.event.seq).filter(|seq| !conflicts.contains(seq));
            self.learn_versions(subscription, shard, &puts.collect::<Vec<_>>()).await?;
        }
        self.compare_shard(subscription, shard).await
    }

    fn make_commit(&mut self, subscription: usize, shard: usize) -> ShardCommit {
        let position = &self.model.subscriptions[subscription][shard];
        let stale = Fence { epoch: position.epoch, token: Incarnation(Uuid::nil()) };
        let fence = position.fence().filter(|_| !self.rng.chance(100_000)).unwrap_or(stale);
        let events = self.model.log[shard].events.clone();
        let (mut puts, mut ends) = (Vec::new(), Vec::new());
        for event in events {
            let row = self.model.subscriptions[subscription][shard].rows.get(&event.seq);
            let version = row.map(|row| row.version);
            if self.rng.chance(150_000) {
                let right = version.unwrap_or(0);
                let version = if self.rng.chance(850_000) { right } else { right + 7 };
                puts.push(self.make_row(event, version));
            } else if let Some(version) = version
                && self.rng.chance(300_000)
            {
                let version = if self.rng.chance(850_000) { version } else { version + 7 };
                ends.push(RowEnd { seq: event.seq, version });
            }
        }
        let old = self.model.subscriptions[subscription][shard].checkpoint.clone();
        let mut checkpoint = old.clone();
        checkpoint.watermark = self.place(shard);
        // One with the same watermark may be an older one that arrives late.
        if checkpoint.watermark != old.watermark || self.rng.chance(300_000) {
            let settled: Vec<Seq> = self.model.log[shard].events.iter().map(|event| event.seq).collect();
            let above = settled.into_iter().filter(|seq| *seq > checkpoint.watermark);
            checkpoint.ranges = above
                .filter(|_| self.rng.chance(300_000))
                .map(|seq| SeqRange { first: seq, last: seq })
                .collect();
        }
        let trials = self.make_trials(shard);
        ShardCommit { shard: Shard(number(shard)), fence, puts, checkpoint, ends, trials }
    }

    fn make_trials(&mut self, shard: usize) -> Vec<Trial> {
        if self.rng.chance(500_000) {
            return Vec::new();
        }
        let stages = [Stage::Waits, Stage::Among, Stage::Alone];
        let places: Vec<Seq> = self.model.log[shard].events.iter().map(|event| event.seq).collect();
        let mut trials = Vec::new();
        for seq in places {
            if self.rng.chance(200_000) {
                let (crashes, stage) =
                    (u32::try_from(self.rng.below(1_000)).unwrap_or(0), stages[self.rng.below(3)]);
                trials.push(Trial { seq, crashes, stage });
            }
        }
        trials
    }

    fn make_row(&mut self, event: photon_core::event::Event, version: u64) -> StoredDelivery {
        self.counter += 1;
        let state = match self.rng.below(4) {
            0 => RowState::Waiting,
            1 => RowState::Parked { due: Timestamp(i64::from(self.counter)) },
            2 => RowState::Dead { blocks: true },
            _ => RowState::Dead { blocks: false },
        };
        let failure = photon_core::store::Failure {
            error: format!("failure {}", self.counter),
            last_failed: Some(Timestamp(i64::from(self.counter))),
            ..Default::default()
        };
        StoredDelivery { event, state, attempts: self.counter, failure, version }
    }

    /// Takes the versions over that the store gave to rows; they must have grown.
    async fn learn_versions(&mut self, subscription: usize, shard: usize, seqs: &[Seq]) -> Outcome {
        let id = &self.subscriptions[subscription];
        let rows = self.topic.store.get(id, Shard(number(shard)), seqs).await?;
        ensure_eq!(rows.len(), seqs.len(), "rows that were just written");
        for row in rows {
            let known = self.model.subscriptions[subscription][shard].rows.get_mut(&row.event.seq);
            let known = known.ok_or_else(|| Violation::new("a row that nobody asked for"))?;
            ensure!(row.version > known.version, "version {} after {}", row.version, known.version);
            known.version = row.version;
        }
        Ok(())
    }

    fn filter(&mut self) -> DeadLetterFilter {
        let shard = self.shard();
        match self.rng.below(4) {
            0 => DeadLetterFilter { key: Some(Key::new("a")), ..any_dead() },
            1 => DeadLetterFilter { place: Some((Shard(number(shard)), self.place(shard))), ..any_dead() },
            2 => {
                DeadLetterFilter { failed_since: Some(Timestamp(i64::from(self.counter / 2))), ..any_dead() }
            }
            _ => any_dead(),
        }
    }

    async fn operate(&mut self) -> Outcome {
        let subscription = self.subscription();
        let (filter, limit) = (self.filter(), self.rng.below(5));
        let redrive = self.rng.chance(500_000);
        self.last = if redrive { "redrive" } else { "discard" };
        let (store, id) = (std::sync::Arc::clone(&self.topic.store), &self.subscriptions[subscription]);
        let before = store.revision(id).await?;
        let changed = if redrive {
            store.redrive(id, &filter, limit).await?
        } else {
            store.discard(id, &filter, limit).await?
        };
        let after = store.revision(id).await?;
        ensure!(
            after > before || changed == 0,
            "the revision is {after} after {before}, {changed} rows changed"
        );
        let mut left = limit;
        let mut expected = 0;
        for shard in 0..usize::from(SHARDS) {
            let position = &mut self.model.subscriptions[subscription][shard];
            let mut meant = position.dead(&filter);
            meant.truncate(left);
            left -= meant.len();
            expected += meant.len() as u64;
            if !redrive {
                for seq in meant {
                    position.close(seq);
                }
                continue;
            }
            for seq in &meant {
                let (id, place) = (&self.subscriptions[subscription], Shard(number(shard)));
                let [row] = <[StoredDelivery; 1]>::try_from(self.topic.store.get(id, place, &[*seq]).await?)
                    .map_err(|_| Violation::new(format!("the redriven row at {seq} is gone")))?;
                redriven(position, row)?;
            }
        }
        ensure_eq!(changed, expected, "rows changed by {} with {filter:?}, at most {limit}", self.last);
        for shard in 0..usize::from(SHARDS) {
            self.compare_shard(subscription, shard).await?;
        }
        Ok(())
    }

    async fn reset(&mut self) -> Outcome {
        self.last = "reset";
        let (subscription, shard) = (self.subscription(), self.shard());
        let after = match self.rng.below(5) {
            0 => Seq::MAX,
            _ => self.place(shard),
        };
        let position = &self.model.subscriptions[subscription][shard];
        let stale = Fence { epoch: position.epoch, token: Incarnation(Uuid::nil()) };
        let fence = match self.rng.below(3) {
            0 => None,
            1 => position.fence(),
            _ => Some(stale),
        };
        let log = &self.model.log[shard];
        let bounded = after.max(log.floor).min(log.end);
        let reset = ShardReset { shard: Shard(number(shard)), after, fence };
        let (store, id) = (&self.topic.store, &self.subscriptions[subscription]);
        let outcomes = store.reset(id, &[reset]).await?;
        let position = &mut self.model.subscriptions[subscription][shard];
        let expected = if fence.is_some() && fence != position.fence() {
            ResetOutcome::Fenced
        } else {
            ResetOutcome::Reset { after: bounded, removed: position.reset(bounded) }
        };
        ensure_eq!(outcomes, [expected], "the outcome of {reset:?}");
        self.compare_shard(subscription, shard).await
    }

    /// One of the questions that have a simple answer.
    async fn look(&mut self) -> Outcome {
        self.last = "look";
        let (subscription, shard) = (self.subscription(), self.shard());
        let (after, through, limit) = (self.place(shard), self.place(shard), self.rng.below(4));
        let filter = self.filter();
        let (store, id) = (&self.topic.store, &self.subscriptions[subscription]);
        let position = &self.model.subscriptions[subscription][shard];
        let place = Shard(number(shard));

        let mut heads = position.heads();
        for lane in [Lane::Key(Key::new("a")), Lane::Key(Key::new("")), Lane::Single(after)] {
            let found = store.lane(id, place, &lane, limit).await?;
            let found: Vec<_> = found.iter().map(|row| (row.event.seq, row.version)).collect();
            ensure_eq!(found, position.lane(&lane, limit), "the first {limit} rows of {lane:?}");
        }
        heads.retain(|head| head.seq > after);
        heads.truncate(limit);
        ensure_eq!(store.heads(id, place, after, limit).await?, heads, "{limit} heads after {after}");

        let mut refs = store.rows_in(id, place, after, through).await?;
        refs.retain(|row| position.shows(*row));
        let mut expected = position.refs();
        expected.retain(|row| after < row.seq && row.seq <= through);
        ensure_eq!(refs, expected, "rows and marks after {after} through {through}");

        for select in [Select::Dead(filter), Select::Parked] {
            let all =
                self.model.subscriptions[subscription].iter().flat_map(|position| position.rows.values());
            let meant: Vec<_> = all.filter(|row| select.matches(row)).cloned().collect();
            ensure_eq!(store.count(id, &select).await?, meant.len() as u64, "the count for {select:?}");
            let page = Page { after: Some((place, after)), limit };
            let rest = meant.into_iter().filter(|row| Some((row.event.shard, row.event.seq)) > page.after);
            let expected: Vec<_> = rest.take(limit).collect();
            ensure_eq!(store.scan(id, &select, page).await?, expected, "rows of {page:?} for {select:?}");
        }
        Ok(())
    }

    async fn compare_shard(&self, subscription: usize, shard: usize) -> Outcome {
        let (store, id) = (&self.topic.store, &self.subscriptions[subscription]);
        let position = &self.model.subscriptions[subscription][shard];
        let stored = store.load(id).await?;
        ensure_eq!(stored[shard].checkpoint, position.checkpoint, "the checkpoint");
        ensure_eq!(stored[shard].trials, position.trials, "the trials");
        let unended = stored[shard].unended.as_ref().map(|member| member.incarnation);
        let expected = position.unended.filter(|_| position.holder.is_some());
        ensure_eq!(unended, expected, "the owner before, whose work did not end in order");
        ensure_eq!(stored[shard].resets, position.resets, "how often it was reset");
        let holders = store.holders(id).await?;
        let held = holders.iter().find(|(held, _)| *held == Shard(number(shard))).map(|(_, fence)| *fence);
        ensure_eq!(held, position.fence(), "who holds the shard");
        let everywhere = self.model.log[shard].events.iter().map(|event| event.seq).collect::<Vec<_>>();
        let rows = store.get(id, Shard(number(shard)), &everywhere).await?;
        ensure_eq!(rows, position.rows.values().cloned().collect::<Vec<_>>(), "all rows");
        ensure_eq!(
            store.heads(id, Shard(number(shard)), Seq::ZERO, 1_000).await?,
            position.heads(),
            "all heads"
        );
        Ok(())
    }

    async fn compare_all(&self) -> Outcome {
        for (shard, log) in (0..).zip(&self.model.log) {
            let records = self.topic.read_all(shard).await?;
            ensure!(records == log.after(Seq::ZERO), "the records of shard {shard} differ: {records:?}");
        }
        for subscription in 0..self.subscriptions.len() {
            for shard in 0..usize::from(SHARDS) {
                self.compare_shard(subscription, shard).await?;
            }
        }
        Ok(())
    }
}

/// Checks a row that was redriven and takes it over.
fn redriven(position: &mut ModelShard, row: StoredDelivery) -> Outcome {
    let Some(old) = position.rows.get(&row.event.seq) else {
        return Err(Violation::new("a row was redriven that is not there"));
    };
    ensure!(matches!(row.state, RowState::Parked { .. }), "a redriven row is {:?}", row.state);
    ensure!(row.version > old.version, "version {} after {}", row.version, old.version);
    ensure_eq!(row.attempts, 0, "the attempts of a redriven row");
    ensure!(row.event == old.event, "the event of a redriven row changed");
    ensure_eq!(row.failure.error, old.failure.error, "the error of a redriven row");
    position.rows.insert(row.event.seq, row);
    Ok(())
}

fn number(shard: usize) -> u16 {
    u16::try_from(shard).unwrap_or(u16::MAX)
}
