//! Looking at stored deliveries.

use bytes::Bytes;
use photon_core::event::NewEvent;
use photon_core::handler::DeadReason;
use photon_core::ids::{Key, Seq, Shard};
use photon_core::store::{DeadLetterFilter, Head, Lane, Page, RowRef, RowState, Select, StoredDelivery};
use photon_core::time::Timestamp;

use super::fixture::{BLOCKING, DEAD, Owned, PARKED, Write, any_dead, places};
use super::kit::{Kit, event, keyed};
use super::verdict::Outcome;

fn lane(key: &str) -> Lane {
    Lane::Key(Key::new(key.to_owned()))
}

/// What a head should be.
async fn head(owned: &Owned, lane: Lane, index: usize, rows: u64) -> Outcome<Head> {
    let StoredDelivery { state, version, .. } = owned.stored(index).await?;
    Ok(Head { lane, seq: owned.seq(index), state, version, rows })
}

pub(super) async fn a_lane_has_one_head_its_smallest(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "b", "a", "b", "a", "c"]).await?;
    owned.store_rows(&[(4, RowState::Waiting), (2, PARKED), (3, PARKED), (0, RowState::Waiting)]).await?;
    let expected = [head(&owned, lane("a"), 0, 3).await?, head(&owned, lane("b"), 3, 1).await?];
    ensure_eq!(owned.heads().await?, expected, "heads");
    owned.commit(Write::to(owned.last_seq()).end(&owned.stored(0).await?)).await?;
    let expected = [head(&owned, lane("a"), 2, 2).await?, head(&owned, lane("b"), 3, 1).await?];
    ensure_eq!(owned.heads().await?, expected, "heads after the first one ended");
    owned.commit(Write::to(owned.last_seq()).end(&owned.stored(3).await?)).await?;
    ensure_eq!(owned.heads().await?, expected[..1], "heads after a lane became empty");
    Ok(())
}

pub(super) async fn a_row_stored_before_the_head_becomes_it(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "a", "a"]).await?;
    for (index, rows) in [(2, 1), (1, 2), (0, 3)] {
        // Nothing is settled yet: the owner only moves deliveries out of its memory.
        owned.commit(Write::to(Seq::ZERO).put(owned.row(index, PARKED))).await?;
        let expected = [head(&owned, lane("a"), index, rows).await?];
        ensure_eq!(owned.heads().await?, expected, "heads with {rows} rows");
    }
    Ok(())
}

pub(super) async fn deliveries_without_a_key_are_lanes_of_their_own(kit: Kit<'_>) -> Outcome {
    let empty = NewEvent { key: Some(Key::new(Bytes::new())), ..event(0, 2) };
    let owned =
        kit.owned_events(vec![event(0, 0), event(0, 1), empty.clone(), empty, keyed(0, 4, "k")]).await?;
    owned.store_rows(&[(0, PARKED), (1, PARKED), (2, PARKED), (3, PARKED), (4, PARKED)]).await?;
    let (first, second) = (Lane::Single(owned.seq(0)), Lane::Single(owned.seq(1)));
    let expected = [
        head(&owned, first.clone(), 0, 1).await?,
        head(&owned, second, 1, 1).await?,
        head(&owned, lane(""), 2, 2).await?,
        head(&owned, lane("k"), 4, 1).await?,
    ];
    ensure_eq!(owned.heads().await?, expected, "heads");
    for (lane, indexes) in [(first, &[0][..]), (lane(""), &[2, 3]), (lane("k"), &[4]), (lane("none"), &[])] {
        for limit in [1, 2, 10] {
            let found = owned.store.lane(&owned.subscription, Shard(0), &lane, limit).await?;
            let mut expected = Vec::new();
            for index in indexes.iter().take(limit) {
                expected.push(owned.stored(*index).await?);
            }
            ensure_eq!(found, expected, "the first {limit} rows of {lane:?}");
        }
    }
    Ok(())
}

