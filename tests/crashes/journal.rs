//! The side file: one line for each thing that happened, written with one append.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use photon::Context;

/// What a line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A handler starts.
    Start,
    /// It ends well.
    Done,
    /// It ends with an error.
    Failed,
    /// An event was published: only `event` counts.
    Published,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) what: What,
    /// The number of the process.
    pub(crate) life: u32,
    pub(crate) group: String,
    pub(crate) key: String,
    pub(crate) shard: u16,
    pub(crate) seq: u64,
    pub(crate) event: u64,
    pub(crate) epoch: u64,
}

/// Writes lines on behalf of one process.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    file: Arc<File>,
    life: u32,
}

impl Journal {
    pub(crate) fn open(path: &Path, life: u32) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path).expect("the side file opens");
        Self { file: Arc::new(file), life }
    }

    pub(crate) fn run(&self, what: What, cx: &Context, event: u64) {
        let key = cx.key().map(ToString::to_string).unwrap_or_default();
        let group = cx.subscription().group.to_string();
        self.write(&Line {
            what,
            life: self.life,
            group,
            key,
            shard: cx.shard().0,
            seq: cx.seq().0,
            event,
            epoch: cx.fence().epoch,
        });
    }

    pub(crate) fn published(&self, event: u64) {
        let (group, key) = ("-".to_owned(), "-".to_owned());
        let what = What::Published;
        self.write(&Line { what, life: self.life, group, key, shard: 0, seq: 0, event, epoch: 0 });
    }

    /// One write: a process that is killed leaves whole lines.
    fn write(&self, line: &Line) {
        (&*self.file).write_all(line.to_text().as_bytes()).expect("the side file takes a line");
    }
}

impl Line {
    fn to_text(&self) -> String {
        let Self { what, life, group, key, shard, seq, event, epoch } = self;
        format!("{what:?} {life} {group} {key} {shard} {seq} {event} {epoch}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let what = match word()? {
            "Start" => What::Start,
            "Done" => What::Done,
            "Failed" => What::Failed,
            "Published" => What::Published,
            _ => return None,
        };
        Some(Self {
            what,
            life: word()?.parse().ok()?,
            group: word()?.to_owned(),
            key: word()?.to_owned(),
            shard: word()?.parse().ok()?,
            seq: word()?.parse().ok()?,
            event: word()?.parse().ok()?,
            epoch: word()?.parse().ok()?,
        })
    }
}

/// All lines so far, in the order in which they were written.
pub(crate) fn read(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last one may be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| Line::parse(line).unwrap_or_else(|| panic!("a broken line: {line:?}"));
    if whole.is_empty() { Vec::new() } else { whole.split('\n').map(parse).collect() }
}

/// The lines of runs, by subscription and key.
pub(crate) fn by_lane(lines: &[Line]) -> BTreeMap<(&str, &str), Vec<&Line>> {
    let mut lanes: BTreeMap<_, Vec<&Line>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.what != What::Published) {
        lanes.entry((&*line.group, &*line.key)).or_default().push(line);
    }
    lanes
}
