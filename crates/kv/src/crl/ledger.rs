//! The ledger: what was reclaimed, for all logs together.
//!
//! ```text
//! root page   +- - -+--------+--------+
//!             |     | ledger | ledger |
//!             +- - -+--------+--------+
//!
//! ledger      +-------+----------+-------+---------+--------+--------+- - -
//!             | check | sequence | epoch | notes 4 | head 0 | head 1 |
//!             +-------+----------+-------+---------+--------+--------+- - -
//! ```
//!
//! It has two copies. The second is begun when the first is durable, and nothing relies on the ledger before
//! both are. So if a crash tears one copy, or something damages it, the other one still works.

use super::entry::{is_epoch, word_at};
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use everdram_pm::{LINE, Lane, Pool, ROOT_AT, ROOT_BYTES, Secret};

/// Most logs.
pub(crate) const LOGS_MAX: usize = 128;
/// Offset of the first copy.
pub(crate) const LEDGERS_AT: u64 = ROOT_AT + 512;
const LEDGER_BYTES: u64 = 1536;
const LEDGER_HEAD: usize = 56;
/// The two copies.
/// One past the last byte of the ledgers.
pub(crate) const LEDGERS_END: u64 = LEDGERS_AT + 2 * LEDGER_BYTES;
const LEDGERS: [u64; 2] = [LEDGERS_AT, LEDGERS_AT + LEDGER_BYTES];

const _: () = assert!(LEDGERS_END <= ROOT_AT + ROOT_BYTES);
const _: () = assert!(LEDGER_HEAD + 8 * LOGS_MAX <= LEDGER_BYTES as usize);

/// Greatest position in a log.
const POSITION_MAX: u64 = 1 << 55;

const SALT_LEDGER: u64 = 0x6c;

const _: () = {
    // check, sequence, epoch, four notes
    assert!(LEDGER_HEAD == 3 * 8 + size_of::<Notes>());
    assert!(LEDGERS_AT.is_multiple_of(LINE) && LEDGER_BYTES.is_multiple_of(LINE));
    assert!(
        LEDGERS[0] + LEDGER_BYTES <= LEDGERS[1],
        "the copies do not overlap"
    );
    // A record's place has 56 bits for a position and 8 for the number of its log plus one.
    assert!(POSITION_MAX < 1 << 56 && LOGS_MAX < 1 << 8);
};

/// Words of the log's user that the ledger keeps: they change with it, atomically.
pub(crate) type Notes = [u64; 4];

/// What was reclaimed, in one record: how far, and the user's words about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) sequence: u64,
    /// Entries of epochs up to this one are applied; those still in the logs do not count.
    pub(crate) epoch: u64,
    pub(crate) notes: Notes,
    /// The first position that counts, of each log.
    pub(crate) heads: Vec<u64>,
}

impl Ledger {
    /// Writes both copies, one after the other.
    pub(crate) fn write(&self, lane: &mut Lane) {
        for at in LEDGERS {
            let bytes = self.to_bytes(lane.pool().secret(), at);
            let flushed = lane.stream(at, &bytes);
            let _ordered = lane.fence(flushed);
        }
    }

    /// The bytes of the copy at `at`, in whole lines.
    fn to_bytes(&self, secret: &Secret, at: u64) -> Vec<u8> {
        assert!(
            self.heads.len() <= LOGS_MAX,
            "a ledger of this many logs overlaps its copy"
        );
        let mut bytes = vec![0; 8];
        let words = [self.sequence, self.epoch];
        for word in words.iter().chain(&self.notes).chain(&self.heads) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let check = secret.sum_words([secret.sum(&bytes[8..]), at, SALT_LEDGER]);
        bytes[..8].copy_from_slice(&check.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(LINE as usize), 0);
        bytes
    }

    /// Bytes of a copy, for this many logs.
    fn bytes(logs: usize) -> usize {
        LEDGER_HEAD + 8 * logs
    }

    /// Parses the copy in `bytes`, read at `at`.
    fn parse(secret: &Secret, at: u64, bytes: &[u8]) -> Option<Ledger> {
        let check = secret.sum_words([secret.sum(bytes.get(8..)?), at, SALT_LEDGER]);
        if word_at(bytes, 0) != check {
            return None;
        }
        Some(Ledger {
            sequence: word_at(bytes, 8),
            epoch: word_at(bytes, 16),
            notes: [24, 32, 40, 48].map(|place| word_at(bytes, place)),
            heads: bytes[LEDGER_HEAD..]
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word))
                .collect(),
        })
    }

    /// Whether an engine can have written it, in a pool of this incarnation.
    fn is_sound(&self, incarnation: u64) -> bool {
        let heads_fit = |head: &u64| head.is_multiple_of(LINE) && *head <= POSITION_MAX;
        self.heads.iter().all(heads_fit)
            && is_epoch(self.epoch, incarnation)
            && self.sequence < u64::MAX / 2
    }

    /// Reads the ledger of a pool with `logs` logs; the caller settles `found`. `None`: the pool has none
    /// yet, or lost it; the rest of the pool tells the caller which.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(crate) fn find(
        pool: &Pool,
        found: &mut ReadFlusher,
        logs: usize,
    ) -> Result<Option<Ledger>, Error> {
        let mut copies = [const { Vec::new() }; 2];
        for (at, bytes) in LEDGERS.into_iter().zip(&mut copies) {
            bytes.resize(Ledger::bytes(logs), 0);
            // The next ledger is begun in the first copy; the second must then be durable.
            found.keep(at, bytes.len() as u64);
            pool.region().load(at, bytes);
        }
        let [first, second] =
            [0, 1].map(|nth| Ledger::parse(pool.secret(), LEDGERS[nth], &copies[nth]));
        let sequence = |ledger: &Option<Ledger>| ledger.as_ref().map(|ledger| ledger.sequence);
        let agree = first == second;
        let newest = match sequence(&first) >= sequence(&second) {
            true => first,
            false => second,
        };
        let Some(newest) = newest else {
            // The very first copy may be torn: the second is begun only after it is durable.
            return match copies[1].iter().all(|byte| *byte == 0) {
                true => Ok(None),
                false => Err(corrupt(LEDGERS_AT, "both ledgers are damaged")),
            };
        };
        if !newest.is_sound(pool.incarnation()) {
            return Err(corrupt(LEDGERS_AT, "a ledger has an impossible value"));
        }
        if !agree {
            newest.write(&mut found.lane);
        }
        Ok(Some(newest))
    }

    /// Writes the first ledger of a pool.
    pub(crate) fn first(lane: &mut Lane, logs: usize) -> Ledger {
        let ledger = Ledger {
            sequence: 1,
            heads: vec![0; logs],
            ..Ledger::default()
        };
        ledger.write(lane);
        ledger
    }
}
