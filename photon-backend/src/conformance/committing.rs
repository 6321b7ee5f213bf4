//! Checkpoints: what moves them and what does not.

use photon_core::ids::{Seq, Shard};
use photon_core::store::{Checkpoint, Commit, RowRef, RowState, SeqRange, ShardOutcome, StoredDelivery};

use super::fixture::{BLOCKING, DEAD, Owned, PARKED, Write, any_dead};
use super::kit::Kit;
use super::verdict::Outcome;

fn checkpoint(watermark: Seq, ranges: &[(Seq, Seq)]) -> Checkpoint {
    let ranges = ranges.iter().map(|(first, last)| SeqRange { first: *first, last: *last }).collect();
    Checkpoint { watermark, ranges }
}

pub(super) async fn a_commit_is_loaded_back(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(12).await?;
    let s = |index| owned.seq(index);
    owned.commit(Write::to(s(2)).range(s(4), s(4)).range(s(6), s(8))).await?;
    let expected = checkpoint(s(2), &[(s(4), s(4)), (s(6), s(8))]);
    ensure_eq!(owned.checkpoint().await?, expected, "the checkpoint");
    owned.commit(Write::to(s(2)).range(s(4), s(8)).range(s(10), s(10))).await?;
    let expected = checkpoint(s(2), &[(s(4), s(8)), (s(10), s(10))]);
    ensure_eq!(owned.checkpoint().await?, expected, "more ranges over the same watermark");
    owned.commit(Write::to(s(8)).range(s(10), s(10))).await?;
    ensure_eq!(owned.checkpoint().await?, checkpoint(s(8), &[(s(10), s(10))]), "a higher watermark");
    owned.commit(Write::to(s(11))).await?;
    ensure_eq!(owned.checkpoint().await?, checkpoint(s(11), &[]), "everything settled");
    Ok(())
}

pub(super) async fn p02_a_watermark_never_goes_back(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(8).await?;
    let s = |index| owned.seq(index);
    owned.commit(Write::to(s(4)).range(s(6), s(6))).await?;
    let expected = checkpoint(s(4), &[(s(6), s(6))]);
    for lower in [Write::to(s(3)), Write::to(Seq::ZERO).range(s(1), s(7)), Write::to(s(2)).range(s(5), s(5))]
    {
        owned.commit(lower).await?;
        ensure_eq!(owned.checkpoint().await?, expected, "the checkpoint after a lower watermark");
    }
    Ok(())
}

pub(super) async fn p04_a_late_commit_takes_no_ranges_away(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(12).await?;
    let s = |index| owned.seq(index);
    let later = Write::to(s(2)).range(s(4), s(8)).range(s(10), s(10));
    owned.commit(later.clone()).await?;
    let stored = owned.checkpoint().await?;
    let earlier = [
        Write::to(s(2)),
        Write::to(s(2)).range(s(4), s(6)).range(s(10), s(10)),
        Write::to(s(2)).range(s(4), s(8)),
    ];
    for earlier in earlier {
        owned.commit(earlier).await?;
        ensure_eq!(
            owned.checkpoint().await?,
            stored,
            "the checkpoint after an earlier commit of the same watermark"
        );
    }
    owned.commit(later.range(s(11), s(11))).await?;
    ensure!(owned.checkpoint().await?.covers(s(11)), "a range that came later is not stored");
    Ok(())
}

pub(super) async fn many_ranges_are_kept(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(2_000).await?;
    let write = (1..1_000)
        .fold(Write::to(Seq::ZERO), |write, index| write.range(owned.seq(2 * index), owned.seq(2 * index)));
    owned.commit(write).await?;
    let stored = owned.checkpoint().await?;
    ensure_eq!(stored.ranges.len(), 999, "ranges");
    ensure!(
        owned.events.iter().skip(2).enumerate().all(|(i, e)| stored.covers(e.seq) == (i % 2 == 0)),
        "ranges moved"
    );
    Ok(())
}

