//! The readers and writers of `import` and `export` on their own, for fuzzing (feature `fuzzing`).

use crate::transfer::operation::Operation;
use crate::transfer::{mass, tsv};
use std::io::BufReader;

/// A change in a file: key, value (`None` = no value is stored), expiry in Unix milliseconds. `None` for both
/// is a removal.
pub type Change = (Vec<u8>, Option<Vec<u8>>, Option<u64>);

/// The changes, and the error that ended reading early.
pub type Read = (Vec<Change>, Option<String>);

/// Reads TSV through a buffer of `capacity` bytes.
#[must_use]
pub fn read_tsv(text: &[u8], capacity: usize) -> Read {
    let mut reader = tsv::Reader::new(BufReader::with_capacity(capacity, text));
    collect(|| reader.next())
}

/// Reads Redis commands through a buffer of `capacity` bytes.
#[must_use]
pub fn read_mass(text: &[u8], capacity: usize) -> Read {
    let mut reader = mass::Reader::new(BufReader::with_capacity(capacity, text));
    collect(|| reader.next())
}

fn collect(mut next: impl FnMut() -> anyhow::Result<Option<Operation>>) -> Read {
    let mut changes = Vec::new();
    loop {
        match next() {
            Ok(None) => return (changes, None),
            Err(error) => return (changes, Some(format!("{error:#}"))),
            Ok(Some(Operation::Put {
                key,
                value,
                expires_at_ms,
            })) => changes.push((key, Some(value), Some(expires_at_ms))),
            Ok(Some(Operation::Expire { key, expires_at_ms })) => {
                changes.push((key, None, Some(expires_at_ms)));
            }
            Ok(Some(Operation::Delete { key })) => changes.push((key, None, None)),
        }
    }
}

/// Writes a key as TSV.
pub fn write_tsv(into: &mut Vec<u8>, key: &[u8], value: &[u8], expires_at_ms: u64) {
    tsv::write(into, key, value, expires_at_ms);
}

/// Writes a key as a Redis command.
pub fn write_mass(into: &mut Vec<u8>, key: &[u8], value: &[u8], expires_at_ms: u64) {
    mass::write(into, key, value, expires_at_ms);
}
