//! Random numbers and event ids.

use std::sync::atomic::{AtomicU64, Ordering};

use photon_core::ids::EventId;
use photon_core::time::Timestamp;
use uuid::Uuid;

/// A source of random numbers without a lock: `SplitMix64` on a shared counter. Not for secrets.
#[derive(Debug)]
pub(crate) struct Random(AtomicU64);

impl Random {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// The same seed gives the same numbers.
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A source that differs from all others.
    pub(crate) fn from_system() -> Self {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        Self::new(high ^ low.rotate_left(32))
    }

    pub(crate) fn next_u64(&self) -> u64 {
        let mut z = self.0.fetch_add(Self::STEP, Ordering::Relaxed).wrapping_add(Self::STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A UUID of version 4.
    pub(crate) fn uuid(&self) -> Uuid {
        let bits = (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }

    /// Uniform in 0..1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    pub(crate) fn unit(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Makes event ids: UUIDs of version 7 that ascend even when the clock stands still or goes back.
#[derive(Debug, Default)]
pub(crate) struct EventIds {
    /// The milliseconds and the counter of the last id: 48 and 12 bits.
    last: AtomicU64,
}

impl EventIds {
    pub(crate) fn next(&self, now: Timestamp, random: &Random) -> EventId {
        let millis = u64::try_from(now.0 / 1_000).unwrap_or(0) & ((1 << 48) - 1);
        let mut last = self.last.load(Ordering::Relaxed);
        let stamp = loop {
            let stamp = (millis << 12).max(last + 1);
            match self.last.compare_exchange_weak(last, stamp, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break stamp,
                Err(other) => last = other,
            }
        };
        let high = ((stamp >> 12) << 16) | 0x7000 | (stamp & 0xfff);
        let low = (random.next_u64() >> 2) | (1 << 63);
        EventId(Uuid::from_u64_pair(high, low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_of_version_7_that_ascend() {
        let (ids, random) = (EventIds::default(), Random::from_system());
        let mut last = EventId(Uuid::nil());
        // The clock goes on, stands still for more ids than the counter holds, and goes back.
        for n in 0..20_000i64 {
            let millis = if n < 10_000 { 1_700_000_000_000 + n / 3_000 } else { 1_600_000_000_000 };
            let id = ids.next(Timestamp(millis * 1_000), &random);
            assert_eq!(id.0.get_version_num(), 7);
            assert_eq!(id.0.get_variant(), uuid::Variant::RFC4122);
            assert!(id > last, "{id} after {last}");
            last = id;
        }
    }

    #[test]
    fn an_id_tells_its_time() {
        let id = EventIds::default().next(Timestamp(1_700_000_000_123_456), &Random::new(1));
        let (seconds, nanos) = id.0.get_timestamp().unwrap().to_unix();
        assert_eq!((seconds, nanos), (1_700_000_000, 123_000_000));
    }

    #[test]
    fn random_numbers_follow_from_the_seed() {
        let (a, b) = (Random::new(7), Random::new(7));
        let draw = |random: &Random| (0..100).map(|_| random.next_u64()).collect::<Vec<_>>();
        assert_eq!(draw(&a), draw(&b));
        assert_ne!(draw(&a), draw(&Random::new(8)));
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&a.unit())));
        assert_eq!(a.uuid().get_version_num(), 4);
    }
}
