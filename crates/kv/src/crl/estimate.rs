//! Estimates the number of operations in the logs before they are read, so that tables can be made large
//! enough at once.
//!
//! Nothing records where a log ends. But before its end an entry is never far away, and after it there is
//! none, so a bisection finds the end with few reads. An estimate may be wrong, also because of damage or of
//! values that look like entries. Its users apply bounds of their own.

use super::cursor::{Cursor, Next};
use super::log::Logs;
use everdram_pm::LINE;
use everdram_pm::lock::lock;

/// Shortest operation in bytes.
const OPERATION_LEAST: u64 = 32;
/// Bytes of each log that are verified: values may look like many long entries.
const CLOSELY: u64 = 4 << 20;

impl Logs {
    /// Estimated number of operations in all logs.
    pub(super) fn estimate(&self) -> u64 {
        let heads = lock(&self.ledger).heads.clone();
        let each = heads.iter().enumerate();
        each.map(|(number, head)| self.estimate_log(number, *head))
            .sum()
    }

    fn estimate_log(&self, number: usize, head: u64) -> u64 {
        let (mut cursor, mut closely) = (Cursor::new(number), CLOSELY);
        let (mut first, mut behind) = (head, head + self.log_bytes());
        let (mut operations, mut bytes) = (0, 0);
        while behind > first {
            let middle = first + (behind - first) / 2 / LINE * LINE;
            match self.entry_near(&mut cursor, middle, behind, &mut closely) {
                Some((at, end, count)) => {
                    (operations, bytes) = (operations + count, bytes + end - at);
                    first = end;
                }
                None => behind = middle,
            }
        }
        (first - head) * operations / bytes.max(1)
    }

    /// The first entry at or after a position, at most one entry's length away: its beginning, its end and
    /// its number of operations. `closely`: bytes that may still be verified.
    fn entry_near(
        &self,
        cursor: &mut Cursor,
        from: u64,
        limit: u64,
        closely: &mut u64,
    ) -> Option<(u64, u64, u64)> {
        let incarnation = self.pool.incarnation();
        let most = limit.min(from + self.entry_most() as u64);
        for at in (from..most).step_by(LINE as usize) {
            let head = cursor.head(self, at, limit);
            if !head.is_sound(at, incarnation) || head.bytes() == 0 {
                continue;
            }
            *closely = closely.checked_sub(head.bytes())?;
            if let Next::Entry(entry, end) = cursor.next(self, at, limit) {
                let most = (end - at) / OPERATION_LEAST;
                return Some((at, end, u64::from(entry.operations).min(most)));
            }
        }
        None
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use crate::crl::{Journal, Volatile};
    use crate::options::Options;
    use everdram_pm::{Medium, MediumChoice};

    /// Stores nothing, so the journal keeps one record of each key.
    struct Forgetful;

    impl Volatile for Forgetful {
        fn show(&self, _key: &[u8], _version: u64, _value: Option<&[u8]>) {}

        fn version(&self, _key: &[u8]) -> Option<u64> {
            None
        }
    }

    /// In new logs, and in logs after several laps.
    #[test]
    fn a_guess_is_near() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options {
            medium: MediumChoice::Only(Medium::Emulated),
            ..Options::default()
        };
        (options.bullet.logs, options.bullet.log_bytes) = (3, 1 << 20);
        let path = dir.path().join("journal");
        let journal = Journal::open(path, &options, Forgetful).unwrap();
        let mut writer = journal.writer();
        let mut put = 0u64;
        for more in [0, 1, 9, 990, 3_000, 40_000, 5_000] {
            for number in put..put + more {
                let value = vec![7; 40 + (number % 3) as usize * 100];
                writer.put(&number.to_le_bytes(), &value).unwrap();
            }
            put += more;
            // 2, 4 and 5 lines each.
            let there = journal.used_bytes().0 * 3 / (64 * 11);
            let estimate = journal.logs.estimate();
            let bounds = (there * 2 / 3).saturating_sub(16)..=there * 3 / 2 + 16;
            assert!(
                bounds.contains(&estimate),
                "{estimate} of {there} after {put}"
            );
        }
    }
}
