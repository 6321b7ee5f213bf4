//! Bugs that the simulation switches on, one at a time, to show that it finds them. Without the feature
//! `planted-bugs` none can be, and asking costs nothing.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Bug {
    WatermarkIsMaximum,
    RangesNotLoaded,
    CheckpointBeforeDeadLetter,
    LostCoalescerBatch,
    FailedCommitTakenForWritten,
    LaneReleasedEarly,
    StoredRecordRunsToo,
    RetryNotCounted,
    AttemptsResetOnRestart,
    DrainForgetsTheLastCommit,
    DeadKeyForgottenOnRestart,
    StaleLoadTaken,
    DroppedWake,
    UnfencedCommit,
    LostLeaseIgnored,
    RedriveNotNoticed,
    StoredRunsBeforeTheReader,
    CancellationCounted,
    EndBeforeCheckpoint,
    NeighbourOfAKillerBlamed,
    CrashNotCounted,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 21] = [
        Bug::WatermarkIsMaximum,
        Bug::RangesNotLoaded,
        Bug::CheckpointBeforeDeadLetter,
        Bug::LostCoalescerBatch,
        Bug::FailedCommitTakenForWritten,
        Bug::LaneReleasedEarly,
        Bug::StoredRecordRunsToo,
        Bug::RetryNotCounted,
        Bug::AttemptsResetOnRestart,
        Bug::DrainForgetsTheLastCommit,
        Bug::DeadKeyForgottenOnRestart,
        Bug::StaleLoadTaken,
        Bug::DroppedWake,
        Bug::UnfencedCommit,
        Bug::LostLeaseIgnored,
        Bug::RedriveNotNoticed,
        Bug::StoredRunsBeforeTheReader,
        Bug::CancellationCounted,
        Bug::EndBeforeCheckpoint,
        Bug::NeighbourOfAKillerBlamed,
        Bug::CrashNotCounted,
    ];
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in what runs on this thread, in place of an earlier one.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Whether the bug is planted.
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub use switch::{is_planted, plant};

/// Whether the bug is planted: never.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "nothing may be left of it")]
pub const fn is_planted(_: Bug) -> bool {
    false
}
