//! The root of the back table: words in the pool's root page, in front of the ledger.
//!
//! ```text
//! root page   +---------+-----+------+-------+- - -+--------+--------+
//!             | current | old | done | check |     | ledger | ledger |
//!             +---------+-----+------+-------+- - -+--------+--------+
//! ```
//!
//! The root's words change together, in transactions.
//!
//! A new pool gets its areas for transactions, then its first ledger, then its table. So a pool without a
//! ledger was never used. In one with a ledger, a root of zeros is damage.

use super::Back;
use crate::bullet::counters::LedgerCounters;
use crate::bullet::layout::Geometry;
use crate::bullet::table::{Array, Table};
use crate::crl::{LEDGERS_AT, Ledger, Shape};
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use crate::heap::Redo;
use everdram_pm::{Pool, ROOT_AT, Secret};

/// Offsets of the root's words.
pub(in crate::bullet) const ROOT_WORDS: [u64; 4] =
    [ROOT_AT, ROOT_AT + 8, ROOT_AT + 16, ROOT_AT + 24];

const SALT_ROOT: u64 = 0x72;
const _: () = {
    assert!(ROOT_WORDS[0] == ROOT_AT && ROOT_WORDS[3] == ROOT_AT + 3 * 8);
    assert!(
        ROOT_WORDS[3] + 8 <= LEDGERS_AT,
        "the ledgers come behind the root"
    );
};

/// Where the back table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bullet) struct Root {
    pub(in crate::bullet) current: Array,
    /// The array that buckets are being moved from, and how many have moved.
    pub(in crate::bullet) old: Array,
    pub(in crate::bullet) done: u64,
}

impl Root {
    /// The words, as they are at [`ROOT_WORDS`]. They are never all zero.
    pub(in crate::bullet) fn to_words(self, secret: &Secret) -> [u64; 4] {
        let Root { current, old, done } = self;
        let check = secret.sum_words([secret.sum_words([current.0, old.0, done]), 0, SALT_ROOT]);
        [current.0, old.0, done, check.max(1)]
    }

    pub(in crate::bullet) fn parse(secret: &Secret, words: [u64; 4]) -> Option<Root> {
        let root = Root {
            current: Array::parse(words[0])?,
            old: Array::parse(words[1])?,
            done: words[2],
        };
        (root.to_words(secret) == words).then_some(root)
    }
}

/// Finds the pool's ledger and its counters; writes the first ledger of a new pool. Then transactions can be
/// recovered.
///
/// # Errors
/// [`Error::Corrupt`], without the path.
pub(in crate::bullet) fn open_ledger(
    pool: &Pool,
    redo: &Redo,
    found: &mut ReadFlusher,
    logs: &Shape,
) -> Result<(Ledger, LedgerCounters), Error> {
    let Some(ledger) = Ledger::find(pool, found, logs.count)? else {
        let root = ROOT_WORDS.map(|at| pool.region().load_word(at));
        if root != [0; 4] || !redo.is_blank() || !logs.is_blank(pool) {
            return Err(corrupt(LEDGERS_AT, "both ledgers are damaged"));
        }
        redo.format(&mut found.lane);
        return Ok((
            Ledger::first(&mut found.lane, logs.count),
            LedgerCounters::default(),
        ));
    };
    let books = LedgerCounters::from_words(ledger.notes);
    match books.is_sound() {
        true => Ok((ledger, books)),
        false => Err(corrupt(LEDGERS_AT, "a ledger holds impossible counters")),
    }
}

impl Back {
    /// The table that a root's words describe.
    pub(in crate::bullet) fn find_table(
        &self,
        geometry: &Geometry,
        words: [u64; 4],
    ) -> Result<Table, Error> {
        let damaged = |what| Err(corrupt(ROOT_AT, what));
        if words == [0; 4] {
            return damaged("the root of the back table is gone");
        }
        let Some(Root { current, old, done }) = Root::parse(self.pool.secret(), words) else {
            return damaged("the root of the back table is damaged");
        };
        let inside = |array: Array| {
            array == Array::NONE
                || array.depth() >= geometry.depth
                    && self.pool.region().contains(array.at(), array.bytes())
        };
        for array in [current, old] {
            let is_there = self.heap.is_published(array.at(), array.bytes());
            if array != Array::NONE && inside(array) && !is_there {
                let what = "the root of the back table names arrays that do not exist";
                self.doubt_books(corrupt(ROOT_AT, what))?;
            }
        }
        let fits = current != Array::NONE
            && (old == Array::NONE
                || old.depth() + 1 == current.depth() && done <= 1 << old.depth());
        if !inside(current) || !inside(old) || !fits {
            return damaged("the root of the back table names arrays that do not exist");
        }
        let done = if old == Array::NONE { 0 } else { done };
        Ok(Table::new(current, old, done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bullet::Bullet;
    use crate::bullet::session::BulletSession;
    use crate::engine::EngineSession;
    use everdram_pm::{ROOT_AT, ROOT_BYTES};
    use std::path::Path;
    use std::sync::Arc;

    /// The pool lost its ledgers, so nothing says how far its logs were reclaimed. Opened as a new pool, it
    /// would replay reclaimed records.
    #[test]
    fn a_pool_that_lost_all_but_its_logs_is_not_a_new_one() {
        let engine = Bullet::in_memory(None);
        let mut session = BulletSession::new(Arc::clone(&engine)).unwrap();
        session.put(b"key", b"value", 0).unwrap();
        let _ = session.commit().unwrap();
        let pool = Arc::clone(&engine.pool);
        let areas_at = crate::bullet::logs_extent(&pool, &engine.geometry).unwrap();
        let areas_bytes = engine.geometry.logs_from(0).at;
        // Killed.
        std::mem::forget((session, engine));
        let mut lane = pool.lane();
        for (at, bytes) in [(ROOT_AT, ROOT_BYTES), (areas_at, areas_bytes)] {
            let dirty = lane.store(at, &vec![0; bytes as usize]);
            let _ = lane.flush(dirty);
        }
        let opened = Bullet::over(pool, Path::new("heap"), &Bullet::small(None)).map(drop);
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
    }
}
