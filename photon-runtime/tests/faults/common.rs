//! What happens to every server and to every connection.

use std::future::Future;
use std::ops::Deref;
use std::process::ExitCode;
use std::time::Duration;

use photon_backend::servers::Server;
use photon_backend::servers::suite::{self, Test};

use crate::log::count_lines;
use crate::service::Service;

/// A server that a service can be started on.
pub(crate) trait Engine: Deref<Target = Server> + Send + Sized + 'static {
    /// Starts a server, a proxy before it and the service.
    fn start(topic: &str) -> impl Future<Output = Service<Self>>;
}

/// Runs the tests of an engine, and those of faults that have nothing to do with what the server is. They wait most of
/// the time.
pub(crate) fn run<E: Engine>(missing: Option<String>, own: Vec<Test>) -> ExitCode {
    count_lines();
    let common = vec![
        Test::new("common::the_server_is_killed_under_load", the_server_is_killed_under_load::<E>),
        Test::new("common::the_server_is_frozen_for_ten_seconds", the_server_is_frozen_for_ten_seconds::<E>),
        Test::new(
            "common::the_connection_is_cut_for_ten_seconds",
            the_connection_is_cut_for_ten_seconds::<E>,
        ),
        Test::new(
            "common::the_connection_stalls_for_thirty_seconds",
            the_connection_stalls_for_thirty_seconds::<E>,
        ),
        Test::new("common::answers_are_cut_off_in_the_middle", answers_are_cut_off_in_the_middle::<E>),
        Test::new("common::the_server_is_slow", the_server_is_slow::<E>),
    ];
    let tests = common.into_iter().chain(own).map(move |test| test.lacking(missing.clone()));
    suite::run_side_by_side(4, tests.collect())
}

async fn the_server_is_killed_under_load<E: Engine>() {
    let mut service = E::start("killed").await;
    for _ in 0..3 {
        service.interruptions += 1;
        service = service.with_server(|server| server.crash()).await;
        service.goes_on().await;
    }
    service.check().await;
}

/// Its connections stay open, and nobody answers.
async fn the_server_is_frozen_for_ten_seconds<E: Engine>() {
    let mut service = E::start("frozen").await;
    service.interruptions += 1;
    service.server.freeze();
    tokio::time::sleep(Duration::from_secs(10)).await;
    service.server.thaw();
    service.goes_on().await;
    service.check().await;
}

async fn the_connection_is_cut_for_ten_seconds<E: Engine>() {
    let mut service = E::start("cut").await;
    service.interruptions += 1;
    service.proxy.refuse();
    tokio::time::sleep(Duration::from_secs(10)).await;
    service.proxy.forward();
    service.goes_on().await;
    service.check().await;
}

async fn the_connection_stalls_for_thirty_seconds<E: Engine>() {
    let mut service = E::start("stalled").await;
    service.interruptions += 1;
    service.proxy.stall();
    tokio::time::sleep(Duration::from_secs(30)).await;
    service.proxy.forward();
    service.goes_on().await;
    service.check().await;
}

async fn answers_are_cut_off_in_the_middle<E: Engine>() {
    let mut service = E::start("answers").await;
    for bytes in [1, 2, 7, 60, 300, 2_000] {
        service.interruptions += 1;
        service.proxy.cut_after(bytes);
        service.goes_on().await;
    }
    service.check().await;
}

async fn the_server_is_slow<E: Engine>() {
    let service = E::start("slow").await;
    service.proxy.delay(Duration::from_millis(20));
    service.goes_on().await;
    service.proxy.forward();
    service.goes_on().await;
    service.check().await;
}
