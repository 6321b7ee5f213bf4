//! Counts what is written to the log, for all tests together.

use std::fmt::Write;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("photon")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        LINES.lock().unwrap().push(text.0);
    }
}

/// Counts warnings and errors from now on.
pub(crate) fn count_lines() {
    tracing::subscriber::set_global_default(Lines).expect("nothing else writes a log");
}

/// The warnings and errors that mention a word, which only one test does.
pub(crate) fn lines_with(word: &str) -> Vec<String> {
    LINES.lock().unwrap().iter().filter(|line| line.contains(word)).cloned().collect()
}
