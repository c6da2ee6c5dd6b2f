//! Key to slot, and slot to server.
//!
//! Slots are Redis Cluster's: CRC16 (XMODEM) of the key, or of its hash tag, modulo 16384. A slot belongs to
//! the server with the highest score, XXH3-64 of its pool's uuid seeded with the number of the slot
//! (rendezvous hashing): every client that knows the same pools comes to the same map, in whatever order it
//! heard of them, and a pool that is added takes slots away from others, but moves none between them.

use crate::identity::PoolId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Slots of keys.
pub const SLOTS: u16 = 1 << 14;

/// The slot of a key. Keys with the same hash tag, the bytes between the first `{` and the next `}` if there
/// are any, have the same one.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let behind = key.get(open + 1..)?;
    let close = behind.iter().position(|&byte| byte == b'}')?;
    behind.get(..close).filter(|tag| !tag.is_empty())
}

/// CRC16 as XMODEM has it: polynomial 0x1021, nothing reflected, starting at 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        let place = (crc >> 8) as u8 ^ byte;
        (crc << 8) ^ CRC_OF_BYTE[usize::from(place)]
    })
}

const CRC_OF_BYTE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            let polynomial = if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            crc = (crc << 1) ^ polynomial;
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Which server has which slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Map {
    /// By slot: the place of its server in the list that the map was made of.
    owners: Vec<u16>,
}

impl Map {
    /// The map over these pools, which must not be empty and have no pool twice.
    pub(super) fn over(pools: &[PoolId]) -> Map {
        let owner = |slot: u16| {
            let score = |pool: &PoolId| xxh3_64_with_seed(&pool.0, u64::from(slot));
            let all = pools.iter().enumerate();
            let best = all.max_by_key(|(_, pool)| (score(pool), **pool));
            best.map_or(0, |(place, _)| place as u16)
        };
        Map {
            owners: (0..SLOTS).map(owner).collect(),
        }
    }

    /// The place of the server that has a slot.
    pub(super) fn owner(&self, slot: u16) -> usize {
        self.owners
            .get(usize::from(slot))
            .map_or(0, |&owner| usize::from(owner))
    }

    /// How many slots a server has.
    pub(super) fn count(&self, server: usize) -> usize {
        let owners = self.owners.iter();
        owners
            .filter(|&&owner| usize::from(owner) == server)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// What CLUSTER KEYSLOT of Redis says.
    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [
            (&b""[..], 0),
            (b"foo", 12182),
            (b"bar", 5061),
            (b"{foo}bar", 12182),
            (b"x{foo}{bar}", 12182),
            // No tag: nothing between, or no end.
            (b"foo{}{bar}", 8363),
            (b"foo{{bar}}zap", 4015),
        ] {
            assert_eq!(slot_of(key), slot, "{}", key.escape_ascii());
        }
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_ne!(slot_of(b"{foo"), slot_of(b"foo"));
    }

    fn pools(seed: u64, count: usize) -> Vec<PoolId> {
        let mut random = StdRng::seed_from_u64(seed);
        (0..count).map(|_| PoolId(random.random())).collect()
    }

    /// Clients in other languages, and later versions, must come to the same map.
    #[test]
    fn scores_are_pinned() {
        let pools = [PoolId([1; 16]), PoolId([2; 16]), PoolId([3; 16])];
        let map = Map::over(&pools);
        let first: Vec<usize> = (0..12).map(|slot| map.owner(slot)).collect();
        assert_eq!(first, [0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 0]);
    }

    #[test]
    fn each_server_has_its_share_whatever_the_order() {
        for seed in 0..50 {
            for count in [1, 2, 3, 5, 16] {
                let mut pools = pools(seed, count);
                let map = Map::over(&pools);
                let mean = f64::from(SLOTS) / count as f64;
                for server in 0..count {
                    let share = map.count(server) as f64 / mean;
                    // Five standard deviations of the worst case, 1024 slots.
                    assert!(
                        (0.84..1.16).contains(&share),
                        "seed {seed}, {server} of {count}: {share}"
                    );
                }
                let owner = |map: &Map, pools: &[PoolId], slot| pools[map.owner(slot)];
                let before: Vec<PoolId> =
                    (0..SLOTS).map(|slot| owner(&map, &pools, slot)).collect();
                pools.reverse();
                let map = Map::over(&pools);
                let after = (0..SLOTS).map(|slot| owner(&map, &pools, slot));
                assert!(before.into_iter().eq(after), "seed {seed}, {count} servers");
            }
        }
    }

    #[test]
    fn a_server_that_is_added_takes_its_share_and_moves_nothing_else() {
        for seed in 0..50 {
            let four = pools(seed, 4);
            let (three, four) = (Map::over(&four[..3]), Map::over(&four));
            let mut moved = 0;
            for slot in 0..SLOTS {
                if three.owner(slot) != four.owner(slot) {
                    assert_eq!(four.owner(slot), 3, "seed {seed}, slot {slot}");
                    moved += 1;
                }
            }
            // A quarter, and five standard deviations.
            assert!((3819..4374).contains(&moved), "seed {seed}: {moved} slots");
        }
    }
}
