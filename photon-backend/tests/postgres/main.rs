//! The Postgres store: the conformance suite, and what is special to a server that others share.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod faults;
mod opening;
mod outbox;
mod support;

use std::process::ExitCode;

use photon_backend::servers::{Postgres, suite};

fn main() -> ExitCode {
    suite::run(
        Postgres::missing(),
        photon_backend::server_tests![
            conformance::a_database_keeps_the_store_contract,
            cases::listener_killed,
            cases::other_processes_are_woken,
            cases::an_event_in_the_outbox_comes_before_a_later_append,
            cases::a_busy_publisher_does_not_keep_a_heartbeat_waiting,
            faults::p01_nothing_acknowledged_is_lost_when_the_server_is_killed,
            faults::an_answer_that_is_cut_off_is_unknown,
            faults::p10_a_server_that_stalls_fails_in_time_and_comes_back,
            faults::a_statement_timeout_leaves_nothing_behind,
            outbox::concurrent_writers,
            outbox::staged_events_go_into_the_log_once_and_in_order,
            opening::many_processes_make_the_schema_at_once,
            opening::mistakes_in_the_url_are_named_without_the_password,
            opening::connections_are_encrypted_and_the_server_is_who_it_says,
            opening::a_missing_right_is_named,
            opening::tables_of_somebody_else_are_left_alone,
            opening::a_newer_schema_is_refused,
            opening::two_schemas_are_two_logs,
        ],
    )
}
