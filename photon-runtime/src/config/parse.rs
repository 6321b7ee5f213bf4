//! How values are written in the environment.

use std::fmt::Display;
use std::str::FromStr;

use photon_core::ids::MAX_SHARDS;
use photon_core::options::{BreakerPolicy, OnDead, Start};
use photon_core::time::{Timestamp, parse_duration};

/// Reads a size in bytes: `65536`, `64KiB`, `1MiB`, `2MB`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let refuse = |reason: &str| {
        Err(format!("{text:?} is not a size: {reason}, write for instance \"64KiB\" or \"1MiB\""))
    };
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let factor: usize = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return refuse("the units are B, KiB, MiB, GiB, KB, MB and GB"),
    };
    let Ok(number) = number.parse::<usize>() else {
        return refuse("a whole number is missing");
    };
    number.checked_mul(factor).map_or_else(|| refuse("it is too large"), Ok)
}

/// Reads a whole number.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is not a whole number from 0 to {}", u32::MAX))
}

/// Reads a list of shards: `0,2,5-7`.
pub(crate) fn shards(text: &str) -> Result<Vec<u16>, String> {
    let mut shards = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) if first <= last && last < MAX_SHARDS => shards.extend(first..=last),
            _ => {
                return Err(format!(
                    "{:?} is not a shard, or a run of shards, from 0 to {}: write for instance \"0,2,5-7\"",
                    part.trim(),
                    MAX_SHARDS - 1
                ));
            }
        }
    }
    Ok(shards)
}

/// Reads a breaker: `5 of 10` or `5 of 10 for 30s`.
pub(crate) fn breaker(text: &str) -> Result<BreakerPolicy, String> {
    let (counts, cool_down) = match text.split_once(" for ") {
        Some((counts, cool_down)) => (counts, parse_duration(cool_down.trim())?),
        None => (text, BreakerPolicy::COOL_DOWN),
    };
    match counts.split_once(" of ") {
        Some((failures, of)) => Ok(BreakerPolicy { failures: number(failures)?, of: number(of)?, cool_down }),
        None => Err(format!("{text:?} is not a breaker: write for instance \"5 of 10 for 30s\"")),
    }
}

/// Reads a share.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a number from 0 to 1, such as \"0.2\"")),
    }
}

/// Reads where a new subscription starts.
pub(crate) fn start(text: &str) -> Result<Start, String> {
    let trimmed = text.trim();
    if let Some(time) = trimmed.strip_prefix("at(").and_then(|rest| rest.strip_suffix(')')) {
        return time.trim().parse::<Timestamp>().map(Start::At);
    }
    match trimmed {
        "earliest" => Ok(Start::Earliest),
        "latest" => Ok(Start::Latest),
        _ => Err(format!(
            "{text:?} is not a start: write \"earliest\", \"latest\" or \"at(2026-01-31T12:00:00Z)\""
        )),
    }
}

/// Reads what happens to the later events of a key after a dead letter.
pub(crate) fn on_dead(text: &str) -> Result<OnDead, String> {
    match text.trim() {
        "continue" => Ok(OnDead::Continue),
        "block_key" => Ok(OnDead::BlockKey),
        _ => Err(format!("{text:?} is neither \"continue\" nor \"block_key\"")),
    }
}

/// Reads what reads itself.
pub(crate) fn of<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|error: T::Err| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size(" 64 kib "), Ok(64 << 10));
        assert_eq!(size("7"), Ok(7));
        assert_eq!(size("2MB"), Ok(2_000_000));
        for bad in ["", "MiB", "1.5MiB", "-1", "5x", "99999999999999999999", "18446744073709551615GiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_parse() {
        assert_eq!(start("latest"), Ok(Start::Latest));
        assert_eq!(start("at(1970-01-01T00:00:01Z)"), Ok(Start::At(Timestamp(1_000_000))));
        assert!(start("yesterday").is_err());
        assert!(start("at(yesterday)").is_err());
        assert_eq!(on_dead("block_key"), Ok(OnDead::BlockKey));
        assert!(on_dead("stop").is_err());
        assert_eq!(share("0.25"), Ok(0.25));
        assert!(share("NaN").is_err());
        assert!(number("-1").is_err());
    }
}
