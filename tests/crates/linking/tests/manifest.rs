//! The manifest links a crate: its handler in a nested private module runs.

use photon::{Photon, Registry};

photon::manifest![case_handlers];

#[tokio::test]
async fn unlinked_handlers_run_with_the_manifest() {
    let registry = Registry::linked();
    let groups: Vec<_> = registry.handlers.iter().map(|handler| handler.group_name()).collect();
    assert_eq!(groups, ["case_handlers::outer::inner::deeply_nested"]);
    assert_eq!(registry.topics.len(), 1);

    let photon = Photon::builder().memory().build().await.expect("memory is there");
    let executor = photon.start_executor().await.expect("there is a handler");
    photon.publish_raw("orders.placed", "null").await.expect("memory takes it");
    let report = executor.drain().await.expect("memory answers");
    assert!(report.is_clean());
    assert_eq!(report.handled(), 1);
}
