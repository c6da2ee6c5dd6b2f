//! The key hash, keyed afresh at every start.
//!
//! A client that could predict hashes could send keys that all fall into one segment (hash flooding).
//! The 192 bytes of secret are drawn when the index is made and never leave the process, so a hash is
//! worth nothing to anyone else, and nothing for the next run: it must not be stored in the pool.

use crate::chance::Chance;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Words of the secret: the 192 bytes of XXH3.
const SECRET_WORDS: usize = 24;

/// A key's hash in one index. All 64 bits are used, the top ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) u64);

/// Hashes keys under this run's secret.
pub(crate) struct Hasher {
    secret: [u8; SECRET_WORDS * 8],
}

impl Hasher {
    /// Draws a secret.
    pub(crate) fn new(chance: &Chance) -> Hasher {
        let mut secret = [0; SECRET_WORDS * 8];
        for bytes in secret.chunks_exact_mut(8) {
            bytes.copy_from_slice(&chance.word().to_le_bytes());
        }
        Hasher { secret }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(xxh3_64_with_secret(key, &self.secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_hashes_differently_and_itself_alike() {
        let (one, other) = (
            Hasher::new(&Chance::default()),
            Hasher::new(&Chance::default()),
        );
        for length in [1, 3, 8, 16, 17, 128, 240, 241, 65_536] {
            let key = vec![7; length];
            assert_eq!(one.hash(&key), one.hash(&key));
            assert_ne!(one.hash(&key), other.hash(&key), "length {length}");
        }
    }
}
