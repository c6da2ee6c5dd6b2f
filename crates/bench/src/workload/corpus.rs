//! Keys and values by number, so that every answer of a store can be checked without keeping what was stored.
//!
//! A key begins with a bijection of its number. A value is
//!
//! ```text
//!   number and counter 8 B | generation 8 B | filler | seal 8 B
//! ```
//! with the number in the upper 40 bits of the first word: the lower 24 count up when the word is updated.
//! The seal follows from number and generation, and so does the length: a value of another record, of another
//! length, or put together of two does not pass. Values below 24 bytes have the first word alone.

use crate::workload::sizes::{Lengths, Sizes};
use anyhow::{Error, bail};

/// Bits of the first word that count updates.
const COUNTER_BITS: u32 = 24;
/// Numbers of records are below this; those from half of it on are of keys that are never stored.
pub const NUMBERS: u64 = 1 << (64 - COUNTER_BITS);
/// First number of a key that no workload stores.
pub const ABSENT: u64 = NUMBERS / 2;
/// Least bytes of a value that has a generation and a seal.
const SEALED_BYTES: usize = 24;
/// Least bytes of a key and of a value.
const WORD: usize = 8;

/// All keys and values of a run.
pub struct Corpus {
    keys: Lengths,
    values: Lengths,
    is_sealed: bool,
    record_bytes: usize,
}

impl Corpus {
    /// Of these sizes; both at least 8 bytes.
    #[must_use]
    pub fn new(key_sizes: Sizes, value_sizes: Sizes, seed: u64) -> Corpus {
        let values = value_sizes.table(WORD, seed ^ 1);
        Corpus {
            keys: key_sizes.table(WORD, seed),
            is_sealed: values.most() >= SEALED_BYTES,
            values,
            record_bytes: key_sizes.mean() + value_sizes.mean(),
        }
    }

    /// About how many bytes a record has.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Checks a value that was read under the key of `number`.
    ///
    /// # Errors
    /// If it is not exactly what was stored.
    #[inline]
    pub fn check(&self, number: u64, value: &[u8]) -> Result<(), Error> {
        if self.check_front(number, value)? == value.len() {
            return Ok(());
        }
        bail!(
            "record {number}: a value of {} bytes, longer than it was stored",
            value.len()
        )
    }

    /// Checks the value of `number` that `bytes` begins with, and says how long it is.
    ///
    /// # Errors
    /// If it is not exactly what was stored.
    #[inline]
    pub fn check_front(&self, number: u64, bytes: &[u8]) -> Result<usize, Error> {
        let (Some(first), generation) = (word(bytes, 0), word(bytes, WORD)) else {
            bail!("record {number}: a value of {} bytes", bytes.len());
        };
        let found = first >> COUNTER_BITS;
        if found != number {
            bail!("record {number}: the value of record {found}, or of none");
        }
        let generation = generation.filter(|_| self.is_sealed).unwrap_or(0);
        let length = self.length(number, generation);
        if length > bytes.len() {
            bail!(
                "record {number}: a value of {} bytes, cut short",
                bytes.len()
            );
        }
        if self.is_sealed && word(bytes, length - WORD) != Some(seal(number, generation)) {
            bail!("record {number}: its value is damaged, or not as long as it was stored");
        }
        Ok(length)
    }

    #[inline]
    pub(crate) fn length(&self, number: u64, generation: u64) -> usize {
        if self.is_sealed {
            self.values.of(number ^ generation).max(SEALED_BYTES)
        } else {
            self.values.of(number)
        }
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .map(|word| u64::from_le_bytes(*word))
}

#[inline]
fn seal(number: u64, generation: u64) -> u64 {
    (number ^ generation.rotate_left(32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Makes keys and values in place: one for each record that is in use at once.
pub struct Maker<'a> {
    corpus: &'a Corpus,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'a> Maker<'a> {
    /// With buffers for the longest of both.
    #[must_use]
    pub fn new(corpus: &'a Corpus) -> Maker<'a> {
        Maker {
            corpus,
            key: vec![b'k'; corpus.keys.most()],
            value: vec![b'v'; corpus.values.most().max(SEALED_BYTES)],
        }
    }

    /// The key of `number`.
    #[inline]
    pub fn key(&mut self, number: u64) -> &[u8] {
        let length = self.corpus.keys.of(number);
        self.key[..WORD].copy_from_slice(&scattered(number).to_le_bytes());
        &self.key[..length]
    }

    /// Key and value of `number`; the generation tells one value of a key from the next.
    #[inline]
    pub fn record(&mut self, number: u64, generation: u64) -> (&[u8], &[u8]) {
        let length = self.corpus.length(number, generation);
        self.value[..WORD].copy_from_slice(&(number << COUNTER_BITS).to_le_bytes());
        if self.corpus.is_sealed {
            self.value[WORD..2 * WORD].copy_from_slice(&generation.to_le_bytes());
            self.value[length - WORD..length]
                .copy_from_slice(&seal(number, generation).to_le_bytes());
        }
        self.key(number);
        let key_length = self.corpus.keys.of(number);
        (&self.key[..key_length], &self.value[..length])
    }
}

/// A bijection, so that keys come in no order that a store could profit from.
#[inline]
fn scattered(number: u64) -> u64 {
    let word = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ (word >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SIZES: [Sizes; 6] = [
        Sizes::Fixed(8),
        Sizes::Fixed(100),
        Sizes::Fixed(24),
        Sizes::Normal { mean: 200 },
        Sizes::Normal { mean: 24 },
        Sizes::Skewed {
            median: 100,
            most: 5000,
        },
    ];

    #[test]
    fn what_was_made_passes_and_nothing_else_does() {
        for sizes in SIZES {
            let corpus = Corpus::new(Sizes::Normal { mean: 16 }, sizes, 5);
            let (mut one, mut other) = (Maker::new(&corpus), Maker::new(&corpus));
            for number in [0, 1, 77, 1_000_003, ABSENT - 1] {
                for generation in [0, 1, 900] {
                    let value = one.record(number, generation).1.to_vec();
                    corpus.check(number, &value).unwrap();
                    let mut counted = value.clone();
                    counted[0] = 9;
                    corpus.check(number, &counted).unwrap();

                    assert!(corpus.check(number + 1, &value).is_err());
                    assert!(corpus.check(number, &value[..value.len() - 1]).is_err());
                    let longer = [&value[..], &[0; 8]].concat();
                    assert!(corpus.check(number, &longer).is_err());
                    assert_eq!(corpus.check_front(number, &longer).unwrap(), value.len());
                    if value.len() >= SEALED_BYTES {
                        let next = other.record(number, generation + 1).1;
                        let mut mixed = value.clone();
                        mixed[8..16].copy_from_slice(&next[8..16]);
                        assert!(corpus.check(number, &mixed).is_err(), "{sizes} {number}");
                    }
                }
            }
            assert!(corpus.check(1, &[]).is_err());
        }
    }

    #[test]
    fn keys_are_distinct() {
        for sizes in [
            Sizes::Fixed(8),
            Sizes::Fixed(16),
            Sizes::Normal { mean: 16 },
        ] {
            let corpus = Corpus::new(sizes, Sizes::Fixed(8), 5);
            let mut maker = Maker::new(&corpus);
            let numbers = (0..50_000).chain(ABSENT..ABSENT + 50_000);
            let keys: HashSet<Vec<u8>> = numbers.map(|n| maker.key(n).to_vec()).collect();
            assert_eq!(keys.len(), 100_000);
        }
    }
}
