//! Many at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use photon_core::ids::{EventId, Incarnation, Seq, Shard};
use photon_core::store::{ClaimResult, Cursor, ReadLimit};
use tokio::task::JoinHandle;

use super::fixture::{PARKED, Write};
use super::kit::{Kit, Topic, claim, event, join, member_info, seqs, shard_claim, take};
use super::verdict::{Outcome, Violation};

const WRITERS: u64 = 8;
const BATCHES: u64 = 25;
const SHARDS: u16 = 2;

/// What a writer was told about its events.
type Told = Outcome<Vec<(Shard, Seq, EventId)>>;

/// Writers that append small batches to two shards, with what each was told: by shard, place and id.
fn start_writers(topic: &Topic) -> Vec<JoinHandle<Told>> {
    let writer = |writer: u64| {
        let topic = topic.clone();
        tokio::spawn(async move {
            let mut told = Vec::new();
            for batch in 0..BATCHES {
                let events: Vec<_> = (0..=(writer + batch) % 4)
                    .map(|n| event(u16::from((n + batch) % 2 == 0), writer * 1_000 + batch))
                    .collect();
                let new: Vec<_> = events.iter().map(|event| (event.shard, event.id)).collect();
                let places = topic.append(events).await?;
                told.extend(new.into_iter().zip(places).map(|((shard, id), seq)| (shard, seq, id)));
                tokio::task::yield_now().await;
            }
            Ok(told)
        })
    };
    (0..WRITERS).map(writer).collect()
}

/// What the writers were told, by place; no place twice, and ascending for each writer.
async fn finish(writers: Vec<JoinHandle<Told>>) -> Outcome<BTreeMap<(Shard, Seq), EventId>> {
    let mut all = BTreeMap::new();
    for told in join_all(writers).await {
        let mut last = BTreeMap::new();
        for (shard, seq, id) in told.map_err(Violation::new)?? {
            let before = last.insert(shard, seq);
            ensure!(before < Some(seq), "a writer got place {seq} after {before:?} in shard {shard}");
            ensure!(
                all.insert((shard, seq), id).is_none(),
                "place {seq} of shard {shard} was given out twice"
            );
        }
    }
    Ok(all)
}

pub(super) async fn many_append_at_once(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(SHARDS).await?;
    let told = finish(start_writers(&topic)).await?;
    let mut stored = BTreeMap::new();
    for shard in 0..SHARDS {
        let events = topic.read_all(shard).await?;
        ensure!(events.windows(2).all(|w| w[0].seq < w[1].seq), "records of shard {shard} do not ascend");
        stored.extend(events.into_iter().map(|event| ((event.shard, event.seq), event.id)));
    }
    ensure!(stored == told, "{} records are stored, the writers were told of {}", stored.len(), told.len());
    Ok(())
}

