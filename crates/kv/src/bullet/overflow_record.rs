//! Overflow records: operations too long for a log entry, in an object of the heap that the entry names.
//!
//! ```text
//! +-------+-----------+-----------+- - -
//! | check | operation | operation |        as in an entry
//! +-------+-----------+-----------+- - -
//! ```

use super::layout::{Named, are_sound, word_at};
use crate::error::{Error, corrupt};
use crate::heap::{Claim, Heap};
use everdram_pm::{Flushed, LINE, Lane, Pool, Secret};

const HEAD: usize = 8;
const SALT: u64 = 0x70;
const _: () = assert!(HEAD == 8, "a check, then operations as in an entry");

/// Writes operations; durable with the next fence.
pub(super) fn write_overflow_record(
    heap: &Heap,
    secret: &Secret,
    lane: &mut Lane,
    claim: &mut Option<Claim>,
    operations: &[u8],
) -> Result<(Named, Flushed), Error> {
    let length = (HEAD + operations.len()) as u64;
    let at = heap.take(lane, claim, length)?;
    let mut bytes = Vec::with_capacity(HEAD + operations.len() + LINE as usize);
    let check = secret.sum_words([secret.sum(operations), at, SALT]);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes.extend_from_slice(operations);
    bytes.resize(bytes.len().next_multiple_of(LINE as usize), 0);
    let flushed = lane.stream(at, &bytes);
    let parcel = Named {
        at,
        bytes: length,
        check,
    };
    Ok((parcel, flushed))
}

/// The operations of the overflow record that a log record names.
///
/// # Errors
/// [`Error::Corrupt`], without the path.
pub(super) fn read_overflow_record(pool: &Pool, named: Named) -> Result<Vec<u8>, Error> {
    let Named { at, bytes, check } = named;
    let damaged = || corrupt(at, "a parcel of log records is damaged");
    if !at.is_multiple_of(LINE) || !bytes.is_multiple_of(8) || !pool.region().contains(at, bytes) {
        return Err(damaged());
    }
    let mut parcel = Vec::new();
    pool.region().load_behind(at, bytes, &mut parcel);
    let found = word_at(&parcel, 0);
    let operations = parcel.split_off(HEAD.min(parcel.len()));
    let secret = pool.secret();
    let verifies = found == check && secret.sum_words([secret.sum(&operations), at, SALT]) == check;
    if !verifies || !are_sound(&operations, None) {
        return Err(damaged());
    }
    Ok(operations)
}
