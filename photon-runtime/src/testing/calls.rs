//! What a test asks for and awaits. An error ends the test and names the line that asked.

use std::fmt::Display;
use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::pin::Pin;

use photon_core::ids::ToKey;

use super::TestPhoton;
use crate::deadletters::{DeadLetter, DeadLetters, Letter};
use crate::publish::{Publish, Receipt};
use photon_core::store::{DeadLetterFilter, Page};

type Pinned<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The line of a test that asked for something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked(&'static Location<'static>);

impl Asked {
    #[track_caller]
    pub(super) fn here() -> Self {
        Self(Location::caller())
    }

    pub(super) fn expect<T, E: Display>(self, result: Result<T, E>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => panic!("{}: {error}", self.0),
        }
    }
}

/// An event that a test publishes when it awaits this. Made by [`TestPhoton::publish`].
///
/// The methods are those of [`Publish`]. An event that is refused fails the test; to test the refusal itself, publish
/// through [`TestPhoton::photon`].
#[must_use = "nothing is published until it is awaited"]
pub struct TestPublish<'a> {
    test: &'a mut TestPhoton,
    publish: Publish,
    asked: Asked,
}

impl<'a> TestPublish<'a> {
    pub(super) fn new(test: &'a mut TestPhoton, publish: Publish, asked: Asked) -> Self {
        Self { test, publish, asked }
    }

    /// Sets the ordering key, in place of the event's own.
    pub fn key(mut self, key: impl ToKey) -> Self {
        self.publish = self.publish.key(key);
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<Box<str>>, value: impl AsRef<[u8]>) -> Self {
        self.publish = self.publish.header(name, value);
        self
    }

    /// Makes repeated publishes one event.
    pub fn dedup_id(mut self, id: impl ToString) -> Self {
        self.publish = self.publish.dedup_id(id);
        self
    }

    /// Says who caused the event. Needs [`TestPhoton::identity`].
    pub fn actor<T: Send + Sync + 'static>(mut self, identity: &T) -> Self {
        self.publish = self.publish.actor(identity);
        self
    }
}

impl<'a> IntoFuture for TestPublish<'a> {
    type Output = Receipt;
    type IntoFuture = Pinned<'a, Receipt>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { test, publish, asked } = self;
        Box::pin(async move {
            test.start(asked).await;
            asked.expect(publish.await)
        })
    }
}

/// The dead letters of a subscription in a test. Made by [`TestPhoton::dead_letters`].
///
/// As [`DeadLetters`], but what cannot be done fails the test.
#[must_use = "end with .list(), .count(), .redrive_all() or the like"]
pub struct TestDeadLetters<'a> {
    letters: DeadLetters<'a>,
    asked: Asked,
}

impl<'a> TestDeadLetters<'a> {
    pub(super) fn new(letters: DeadLetters<'a>, asked: Asked) -> Self {
        Self { letters, asked }
    }

    /// Picks those that match.
    pub fn filter(mut self, filter: DeadLetterFilter) -> Self {
        self.letters = self.letters.filter(filter);
        self
    }

    /// Picks those of a key.
    pub fn key(mut self, key: impl ToKey) -> Self {
        self.letters = self.letters.key(key);
        self
    }

    /// Picks one.
    pub fn letter(mut self, letter: impl Into<Letter>) -> Self {
        self.letters = self.letters.letter(letter);
        self
    }

    /// All that were picked, by shard and seq.
    pub async fn list(self) -> Vec<DeadLetter> {
        self.asked.expect(self.letters.list(Page::first(usize::MAX)).await)
    }

    /// How many there are.
    pub async fn count(self) -> u64 {
        self.asked.expect(self.letters.count().await)
    }

    /// Gives those that were picked back to their subscription; they run when the test waits. Returns how many.
    pub async fn redrive(self) -> u64 {
        self.asked.expect(self.letters.redrive().await)
    }

    /// Redrives all of them, or all that were picked.
    pub async fn redrive_all(self) -> u64 {
        self.asked.expect(self.letters.redrive_all().await)
    }

    /// Removes those that were picked, without running them. Returns how many.
    pub async fn discard(self) -> u64 {
        self.asked.expect(self.letters.discard().await)
    }

    /// Discards all of them, or all that were picked.
    pub async fn discard_all(self) -> u64 {
        self.asked.expect(self.letters.discard_all().await)
    }
}