pub(super) async fn rows_are_stored_with_the_checkpoint(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(4).await?;
    let rows = [owned.row(0, DEAD), owned.row(1, PARKED), owned.row(2, RowState::Waiting)];
    owned.commit(rows.iter().cloned().fold(Write::to(owned.seq(2)), Write::put)).await?;
    ensure_eq!(owned.checkpoint().await?.watermark, owned.seq(2), "the watermark");
    for (index, row) in rows.into_iter().enumerate() {
        let stored = owned.stored(index).await?;
        ensure!(stored.version > 0, "the version of a stored row is 0");
        ensure_eq!(StoredDelivery { version: 0, ..stored }, row, "row number {index}");
    }
    ensure_eq!(owned.get(owned.seq(3)).await?, None, "a row that nobody stored");
    Ok(())
}

pub(super) async fn a_row_is_replaced_under_its_version(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(2).await?;
    owned.store_rows(&[(0, PARKED)]).await?;
    let first = owned.stored(0).await?;
    let second = StoredDelivery { state: BLOCKING, attempts: 9, ..first.clone() };
    owned.commit(Write::to(owned.last_seq()).put(second.clone())).await?;
    let stored = owned.stored(0).await?;
    ensure!(stored.version > first.version, "version {} after {}", stored.version, first.version);
    ensure_eq!(StoredDelivery { version: first.version, ..stored.clone() }, second, "the new row");
    // The old version, no version, and one that never was: the row is left alone.
    for version in [first.version, 0, stored.version + 5] {
        let stale = StoredDelivery { attempts: 77, version, ..first.clone() };
        owned.commit_with_conflicts(Write::to(owned.last_seq()).put(stale), &[owned.seq(0)]).await?;
        ensure_eq!(owned.stored(0).await?, stored, "the row after a put for version {version}");
    }
    let gone = StoredDelivery { version: 3, ..owned.row(1, PARKED) };
    owned.commit_with_conflicts(Write::to(owned.last_seq()).put(gone), &[owned.seq(1)]).await?;
    ensure_eq!(owned.get(owned.seq(1)).await?, None, "a row that was not there to be replaced");
    Ok(())
}

/// Rows, marks and the checkpoint.
async fn state(owned: &Owned) -> Outcome<(Vec<RowRef>, Vec<StoredDelivery>, Checkpoint)> {
    let places: Vec<Seq> = owned.events.iter().map(|event| event.seq).collect();
    let rows = owned.store.get(&owned.subscription, Shard(owned.shard), &places).await?;
    Ok((owned.refs().await?, rows, owned.checkpoint().await?))
}

pub(super) async fn a_commit_twice_is_one(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(8).await?;
    let first =
        Write::to(owned.seq(3)).put(owned.row(0, PARKED)).put(owned.row(1, DEAD)).put(owned.row(7, PARKED));
    owned.commit(first.clone()).await?;
    let expected = state(&owned).await?;
    owned.commit(first).await?;
    ensure_eq!(state(&owned).await?, expected, "rows and checkpoint after the same commit again");
    let replaced = StoredDelivery { state: DEAD, ..owned.stored(1).await? };
    let second = Write::to(owned.seq(5))
        .end(&owned.stored(0).await?)
        .end(&owned.stored(7).await?)
        .put(replaced)
        .put(owned.row(5, BLOCKING));
    owned.commit(second.clone()).await?;
    let expected = state(&owned).await?;
    owned.commit(second).await?;
    ensure_eq!(state(&owned).await?, expected, "rows and checkpoint after a commit with ends again");
    Ok(())
}

pub(super) async fn a_lower_watermark_still_writes_the_rows(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(5).await?;
    owned.commit(Write::to(owned.seq(2)).put(owned.row(0, PARKED))).await?;
    let write = Write::to(owned.seq(1)).put(owned.row(3, PARKED)).end(&owned.stored(0).await?);
    owned.commit(write).await?;
    ensure_eq!(owned.checkpoint().await?, checkpoint(owned.seq(2), &[]), "the checkpoint");
    let expected = [RowRef { seq: owned.seq(3), state: Some(PARKED) }];
    ensure_eq!(owned.refs().await?, expected, "rows and marks");
    Ok(())
}

