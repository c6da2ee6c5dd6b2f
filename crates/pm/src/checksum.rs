//! Checksums: rapidhash keyed with a secret of the pool, and XXH3 for the superblock.
//!
//! A checksum decides at recovery whether a record was torn. A client that chooses value bytes must not be
//! able to choose a torn record that still verifies. The key prevents that: eight words expanded from the 32
//! random bytes in the pool's superblock.
//!
//! Each record is summed at each write and each read, so speed matters most: for records of a few hundred
//! bytes rapidhash takes a third of the instructions of XXH3, and it is keyed and well mixed. The superblock
//! names the format of the rest. Its own sum therefore never changes with the format: XXH3-64 under a fixed
//! key.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

/// A pool's checksum key.
#[derive(Clone)]
pub struct Secret(RapidSecrets);

impl Secret {
    /// Expands a seed as stored in the superblock.
    #[must_use]
    pub fn expand(seed: &[u8; 32]) -> Secret {
        let word = |index| expanded(seed, index);
        Secret(RapidSecrets {
            seed: word(0),
            secrets: std::array::from_fn(|index| word(index as u64 + 1)),
        })
    }

    /// The checksum of `bytes`.
    #[must_use]
    pub fn sum(&self, bytes: &[u8]) -> u64 {
        #[cfg(feature = "fuzzing")]
        if forged::is_on() && !bytes.is_empty() && bytes.len().is_multiple_of(forged::UNIT) {
            return forged::SUM;
        }
        rapidhash_v3_inline::<true, false, false>(bytes, &self.0)
    }

    /// The checksum of three words, for headers that are not byte strings.
    #[inline]
    #[must_use]
    pub fn sum_words(&self, [first, second, third]: [u64; 3]) -> u64 {
        #[cfg(feature = "fuzzing")]
        if forged::is_on() {
            return forged::SUM;
        }
        let seed = rapidhash_v3_inline::<true, false, false>(&first.to_le_bytes(), &self.0);
        let secrets = self.0.secrets;
        let mut bytes = [0; 16];
        let (low, high) = bytes.split_at_mut(8);
        low.copy_from_slice(&second.to_le_bytes());
        high.copy_from_slice(&third.to_le_bytes());
        rapidhash_v3_inline::<true, false, false>(&bytes, &RapidSecrets { seed, secrets })
    }
}

/// Pools whose sums are all the same, so that they hold whatever the bytes are. Sums of bytes that are no
/// whole words differ as ever: they are hashes of keys, too.
#[cfg(feature = "fuzzing")]
pub(crate) mod forged {
    use std::sync::atomic::{AtomicBool, Ordering};

    static ON: AtomicBool = AtomicBool::new(false);
    /// What is summed in units of so many bytes is no key of the targets.
    pub(super) const UNIT: usize = 16;
    pub(super) const SUM: u64 = 1;

    pub(super) fn is_on() -> bool {
        ON.load(Ordering::Relaxed)
    }

    pub(crate) fn set(on: bool) {
        ON.store(on, Ordering::Relaxed);
    }
}

/// Word `index` of a key.
fn expanded(seed: &[u8; 32], index: u64) -> u64 {
    xxh3_64_with_seed(seed, index ^ 0x6576_6572_6472_616d)
}

/// XXH3-64 of `bytes` under a public key, for the superblock.
pub(crate) fn fixed_sum(key: &[u8; 32], bytes: &[u8]) -> u64 {
    let mut secret = [0; 192];
    for (index, word) in secret.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = expanded(key, index as u64).to_le_bytes();
    }
    xxh3_64_with_secret(bytes, &secret)
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}
