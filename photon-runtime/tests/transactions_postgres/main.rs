//! Transactions of the user on the Postgres database that holds the log: events that they publish, and handlers whose
//! effects commit with the end of their delivery.

#[path = "../common/mod.rs"]
mod common;
mod transactions;

use std::process::ExitCode;

use photon_backend::servers::{Postgres, suite};

fn main() -> ExitCode {
    if transactions::is_worker() {
        transactions::work();
        return ExitCode::SUCCESS;
    }
    suite::run(
        Postgres::missing(),
        photon_backend::server_tests![
            transactions::an_event_is_published_if_and_only_if_the_transaction_commits,
            transactions::a_transaction_of_sqlx_publishes_as_one_of_tokio_postgres,
            transactions::a_transaction_that_the_handler_ended_does_not_settle,
            transactions::p06_the_effects_of_attempts_that_fail_are_taken_back,
            transactions::p09_a_late_owner_cannot_commit,
            transactions::p03_p04_effects_happen_exactly_once_through_kills,
        ],
    )
}
