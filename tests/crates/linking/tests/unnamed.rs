//! A crate that only stands in `Cargo.toml` is not linked: the start says so.

use photon::{Photon, Registry};

#[tokio::test]
async fn unlinked_handlers_keep_photon_from_starting() {
    let registry = Registry::linked();
    assert!(registry.handlers.is_empty(), "{:?}", registry.handlers);
    assert!(registry.topics.is_empty(), "{:?}", registry.topics);

    let photon = Photon::builder().memory().build().await.expect("memory is there");
    let Err(error) = photon.start_executor().await else { panic!("it started without handlers") };
    let message = error.to_string();
    assert!(message.starts_with("Photon cannot start: 1 problem\n"), "{message}");
    for part in ["has no handler", "use my_handlers as _;", "photon::manifest![my_handlers]"] {
        assert!(message.contains(part), "{message}");
    }
}
