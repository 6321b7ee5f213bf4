//! A running service while its NATS server fails: nothing acknowledged is lost, the order of each key holds, loops come
//! back by themselves, and the log stays short.

#[path = "../faults/common.rs"]
mod common;
mod faults;
#[path = "../faults/log.rs"]
mod log;
#[path = "../faults/service.rs"]
mod service;

use std::process::ExitCode;

use photon_backend::servers::Nats;

fn main() -> ExitCode {
    let own = photon_backend::server_tests![
        faults::the_url_alone_is_enough,
        faults::the_rights_are_revoked,
        faults::engine_forgot_the_log,
        faults::engine_forgot_the_groups,
        faults::engine_forgot_everything,
    ];
    common::run::<Nats>(Nats::missing(), own)
}
