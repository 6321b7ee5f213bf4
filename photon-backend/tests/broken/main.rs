//! Proof that the conformance suite finds broken stores: each of these breaks one rule of the contract, and the
//! checks that are about that rule fail.

mod store;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use photon_backend::conformance::{Harness, Report, Suite, checks};
use photon_backend::memory::MemoryStore;
use photon_core::store::Store;

use self::store::{Broken, Bug};

/// Every bug with checks that must fail.
#[rustfmt::skip]
const BROKEN: &[(Bug, &[&str])] = &[
    (Bug::None, &[]),
    (Bug::ReordersABatch, &["a_batch_keeps_its_order"]),
    (Bug::LosesNowAndThen, &["many_append_at_once", "what_was_acknowledged_is_read"]),
    (Bug::AppliesTwice, &["a_batch_keeps_its_order", "many_append_at_once"]),
    (Bug::StoresAPartOfWhatItRefuses, &["a_refused_batch_stores_nothing"]),
    (Bug::ShowsRecordsLate, &["nothing_appears_behind_a_reader"]),
    (Bug::IgnoresLimits, &["a_read_keeps_to_its_limit_of_records", "a_read_stops_at_its_limit_of_bytes"]),
    (Bug::ReusesPlacesAfterATrim, &["places_are_not_used_again"]),
    (Bug::TrimsOneTooMany, &["trim_removes_up_to_the_place"]),
    (Bug::ForgetsDedupIds, &["a_second_event_with_the_id_is_not_stored"]),
    (Bug::ForgetsDedupIdsWithATrim, &["a_trimmed_event_still_has_duplicates"]),
    (Bug::MendsPayloads, &["p11_any_payload_comes_back", "p11_large_events_come_back"]),
    (Bug::TakesTheEmptyKeyForNone, &["p11_the_empty_key_is_not_no_key"]),
    (Bug::AcceptsAnotherShardCount, &["another_shard_count_is_refused"]),
    (Bug::ForgetsWakesBeforeTheWait, &["an_append_before_the_wait_is_not_missed"]),
    (Bug::RegistersAnew, &["a_start_is_fixed_in_numbers", "registering_again_changes_only_the_expiry"]),
    (Bug::LowersWatermarks, &["p02_a_watermark_never_goes_back"]),
    (Bug::TakesRangesAway, &["p04_a_late_commit_takes_no_ranges_away"]),
    (Bug::LosesRanges, &["a_commit_is_loaded_back", "many_ranges_are_kept"]),
    (Bug::LoadsWhatWas, &["a_commit_is_loaded_back", "p09_a_takeover_sees_every_commit_before"]),
    (Bug::LosesTrials, &["trials_are_those_of_the_last_commit"]),
    (Bug::TakesEveryEndForOneInOrder, &["who_did_not_release_is_told_to_the_next_owner"]),
    (Bug::DropsRowsOfALowerWatermark, &["a_lower_watermark_still_writes_the_rows"]),
    (Bug::LetsOneFencedShardStopAll, &["shards_of_a_commit_are_apart"]),
    (Bug::DoesNotFence, &["p09_a_late_owner_writes_nothing", "p09_who_left_writes_nothing"]),
    (Bug::ComparesNoTokens, &["p09_epoch_and_token_both_count"]),
    (Bug::IgnoresVersions, &["a_row_is_replaced_under_its_version", "what_people_did_wins_over_the_owner"]),
    (Bug::EndsAnyVersion, &["an_end_of_another_version_does_not_count"]),
    (Bug::LeavesNoMarks, &["an_ended_row_goes_when_it_is_covered", "a_discarded_row_is_gone_or_a_mark"]),
    (Bug::HidesWaitingHeads, &["a_lane_has_one_head_its_smallest"]),
    (Bug::RedrivesForLater, &["a_redriven_row_runs_again"]),
    (Bug::RedrivesInEverySubscription, &["subscriptions_are_apart"]),
    (Bug::RedrivesMoreThanTheLimit, &["a_limit_takes_the_smallest_places"]),
    (Bug::RenewsWhatWasLost, &["a_stranger_is_fenced"]),
    (Bug::StartsEpochsOver, &["p09_epochs_only_grow"]),
    (Bug::ReplacesLiveHolders, &["only_a_still_heartbeat_can_be_replaced"]),
    (Bug::IsNotDurable, &["p01_everything_survives_a_restart"]),
];

struct Breaking(Bug);

#[async_trait]
impl Harness for Breaking {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(Broken::over(Arc::new(MemoryStore::new()), self.0))
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Option<Arc<dyn Store>> {
        if self.0 == Bug::IsNotDurable { Some(self.fresh().await) } else { Some(store) }
    }
}

async fn report(bug: Bug) -> Report {
    // What hangs is found soon; the store without a bug has all the time it needs on a busy machine.
    let limit = Duration::from_secs(if bug == Bug::None { 60 } else { 2 });
    Suite::new().seed(7).rounds(2).time_limit(limit).run(&Breaking(bug)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_rejects_every_broken_store_by_the_right_check() {
    let mut wrong = Vec::new();
    for (bug, expected) in BROKEN {
        let report = report(*bug).await;
        let failed: Vec<&str> = report.failures().map(|result| result.name.as_str()).collect();
        println!("{bug:?}: {failed:?}");
        let missed: Vec<_> = expected.iter().filter(|name| !failed.contains(name)).collect();
        // A store that is broken in one way passes most checks.
        if !missed.is_empty() || expected.is_empty() != failed.is_empty() || failed.len() > checks().len() / 3
        {
            wrong.push(format!("{bug:?}: not found by {missed:?}\n{report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