pub(super) async fn an_ended_row_goes_when_it_is_covered(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(6).await?;
    let s = |index| owned.seq(index);
    let put = [0, 1, 3, 5].iter().fold(Write::to(Seq::ZERO), |write, i| write.put(owned.row(*i, PARKED)));
    owned.commit(put).await?;
    let ends =
        [owned.stored(0).await?, owned.stored(1).await?, owned.stored(3).await?, owned.stored(5).await?];
    // Numbers 0 and 1 under the watermark, 3 in a range, 5 not covered.
    let write = ends.iter().fold(Write::to(s(1)).range(s(3), s(3)), Write::end);
    owned.commit(write).await?;
    let mark = RowRef { seq: s(5), state: None };
    ensure_eq!(owned.refs().await?, [mark], "rows and marks after the ends");
    ensure_eq!(owned.get(s(5)).await?, None, "the row behind a mark");
    ensure_eq!(owned.heads().await?, [], "heads after the ends");
    owned.commit(Write::to(s(4))).await?;
    ensure_eq!(owned.refs().await?, [mark], "marks above the watermark");
    owned.commit(Write::to(s(5))).await?;
    ensure_eq!(owned.refs().await?, [], "marks that the watermark has reached");
    Ok(())
}

pub(super) async fn an_end_of_another_version_does_not_count(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(3).await?;
    owned.store_rows(&[(0, DEAD), (1, PARKED)]).await?;
    let old = owned.stored(0).await?;
    ensure_eq!(owned.redrive(&any_dead()).await?, 1, "rows redriven");
    let write = Write::to(owned.last_seq()).end(&old).end(&owned.stored(1).await?);
    owned.commit_with_conflicts(write, &[owned.seq(0)]).await?;
    ensure_eq!(
        owned.stored(0).await?.version > old.version,
        true,
        "the redriven row, after an end of the old one"
    );
    ensure_eq!(owned.get(owned.seq(1)).await?, None, "the row that ended beside it");
    owned.commit(Write::to(owned.last_seq()).end(&owned.stored(0).await?)).await?;
    ensure_eq!(owned.refs().await?, [], "rows and marks at last");
    Ok(())
}

pub(super) async fn shards_of_a_commit_are_apart(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(3).await?;
    for shard in 0..3 {
        topic.fill(shard, 4).await?;
    }
    let owned = [
        Owned::new(topic.clone(), 0, "group").await?,
        Owned::new(topic.clone(), 1, "group").await?,
        Owned::new(topic, 2, "group").await?,
    ];
    let stale = photon_core::store::Fence { epoch: owned[1].fence.epoch + 1, ..owned[1].fence };
    let write = |owned: &Owned, index| Write::to(owned.seq(index)).put(owned.row(index, PARKED));
    let shards = vec![
        write(&owned[2], 2).shard(2, owned[2].fence),
        write(&owned[1], 1).shard(1, stale),
        write(&owned[0], 0).shard(0, owned[0].fence),
    ];
    let commit = Commit { subscription: owned[0].subscription.clone(), shards };
    let committed = ShardOutcome::Committed { conflicts: Vec::new() };
    let expected = [committed.clone(), ShardOutcome::Fenced, committed];
    ensure_eq!(kit.store.commit(&commit).await?, expected, "outcomes in the order of the commit");
    let stored = kit.store.load(&commit.subscription).await?;
    let got: Vec<(Shard, Seq)> = stored.iter().map(|s| (s.shard, s.checkpoint.watermark)).collect();
    let expected = [(Shard(0), owned[0].seq(0)), (Shard(1), Seq::ZERO), (Shard(2), owned[2].seq(2))];
    ensure_eq!(got, expected, "watermarks by shard");
    let rows = [owned[0].refs().await?.len(), owned[1].refs().await?.len(), owned[2].refs().await?.len()];
    ensure_eq!(rows, [1, 0, 1], "rows by shard");
    Ok(())
}

pub(super) async fn a_commit_repeated_after_a_discard_brings_nothing_back(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(6).await?;
    let write = Write::to(owned.seq(2)).put(owned.row(1, DEAD)).put(owned.row(4, DEAD));
    owned.commit(write.clone()).await?;
    ensure_eq!(owned.discard(&any_dead()).await?, 2, "rows discarded");
    let expected = [RowRef { seq: owned.seq(4), state: None }];
    ensure_eq!(owned.refs().await?, expected, "rows and marks after the discard");
    // The answer of the first attempt got lost, so the owner writes it again.
    owned.commit_with_conflicts(write, &[owned.seq(1), owned.seq(4)]).await?;
    ensure_eq!(owned.refs().await?, expected, "rows and marks after the commit was repeated");
    Ok(())
}
