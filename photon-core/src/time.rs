//! Time as it is passed in: the wall clock for what is stored, a monotonic one for what is measured.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in wall-clock time: microseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The latest time that can be written.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// The time that is `duration` after this one, or [`Timestamp::MAX`] past the end.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(duration)))
    }

    /// How long after `earlier` this is, zero if it is not.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Timestamp(micros(after)),
            Err(before) => Timestamp(-micros(before.duration())),
        }
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, with milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time:.3}"),
            // Outside the years -9999 to 9999.
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl std::str::FromStr for Timestamp {
    type Err = String;

    /// Reads RFC 3339, such as `2026-01-31T12:00:00Z`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<jiff::Timestamp>() {
            Ok(time) => Ok(Timestamp(time.as_microsecond())),
            Err(error) => {
                Err(format!("{text:?} is not a time: {error}; write for instance \"2026-01-31T12:00:00Z\""))
            }
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A point in monotonic time: microseconds since an origin that the caller chose. Only differences mean
/// anything, and only within one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mono(pub u64);

impl Mono {
    /// How long after `earlier` this is, zero if it is not.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;
    fn add(self, duration: Duration) -> Mono {
        Mono(self.0.saturating_add(micros(duration).unsigned_abs()))
    }
}

impl Sub<Duration> for Mono {
    type Output = Mono;
    fn sub(self, duration: Duration) -> Mono {
        Mono(self.0.saturating_sub(micros(duration).unsigned_abs()))
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Both clocks, read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For what is measured: backoff, leases, coalescing.
    pub mono: Mono,
    /// For what is stored: due times and dates that people read.
    pub wall: Timestamp,
}

/// Reads a duration as attributes and variables write it: one or more pairs of a number and a unit, such as
/// `30s`, `1m30s` or `1.5h`. The units are `ns`, `us`, `ms`, `s`, `m`, `h` and `d`; `0` needs none.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let refuse = |reason: &str| {
        Err(format!("{text:?} is not a duration: {reason}, write for instance \"30s\" or \"1m30s\""))
    };
    let text_trimmed = text.trim();
    if text_trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    if text_trimmed.is_empty() {
        return refuse("it is empty");
    }
    let mut total = Duration::ZERO;
    let mut rest = text_trimmed;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let Ok(number) = number.parse::<f64>() else {
            return refuse("a number is missing");
        };
        let seconds = match unit {
            "ns" => number / 1e9,
            "us" | "µs" => number / 1e6,
            "ms" => number / 1e3,
            "s" => number,
            "m" => number * 60.0,
            "h" => number * 3_600.0,
            "d" => number * 86_400.0,
            "" => return refuse("the unit is missing"),
            _ => return refuse("the units are ns, us, ms, s, m, h and d"),
        };
        let Ok(part) = Duration::try_from_secs_f64(seconds) else {
            return refuse("it is too long");
        };
        let Some(sum) = total.checked_add(part) else {
            return refuse("it is too long");
        };
        total = sum;
        rest = next;
    }
    // A due time is written in microseconds as i64: a century leaves room for any sum.
    if total > Duration::from_secs(100 * 366 * 86_400) {
        return refuse("it is longer than a century");
    }
    Ok(total)
}

/// Writes a duration the way [`parse_duration`] reads it, in whole units from days to nanoseconds: `1m30s`.
pub fn spell(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanos = duration.subsec_nanos();
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (u64::from(nanos / 1_000_000), "ms"),
        (u64::from(nanos / 1_000 % 1_000), "us"),
        (u64::from(nanos % 1_000), "ns"),
    ];
    let mut text = String::new();
    for (n, unit) in parts.into_iter().filter(|(n, _)| *n > 0) {
        text.push_str(&n.to_string());
        text.push_str(unit);
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_read_as_dates() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(951_827_696_123_456).to_string(), "2000-02-29T12:34:56.123Z");
        assert_eq!(Timestamp(-1_000).to_string(), "1969-12-31T23:59:59.999Z");
        assert_eq!("2000-02-29T12:34:56.123456Z".parse(), Ok(Timestamp(951_827_696_123_456)));
        assert!("yesterday".parse::<Timestamp>().is_err());
        assert_eq!(Timestamp::MAX.to_string(), "9223372036854775807us");
    }

    #[test]
    fn durations_parse() {
        assert_eq!(parse_duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5_400)));
        assert_eq!(parse_duration("100µs2ns"), Ok(Duration::from_nanos(100_002)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for text in ["1d1h1m1s", "1m30s", "7d", "200ms", "1us500ns", "0s"] {
            assert_eq!(spell(parse_duration(text).unwrap()), text);
        }
        for bad in ["", "s", "5", "5 s", "-1s", "5x", "1e400d", "..s", "999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
