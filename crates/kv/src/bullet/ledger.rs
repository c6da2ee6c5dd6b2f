//! The root page: the root of the back table, and the ledger of what was reclaimed.
//!
//! ```text
//! root page   +---------+-----+------+-------+- - -+--------+--------+
//!             | current | old | done | check |     | ledger | ledger |
//!             +---------+-----+------+-------+- - -+--------+--------+
//!
//! ledger      +-------+----------+-------+------+---------+-------+-------+--------+--------+- - -
//!             | check | sequence | epoch | keys | lsn max | floor | swept | head 0 | head 1 |
//!             +-------+----------+-------+------+---------+-------+-------+--------+--------+- - -
//! ```
//!
//! The root's words change together, in transactions. The ledger is there twice: the second copy is begun when the first is durable, and nobody relies
//! on what it says before both are. So whichever of them a crash has torn, or something has damaged, the other one will do.
//!
//! A new pool gets its areas for transactions, then its first ledger, then its table. So where there is no ledger there has been
//! nothing, and where there is one, whatever is zero was lost.

use super::back::corrupt;
use super::layout::{LOGS_MAX, is_epoch, word_at};
use super::table::Array;
use crate::error::Error;
use crate::heap::Redo;
use crate::stripe::VERSION_MAX;
use everdram_pm::{LINE, Lane, Pool, ROOT_AT, ROOT_BYTES, Secret};

/// Where the root's words are.
pub(super) const ROOT_WORDS: [u64; 4] = [ROOT_AT, ROOT_AT + 8, ROOT_AT + 16, ROOT_AT + 24];
/// Where the first ledger is, and what each has room for.
const LEDGERS_AT: u64 = ROOT_AT + 512;
const LEDGER_BYTES: u64 = 1536;
const LEDGER_HEAD: usize = 56;
/// The two copies.
const LEDGERS: [u64; 2] = [LEDGERS_AT, LEDGERS_AT + LEDGER_BYTES];

const _: () = assert!(LEDGERS_AT + 2 * LEDGER_BYTES <= ROOT_AT + ROOT_BYTES);
const _: () = assert!(LEDGER_HEAD + 8 * LOGS_MAX <= LEDGER_BYTES as usize);

/// No LSN that was ever given out is greater: a clock has so many left, which is more than anybody writes.
pub(super) const LSN_MAX: u64 = VERSION_MAX - (1 << 40);
/// No position in a log is greater.
const POSITION_MAX: u64 = 1 << 55;

const SALT_LEDGER: u64 = 0x6c;
const SALT_ROOT: u64 = 0x72;

/// Where the back table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) current: Array,
    /// The array that buckets are being moved from, and how many have moved.
    pub(super) old: Array,
    pub(super) done: u64,
}

impl Root {
    /// The words, as they are at [`ROOT_WORDS`]. They are never all zero.
    pub(super) fn to_words(self, secret: &Secret) -> [u64; 4] {
        let Root { current, old, done } = self;
        let check = secret.sum_words([secret.sum_words([current.0, old.0, done]), 0, SALT_ROOT]);
        [current.0, old.0, done, check.max(1)]
    }

    pub(super) fn parse(secret: &Secret, words: [u64; 4]) -> Option<Root> {
        let root = Root {
            current: Array::parse(words[0])?,
            old: Array::parse(words[1])?,
            done: words[2],
        };
        (root.to_words(secret) == words).then_some(root)
    }
}

/// What was reclaimed, in one piece: how far, and what it amounts to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    pub(super) sequence: u64,
    /// Entries of epochs up to this one are applied; what is left of them in the logs does not count.
    pub(super) epoch: u64,
    /// Keys that came less keys that went, of all entries before the heads.
    pub(super) keys: u64,
    /// No LSN of an entry before the heads is greater.
    pub(super) lsn_max: u64,
    /// LSNs up to this one do not count (FLUSHALL).
    pub(super) floor: u64,
    /// Up to this LSN, what does not count is not in the back any more.
    pub(super) swept: u64,
    /// The first position of each log that counts.
    pub(super) heads: Vec<u64>,
}

