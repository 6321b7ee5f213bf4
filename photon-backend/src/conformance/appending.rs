//! Appending events.

use photon_core::ids::{Seq, Shard};
use photon_core::store::Bounds;

use super::kit::{Kit, event, seqs};
use super::verdict::Outcome;

pub(super) async fn a_batch_keeps_its_order(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(3).await?;
    for round in 0..3u64 {
        let before = kit.store.bounds(&topic.name).await?;
        // Shards are mixed: 0 1 2 0 1 2 ...
        let batch: Vec<_> =
            (0..30).map(|n| event(u16::try_from(n % 3).unwrap_or(0), round * 30 + n)).collect();
        let ids: Vec<_> = batch.iter().map(|event| event.id).collect();
        let places = topic.append(batch).await?;
        for (index, Bounds { shard, end, .. }) in before.into_iter().enumerate() {
            let own: Vec<Seq> = places.iter().copied().skip(index).step_by(3).collect();
            ensure!(own.windows(2).all(|w| w[0] < w[1]), "places of shard {shard} do not ascend: {own:?}");
            ensure!(own[0] > end, "place {} of shard {shard} is not after its end {end}", own[0]);
            ensure!(own[0].0 >= 1 && own[9].0 <= i64::MAX.unsigned_abs(), "places out of range: {own:?}");
            let read = topic.read_after(shard.0, end).await?;
            ensure_eq!(seqs(&read), own, "places that are read, against the receipts");
            let read_ids: Vec<_> = read.iter().map(|event| event.id).collect();
            let own_ids: Vec<_> = ids.iter().copied().skip(index).step_by(3).collect();
            ensure_eq!(read_ids, own_ids, "events in the order of the batch");
        }
    }
    Ok(())
}

pub(super) async fn an_append_of_nothing_is_fine(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    ensure_eq!(topic.append(Vec::new()).await?, [], "the receipts of an empty batch");
    ensure_eq!(topic.read_all(0).await?.len(), 0, "records after an empty batch");
    Ok(())
}

pub(super) async fn a_refused_batch_stores_nothing(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    let batch = vec![event(0, 0), event(1, 1), event(2, 2), event(0, 3)];
    ensure_refused!(kit.store.append(&topic.name, batch).await, Refused, "an event for shard 2 of 2");
    for shard in 0..2 {
        ensure_eq!(topic.read_all(shard).await?.len(), 0, "records in shard {shard} after a refused batch");
    }
    ensure_eq!(topic.fill(0, 1).await?.len(), 1, "events taken after a refused batch");
    Ok(())
}

pub(super) async fn append_times_never_go_back(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    for _ in 0..20 {
        topic.fill(0, 3).await?;
    }
    let events = topic.read_all(0).await?;
    ensure_eq!(events.len(), 60, "records");
    ensure!(events.windows(2).all(|w| w[0].time <= w[1].time), "append times go back within a shard");
    let again = topic.read_all(0).await?;
    ensure!(events == again, "a second read gives other events");
    Ok(())
}

pub(super) async fn topics_are_apart(kit: Kit<'_>) -> Outcome {
    let (one, two) = (kit.topic(1).await?, kit.topic(1).await?);
    one.fill(0, 3).await?;
    two.fill(0, 2).await?;
    ensure_eq!(one.read_all(0).await?.len(), 3, "records of the first topic");
    ensure_eq!(two.read_all(0).await?.len(), 2, "records of the second topic");
    ensure!(one.read_all(0).await?.iter().all(|e| e.topic == one.name), "events carry another topic's name");
    ensure!(two.read_all(0).await?.iter().all(|e| e.shard == Shard(0)), "events carry another shard");
    Ok(())
}
