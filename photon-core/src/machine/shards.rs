//! Which shard an event falls into. Frozen: changing it would reorder events that are stored.

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{EventId, Key, Shard};

/// The shard of an event: XXH3-64 (seed 0) of the key, or of the 16 bytes of the id for an event without a
/// key, scaled to `shards` by its upper bits (`hash * shards >> 64`). 0 shards are taken for 1.
pub fn shard_of(key: Option<&Key>, id: EventId, shards: u16) -> Shard {
    let hash = match key {
        Some(key) => xxh3_64(key.as_bytes()),
        None => xxh3_64(id.0.as_bytes()),
    };
    let scaled = (u128::from(hash) * u128::from(shards.max(1))) >> 64;
    // Less than `shards`, so it fits.
    Shard(u16::try_from(scaled).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    /// `SplitMix64`: simple enough to be the same everywhere.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        }

        /// 1 to 64 bytes.
        fn key(&mut self) -> Vec<u8> {
            let length = usize::try_from(1 + self.next() % 64).unwrap();
            let mut key = Vec::new();
            while key.len() < length {
                key.extend(self.next().to_le_bytes());
            }
            key.truncate(length);
            key
        }
    }

    fn golden_keys() -> Vec<Vec<u8>> {
        let long = (0..10 * 1024).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let mut numbers = Numbers(0x7068_6f74_6f6e);
        let mut keys = vec![Vec::new(), "é".as_bytes().to_vec(), long];
        keys.extend((0..1_000).map(|_| numbers.key()));
        keys
    }

    fn of_key(key: &[u8], shards: u16) -> Shard {
        shard_of(Some(&Key::new(key.to_vec())), EventId(Uuid::nil()), shards)
    }

    #[test]
    fn stable_hash() {
        let table = include_str!("shards_golden.txt").lines().filter(|line| !line.starts_with('#'));
        let table: Vec<u16> = table.flat_map(str::split_whitespace).map(|n| n.parse().unwrap()).collect();
        let keys = golden_keys();
        assert_eq!(table.len(), keys.len());
        for (i, (key, shard)) in keys.iter().zip(&table).enumerate() {
            assert_eq!(of_key(key, 1_024), Shard(*shard), "key {i}");
            // The upper bits decide, so that a power of two less is a cut of the number.
            assert_eq!(of_key(key, 16), Shard(shard / 64), "key {i}");
        }
        // Numbers and ids, written out.
        assert_eq!(of_key(b"7", 1_024), Shard(27));
        assert_eq!(shard_of(None, EventId(Uuid::from_u128(7)), 1_024), Shard(1015));
    }

    #[test]
    fn keys_spread_evenly() {
        for shards in [1u16, 3, 8, 16, 100] {
            let mut loads = vec![0u32; usize::from(shards)];
            let keys = u32::from(shards) * 2_000;
            for n in 0..keys {
                loads[usize::from(of_key(format!("customer-{n}").as_bytes(), shards).0)] += 1;
            }
            // 2 000 a shard, give or take five standard deviations.
            assert!(loads.iter().all(|load| (1_776..=2_224).contains(load)), "{shards} shards: {loads:?}");
        }
    }

    proptest! {
        #[test]
        fn p03_equal_keys_share_a_shard_and_the_id_does_not_matter(key: Vec<u8>, a: u128, b: u128, shards: u16) {
            let key = Key::new(key);
            let shard = shard_of(Some(&key), EventId(Uuid::from_u128(a)), shards);
            prop_assert_eq!(shard, shard_of(Some(&key), EventId(Uuid::from_u128(b)), shards));
            prop_assert!(shard.0 < shards.max(1));
            prop_assert!(shard_of(None, EventId(Uuid::from_u128(a)), shards).0 < shards.max(1));
        }
    }
}