pub(super) async fn only_dead_rows_that_block_are_live(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "a", "b", "b", "c"]).await?;
    owned.store_rows(&[(0, DEAD), (1, PARKED), (2, BLOCKING), (3, RowState::Waiting), (4, DEAD)]).await?;
    let expected = [head(&owned, lane("a"), 1, 1).await?, head(&owned, lane("b"), 2, 2).await?];
    ensure_eq!(owned.heads().await?, expected, "heads");
    for (lane, indexes) in [(lane("a"), &[1][..]), (lane("b"), &[2, 3]), (lane("c"), &[])] {
        let found = owned.store.lane(&owned.subscription, Shard(0), &lane, 10).await?;
        let found: Vec<_> = found.iter().map(|row| row.event.seq).collect();
        let expected: Vec<_> = indexes.iter().map(|index| owned.seq(*index)).collect();
        ensure_eq!(found, expected, "the live rows of {lane:?}");
    }
    let gave_up = StoredDelivery { state: DEAD, ..owned.stored(1).await? };
    owned.commit(Write::to(owned.last_seq()).put(gave_up)).await?;
    ensure_eq!(owned.heads().await?, expected[1..], "heads after the only live row of a lane died");
    Ok(())
}

pub(super) async fn heads_come_in_pages(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned_keys(&["a", "b", "a", "c", "d", "b", "e"]).await?;
    let all: Vec<_> = (0..7).map(|index| (index, PARKED)).collect();
    owned.store_rows(&all).await?;
    let expected = [0, 1, 3, 4, 6].map(|index| owned.seq(index));
    for limit in 1..7 {
        let (mut after, mut seen) = (Seq::ZERO, Vec::new());
        loop {
            let page = owned.store.heads(&owned.subscription, Shard(0), after, limit).await?;
            ensure!(page.len() <= limit, "{} heads, {limit} allowed", page.len());
            let Some(last) = page.last() else { break };
            ensure!(last.seq > after, "heads do not come after {after}");
            after = last.seq;
            seen.extend(page.iter().map(|head| head.seq));
        }
        ensure_eq!(seen, expected, "heads in pages of {limit}");
    }
    Ok(())
}

pub(super) async fn rows_in_shows_rows_and_marks_between(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(7).await?;
    let s = |index| owned.seq(index);
    let states = [(1, PARKED), (2, DEAD), (3, BLOCKING), (4, RowState::Waiting), (5, PARKED)];
    let write =
        states.iter().fold(Write::to(Seq::ZERO), |write, (i, state)| write.put(owned.row(*i, *state)));
    owned.commit(write).await?;
    owned.commit(Write::to(Seq::ZERO).end(&owned.stored(4).await?)).await?;
    let mut all: Vec<RowRef> =
        states.iter().map(|(i, state)| RowRef { seq: s(*i), state: Some(*state) }).collect();
    all[3].state = None;
    for (after, through) in [(0, 6), (1, 5), (1, 4), (3, 4), (2, 3), (5, 6), (4, 4), (5, 2)] {
        let got = owned.store.rows_in(&owned.subscription, Shard(0), s(after), s(through)).await?;
        let expected: Vec<RowRef> =
            all.iter().copied().filter(|row| s(after) < row.seq && row.seq <= s(through)).collect();
        ensure_eq!(got, expected, "rows and marks after {} through {}", s(after), s(through));
    }
    Ok(())
}

pub(super) async fn get_gives_the_rows_that_are_there(kit: Kit<'_>) -> Outcome {
    let owned = kit.owned(6).await?;
    owned.store_rows(&[(1, DEAD), (2, PARKED), (4, PARKED)]).await?;
    let asked: Vec<Seq> = [4, 0, 2, 5].iter().map(|index| owned.seq(*index)).collect();
    let got = owned.store.get(&owned.subscription, Shard(0), &asked).await?;
    let expected = [owned.stored(2).await?, owned.stored(4).await?];
    ensure_eq!(got, expected, "rows, by place");
    ensure_eq!(owned.store.get(&owned.subscription, Shard(0), &[]).await?, [], "rows at no place");
    Ok(())
}

/// Two shards with rows of every state, in shards 0 and 2 of three.
async fn two_shards(kit: &Kit<'_>) -> Outcome<[Owned; 2]> {
    let topic = kit.topic(3).await?;
    let batch = |shard| ["a", "b", "a", "c", "b"].map(|key| keyed(shard, 0, key)).to_vec();
    topic.append(batch(0)).await?;
    topic.append(batch(2)).await?;
    let both = [Owned::new(topic.clone(), 0, "group").await?, Owned::new(topic, 2, "group").await?];
    for owned in &both {
        owned.store_rows(&[(0, DEAD), (1, PARKED), (2, BLOCKING), (3, RowState::Waiting), (4, DEAD)]).await?;
    }
    Ok(both)
}

