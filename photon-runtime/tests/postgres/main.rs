//! A running service while its Postgres server fails: nothing acknowledged is lost, the order of each key holds, loops
//! come back by themselves, and the log stays short.

#[path = "../faults/common.rs"]
mod common;
mod faults;
#[path = "../faults/log.rs"]
mod log;
#[expect(dead_code, reason = "this engine forgets nothing")]
#[path = "../faults/service.rs"]
mod service;

use std::process::ExitCode;

use photon_backend::servers::Postgres;

fn main() -> ExitCode {
    let own = photon_backend::server_tests![
        faults::the_url_alone_is_enough,
        faults::the_rights_are_revoked,
        faults::sessions_are_terminated,
        faults::statements_take_too_long,
        faults::transactions_idle_for_too_long,
    ];
    common::run::<Postgres>(Postgres::missing(), own)
}
