//! What every engine refuses, in the same words.

use photon_core::error::{StoreError, StoreErrorKind};
use photon_core::ids::{SubscriptionId, TopicName};

pub(crate) fn refused(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, message)
}

pub(crate) fn unknown_topic(topic: &TopicName) -> StoreError {
    refused(format!(
        "topic {topic:?} is not in this store: nobody made it, or it was removed meanwhile. A program makes its topics \
         when it starts: start it again; who calls the store itself calls ensure_topic first"
    ))
}

pub(crate) fn unregistered(subscription: &SubscriptionId) -> StoreError {
    refused(format!(
        "subscription {subscription} is not known to this store: nobody registered it, or it was forgotten meanwhile. A \
         program registers its subscriptions when it starts: start it again; who calls the store itself calls register \
         first"
    ))
}
