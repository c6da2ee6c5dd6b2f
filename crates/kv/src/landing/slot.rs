//! A slot: what a client writes into its grant, and what the server makes of it.
//!
//! One check is over everything, seeded with the nonce of the grant, of which nobody else knows. So a write
//! of which a part is missing does not verify, and neither does one that was meant for an earlier grant of
//! the same pages: within a slot, neither order nor a second write is needed. (RDMP-KV section III-C has two
//! flag bytes behind the value instead, which can arrive, or survive, without it.)

use super::Grant;
use super::layout::{LINE_BYTES, Line, SlotLayout, slot_bytes};
use everdram_pm::Secret;
use std::mem::offset_of;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: [u8; 4] = *b"evsl";

/// Bytes before the key.
pub(super) const HEAD_BYTES: usize = LINE_BYTES as usize;

/// Makes the bytes that a client writes into its grant, all at once or in any pieces and any order. `into` is
/// cleared first; it then has [`Grant::bytes`] bytes, if key and value are those that the grant is for.
pub fn encode(into: &mut Vec<u8>, grant: &Grant, key: &[u8], value: &[u8], expires_at_ms: u64) {
    into.clear();
    into.reserve(slot_bytes(key.len(), value.len() as u64) as usize);
    let mut head = [0; HEAD_BYTES];
    let mut field = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
    field(offset_of!(SlotLayout, magic), &MAGIC);
    field(
        offset_of!(SlotLayout, generation),
        &grant.generation.to_le_bytes(),
    );
    field(offset_of!(SlotLayout, nonce), &grant.nonce.to_le_bytes());
    field(
        offset_of!(SlotLayout, key_bytes),
        &(key.len() as u32).to_le_bytes(),
    );
    field(
        offset_of!(SlotLayout, value_bytes),
        &(value.len() as u64).to_le_bytes(),
    );
    field(
        offset_of!(SlotLayout, expires),
        &expires_at_ms.to_le_bytes(),
    );
    into.extend_from_slice(&head);
    into.extend_from_slice(key);
    into.resize(into.len().next_multiple_of(8), 0);
    into.extend_from_slice(value);
    let check = xxh3_64_with_seed(into, grant.nonce).to_le_bytes();
    into[CHECK..CHECK + 8].copy_from_slice(&check);
}

/// Bytes of the slot for a key and a value of these lengths in bytes.
#[must_use]
pub fn bytes(key_bytes: usize, value_bytes: u64) -> u64 {
    slot_bytes(key_bytes, value_bytes)
}

const CHECK: usize = offset_of!(SlotLayout, check);

/// What has arrived in a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival<'c> {
    pub(super) key: &'c [u8],
    pub(super) value: &'c [u8],
}

/// Whether these first bytes of a slot may be those of a write for this grant: most slots in which nothing
/// has arrived need not be read further.
pub(super) fn may_be(head: &[u8; HEAD_BYTES], line: &Line) -> bool {
    let is = |at: usize, bytes: &[u8]| head[at..at + bytes.len()] == *bytes;
    is(offset_of!(SlotLayout, magic), &MAGIC)
        && is(offset_of!(SlotLayout, reserved), &[0; 4])
        && is(
            offset_of!(SlotLayout, generation),
            &line.generation.to_le_bytes(),
        )
        && is(offset_of!(SlotLayout, nonce), &line.nonce.to_le_bytes())
        && is(
            offset_of!(SlotLayout, key_bytes),
            &line.key_bytes.to_le_bytes(),
        )
        && is(offset_of!(SlotLayout, reserved_too), &[0; 4])
        && is(
            offset_of!(SlotLayout, value_bytes),
            &line.value_bytes.to_le_bytes(),
        )
        && is(
            offset_of!(SlotLayout, expires),
            &line.expires_at_ms.to_le_bytes(),
        )
        && is(offset_of!(SlotLayout, zero), &[0; 8])
}