pub(super) async fn nothing_appears_behind_a_reader(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(SHARDS).await?;
    let writers = start_writers(&topic);
    let writing = Arc::new(AtomicUsize::new(writers.len()));
    let writers: Vec<_> = writers
        .into_iter()
        .map(|writer| {
            let writing = Arc::clone(&writing);
            tokio::spawn(async move {
                let told = writer.await;
                writing.fetch_sub(1, Ordering::SeqCst);
                told.map_err(Violation::new)?
            })
        })
        .collect();
    let mut cursors = [0, 1].map(|shard| Cursor { shard: Shard(shard), after: Seq::ZERO });
    let mut seen = BTreeMap::new();
    loop {
        // Asked before the read: what was acknowledged by then must be in it.
        let last_round = writing.load(Ordering::SeqCst) == 0;
        let batch = kit.store.read(&topic.name, &cursors, ReadLimit { records: 7, bytes: 1 << 20 }).await?;
        for event in &batch.records {
            let cursor = cursors[usize::from(event.shard.0)];
            ensure!(
                event.seq > cursor.after,
                "record {} came after place {} was read",
                event.seq,
                cursor.after
            );
            seen.insert((event.shard, event.seq), event.id);
        }
        for (cursor, read) in cursors.iter_mut().zip(&batch.shards) {
            cursor.after = read.through;
        }
        if last_round && batch.records.is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let told = finish(writers).await?;
    let missed: Vec<_> = told.keys().filter(|place| !seen.contains_key(*place)).collect();
    ensure!(missed.is_empty(), "a reader that followed the log never saw {missed:?}");
    ensure!(seen == told, "the reader saw {} records, the writers were told of {}", seen.len(), told.len());
    Ok(())
}

pub(super) async fn what_was_acknowledged_is_read(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let tasks = (0..6).map(|_| {
        let topic = topic.clone();
        tokio::spawn(async move {
            for number in 0..25 {
                let places = topic.append(vec![event(0, number), event(0, number)]).await?;
                let read = seqs(&topic.read_after(0, Seq(places[0].0 - 1)).await?);
                ensure!(
                    read.contains(&places[0]) && read.contains(&places[1]),
                    "a read after the append returned does not have {places:?}"
                );
            }
            Outcome::Ok(())
        })
    });
    for done in join_all(tasks).await {
        done.map_err(Violation::new)??;
    }
    Ok(())
}

/// Lets members claim one shard at the same time.
async fn race(kit: &Kit<'_>, replace: bool) -> Outcome {
    let topic = kit.topic(1).await?;
    let (subscription, _) = topic.register("group", photon_core::options::Start::Earliest).await?;
    let shard = shard_claim(&subscription, 0);
    let mut last = 0;
    for _ in 0..10 {
        let holder = kit.member().await?;
        let mut standing = None;
        if replace {
            last = take(&*kit.store, holder, &shard).await?.epoch;
            let info = member_info(&*kit.store, holder).await?;
            standing = info.map(|info| (holder, info.heartbeat));
        }
        let mut members = Vec::new();
        for _ in 0..8 {
            members.push(join(&*kit.store).await?);
        }
        let claims = members.iter().map(|member| {
            let (store, member, shard) = (Arc::clone(&kit.store), *member, shard.clone());
            tokio::spawn(async move { claim(&*store, member, &shard, standing).await })
        });
        let mut winners: Vec<Incarnation> = Vec::new();
        for (member, answer) in members.iter().zip(join_all(claims).await) {
            if let ClaimResult::Granted(fence) = answer.map_err(Violation::new)?? {
                ensure!(fence.epoch > last, "epoch {} after {last}", fence.epoch);
                last = fence.epoch;
                winners.push(*member);
            }
        }
        ensure!(winners.len() == 1, "{} members got the shard at the same time", winners.len());
        for member in members.into_iter().chain([holder]) {
            kit.store.leave(member).await?;
        }
    }
    Ok(())
}

pub(super) async fn a_race_for_a_free_shard_has_one_winner(kit: Kit<'_>) -> Outcome {
    race(&kit, false).await
}

pub(super) async fn a_race_to_replace_a_holder_has_one_winner(kit: Kit<'_>) -> Outcome {
    race(&kit, true).await
}

pub(super) async fn p09_epochs_differ_under_contention(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let (subscription, _) = topic.register("group", photon_core::options::Start::Earliest).await?;
    let tasks = (0..6).map(|_| {
        let (store, shard) = (Arc::clone(&kit.store), shard_claim(&subscription, 0));
        tokio::spawn(async move {
            let member = join(&*store).await?;
            let mut epochs = Vec::new();
            for _ in 0..15 {
                if let ClaimResult::Granted(fence) = claim(&*store, member, &shard, None).await? {
                    epochs.push(fence.epoch);
                    store.release(member, std::slice::from_ref(&shard)).await?;
                }
                tokio::task::yield_now().await;
            }
            store.leave(member).await?;
            Outcome::Ok(epochs)
        })
    });
    let mut all = BTreeSet::new();
    for epochs in join_all(tasks).await {
        let epochs = epochs.map_err(Violation::new)??;
        ensure!(epochs.windows(2).all(|w| w[0] < w[1]), "the epochs of one member do not ascend: {epochs:?}");
        for epoch in epochs {
            ensure!(all.insert(epoch), "epoch {epoch} was granted twice");
        }
    }
    ensure!(!all.is_empty(), "nobody ever got the shard");
    Ok(())
}

pub(super) async fn commits_of_shards_do_not_disturb_each_other(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(4).await?;
    let mut owners = Vec::new();
    for shard in 0..4 {
        topic.fill(shard, 20).await?;
        owners.push(super::fixture::Owned::new(topic.clone(), shard, "group").await?);
    }
    let tasks = owners.into_iter().map(|owned| {
        tokio::spawn(async move {
            for index in 0..20 {
                owned.commit(Write::to(owned.seq(index)).put(owned.row(index, PARKED))).await?;
                ensure_eq!(owned.checkpoint().await?.watermark, owned.seq(index), "a watermark just written");
            }
            ensure_eq!(owned.refs().await?.len(), 20, "rows of one shard");
            Outcome::Ok(())
        })
    });
    for done in join_all(tasks).await {
        done.map_err(Violation::new)??;
    }
    Ok(())
}
