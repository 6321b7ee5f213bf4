//! How long events are kept.

use std::time::Duration;

/// How long the events of a topic are kept. Default: for ever, for whoever subscribes later.
///
/// With [`after`](Self::after) the executor removes what every subscription that the store knows has settled, once it
/// is old enough. What one of them has not settled stays, also that of one whose handler is gone, until somebody
/// forgets it; [`limit`](Self::limit) sets an end to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    pub(crate) after: Option<Duration>,
    pub(crate) limit: Option<Duration>,
}

impl Retention {
    /// Keeps everything.
    pub const FOREVER: Retention = Retention { after: None, limit: None };

    /// Removes what is settled and that the store took in so long ago; at once with [`Duration::ZERO`].
    pub fn after(age: Duration) -> Self {
        Self { after: Some(age), limit: None }
    }

    /// Removes what the store took in so long ago even if it is not settled. **Events are lost** to a subscription that
    /// is further behind; the log names it, and it goes on behind the gap. No less than the age of
    /// [`after`](Self::after).
    #[must_use]
    pub fn limit(mut self, age: Duration) -> Self {
        self.limit = Some(age);
        self
    }

    /// Whether nothing is ever removed.
    pub(crate) fn is_forever(self) -> bool {
        self.after.is_none() && self.limit.is_none()
    }

    pub(crate) fn problem(self) -> Option<String> {
        let (after, limit) = (self.after?, self.limit?);
        (limit < after).then(|| {
            format!(
                "events are kept for {after:?} but removed after {limit:?}: raise the limit, or lower the age"
            )
        })
    }
}