/// Key and value, if these bytes are a whole write for the grant of this line. The copy is the caller's own:
/// a client that writes meanwhile changes nothing. Its bytes may be any; the check field is overwritten.
pub(super) fn parse<'c>(copy: &'c mut [u8], line: &Line, secret: &Secret) -> Option<Arrival<'c>> {
    if copy.len() as u64 != line.slot_bytes() || !may_be(copy.first_chunk()?, line) {
        return None;
    }
    let field = copy.get_mut(CHECK..CHECK + 8)?;
    let mut check = [0; 8];
    check.copy_from_slice(field);
    field.fill(0);
    if xxh3_64_with_seed(copy, line.nonce) != u64::from_le_bytes(check) {
        return None;
    }
    let key_bytes = line.key_bytes as usize;
    let (key, rest) = copy.get(HEAD_BYTES..)?.split_at_checked(key_bytes)?;
    let (padding, value) = rest.split_at_checked(key_bytes.next_multiple_of(8) - key_bytes)?;
    let is_of_grant = padding.iter().all(|&byte| byte == 0) && secret.sum(key) == line.key_sum;
    is_of_grant.then_some(Arrival { key, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    fn line(secret: &Secret, key: &[u8], value: &[u8]) -> Line {
        Line {
            pages: 1,
            nonce: 77,
            value_bytes: value.len() as u64,
            expires_at_ms: 5,
            key_bytes: key.len() as u32,
            key_sum: secret.sum(key),
            generation: 9,
        }
    }

    fn grant(line: &Line) -> Grant {
        Grant {
            number: 0,
            offset: 0,
            bytes: line.slot_bytes(),
            generation: line.generation,
            nonce: line.nonce,
        }
    }

    /// R3: no write counts of which a part is missing, or different.
    #[test]
    fn every_changed_byte_and_every_cut_is_seen() {
        let secret = Secret::expand(&[3; 32]);
        for (key, value) in [
            (&b"key"[..], &b"a value of some length"[..]),
            (b"8 bytes.", b""),
            (b"k", &[0; 300]),
        ] {
            let line = line(&secret, key, value);
            let mut slot = Vec::new();
            encode(&mut slot, &grant(&line), key, value, 5);
            assert_eq!(slot.len() as u64, line.slot_bytes());
            let found = Arrival { key, value };
            assert_eq!(parse(&mut slot.clone(), &line, &secret), Some(found));
            for at in 0..slot.len() {
                for bit in 0..8 {
                    let mut changed = slot.clone();
                    changed[at] ^= 1 << bit;
                    assert_eq!(
                        parse(&mut changed, &line, &secret),
                        None,
                        "byte {at}, bit {bit}"
                    );
                }
                assert_eq!(parse(&mut slot[..at].to_vec(), &line, &secret), None);
                let mut torn = slot.clone();
                torn[at..].fill(0);
                let is_same = torn == slot;
                assert_eq!(
                    parse(&mut torn, &line, &secret).is_some(),
                    is_same,
                    "torn at {at}"
                );
            }
        }
    }

    /// Another grant of the same pages, key and length: what was written for one is nothing for the other.
    #[test]
    fn what_was_meant_for_another_grant_is_nothing() {
        let secret = Secret::expand(&[3; 32]);
        let now = line(&secret, b"key", b"value");
        for other in [
            Line { nonce: 78, ..now },
            Line {
                generation: 8,
                ..now
            },
            Line {
                expires_at_ms: 0,
                ..now
            },
        ] {
            let mut slot = Vec::new();
            encode(
                &mut slot,
                &grant(&other),
                b"key",
                b"value",
                other.expires_at_ms,
            );
            assert!(parse(&mut slot.clone(), &other, &secret).is_some());
            assert_eq!(parse(&mut slot, &now, &secret), None);
        }
        // The right nonce, and another key of the same length.
        let mut slot = Vec::new();
        encode(&mut slot, &grant(&now), b"kez", b"value", 5);
        assert_eq!(parse(&mut slot, &now, &secret), None);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let secret = Secret::expand(&[3; 32]);
        let mut random = rand::rngs::StdRng::seed_from_u64(11);
        for _ in 0..2000 {
            let bytes = random.random_range(0..200);
            let mut any: Vec<u8> = (0..bytes).map(|_| random.random()).collect();
            let line = Line {
                key_bytes: random.random_range(0..100),
                value_bytes: random.random_range(0..100),
                ..line(&secret, b"", b"")
            };
            if random.random() && any.len() >= HEAD_BYTES {
                let mut head = Vec::new();
                encode(&mut head, &grant(&line), b"", b"", 5);
                any[..HEAD_BYTES].copy_from_slice(&head);
                any[24..28].copy_from_slice(&line.key_bytes.to_le_bytes());
                any[32..40].copy_from_slice(&line.value_bytes.to_le_bytes());
            }
            assert_eq!(parse(&mut any, &line, &secret), None);
        }
    }
}
