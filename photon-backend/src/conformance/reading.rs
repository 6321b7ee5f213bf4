//! Reading records.

use photon_core::ids::{Seq, Shard};
use photon_core::store::{Cursor, ReadLimit};
use photon_core::time::Timestamp;

use super::kit::{Kit, NO_LIMIT, event, seqs};
use super::verdict::Outcome;

pub(super) async fn a_read_starts_after_the_cursor(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let places = topic.fill(0, 6).await?;
    for (index, place) in places.iter().enumerate() {
        let (records, read) = topic.read(0, *place, NO_LIMIT).await?;
        ensure_eq!(seqs(&records), places[index + 1..], "records after place {place}");
        ensure!(read.through >= places[5], "through is {} after everything was read", read.through);
    }
    Ok(())
}

pub(super) async fn a_read_keeps_to_its_limit_of_records(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    let places = [topic.fill(0, 5).await?, topic.fill(1, 5).await?];
    for records in 1..12 {
        let cursors = [0, 1].map(|shard| Cursor { shard: Shard(shard), after: Seq::ZERO });
        let batch = kit.store.read(&topic.name, &cursors, ReadLimit { records, bytes: usize::MAX }).await?;
        ensure!(batch.records.len() <= records, "{} records, {records} allowed", batch.records.len());
        ensure!(!batch.records.is_empty(), "no record though there are some");
        for (shard, own) in (0..).map(Shard).zip(&places) {
            let got = seqs(batch.records.iter().filter(|event| event.shard == shard));
            ensure!(own.starts_with(&got), "shard {shard} gave {got:?}, which is no start of {own:?}");
        }
    }
    Ok(())
}

pub(super) async fn a_read_stops_at_its_limit_of_bytes(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let mut batch: Vec<_> = (0..6).map(|number| event(0, number)).collect();
    for event in &mut batch {
        event.payload = vec![b'x'; 100].into();
    }
    topic.append(batch).await?;
    for (bytes, expected) in [(1, 1), (100, 1), (101, 2), (250, 3), (300, 3), (600, 6), (10_000, 6)] {
        let (records, _) = topic.read(0, Seq::ZERO, ReadLimit { records: 1_000, bytes }).await?;
        ensure_eq!(records.len(), expected, "records of 100 bytes in a read of {bytes} bytes");
    }
    Ok(())
}

pub(super) async fn a_read_gives_one_record_whatever_the_limit(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let places = topic.fill(0, 3).await?;
    for limit in [(0, 0), (0, 1_000), (1_000, 0)] {
        let limit = ReadLimit { records: limit.0, bytes: limit.1 };
        let (records, _) = topic.read(0, places[0], limit).await?;
        ensure_eq!(seqs(&records), places[1..2], "records of a read with {limit:?}");
    }
    Ok(())
}

pub(super) async fn pages_join_without_gap_or_repetition(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(3).await?;
    let places = [topic.fill(0, 17).await?, topic.fill(1, 1).await?, topic.fill(2, 9).await?];
    for records in [1, 2, 5] {
        let mut cursors = [0, 1, 2].map(|shard| Cursor { shard: Shard(shard), after: Seq::ZERO });
        let mut got = [Vec::new(), Vec::new(), Vec::new()];
        // One record each time is the slowest that is allowed.
        for _ in 0..28 {
            let batch = kit.store.read(&topic.name, &cursors, ReadLimit { records, bytes: 1_000 }).await?;
            for event in &batch.records {
                got[usize::from(event.shard.0)].push(event.seq);
            }
            for (cursor, read) in cursors.iter_mut().zip(&batch.shards) {
                let last = got[usize::from(cursor.shard.0)].last().copied().unwrap_or_default();
                ensure!(read.through >= cursor.after, "through {} is before the cursor", read.through);
                ensure!(read.through >= last, "through {} is before record {last}", read.through);
                cursor.after = read.through;
            }
        }
        ensure_eq!(got, places, "records read {records} at a time");
    }
    Ok(())
}

pub(super) async fn each_cursor_has_its_answer_in_order(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(4).await?;
    let mut places = Vec::new();
    for shard in 0..4 {
        places.push(topic.fill(shard, 2).await?);
    }
    kit.store.trim(&topic.name, Shard(1), places[1][0]).await?;
    let cursors =
        [(3, places[3][1]), (1, Seq::ZERO)].map(|(shard, after)| Cursor { shard: Shard(shard), after });
    let batch = kit.store.read(&topic.name, &cursors, NO_LIMIT).await?;
    let shards: Vec<Shard> = batch.shards.iter().map(|read| read.shard).collect();
    ensure_eq!(shards, [Shard(3), Shard(1)], "the shards of the answers");
    let read: Vec<_> = batch.records.iter().map(|event| (event.shard, event.seq)).collect();
    ensure_eq!(read, [(Shard(1), places[1][1])], "records of the shards that were asked for");
    let ends: Vec<_> = batch.shards.iter().map(|read| (read.floor, read.end)).collect();
    ensure_eq!(ends, [(Seq::ZERO, places[3][1]), (places[1][0], places[1][1])], "floor and end");
    let none = kit.store.read(&topic.name, &[], NO_LIMIT).await?;
    ensure!(none.records.is_empty() && none.shards.is_empty(), "a read without cursors gives something");
    Ok(())
}

pub(super) async fn a_cursor_past_the_end_stays(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let places = topic.fill(0, 2).await?;
    let far = Seq(places[1].0 + 1_000_000);
    let (records, read) = topic.read(0, far, NO_LIMIT).await?;
    ensure_eq!(records.len(), 0, "records after the end");
    ensure!(read.through >= far, "through {} is before the cursor {far}", read.through);
    ensure_eq!(read.end, places[1], "the end, by which the reader sees that the log lost something");
    Ok(())
}

pub(super) async fn a_reader_at_the_end_gets_what_comes(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let mut after = Seq::ZERO;
    for number in 0..20 {
        let (records, read) = topic.read(0, after, NO_LIMIT).await?;
        ensure_eq!(records.len(), 0, "records before append number {number}");
        let places = topic.append(vec![event(0, number)]).await?;
        ensure!(places[0] > read.through, "a record appeared at {}, behind {}", places[0], read.through);
        let (records, next) = topic.read(0, read.through, NO_LIMIT).await?;
        ensure_eq!(seqs(&records), places, "records right after the append returned");
        after = next.through;
    }
    Ok(())
}

pub(super) async fn a_position_splits_the_log_by_time(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    for number in 0..60 {
        topic.append(vec![event(0, number)]).await?;
        tokio::task::yield_now().await;
    }
    let events = topic.read_all(0).await?;
    let mut times: Vec<Timestamp> = events.iter().map(|event| event.time).collect();
    times.extend([Timestamp(i64::MIN), Timestamp(0), Timestamp::MAX]);
    times.extend(events.last().map(|event| Timestamp(event.time.0 + 1)));
    times.extend(events.first().map(|event| Timestamp(event.time.0 - 1)));
    times.dedup();
    for time in times {
        let positions = kit.store.position_at(&topic.name, time).await?;
        ensure_eq!(positions.len(), 2, "positions, one for each shard");
        let expected = seqs(events.iter().filter(|event| event.time >= time));
        ensure_eq!(seqs(&topic.read_after(0, positions[0]).await?), expected, "records from {time} on");
        ensure_eq!(positions[1], Seq::ZERO, "the position in an empty shard");
    }
    Ok(())
}
