//! Trimming logs.

use photon_core::ids::{Seq, Shard};

use super::kit::{Kit, NO_LIMIT, seqs};
use super::verdict::Outcome;

pub(super) async fn trim_removes_up_to_the_place(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(2).await?;
    let places = topic.fill(0, 6).await?;
    let others = topic.fill(1, 3).await?;
    kit.store.trim(&topic.name, Shard(0), places[2]).await?;
    for after in [Seq::ZERO, places[0], places[2]] {
        let (records, read) = topic.read(0, after, NO_LIMIT).await?;
        ensure_eq!(seqs(&records), places[3..], "records kept, read after {after}");
        ensure_eq!((read.floor, read.end), (places[2], places[5]), "floor and end");
    }
    ensure_eq!(seqs(&topic.read_all(1).await?), others, "records of the shard that was not trimmed");
    Ok(())
}

pub(super) async fn the_floor_never_goes_back(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let places = topic.fill(0, 6).await?;
    for through in [places[3], places[3], places[1], Seq::ZERO] {
        kit.store.trim(&topic.name, Shard(0), through).await?;
        let bounds = kit.store.bounds(&topic.name).await?;
        ensure_eq!(bounds[0].floor, places[3], "the floor after a trim through {through}");
        ensure_eq!(seqs(&topic.read_all(0).await?), places[4..], "records after a trim through {through}");
    }
    Ok(())
}

pub(super) async fn places_are_not_used_again(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let mut last = Seq::ZERO;
    for round in 0..4 {
        let places = topic.fill(0, 3).await?;
        ensure!(places[0] > last, "round {round} got place {}, {last} was given out before", places[0]);
        last = places[2];
        kit.store.trim(&topic.name, Shard(0), last).await?;
        ensure_eq!(topic.read_all(0).await?.len(), 0, "records after everything was trimmed");
        let bounds = kit.store.bounds(&topic.name).await?;
        ensure_eq!((bounds[0].floor, bounds[0].end), (last, last), "floor and end of an emptied shard");
    }
    Ok(())
}

pub(super) async fn a_trim_past_the_end_hides_nothing_new(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let places = topic.fill(0, 2).await?;
    kit.store.trim(&topic.name, Shard(0), Seq(places[1].0 + 100)).await?;
    ensure_eq!(topic.read_all(0).await?.len(), 0, "records after everything was trimmed");
    let (_, read) = topic.read(0, places[1], NO_LIMIT).await?;
    let new = topic.fill(0, 3).await?;
    ensure!(new[0] > read.through, "place {} is behind {}, where a reader stood", new[0], read.through);
    ensure_eq!(seqs(&topic.read_all(0).await?), new, "records appended after the trim");
    Ok(())
}

pub(super) async fn a_trimmed_place_has_a_later_position(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let places = topic.fill(0, 5).await?;
    let time = topic.read_all(0).await?[0].time;
    kit.store.trim(&topic.name, Shard(0), places[1]).await?;
    let positions = kit.store.position_at(&topic.name, time).await?;
    ensure!(positions[0] >= places[1], "position {} lies in what was trimmed", positions[0]);
    ensure_eq!(seqs(&topic.read_after(0, positions[0]).await?), places[2..], "records from the position on");
    Ok(())
}
