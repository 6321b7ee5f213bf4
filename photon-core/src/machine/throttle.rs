//! Lines for people that could come in masses: most of them are only counted.

use std::time::Duration;

use crate::time::Mono;

/// Lets so many lines through in a minute.
#[derive(Debug, Clone)]
pub struct Throttle {
    most: u32,
    since: Mono,
    said: u32,
    unsaid: u64,
}

impl Throttle {
    /// The time that the limit is for.
    pub const WINDOW: Duration = Duration::from_secs(60);

    /// Lets `most` lines through in each [`WINDOW`](Self::WINDOW).
    pub fn new(most: u32) -> Self {
        Self { most, since: Mono::default(), said: 0, unsaid: 0 }
    }

    /// There is a line to say. `None` to keep silent, else how many were left out since the last one.
    pub fn allow(&mut self, now: Mono) -> Option<u64> {
        if now.since(self.since) >= Self::WINDOW {
            (self.since, self.said) = (now, 0);
        }
        if self.said >= self.most {
            self.unsaid += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Default for Throttle {
    /// Ten in a minute.
    fn default() -> Self {
        Self::new(10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p10_lines_are_left_out_and_counted() {
        let mut throttle = Throttle::new(2);
        let at = |second| Mono::default() + Duration::from_secs(second);
        assert_eq!((throttle.allow(at(100)), throttle.allow(at(130))), (Some(0), Some(0)));
        assert_eq!((throttle.allow(at(140)), throttle.allow(at(159))), (None, None));
        assert_eq!((throttle.allow(at(160)), throttle.allow(at(161))), (Some(2), Some(0)));
        assert_eq!(throttle.allow(at(162)), None);
    }
}
