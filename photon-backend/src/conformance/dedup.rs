//! Events that the publisher sends twice.

use photon_core::ids::Shard;
use photon_core::store::Appended;

use super::kit::{Kit, event, seqs, with_dedup};
use super::verdict::Outcome;

pub(super) async fn a_second_event_with_the_id_is_not_stored(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let long = "x".repeat(500);
    for id in ["", "a", "A", "a ", "ä", "'; drop table", long.as_str()] {
        let first = topic.append(vec![with_dedup(0, id)]).await?[0];
        for _ in 0..2 {
            let again = topic.append_any(vec![with_dedup(0, id)]).await?;
            ensure_eq!(again, [Appended { seq: first, duplicate: true }], "a repetition of {id:?}");
        }
    }
    ensure_eq!(topic.read_all(0).await?.len(), 7, "records");
    Ok(())
}

pub(super) async fn duplicates_within_a_batch_are_found(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let before = topic.append(vec![with_dedup(0, "old")]).await?[0];
    let batch =
        vec![with_dedup(0, "new"), event(0, 1), with_dedup(0, "new"), with_dedup(0, "old"), event(0, 2)];
    let got = topic.append_any(batch).await?;
    let duplicates: Vec<bool> = got.iter().map(|appended| appended.duplicate).collect();
    ensure_eq!(duplicates, [false, false, true, true, false], "which of the batch are duplicates");
    ensure_eq!(got[2].seq, got[0].seq, "the place of a duplicate within the batch");
    ensure_eq!(got[3].seq, before, "the place of a duplicate of an earlier batch");
    let kept = [before, got[0].seq, got[1].seq, got[4].seq];
    ensure_eq!(seqs(&topic.read_all(0).await?), kept, "records");
    Ok(())
}

pub(super) async fn dedup_is_by_topic_and_shard(kit: Kit<'_>) -> Outcome {
    let (one, two) = (kit.topic(2).await?, kit.topic(1).await?);
    one.append(vec![with_dedup(0, "id"), with_dedup(1, "id")]).await?;
    two.append(vec![with_dedup(0, "id")]).await?;
    // The same event again, without a dedup id: two events.
    let event = event(0, 7);
    two.append(vec![event.clone(), event.clone()]).await?;
    two.append(vec![event]).await?;
    ensure_eq!(two.read_all(0).await?.len(), 4, "records of the second topic");
    Ok(())
}

pub(super) async fn a_trimmed_event_still_has_duplicates(kit: Kit<'_>) -> Outcome {
    let topic = kit.topic(1).await?;
    let first = topic.append(vec![with_dedup(0, "id")]).await?[0];
    kit.store.trim(&topic.name, Shard(0), first).await?;
    let again = topic.append_any(vec![with_dedup(0, "id")]).await?;
    ensure_eq!(again, [Appended { seq: first, duplicate: true }], "a repetition after the trim");
    Ok(())
}
