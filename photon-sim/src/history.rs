//! What happened in a run, for people to read and for two runs to be compared.

use std::fmt;

use photon_core::store::{Checkpoint, ShardOutcome};

/// Who did or saw something: a process by its number, or the world.
pub(crate) const WORLD: usize = usize::MAX;

/// What happened, in order.
#[derive(Debug, Clone, Default)]
pub struct History {
    lines: Vec<Line>,
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub struct Line {
    /// When, in milliseconds of the run.
    pub at: u64,
    /// The process, or `usize::MAX` for the world around them.
    pub who: usize,
    /// What.
    pub what: What,
}

/// A place in the topic: shard and seq.
pub type Place = (u16, u64);

/// What can happen.
#[derive(Debug, Clone)]
pub enum What {
    /// A process begins.
    Begins {
        /// Its group.
        group: &'static str,
        /// Its number in the group.
        index: u32,
        /// By how much its wall clock is off, in milliseconds.
        clock: i64,
    },
    /// Its executor runs.
    Started,
    /// A call about itself failed: starting, publishing.
    Failed(String),
    /// An event is in the log for sure.
    Published(u32, Option<u8>, Place),
    /// An event got into the log, also if nobody was told.
    Appended(u32, Option<u8>, Place),
    /// A handler begins.
    Runs {
        /// The number of the run.
        run: usize,
        /// Where the event stands.
        place: Place,
        /// The key of the event.
        key: Option<u8>,
        /// The attempt.
        attempt: u32,
        /// Under which epoch.
        epoch: u64,
    },
    /// A handler ends.
    Ends(usize, End),
    /// Somebody got a shard.
    Granted(&'static str, u16, u64),
    /// Something was written about a shard.
    Committed(Box<Commit>),
    /// Dead letters were redriven.
    Redriven(&'static str, Vec<Place>),
    /// Dead letters were discarded.
    Discarded(&'static str, Vec<Place>),
    /// A call of the store went wrong.
    Struck(&'static str, String),
    /// Anything else.
    Note(&'static str, Option<i64>),
}

/// What was written about a shard.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The group.
    pub group: &'static str,
    /// The shard.
    pub shard: u16,
    /// Under which epoch.
    pub epoch: u64,
    /// What the owner says is settled.
    pub checkpoint: Checkpoint,
    /// The rows it stores: places and states.
    pub puts: Vec<(u64, String)>,
    /// The rows that end.
    pub ends: Vec<u64>,
    /// What became of it.
    pub outcome: ShardOutcome,
}

/// How a run of a handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Well.
    Done,
    /// With an error, a panic or out of time: another attempt may follow.
    Failed,
    /// With an error that is final.
    Permanent,
    /// It asked to be offered again.
    Deferred,
    /// It was broken off.
    Cut,
}

impl History {
    pub(crate) fn push(&mut self, at: u64, who: usize, what: What) {
        self.lines.push(Line { at, who, what });
    }

    /// Everything, in order.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// A number that is the same for two histories only if they are the same, but for bad luck: FNV-1a of the text.
    pub fn hash(&self) -> u64 {
        let text = self.to_string();
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { at, who, what } = self;
        write!(f, "{:>3}.{:03} ", at / 1_000, at % 1_000)?;
        match *who {
            WORLD => write!(f, "world ")?,
            who => write!(f, "p{who:<4} ")?,
        }
        let key = |key: &Option<u8>| key.map_or_else(|| "-".to_owned(), |key| format!("k{key}"));
        match what {
            What::Begins { group, index, clock } => {
                write!(f, "begins as {index} of {group}, clock off by {clock} ms")
            }
            What::Started => write!(f, "started"),
            What::Failed(text) => write!(f, "{text}"),
            What::Published(n, of, (shard, seq)) => {
                write!(f, "published #{n} {} at {shard}/{seq}", key(of))
            }
            What::Appended(n, of, (shard, seq)) => write!(f, "the log has #{n} {} at {shard}/{seq}", key(of)),
            What::Runs { run, place: (shard, seq), key: of, attempt, epoch } => {
                write!(f, "run {run} of {shard}/{seq} {}, attempt {attempt}, epoch {epoch}", key(of))
            }
            What::Ends(run, end) => write!(f, "run {run} ends: {end:?}"),
            What::Granted(group, shard, epoch) => write!(f, "gets {group} shard {shard}, epoch {epoch}"),
            What::Committed(commit) => write!(f, "{commit}"),
            What::Redriven(group, places) => write!(f, "redriven in {group}: {places:?}"),
            What::Discarded(group, places) => write!(f, "discarded in {group}: {places:?}"),
            What::Struck(op, fault) => write!(f, "{op}: {fault}"),
            What::Note(text, None) => write!(f, "{text}"),
            What::Note(text, Some(number)) => write!(f, "{text} {number}"),
        }
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Commit { group, shard, epoch, checkpoint, puts, ends, outcome } = self;
        write!(f, "commits {group} shard {shard}, epoch {epoch}: to {}", checkpoint.watermark)?;
        for range in &checkpoint.ranges {
            write!(f, " and {}-{}", range.first, range.last)?;
        }
        for (seq, state) in puts {
            write!(f, ", {seq} {state}")?;
        }
        if !ends.is_empty() {
            write!(f, ", ends {ends:?}")?;
        }
        match outcome {
            ShardOutcome::Fenced => write!(f, ": fenced"),
            ShardOutcome::Committed { conflicts } if conflicts.is_empty() => Ok(()),
            ShardOutcome::Committed { conflicts } => write!(f, ", conflicts {conflicts:?}"),
        }
    }
}
