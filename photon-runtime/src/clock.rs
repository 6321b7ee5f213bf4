//! The clock that everything in the runtime reads.

use std::time::SystemTime;

use photon_core::time::{Mono, Now, Timestamp};
use tokio::time::Instant;

/// Tells the time: one for what is measured and one for what is stored.
///
/// Measured time is tokio's, so it stands still where a test pauses it. Wall time is the system's, or follows
/// the measured one from a chosen start, so that a test decides about both.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
    wall: Wall,
}

#[derive(Debug, Clone, Copy)]
enum Wall {
    System,
    From(Timestamp),
}

impl Clock {
    /// The clock of the machine.
    pub fn system() -> Self {
        Self { origin: Instant::now(), wall: Wall::System }
    }

    /// A clock whose wall time is `start` now and moves with tokio's time: for tests on a paused clock. Call it
    /// within the runtime whose time is paused.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { origin: Instant::now(), wall: Wall::From(start) }
    }

    /// Whether a test decides about the wall time.
    pub(crate) fn is_virtual(self) -> bool {
        matches!(self.wall, Wall::From(_))
    }

    /// Measured time.
    pub(crate) fn mono(self) -> Mono {
        Mono::default() + self.origin.elapsed()
    }

    /// Waits until a measured time.
    pub(crate) async fn sleep_until(self, at: Mono) {
        tokio::time::sleep_until(self.instant(at)).await;
    }

    /// Both times, read at one moment.
    pub fn now(self) -> Now {
        let elapsed = self.origin.elapsed();
        let wall = match self.wall {
            Wall::System => SystemTime::now().into(),
            Wall::From(start) => start.saturating_add(elapsed),
        };
        Now { mono: Mono::default() + elapsed, wall }
    }

    /// The wall time.
    pub fn wall(self) -> Timestamp {
        match self.wall {
            Wall::System => SystemTime::now().into(),
            Wall::From(start) => start.saturating_add(self.origin.elapsed()),
        }
    }

    /// The moment of a measured time, for tokio's timers.
    pub fn instant(self, mono: Mono) -> Instant {
        // Past the end of what tokio's timers can measure, decades are as good as never.
        const FAR: std::time::Duration = std::time::Duration::from_secs(30 * 365 * 86_400);
        let after = mono.since(Mono::default());
        self.origin + after.min(FAR)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn both_times_follow_a_paused_clock() {
        let clock = Clock::starting_at(Timestamp(5_000_000));
        let before = clock.now();
        assert_eq!(clock.now(), before);
        tokio::time::advance(Duration::from_secs(3)).await;
        let after = clock.now();
        assert_eq!(after.mono.since(before.mono), Duration::from_secs(3));
        assert_eq!(after.wall, Timestamp(8_000_000));
        assert_eq!(clock.wall(), after.wall);
        assert_eq!(clock.instant(after.mono), Instant::now());
        clock.instant(Mono(u64::MAX));
    }

    #[test]
    fn the_system_clock_needs_no_runtime() {
        let clock = Clock::system();
        assert!(clock.now().wall > Timestamp(1_600_000_000_000_000));
    }
}
