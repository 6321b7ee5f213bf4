//! What the server denied for want of a permission: it says so beside the request, which then gets no answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Event, ServerError};

/// So many are remembered, the youngest.
const MOST: usize = 64;

/// What was denied and is not told yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Denials(Arc<Mutex<VecDeque<String>>>);

impl Denials {
    pub(super) fn note(&self, event: &Event) {
        let Event::ServerError(ServerError::Other(text)) = event else { return };
        if !text.to_ascii_lowercase().contains("permissions violation") {
            return;
        }
        let mut denied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if denied.len() == MOST {
            denied.pop_front();
        }
        denied.push_back(text.clone());
    }

    /// What the server said of a request to this subject, or of the inbox for its answer.
    pub(super) fn take(&self, subject: &str) -> Option<String> {
        let quoted = format!("\"{subject}\"");
        let is_it = |text: &String| text.contains(&quoted) || text.contains("\"_INBOX.");
        let mut denied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = denied.iter().position(is_it)?;
        // One inbox is for all answers: that it is denied stays true.
        if denied[at].contains(&quoted) { denied.remove(at) } else { Some(denied[at].clone()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(text: &str) -> Event {
        Event::ServerError(ServerError::Other(text.to_owned()))
    }

    #[test]
    fn a_denial_is_told_once_to_whom_it_concerns() {
        let denials = Denials::default();
        denials.note(&denial("Permissions Violation for Publish to \"a.b\""));
        denials.note(&denial("something else about \"a\""));
        assert_eq!(denials.take("a"), None);
        assert!(denials.take("a.b").is_some_and(|text| text.contains("a.b")));
        assert_eq!(denials.take("a.b"), None);
    }

    #[test]
    fn an_inbox_that_is_denied_concerns_every_request() {
        let denials = Denials::default();
        denials.note(&denial("Permissions Violation for Subscription to \"_INBOX.x.*\""));
        assert!(denials.take("a").is_some() && denials.take("b").is_some());
    }

    #[test]
    fn old_denials_are_forgotten() {
        let denials = Denials::default();
        for n in 0..=MOST {
            denials.note(&denial(&format!("Permissions Violation for Publish to \"{n}\"")));
        }
        assert_eq!(denials.take("0"), None);
        assert!(denials.take("1").is_some());
    }
}
