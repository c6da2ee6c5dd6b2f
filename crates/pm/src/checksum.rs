//! The one checksum: XXH3-64 keyed with a secret of the pool.
//!
//! A checksum decides at recovery whether a record was torn, so whoever chooses value bytes must not be
//! able to choose a torn record that still verifies. Hence the key: 192 bytes expanded from the 32 random
//! bytes in the pool's superblock. The superblock itself, and the redo log's control data, use a fixed key.

use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

/// A pool's checksum key.
#[derive(Clone)]
pub struct Secret([u8; 192]);

impl Secret {
    /// Expands a seed as stored in the superblock.
    #[must_use]
    pub fn expand(seed: &[u8; 32]) -> Secret {
        let mut bytes = [0; 192];
        for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(
                &xxh3_64_with_seed(seed, index as u64 ^ 0x6576_6572_6472_616d).to_le_bytes(),
            );
        }
        Secret(bytes)
    }

    /// The checksum of `bytes`.
    #[inline]
    #[must_use]
    pub fn sum(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_secret(bytes, &self.0)
    }

    /// The checksum of three words, for headers that are no byte strings.
    #[inline]
    #[must_use]
    pub fn sum_words(&self, words: [u64; 3]) -> u64 {
        let mut bytes = [0; 24];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        self.sum(&bytes)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}
