//! Values that name their key and write, with a checksum over all of it.
//!
//! ```text
//!  0        8        16         24        32          40
//!  | magic  | length | sequence | key tag | checksum  | filler ...
//! ```
//!
//! All words are little-endian; the filler is a function of the sequence number and does not compress.
//! A value that was cut, mixed with another or written under another key does not verify.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: u64 = u64::from_le_bytes(*b"everdram");
const HEADER_BYTES: usize = 40;
const CHECKSUM_AT: usize = 32;

/// Size of the smallest value.
pub(crate) const VALUE_BYTES_MIN: usize = HEADER_BYTES;

/// Clears `into` and writes the value of write number `sequence` of `key`, `bytes` long.
pub(crate) fn write(into: &mut Vec<u8>, key: &[u8], sequence: u64, bytes: usize) {
    let length = bytes.max(VALUE_BYTES_MIN);
    into.clear();
    into.reserve(length + 8);
    for word in [MAGIC, length as u64, sequence, xxh3_64(key), 0] {
        into.extend_from_slice(&word.to_le_bytes());
    }
    let mut state = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while into.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        into.extend_from_slice(&state.to_le_bytes());
    }
    into.truncate(length);
    let sum = checksum(into).to_le_bytes();
    if let Some(field) = into.get_mut(CHECKSUM_AT..HEADER_BYTES) {
        field.copy_from_slice(&sum);
    }
}

/// The sequence number of a value written for `key`.
///
/// # Errors
/// Why the value does not verify.
pub(crate) fn read(value: &[u8], key: &[u8]) -> Result<u64, String> {
    let word = |at: usize| {
        let bytes = value.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let short = || format!("{} bytes, shorter than a header", value.len());
    if word(0).ok_or_else(short)? != MAGIC {
        return Err(format!("{} bytes that this run never wrote", value.len()));
    }
    let length = word(8).ok_or_else(short)?;
    if length != value.len() as u64 {
        return Err(format!(
            "{} bytes of a value of {length} bytes",
            value.len()
        ));
    }
    if word(24).ok_or_else(short)? != xxh3_64(key) {
        return Err("a value of another key".to_owned());
    }
    if word(CHECKSUM_AT).ok_or_else(short)? != checksum(value) {
        return Err("a value whose checksum does not match".to_owned());
    }
    word(16).ok_or_else(short)
}

/// Checksum over everything except itself.
fn checksum(value: &[u8]) -> u64 {
    let header = value.get(..CHECKSUM_AT).unwrap_or_default();
    let filler = value.get(HEADER_BYTES..).unwrap_or_default();
    xxh3_64_with_seed(filler, xxh3_64(header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_sequence() {
        let mut value = Vec::new();
        for bytes in [0, 40, 41, 47, 48, 1000] {
            write(&mut value, b"key", 77, bytes);
            assert_eq!(value.len(), bytes.max(VALUE_BYTES_MIN));
            assert_eq!(read(&value, b"key"), Ok(77));
        }
    }

    #[test]
    fn every_single_bit_counts() {
        let mut value = Vec::new();
        write(&mut value, b"key", 5, 90);
        for bit in 0..value.len() * 8 {
            let mut damaged = value.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&damaged, b"key").is_err(), "bit {bit}");
        }
        for cut in 0..value.len() {
            assert!(read(&value[..cut], b"key").is_err(), "cut at {cut}");
        }
        assert!(read(&value, b"other").is_err());
    }
}