impl Ledger {
    /// Writes both copies, one after the other.
    pub(super) fn write(&self, lane: &mut Lane) {
        for at in LEDGERS {
            let bytes = self.to_bytes(lane.pool().secret(), at);
            let flushed = lane.stream(at, &bytes);
            let _ordered = lane.fence(flushed);
        }
    }

    /// The bytes of the copy at `at`, whole lines.
    fn to_bytes(&self, secret: &Secret, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        let words = [
            self.sequence,
            self.epoch,
            self.keys,
            self.lsn_max,
            self.floor,
            self.swept,
        ];
        for word in words.iter().chain(&self.heads) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let check = secret.sum_words([secret.sum(&bytes[8..]), at, SALT_LEDGER]);
        bytes[..8].copy_from_slice(&check.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(LINE as usize), 0);
        bytes
    }

    /// Bytes of a copy, for so many logs.
    fn bytes(logs: usize) -> usize {
        LEDGER_HEAD + 8 * logs
    }

    /// The copy that `bytes` are, read at `at`.
    fn parse(secret: &Secret, at: u64, bytes: &[u8]) -> Option<Ledger> {
        let check = secret.sum_words([secret.sum(bytes.get(8..)?), at, SALT_LEDGER]);
        if word_at(bytes, 0) != check {
            return None;
        }
        Some(Ledger {
            sequence: word_at(bytes, 8),
            epoch: word_at(bytes, 16),
            keys: word_at(bytes, 24),
            lsn_max: word_at(bytes, 32),
            floor: word_at(bytes, 40),
            swept: word_at(bytes, 48),
            heads: bytes[LEDGER_HEAD..]
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word))
                .collect(),
        })
    }

    /// Whether an engine can have written it, in a pool that was opened so often.
    fn is_sound(&self, incarnation: u64) -> bool {
        let heads_fit = |head: &u64| head.is_multiple_of(LINE) && *head <= POSITION_MAX;
        let lsns = [self.lsn_max, self.floor, self.swept];
        self.heads.iter().all(heads_fit)
            && lsns.into_iter().all(|lsn| lsn <= LSN_MAX)
            && is_epoch(self.epoch, incarnation)
            && self.sequence < u64::MAX / 2
    }

    /// The ledger of a pool with so many logs; makes the first one in a pool in which there has been nothing. Then transactions can be
    /// recovered.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(super) fn open(
        pool: &Pool,
        redo: &Redo,
        lane: &mut Lane,
        logs: usize,
    ) -> Result<Ledger, Error> {
        let mut copies = [const { Vec::new() }; 2];
        for (at, bytes) in LEDGERS.into_iter().zip(&mut copies) {
            bytes.resize(Ledger::bytes(logs), 0);
            // A process that was killed may have left it in the caches; what is in front of its heads is about to be written over.
            let found = lane.flush_found(at, bytes.len() as u64);
            let _ordered = lane.fence(found);
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
            let root = ROOT_WORDS.map(|at| pool.region().load_word(at));
            // The first one ever may be torn; the second is not begun before.
            if root != [0; 4] || !redo.is_blank() || copies[1].iter().any(|byte| *byte != 0) {
                return Err(corrupt(LEDGERS_AT, "both ledgers are damaged"));
            }
            redo.format(lane);
            let ledger = Ledger {
                sequence: 1,
                heads: vec![0; logs],
                ..Ledger::default()
            };
            ledger.write(lane);
            return Ok(ledger);
        };
        if !newest.is_sound(pool.incarnation()) {
            return Err(corrupt(LEDGERS_AT, "a ledger says what cannot be"));
        }
        if !agree {
            newest.write(lane);
        }
        Ok(newest)
    }
}
