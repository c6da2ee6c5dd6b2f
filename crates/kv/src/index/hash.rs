//! The key hash, keyed with a secret of the index.
//!
//! Without a secret, a client could predict hashes and send keys that all fall into one segment (hash
//! flooding). The 192 bytes of secret are drawn when the index is made, and neither they nor a hash ever
//! leave the process. A checkpoint of the index keeps them in the pool, whose readers can read every key
//! anyway. They live as long as restarts begin with a checkpoint; a restart without one draws new ones.

use crate::engine::random::Random;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Bytes of an XXH3 secret.
pub(crate) const SECRET_BYTES: usize = 192;

/// A key's hash in one index. All 64 bits are used, the top ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) u64);

/// Hashes keys under a secret.
pub(crate) struct Hasher {
    secret: [u8; SECRET_BYTES],
}

impl Hasher {
    /// Draws a secret.
    pub(crate) fn new(random: &Random) -> Hasher {
        let mut secret = [0; SECRET_BYTES];
        for bytes in secret.chunks_exact_mut(8) {
            bytes.copy_from_slice(&random.word().to_le_bytes());
        }
        Hasher { secret }
    }

    /// The hasher of a copied index.
    pub(crate) fn of(secret: &[u8; SECRET_BYTES]) -> Hasher {
        Hasher { secret: *secret }
    }

    /// The secret, which a copy of the index must keep.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
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
            Hasher::new(&Random::default()),
            Hasher::new(&Random::default()),
        );
        for length in [1, 3, 8, 16, 17, 128, 240, 241, 65_536] {
            let key = vec![7; length];
            assert_eq!(one.hash(&key), one.hash(&key));
            assert_ne!(one.hash(&key), other.hash(&key), "length {length}");
        }
    }
}
