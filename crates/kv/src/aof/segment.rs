//! A segment: one file of the log. Entries lie one after the other behind its head.
//!
//! ```text
//! #s <number><incarnation><sum>\r\n  *2 SELECT 0  #<spaces>\r\n        head, 80 bytes
//! entry  entry  entry ...
//! #z <sum>\r\n                                                           seal, 16 bytes, once another segment follows
//! ```
//!
//! The sums are keyed with the pool's secret. So a segment of another pool has no valid head. The seal is of
//! the place where it lies, so a segment that has lost its end has none.

use super::NUMBER_END;
use super::digits::{get, put};
use super::entry::{self, GRAIN, Position};
use super::expiries::Expiries;
use everdram_pm::{Secret, ShelfFile};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the head.
pub(super) const HEAD: u64 = 80;
const MARK: &[u8] = b"#s ";
const DIGITS: usize = 11;
const SELECT: &[u8] = b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n";
const SALT: u64 = 0x73;
const SEAL_MARK: &[u8] = b"#z ";
const SEAL_SALT: u64 = 0x7a;
/// Bytes of the seal.
pub(super) const SEAL: u64 = (SEAL_MARK.len() + DIGITS + 2) as u64;

const _: () = {
    let used = MARK.len() + 3 * DIGITS + 2 + SELECT.len();
    // The rest is a line of padding.
    assert!(HEAD.is_multiple_of(GRAIN) && used + 3 <= HEAD as usize);
};

/// The head of segment `number`, which the pool made in its life `incarnation`.
pub(super) fn head(secret: &Secret, number: u64, incarnation: u64) -> Vec<u8> {
    let mut digits = [0; 3 * DIGITS];
    put(&mut digits[..DIGITS], number);
    put(&mut digits[DIGITS..2 * DIGITS], incarnation);
    let sum = secret.sum_words([SALT, number, incarnation]);
    put(&mut digits[2 * DIGITS..], sum);
    let mut bytes = MARK.to_vec();
    bytes.extend_from_slice(&digits);
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(SELECT);
    let rest = HEAD - bytes.len() as u64;
    entry::pad(&mut bytes, rest);
    bytes
}

/// The incarnation in a head, if it is that of segment `number` of this pool.
pub(super) fn parse_head(secret: &Secret, number: u64, bytes: &[u8]) -> Option<u64> {
    let at = MARK.len() + DIGITS;
    let incarnation = get(bytes.get(at..at + DIGITS)?)?;
    (head(secret, number, incarnation) == bytes).then_some(incarnation)
}

/// The seal of a segment whose entries end at `end`.
pub(super) fn seal(secret: &Secret, end: Position) -> Vec<u8> {
    let mut digits = [0; DIGITS];
    put(
        &mut digits,
        secret.sum_words([SEAL_SALT, end.segment, end.offset]),
    );
    [SEAL_MARK, &digits, b"\r\n"].concat()
}

impl Position {
    /// Whether entries may begin or end there: behind the head of a segment that a store has come to.
    pub(crate) fn is_sound(self) -> bool {
        self.segment < NUMBER_END && (HEAD..NUMBER_END).contains(&self.offset)
    }
}

/// An open segment.
pub(super) struct Segment {
    pub(super) number: u64,
    /// Its number in locations.
    pub(super) slot: u64,
    pub(super) file: ShelfFile,
    /// Bytes up to the end of the last written entry; a seal comes behind them.
    pub(super) bytes: AtomicU64,
    /// Bytes of entries that are not their key's state any more.
    pub(super) stale: AtomicU64,
    /// Bytes of removals.
    pub(super) removals: AtomicU64,
    expiries: Mutex<Expiries>,
}

impl Segment {
    pub(super) fn at(&self, offset: u64) -> Position {
        Position {
            segment: self.number,
            offset,
        }
    }

    /// A segment whose last entry ends at `bytes`.
    pub(super) fn new(number: u64, slot: u64, file: ShelfFile, bytes: u64) -> Segment {
        Segment {
            number,
            slot,
            file,
            bytes: AtomicU64::new(bytes),
            stale: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            expiries: Mutex::default(),
        }
    }

    /// Notes an entry of so many bytes with a state that expires then (Unix milliseconds; 0 = never).
    pub(super) fn note_state(&self, bytes: u64, expires_at_ms: u64) {
        if expires_at_ms != 0 {
            self.expiries.lock().note(bytes, expires_at_ms);
        }
    }

    /// Notes an entry of so many bytes with a removal.
    pub(super) fn note_removal(&self, bytes: u64) {
        self.removals.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether an entry has expired by `now`.
    pub(super) fn has_expired(&self, now: u64) -> bool {
        self.expiries.lock().has_begun(now)
    }

    /// Bytes that cleaning would not keep: stale ones, those of entries that have expired by `now`, and
    /// removals where no older segment is left that they could speak of.
    pub(super) fn garbage(&self, now: u64, is_oldest: bool) -> u64 {
        let (bytes, stale) = self.use_of();
        let expired = self.expiries.lock().expired(now).min(bytes);
        // Of what has expired, as much may be stale, too, as of the rest.
        let share = expired as f64 / bytes.max(1) as f64;
        let expired = ((bytes - stale) as f64 * share) as u64;
        let removals = match is_oldest {
            true => self.removals.load(Ordering::Relaxed),
            false => 0,
        };
        (stale + expired + removals).min(bytes)
    }

    /// Bytes of entries, and how many of them are stale.
    pub(super) fn use_of(&self) -> (u64, u64) {
        let bytes = self.bytes.load(Ordering::Relaxed).saturating_sub(HEAD);
        (bytes, self.stale.load(Ordering::Relaxed).min(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_of_one_segment_of_one_pool() {
        let secret = Secret::expand(&[4; 32]);
        let bytes = head(&secret, 12, 3);
        assert_eq!(bytes.len() as u64, HEAD);
        assert_eq!(parse_head(&secret, 12, &bytes), Some(3));
        assert_eq!(parse_head(&secret, 13, &bytes), None);
        assert_eq!(parse_head(&Secret::expand(&[5; 32]), 12, &bytes), None);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_head(&secret, 12, &bad), None, "bit {bit}");
        }
    }

    #[test]
    fn a_seal_is_of_one_place() {
        let secret = Secret::expand(&[4; 32]);
        let at = |segment, offset| seal(&secret, Position { segment, offset });
        assert_eq!(at(12, 96).len() as u64, SEAL);
        assert_ne!(at(12, 96), at(13, 96));
        assert_ne!(at(12, 96), at(12, 112));
    }
}
