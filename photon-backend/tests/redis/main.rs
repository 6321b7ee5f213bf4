//! The Redis store: the conformance suite, and what is special to a server that others share.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod faults;
mod opening;
mod slots;
mod support;

use std::process::ExitCode;

use photon_backend::servers::{Redis, suite};

fn main() -> ExitCode {
    suite::run(
        Redis::missing(),
        photon_backend::server_tests![
            conformance::a_server_keeps_the_store_contract,
            cases::entries_of_other_programs_are_skipped,
            cases::a_stream_without_room_is_named,
            cases::a_key_of_another_type_is_named,
            cases::engine_forgot_the_beginning_of_a_log,
            cases::engine_forgot_everything,
            cases::a_subscription_that_was_forgotten_by_name_stays_so,
            cases::other_processes_are_woken,
            faults::p01_nothing_acknowledged_is_lost_when_the_server_is_killed,
            faults::places_of_lost_writes_are_not_given_out_again,
            faults::an_answer_that_is_cut_off_is_unknown,
            faults::p10_a_server_that_stalls_fails_in_time_and_comes_back,
            faults::a_full_memory_refuses_events_and_says_so,
            faults::an_event_over_the_limit_of_the_server_is_refused,
            opening::p01_a_server_that_would_lose_events_is_refused,
            opening::mistakes_in_the_url_are_named_without_the_password,
            opening::connections_are_encrypted_and_the_server_is_who_it_says,
            opening::a_missing_right_is_named,
            opening::a_command_without_its_name_is_named,
            opening::a_cluster_is_refused,
            opening::a_replica_is_refused,
            opening::keys_of_somebody_else_are_left_alone,
            opening::prefixes_and_databases_are_logs_of_their_own,
            slots::the_scripts_of_the_hot_path_keep_to_one_slot,
        ],
    )
}
