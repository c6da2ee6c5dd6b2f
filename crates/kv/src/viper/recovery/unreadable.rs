//! Records that verify, but whose values or keys lie in pieces that do not.
//!
//! Such damage concerns one key, and the rest of the store stays usable:
//!
//! * A record whose *value* cannot be read stays in the index. Reads of its key are errors; it can be
//!   replaced and removed. While it is there, overflow blocks without a known record are not freed: they may
//!   be the rest of its value.
//! * A record whose *key* cannot be read is a loser if another record of the same chain has more moves. A
//!   chain belongs to one version of one key, so that record is compaction's copy; this one is marked dead.
//!   Without such a copy it may be the only record of some key, and is damage.

use super::block_walk::Visited;
use crate::engine::damage::Doubt;
use crate::error::Error;
use crate::stats::Finding;
use crate::viper::Viper;
use crate::viper::read::Pieces;
use crate::viper::read::chain_of;
use crate::viper::record::{Chain, Record, RecordKind, Stamp};
use crate::viper::session::ViperSession;
use crate::viper::space::Space;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether some value's pieces cannot be read.
#[derive(Default)]
pub(in crate::viper) struct Unreadable(AtomicBool);

impl Unreadable {
    /// Notes such a value: from now on, no overflow block is freed because no record reaches it.
    pub(in crate::viper) fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(in crate::viper) fn is_any(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A live record whose key cannot be read.
struct Unread {
    at: u64,
    chain: Chain,
    /// The beginning of the key.
    beginning: Vec<u8>,
    stamp: Stamp,
    error: Error,
}

/// Records with keys in pieces.
#[derive(Default)]
pub(in crate::viper) struct BigKeys {
    /// The newest copy of each chain's record, dead or not.
    newest: HashMap<u64, (u64, u16)>,
    unread: Vec<Unread>,
}

impl BigKeys {
    /// Notes a record that counts, dead or not.
    pub(in crate::viper) fn meet(&mut self, visited: &Visited<'_>) {
        if visited.record.kind != RecordKind::BigKey {
            return;
        }
        if let Ok(chain) = chain_of(&visited.record, visited.bytes) {
            let order = visited.record.stamp.order();
            let newest = self.newest.entry(chain.name).or_insert(order);
            *newest = order.max(*newest);
        }
    }

    /// Sets a live record aside whose key could not be read.
    ///
    /// # Errors
    /// The given one, if it has another cause.
    pub(in crate::viper) fn put_aside(
        &mut self,
        visited: &Visited<'_>,
        error: Error,
    ) -> Result<(), Error> {
        let record = &visited.record;
        let chain = chain_of(record, visited.bytes)?;
        if record.kind != RecordKind::BigKey || !matches!(error, Error::Corrupt { .. }) {
            return Err(error);
        }
        self.unread.push(Unread {
            at: visited.at,
            chain,
            beginning: visited.bytes.get(record.key()).unwrap_or(&[]).to_vec(),
            stamp: record.stamp,
            error,
        });
        Ok(())
    }

    pub(in crate::viper) fn merge(&mut self, other: BigKeys) {
        for (name, order) in other.newest {
            let newest = self.newest.entry(name).or_insert(order);
            *newest = order.max(*newest);
        }
        self.unread.extend(other.unread);
    }

    /// Sorts the records that were set aside: losers go to `losers`. Returns whether others remain.
    pub(in crate::viper) fn settle(&mut self, losers: &mut Vec<u64>) -> bool {
        let newest = &self.newest;
        self.unread.retain(|unread| {
            let lost = newest
                .get(&unread.chain.name)
                .is_some_and(|order| *order > unread.stamp.order());
            if lost {
                losers.push(unread.at);
            }
            !lost
        });
        !self.unread.is_empty()
    }

    /// Refuses the remaining records; a salvage notes them and continues without.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(in crate::viper) fn refuse(&mut self, viper: &Viper) -> Result<(), Error> {
        for unread in self.unread.drain(..) {
            let Some(damage) = &viper.damage else {
                return Err(unread.error);
            };
            viper.unreadable.note();
            let doubt = Doubt {
                version: unread.stamp.version,
                offset: unread.at,
            };
            damage.note(Finding {
                key: Some(unread.beginning.clone()),
                missing: 1,
                ..Finding::new(
                    unread.at,
                    format!(
                        "a key of {} bytes lies in pieces that do not verify; only its beginning is known ({})",
                        unread.chain.key_bytes, unread.error
                    ),
                )
            });
            damage.doubt_beginning(unread.beginning, unread.chain.key_bytes, doubt);
        }
        Ok(())
    }
}

/// Appends the overflow blocks of a current record's value, as far as they can be read: the value's first
/// blocks may hold its key. `None`: some cannot be read, which concerns that key alone.
///
/// # Errors
/// Any error that is not damage.
pub(in crate::viper) fn blocks_of(
    viper: &Viper,
    session: &ViperSession,
    at: u64,
    (record, scratch): (&Record, &[u8]),
    blocks: &mut Vec<u32>,
) -> Result<Option<Chain>, Error> {
    let reader = viper.reader();
    // A salvage reports unreadable values in advance; otherwise their readers get the error.
    let read = |chain: &Chain| match viper.damage {
        Some(_) => read_all(&viper.space, session, chain),
        None => Ok(()),
    };
    let found = chain_of(record, scratch).and_then(|chain| {
        reader.chain_blocks_into(&chain, blocks)?;
        read(&chain).map(|()| chain)
    });
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::Corrupt { offset, what, .. }) => {
            viper.unreadable.note();
            if let Some(damage) = &viper.damage {
                let mut buffer = Vec::new();
                let key = reader.key(record, scratch, &mut buffer).ok();
                damage.note(Finding {
                    key: key.map(<[u8]>::to_vec),
                    missing: 1,
                    ..Finding::new(
                        offset,
                        format!("{what}: the value of the record at byte {at} cannot be read"),
                    )
                });
            }
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

/// Verifies all pieces of a value.
fn read_all(space: &Space, session: &ViperSession, chain: &Chain) -> Result<(), Error> {
    let _pin = session.slot.pin();
    let reader = space.reader();
    let mut pieces = Pieces::new(&reader, chain);
    let mut bytes = Vec::new();
    while pieces.append(&mut bytes)? {
        bytes.clear();
    }
    Ok(())
}

/// Drops journals that cannot be read from a pool that is being salvaged.
pub(in crate::viper) fn journals(
    viper: &Viper,
    journals: &mut Vec<u64>,
    read: impl Fn(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut sound = Vec::with_capacity(journals.len());
    for at in std::mem::take(journals) {
        match read(at) {
            Ok(()) => sound.push(at),
            Err(error) => {
                viper.tolerate(error)?;
                viper.tolerate(
                    Finding::new(
                        at,
                        "a batch cannot be read: if it was not finished, its writes are missing",
                    )
                    .into_error(),
                )?;
            }
        }
    }
    *journals = sound;
    Ok(())
}

/// Notes batches that cannot be finished as missing from a pool that is being salvaged.
///
/// # Errors
/// The given one, unless the pool is being salvaged.
pub(in crate::viper) fn unfinished(viper: &Viper, error: Error) -> Result<(), Error> {
    let Some(damage) = &viper.damage else {
        return Err(error);
    };
    damage.note(Finding {
        missing: 1,
        ..Finding::new(
            0,
            format!("batches that were begun cannot be finished here: {error}"),
        )
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::backend::Backend;
    use crate::engine::kind::EngineKind;
    use crate::engine::{Engine, EngineSession};
    use crate::options::Options;
    use crate::viper::chain;
    use crate::viper::layout::Geometry;
    use crate::viper::read::UNIT;
    use crate::viper::record::{BIG_KEY_PREFIX, Order};
    use crate::viper::recovery::at_old;
    use everdram_pm::Pool;
    use std::path::Path;
    use std::sync::Arc;

    fn over(pool: &Arc<Pool>) -> Result<Arc<Viper>, Error> {
        let options = Options {
            initial_bytes: 1 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 8 << 20,
            checkpoint_bytes: 0,
            ..Options::default()
        };
        Viper::over(Arc::clone(pool), Path::new("heap"), &options)
    }

    fn pool() -> Arc<Pool> {
        let geometry = Geometry::new(4096, 6, None).unwrap();
        Pool::heap(8 << 20, EngineKind::Viper.number(), geometry.to_words())
    }

    fn damage(viper: &Viper, block: u32) {
        let at = viper.space.blocks.at(block) + 48;
        let word = viper.pool.region().load_word(at);
        let _dirty = viper.pool.lane().store_word(at, word ^ 1);
    }

    /// Compaction moved a key longer than a block, and the copy was removed. A reader kept the original's
    /// block from being freed, and the pieces were reused before the original was marked. After a kill the
    /// pool did not open.
    #[test]
    fn a_long_key_that_cannot_be_read_has_lost_if_it_was_moved() {
        for (is_moved, is_dead) in [(true, true), (true, false), (false, false)] {
            let pool = pool();
            let viper = over(&pool).unwrap();
            let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
            let _ticket = session.put_now(b"other", b"value", 0).unwrap();
            let key = vec![7; 60_000];
            let chain = chain::write(&mut session, &key, b"value").unwrap();
            let payload = chain.to_bytes();
            let beginning = &key[..BIG_KEY_PREFIX];
            for moves in 0..=u16::from(is_moved) {
                let kind = RecordKind::BigKey;
                let place = session
                    .write(
                        kind,
                        beginning,
                        &payload,
                        0,
                        Order {
                            version: 9,
                            moves,
                            covers: false,
                        },
                    )
                    .unwrap();
                let _ordered = session.settle_and_fence();
                if is_dead && moves == 1 {
                    let old = at_old(&viper.space, place.get() * UNIT).unwrap();
                    session.mark(&old).unwrap();
                    let _ordered = session.settle_and_fence();
                }
            }
            damage(&viper, chain.first);
            std::mem::forget((session, viper));
            match over(&pool) {
                // The copy cannot be read either, and may be the key's only record.
                Err(Error::Corrupt { .. }) => assert!(!is_dead, "{is_moved}"),
                Err(other) => panic!("{other}"),
                Ok(viper) => {
                    assert!(is_dead);
                    assert_eq!(viper.len(), 1);
                    assert_eq!(viper.check().unwrap().findings, []);
                    drop(viper);
                    assert_eq!(over(&pool).unwrap().len(), 1, "once more");
                }
            }
        }
    }

    /// One damaged header of one piece of a value kept the whole store from opening.
    #[test]
    fn a_value_that_cannot_be_read_concerns_its_key_alone() {
        let pool = pool();
        let viper = over(&pool).unwrap();
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        let long = vec![1; 100_000];
        for key in [b"one", b"two"] {
            let _ticket = session.put_now(key, &long, 0).unwrap();
        }
        let (old, _) = session.find(viper.hash(b"one"), b"one").unwrap().unwrap();
        let blocks = viper.reader().chain_blocks(&old.chain.unwrap()).unwrap();
        damage(&viper, blocks[1]);
        std::mem::forget((session, viper));
        let viper = over(&pool).unwrap();
        let free = viper.stats().blocks_free;
        assert_eq!(viper.len(), 2);
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        let mut value = Vec::new();
        for _ in 0..3 {
            let refused = session.get(b"one", &mut value).map(drop);
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
            value.clear();
            assert!(session.get(b"two", &mut value).unwrap().is_some());
            assert!(value == long);
            // The new value reuses none of the damaged value's blocks.
            let _ticket = session.put_now(b"three", &long, 0).unwrap();
        }
        for &block in &blocks {
            let state = viper.space.blocks.get(block).unwrap().info().state;
            assert_eq!(state, crate::viper::block_table::State::Overflow, "{block}");
        }
        let findings = viper.check().unwrap().findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].key.as_deref(), Some(&b"one"[..]));
        let _ticket = session.put_now(b"one", b"short", 0).unwrap();
        assert_eq!(viper.check().unwrap().findings, []);
        session.delete(b"three").unwrap();
        session.commit_pending().unwrap();
        std::mem::forget((session, viper));
        let viper = over(&pool).unwrap();
        assert_eq!(viper.check().unwrap().findings, []);
        assert!(
            viper.stats().blocks_free > free,
            "its blocks are free again"
        );
    }
}
