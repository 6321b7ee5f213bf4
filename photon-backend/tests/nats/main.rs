//! The NATS store on private servers.

use std::process::ExitCode;

use photon_backend::servers::{Nats, suite};

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod faults;
mod opening;
mod support;

fn main() -> ExitCode {
    suite::run(
        Nats::missing(),
        photon_backend::server_tests![
            conformance::a_server_keeps_the_store_contract,
            opening::p12_what_is_wrong_with_the_server_is_said_at_open,
            opening::connections_are_encrypted_and_the_server_is_who_it_says,
            opening::tokens_and_keys_are_ways_to_log_in,
            opening::a_missing_permission_is_named,
            opening::a_stream_that_is_not_what_photon_makes_is_refused,
            opening::messages_of_others_are_skipped_and_counted,
            opening::a_server_with_its_own_defaults_opens,
            opening::an_event_over_the_limit_of_the_server_is_refused_alone,
            faults::p01_nothing_acknowledged_is_lost_when_the_server_is_killed,
            faults::an_answer_that_is_cut_off_is_unknown,
            faults::p10_a_server_that_stalls_fails_in_time_and_comes_back,
            faults::p01_p09_a_cluster_loses_nothing_when_its_leaders_are_killed,
        ],
    )
}