pub(super) async fn scans_come_in_pages_by_shard_and_place(kit: Kit<'_>) -> Outcome {
    let [low, high] = two_shards(&kit).await?;
    let dead = [0, 2, 4].map(|i| (Shard(0), low.seq(i))).into_iter();
    let dead: Vec<_> = dead.chain([0, 2, 4].map(|i| (Shard(2), high.seq(i)))).collect();
    let parked = vec![
        (Shard(0), low.seq(1)),
        (Shard(0), low.seq(3)),
        (Shard(2), high.seq(1)),
        (Shard(2), high.seq(3)),
    ];
    for (select, expected) in [(Select::Dead(any_dead()), dead), (Select::Parked, parked)] {
        ensure_eq!(places(&low.scan(&select).await?), expected, "rows of a scan for {select:?}");
        let count = low.store.count(&low.subscription, &select).await?;
        ensure_eq!(count, expected.len() as u64, "the count for {select:?}");
        for limit in 1..5 {
            let (mut after, mut seen) = (None, Vec::new());
            loop {
                let rows = low.store.scan(&low.subscription, &select, Page { after, limit }).await?;
                ensure!(rows.len() <= limit, "{} rows, {limit} allowed", rows.len());
                let page = places(&rows);
                let Some(last) = page.last() else { break };
                ensure!(Some(*last) > after, "rows do not come after {after:?}");
                after = Some(*last);
                seen.extend(page);
            }
            ensure_eq!(seen, expected, "rows in pages of {limit} for {select:?}");
        }
    }
    Ok(())
}

pub(super) async fn filters_select_what_they_say(kit: Kit<'_>) -> Outcome {
    let [owned, other] = two_shards(&kit).await?;
    let at = |seconds: i64| Some(Timestamp(seconds * 1_000_000));
    let changes = [
        (0, DeadReason::Timeout, at(10)),
        (2, DeadReason::Permanent, at(20)),
        (4, DeadReason::Timeout, None),
    ];
    for (index, reason, last_failed) in changes {
        let mut row = owned.stored(index).await?;
        (row.failure.reason, row.failure.last_failed) = (Some(reason), last_failed);
        owned.commit(Write::to(owned.last_seq()).put(row)).await?;
    }
    // Of the other shard only what the place asks for.
    ensure_eq!(
        other.discard(&DeadLetterFilter { key: Some(Key::new("b")), ..any_dead() }).await?,
        2,
        "key b"
    );
    ensure_eq!(owned.get(owned.seq(4)).await?, None, "the row of key b in the first shard");
    let mut row = owned.row(1, DEAD);
    (row.failure.reason, row.failure.last_failed) = (Some(DeadReason::Timeout), None);
    row.version = owned.stored(1).await?.version;
    owned.commit(Write::to(owned.last_seq()).put(row)).await?;
    let (low, high) = (|i| (Shard(0), owned.seq(i)), |i| (Shard(2), other.seq(i)));
    let all = any_dead();
    let cases = [
        (all.clone(), vec![low(0), low(1), low(2), high(0), high(2)]),
        (
            DeadLetterFilter { key: Some(Key::new("a")), ..all.clone() },
            vec![low(0), low(2), high(0), high(2)],
        ),
        (DeadLetterFilter { key: Some(Key::new("z")), ..all.clone() }, vec![]),
        (DeadLetterFilter { place: Some(low(2)), ..all.clone() }, vec![low(2)]),
        (DeadLetterFilter { place: Some(high(0)), ..all.clone() }, vec![high(0)]),
        (DeadLetterFilter { place: Some(low(3)), ..all.clone() }, vec![]),
        (DeadLetterFilter { reason: Some(DeadReason::Timeout), ..all.clone() }, vec![low(0), low(1)]),
        (DeadLetterFilter { failed_since: at(10), ..all.clone() }, vec![low(0), low(2)]),
        (DeadLetterFilter { failed_since: at(11), ..all.clone() }, vec![low(2)]),
        (DeadLetterFilter { failed_before: at(20), ..all.clone() }, vec![low(0), high(0), high(2)]),
        (
            DeadLetterFilter {
                key: Some(Key::new("a")),
                reason: Some(DeadReason::Permanent),
                failed_since: at(15),
                failed_before: at(21),
                place: Some(low(2)),
            },
            vec![low(2)],
        ),
    ];
    for (filter, expected) in cases {
        let select = Select::Dead(filter);
        ensure_eq!(places(&owned.scan(&select).await?), expected, "rows for {select:?}");
        let count = owned.store.count(&owned.subscription, &select).await?;
        ensure_eq!(count, expected.len() as u64, "the count for {select:?}");
    }
    Ok(())
}
