//! What people do with dead letters: redrive and discard.

use std::sync::Arc;

use futures::future::join_all;
use photon_core::ids::{Key, Seq, Shard};
use photon_core::store::{DeadLetterFilter, Failure, Lane, RowRef, RowState, Select, StoredDelivery};

use super::fixture::{BLOCKING, DEAD, Owned, PARKED, Write, any_dead};
use super::kit::Kit;
use super::verdict::{Outcome, Violation};

pub(super) async fn a_redriven_row_runs_again(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "a", "b", "c"]).await?;
    let mut dead = owned.row(0, BLOCKING);
    dead.failure.deferred_since = dead.failure.first_failed;
    let rest = [owned.row(1, RowState::Waiting), owned.row(2, DEAD), owned.row(3, PARKED)];
    owned.commit(rest.into_iter().fold(Write::to(owned.last_seq()).put(dead.clone()), Write::put)).await?;
    let before =
        [owned.stored(0).await?, owned.stored(1).await?, owned.stored(2).await?, owned.stored(3).await?];
    let revision = owned.store.revision(&owned.subscription).await?;
    let filter = DeadLetterFilter { key: Some(Key::new("a")), ..any_dead() };
    ensure_eq!(owned.redrive(&filter).await?, 1, "rows redriven");
    let row = owned.stored(0).await?;
    // The store's own clock says what "at once" is.
    owned.topic.fill(0, 1).await?;
    let now = owned.topic.read_all(0).await?.pop().map(|event| event.time);
    let due = match row.state {
        RowState::Parked { due } => due,
        other => return Err(Violation::new(format!("the redriven row is {other:?}, not parked"))),
    };
    ensure!(Some(due) <= now, "the redriven row is due at {due}, but the store's time is {now:?}");
    ensure!(row.version > before[0].version, "the version is {} as before", row.version);
    let failure =
        Failure { reason: None, first_failed: None, deferred_since: None, ..before[0].failure.clone() };
    let expected =
        StoredDelivery { state: row.state, attempts: 0, failure, version: row.version, ..before[0].clone() };
    ensure_eq!(row, expected, "the redriven row: attempts and failure start over, error and last date stay");
    for (index, row) in before.iter().enumerate().skip(1) {
        ensure_eq!(owned.stored(index).await?, *row, "a row that was not meant");
    }
    let heads = owned.heads().await?;
    ensure_eq!(heads[0].lane, Lane::Key(Key::new("a")), "the lane of the first head");
    ensure_eq!((heads[0].seq, heads[0].rows, heads[0].state), (owned.seq(0), 2, row.state), "the head");
    ensure!(owned.store.revision(&owned.subscription).await? > revision, "the revision stayed at {revision}");
    ensure_eq!(owned.redrive(&filter).await?, 0, "rows redriven twice");
    Ok(())
}

pub(super) async fn a_redriven_row_that_did_not_block_is_live(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "a"]).await?;
    owned.store_rows(&[(0, DEAD), (1, PARKED)]).await?;
    ensure_eq!(owned.heads().await?[0].seq, owned.seq(1), "the head beside a dead row");
    ensure_eq!(owned.redrive(&any_dead()).await?, 1, "rows redriven");
    let heads = owned.heads().await?;
    ensure_eq!((heads[0].seq, heads[0].rows), (owned.seq(0), 2), "the head after the redrive");
    ensure_eq!(owned.store.count(&owned.subscription, &Select::Dead(any_dead())).await?, 0, "dead rows");
    Ok(())
}

pub(super) async fn a_limit_takes_the_smallest_places(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    topic.fill(0, 3).await?;
    topic.fill(1, 3).await?;
    let (low, high) = (Owned::new(topic.clone(), 0, "group").await?, Owned::new(topic, 1, "group").await?);
    for owned in [&high, &low] {
        owned.store_rows(&[(2, DEAD), (1, DEAD), (0, DEAD)]).await?;
    }
    let dead = async || -> Outcome<Vec<(Shard, Seq)>> {
        Ok(super::fixture::places(&low.scan(&Select::Dead(any_dead())).await?))
    };
    let (store, subscription) = (&low.store, &low.subscription);
    ensure_eq!(store.redrive(subscription, &any_dead(), 0).await?, 0, "rows redriven with a limit of 0");
    ensure_eq!(store.redrive(subscription, &any_dead(), 2).await?, 2, "rows redriven with a limit of 2");
    let (l, h) = (|i| (Shard(0), low.seq(i)), |i| (Shard(1), high.seq(i)));
    ensure_eq!(dead().await?, [l(2), h(0), h(1), h(2)], "rows still dead");
    ensure_eq!(store.discard(subscription, &any_dead(), 2).await?, 2, "rows discarded with a limit of 2");
    ensure_eq!(dead().await?, [h(1), h(2)], "rows still dead");
    ensure_eq!(store.redrive(subscription, &any_dead(), 100).await?, 2, "the rest");
    ensure_eq!(dead().await?, [], "rows still dead");
    Ok(())
}

