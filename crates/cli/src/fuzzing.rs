//! The readers and writers of `import` and `export` on their own, for fuzzing (feature `fuzzing`).

use crate::transfer::operation::Operation;
use crate::transfer::redis::aof::Request;
use crate::transfer::redis::rdb;
use crate::transfer::redis::source::{Source, Trouble};
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

/// Reads an RDB file through a buffer of `capacity` bytes: a line for each entry, and the error that ended
/// reading early.
#[must_use]
pub fn read_rdb(bytes: &[u8], capacity: usize) -> (Vec<String>, Option<String>) {
    let mut source = Source::new(
        BufReader::with_capacity(capacity, bytes),
        bytes.len() as u64,
    );
    let mut entries = Vec::new();
    let mut go = || {
        let mut reader = rdb::Reader::new(&mut source)?;
        while let Some(entry) = reader.next()? {
            entries.push(format!("{entry:?}"));
        }
        Ok(())
    };
    let error = go().err().map(|trouble: Trouble| trouble.to_string());
    (
        entries,
        error.map(|error| format!("byte {}: {error}", source.offset())),
    )
}

/// Reads an append-only file of commands through a buffer of `capacity` bytes: the requests, and the error
/// that ended reading early.
#[must_use]
pub fn read_aof(bytes: &[u8], capacity: usize) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let mut source = Source::new(
        BufReader::with_capacity(capacity, bytes),
        bytes.len() as u64,
    );
    let (mut request, mut requests) = (Request::default(), Vec::new());
    loop {
        match request.read(&mut source) {
            Ok(false) => return (requests, None),
            Ok(true) => requests.push(
                (0..request.spans.len())
                    .map(|at| request.argument(at).to_vec())
                    .collect(),
            ),
            Err(trouble) => return (requests, Some(format!("byte {}: {trouble}", request.at))),
        }
    }
}

/// Appends a request as a client sends it, and as an append-only file has it.
pub fn write_aof(into: &mut Vec<u8>, request: &[Vec<u8>]) {
    let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
    crate::client::request(into, &arguments);
}

/// Writes a key as TSV.
pub fn write_tsv(into: &mut Vec<u8>, key: &[u8], value: &[u8], expires_at_ms: u64) {
    tsv::write(into, key, value, expires_at_ms);
}

/// Writes a key as a Redis command.
pub fn write_mass(into: &mut Vec<u8>, key: &[u8], value: &[u8], expires_at_ms: u64) {
    mass::write(into, key, value, expires_at_ms);
}