pub(super) async fn a_discarded_row_is_gone_or_a_mark(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(6).await?;
    let s = |index| owned.seq(index);
    let rows = [(0, DEAD), (1, PARKED), (3, BLOCKING), (4, DEAD), (5, RowState::Waiting)];
    let write =
        rows.iter().fold(Write::to(s(1)).range(s(3), s(3)), |w, (i, state)| w.put(owned.row(*i, *state)));
    owned.commit(write).await?;
    let revision = owned.store.revision(&owned.subscription).await?;
    ensure_eq!(owned.discard(&any_dead()).await?, 3, "rows discarded");
    let expected = [
        RowRef { seq: s(1), state: Some(PARKED) },
        RowRef { seq: s(4), state: None },
        RowRef { seq: s(5), state: Some(RowState::Waiting) },
    ];
    ensure_eq!(owned.refs().await?, expected, "rows and marks: only number 4 was not covered");
    ensure!(owned.store.revision(&owned.subscription).await? > revision, "the revision stayed at {revision}");
    ensure_eq!(owned.discard(&any_dead()).await?, 0, "rows discarded twice");
    ensure_eq!(owned.redrive(&any_dead()).await?, 0, "rows redriven after they were discarded");
    let heads: Vec<Seq> = owned.heads().await?.iter().map(|head| head.seq).collect();
    ensure_eq!(heads, [s(1), s(5)], "heads");
    owned.commit(Write::to(s(4))).await?;
    ensure_eq!(owned.refs().await?, [expected[0], expected[2]], "rows after the watermark reached the mark");
    Ok(())
}

pub(super) async fn a_discard_unblocks_the_lane(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "a", "a"]).await?;
    owned.store_rows(&[(0, BLOCKING), (1, RowState::Waiting), (2, RowState::Waiting)]).await?;
    ensure_eq!(owned.heads().await?[0].seq, owned.seq(0), "the head of a blocked lane");
    ensure_eq!(owned.discard(&any_dead()).await?, 1, "rows discarded");
    let heads = owned.heads().await?;
    ensure_eq!(
        (heads.len(), heads[0].seq, heads[0].rows),
        (1, owned.seq(1), 2),
        "the head after the discard"
    );
    Ok(())
}

pub(super) async fn what_people_did_wins_over_the_owner(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(4).await?;
    owned.store_rows(&[(0, DEAD), (1, DEAD)]).await?;
    let (redriven, discarded) = (owned.stored(0).await?, owned.stored(1).await?);
    let only =
        |row: &StoredDelivery| DeadLetterFilter { place: Some((Shard(0), row.event.seq)), ..any_dead() };
    ensure_eq!(owned.redrive(&only(&redriven)).await?, 1, "rows redriven");
    ensure_eq!(owned.discard(&only(&discarded)).await?, 1, "rows discarded");
    let now = owned.stored(0).await?;
    let late = [&redriven, &discarded].map(|row| StoredDelivery { attempts: 50, ..row.clone() });
    let write = late.into_iter().fold(Write::to(owned.last_seq()), Write::put);
    owned.commit_with_conflicts(write, &[owned.seq(0), owned.seq(1)]).await?;
    ensure_eq!(owned.stored(0).await?, now, "the redriven row");
    ensure_eq!(owned.get(owned.seq(1)).await?, None, "the discarded row");
    Ok(())
}

pub(super) async fn two_redrives_at_once_share_the_rows(kit: Kit<'_>) -> Outcome {
    let owned = Arc::new(kit.owned(40).await?);
    let all: Vec<_> = (0..40).map(|index| (index, DEAD)).collect();
    owned.store_rows(&all).await?;
    let tasks = (0..8).map(|number| {
        let owned = Arc::clone(&owned);
        tokio::spawn(async move {
            let (store, subscription) = (&owned.store, &owned.subscription);
            let mut done = 0;
            for _ in 0..4 {
                done += if number % 2 == 0 {
                    store.redrive(subscription, &any_dead(), 3).await?
                } else {
                    store.discard(subscription, &any_dead(), 3).await?
                };
            }
            Outcome::Ok(done)
        })
    });
    let mut sum = 0;
    for done in join_all(tasks).await {
        sum += done.map_err(Violation::new)??;
    }
    // A call that lost a race for rows may have changed fewer than its limit.
    sum += owned.redrive(&any_dead()).await?;
    ensure_eq!(sum, 40, "rows that the calls say they changed");
    ensure_eq!(owned.store.count(&owned.subscription, &Select::Dead(any_dead())).await?, 0, "dead rows");
    Ok(())
}
