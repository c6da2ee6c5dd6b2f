//! Lending: a remote client writes a long value into free blocks, which then become a chain where they lie.
//! (RDMP-KV section III-B: the server does not copy what the client has written.)
//!
//! ```text
//!   free list ──lend──> Lent ──bytes of the client──> (read,) flush ─ heads ─ fence ─ record ─ commit
//!       ^                │                              │ not what was said
//!       └───take back────┴──────────────────────────────┘
//! ```
//! A client writes the data of a block and never its head. So in the pool a lent block is what it was before:
//! free, or an overflow block to which no record leads. Recovery finds it free, whatever the client wrote.
//! The heads begin its next life, and only the record makes it part of the store: a crash before leaves
//! overflow blocks that nothing reaches.
//!
//! The bytes are read once, into private memory: the client's checks are verified and those of the store made
//! of that copy. If the caller believes the client, nothing is read, and the client's checks, seeded with the
//! name of the chain, are the store's.
//!
//! Whoever still writes there, or is believed and says what is wrong, spoils the value for its readers, who
//! find the check of a piece wrong. So the caller sees to it that nobody can who is not meant to. (A client
//! that is believed knows what its checks are seeded with, and could make two values that have the same.)
//!
//! Lent blocks are not free: compaction and the reserve of writers see a pool that is fuller by them. A
//! reserve stays with the other writers, the pool does not grow for a loan, and loans have a limit.

use super::{Adopted, adopt};
use crate::concurrency::seam::looks;
use crate::engine::backend::with_room;
use crate::engine::{Loan, Place, Said};
use crate::error::Error;
use crate::index::Location;
use crate::viper::Viper;
use crate::viper::block_table::{RESERVE, State};
use crate::viper::layout::{Kind, OVERFLOW_HEAD};
use crate::viper::record::{self, Order, RecordKind};
use crate::viper::session::ViperSession;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What is lent, and how much may be.
pub(in crate::viper) struct Lending {
    /// Blocks.
    most: u64,
    lent: AtomicU64,
}

impl Lending {
    /// Lends up to so many blocks.
    pub(in crate::viper) fn new(most: u64) -> Lending {
        Lending {
            most,
            lent: AtomicU64::new(0),
        }
    }

    pub(in crate::viper) fn lends(&self) -> bool {
        self.most > 0
    }

    /// Counts blocks that are about to be lent; `false`: they are too many.
    fn begin(&self, count: u64) -> bool {
        let more = |lent: u64| Some(lent + count).filter(|&lent| lent <= self.most);
        let counted = self
            .lent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.is_ok()
    }

    fn end(&self, count: u64) {
        let before = self.lent.fetch_sub(count, Ordering::Relaxed);
        assert!(
            before >= count,
            "more blocks end their loans than were lent"
        );
    }
}

impl Viper {
    /// See [`Engine::lend`](crate::engine::Engine::lend).
    pub(in crate::viper) fn lend_blocks(&self, key: &[u8], bytes: u64) -> Option<Loan> {
        let (space, room) = (&self.space, self.space.geometry.overflow_room());
        // What fits a page is a record with others, and compaction moves it.
        let is_chained = bytes > space.geometry.pages_of(Kind::Large).room();
        let count = bytes.div_ceil(room);
        if !is_chained || space.is_big(key) || self.healthy().is_err() || !self.lending.begin(count)
        {
            return None;
        }
        let floor = (self.reserve() / 2).max(2 * RESERVE as u64);
        let mut blocks = Vec::new();
        let is_lent = space
            .blocks
            .lend(count as usize, floor as usize, &mut blocks);
        if self.wants_room() {
            self.background.wake();
        }
        if !is_lent {
            self.lending.end(count);
            return None;
        }
        let place = |(piece, &block): (u64, &u32)| Place {
            offset: space.blocks.at(block) + OVERFLOW_HEAD,
            bytes: room.min(bytes - piece * room),
        };
        Some(Loan::new((0..).zip(&blocks).map(place).collect()))
    }

    /// See [`Engine::take_back`](crate::engine::Engine::take_back).
    pub(in crate::viper) fn take_back_blocks(&self, mut loan: Loan) {
        let places = loan.take();
        for place in &places {
            self.space.blocks.give_back(self.lent_block(place));
        }
        self.lending.end(places.len() as u64);
    }

    /// The block of a place.
    ///
    /// # Panics
    /// If it is not lent: the loan is of another store.
    fn lent_block(&self, place: &Place) -> u32 {
        let block = self.space.blocks.number(place.offset);
        let state = self.space.blocks.get(block).map(|entry| entry.info().state);
        assert_eq!(state, Some(State::Lent), "block {block} is not lent");
        block
    }
}

impl ViperSession {
    /// See [`EngineSession::put_lent`](crate::engine::EngineSession::put_lent).
    pub(in crate::viper) fn submit_loan(
        &mut self,
        key: &[u8],
        loan: &mut Loan,
        said: &Said,
        expires_at_ms: u64,
    ) -> Result<bool, Error> {
        self.engine.healthy()?;
        if self.engine.space.is_big(key) {
            return Err(Error::KeyLength(key.len()));
        }
        let Some(pieces) = self.arrived(loan, said) else {
            return Ok(false);
        };
        let bytes = key.len() + record::CHAIN_BYTES;
        let submitted = with_room(self, bytes, |session| {
            session.submit_new_by(key, |session, order| {
                session.find_room_for_chain(key, expires_at_ms)?;
                let adopted = (loan.take(), &pieces[..], said);
                session.write_adopted(key, adopted, expires_at_ms, order)
            })
        });
        submitted.map(|()| true)
    }

    /// Makes lent blocks a chain, and writes the record that leads to it. The session holds the stripe of the
    /// key from before the first head on: whoever removes all keys holds all stripes, and takes every piece
    /// of a chain for one to which a record has led.
    fn write_adopted(
        &mut self,
        key: &[u8],
        (places, pieces, said): (Vec<Place>, &[Adopted], &Said),
        expires_at_ms: u64,
        order: Order,
    ) -> Result<Location, Error> {
        assert_eq!(places.len(), pieces.len(), "a loan is adopted twice");
        let chain = adopt(self, pieces, said.seed, said.is_believed);
        self.engine.lending.end(places.len() as u64);
        let record = chain.to_bytes();
        let written = self.write(RecordKind::Chained, key, &record, expires_at_ms, order);
        if written.is_err() {
            // The pieces were never reachable.
            self.engine.retire_chain(chain);
        }
        written
    }

    /// Flushes what was written into a loan, and reads it before that if it is not believed. `None`: it is
    /// not what was said.
    fn arrived(&mut self, loan: &Loan, said: &Said) -> Option<Vec<Adopted>> {
        let ViperSession {
            engine,
            lane,
            unfenced,
            ..
        } = self;
        let places = loan.places();
        if places.is_empty() || said.checks.len() != places.len() {
            return None;
        }
        let (mut pieces, mut data) = (Vec::with_capacity(places.len()), Vec::new());
        for (place, &check) in places.iter().zip(&said.checks) {
            let block = engine.lent_block(place);
            looks!();
            if !said.is_believed {
                data.clear();
                let words = place.bytes.next_multiple_of(8);
                let region = engine.pool.region();
                region.load_behind(place.offset, words, &mut data);
                data.truncate(place.bytes as usize);
            }
            if !said.is_durable {
                // Behind the load, since most processors drop the lines that they flush; and on their way
                // while the copy is summed up.
                unfenced.add(lane.flush_range(place.offset, place.bytes));
            }
            if !said.is_believed && xxh3_64_with_seed(&data, said.seed) != check {
                return None;
            }
            pieces.push(Adopted {
                block,
                bytes: place.bytes,
                check: match said.is_believed {
                    true => check,
                    false => engine.pool.secret().sum(&data),
                },
            });
        }
        Some(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kind::EngineKind;
    use crate::engine::{Engine, EngineSession};
    use crate::options::Options;
    use crate::viper::layout::Geometry;
    use everdram_pm::Pool;
    use std::path::Path;
    use std::sync::Arc;

    const SEED: u64 = 77;
    /// Bytes of a block's data.
    const ROOM: usize = 24 * 1024 - 64;

    fn options(lend_bytes: u64) -> Options {
        Options {
            initial_bytes: 2 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 8 << 20,
            reclaim_background: false,
            keep_room: true,
            lend_bytes,
            ..Options::default()
        }
    }

    fn open(pool: &Arc<Pool>, lend_bytes: u64) -> ViperSession {
        let options = options(lend_bytes);
        let viper = Viper::over(Arc::clone(pool), Path::new("heap"), &options).unwrap();
        ViperSession::new(viper).unwrap()
    }

    fn pool() -> Arc<Pool> {
        let geometry = Geometry::new(4096, 6, None).unwrap();
        Pool::heap(8 << 20, EngineKind::Viper.number(), geometry.to_words())
    }

    fn session() -> ViperSession {
        open(&pool(), 1 << 20)
    }

    fn value(bytes: usize, salt: u8) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8 ^ salt).collect()
    }

    /// Plays the client: whole words, as they come over a network.
    fn write(pool: &Arc<Pool>, loan: &Loan, value: &[u8]) {
        let (mut lane, mut from) = (pool.lane(), 0);
        for place in loan.places() {
            let end = from + place.bytes as usize;
            let mut words = value[from..end].to_vec();
            words.resize(words.len().next_multiple_of(8), 0xee);
            let _dirty = lane.store(place.offset, &words);
            from = end;
        }
        assert_eq!(from, value.len());
    }

    fn said(loan: &Loan, value: &[u8]) -> Said {
        Said::of(loan, value, SEED, false)
    }

    fn put(
        session: &mut ViperSession,
        key: &[u8],
        loan: &mut Loan,
        value: &[u8],
    ) -> Result<bool, Error> {
        let said = said(loan, value);
        session.put_lent(key, loan, &said, 0)
    }

    fn read(session: &mut ViperSession, key: &[u8]) -> Option<Vec<u8>> {
        let mut into = Vec::new();
        session.get(key, &mut into).unwrap().map(|_| into)
    }

    #[test]
    fn what_was_written_into_a_loan_is_the_value_where_it_lies() {
        let mut session = session();
        let viper = Arc::clone(&session.engine);
        for (salt, bytes) in [
            ROOM - 200,
            ROOM,
            ROOM + 1,
            3 * ROOM - 7,
            3 * ROOM,
            5 * ROOM + 65,
        ]
        .into_iter()
        .enumerate()
        {
            let whole = value(bytes, salt as u8);
            let mut loan = viper.lend(b"key", bytes as u64).unwrap();
            assert_eq!(loan.bytes() as usize, bytes);
            assert_eq!(loan.places().len(), bytes.div_ceil(ROOM));
            let places = loan.places().to_vec();
            write(&viper.pool, &loan, &whole);
            // Nobody sees it before its commit, and then it is where it was written.
            let before = read(&mut session, b"key");
            let said = Said {
                is_believed: salt % 2 == 1,
                ..said(&loan, &whole)
            };
            let put = session.put_lent(b"key", &mut loan, &said, 5_000_000_000_000);
            assert!(put.unwrap());
            assert!(loan.places().is_empty() && loan.bytes() == 0);
            let mut other = ViperSession::new(Arc::clone(&viper)).unwrap();
            assert_eq!(read(&mut other, b"key"), before);
            let _ticket = session.commit().unwrap();
            assert!(read(&mut other, b"key").unwrap() == whole, "{bytes}");
            let (old, record) = session.find(viper.hash(b"key"), b"key").unwrap().unwrap();
            assert_eq!(record.expires_at_ms, 5_000_000_000_000);
            let blocks = viper.reader().chain_blocks(&old.chain.unwrap()).unwrap();
            let lent = places
                .iter()
                .map(|place| viper.space.blocks.number(place.offset));
            assert_eq!(blocks, lent.collect::<Vec<_>>());
        }
        assert_eq!(viper.check().unwrap().findings, []);
        // Overwritten, its blocks are free again, and lent again.
        session.put(b"key", b"short", 0).unwrap();
        let _ticket = session.commit().unwrap();
        crate::viper::compaction::reclaim_all(&viper).unwrap();
        let loans: Vec<Loan> = (0..8)
            .map_while(|_| viper.lend(b"key", 4 * ROOM as u64))
            .collect();
        assert_eq!(loans.len(), 8);
        loans.into_iter().for_each(|loan| viper.take_back(loan));
    }

    /// A part that is missing, a byte that is wrong, another value: nothing changes, and the loan is as it
    /// was.
    #[test]
    fn what_is_not_as_it_was_said_is_no_value() {
        let mut session = session();
        let viper = Arc::clone(&session.engine);
        let whole = value(2 * ROOM + 100, 1);
        session.put(b"key", b"before", 0).unwrap();
        let _ticket = session.commit().unwrap();
        let free = viper.space.blocks.free_count();
        let mut loan = viper.lend(b"key", whole.len() as u64).unwrap();
        for at in [0, ROOM - 1, ROOM, 2 * ROOM + 99] {
            let mut wrong = whole.clone();
            wrong[at] ^= 1;
            write(&viper.pool, &loan, &wrong);
            assert!(
                !put(&mut session, b"key", &mut loan, &whole).unwrap(),
                "byte {at}"
            );
            let other_seed = Said {
                seed: SEED + 1,
                ..said(&loan, &wrong)
            };
            assert!(!session.put_lent(b"key", &mut loan, &other_seed, 0).unwrap());
            for is_believed in [false, true] {
                let mut said = Said {
                    is_believed,
                    ..said(&loan, &wrong)
                };
                said.checks.pop();
                assert!(!session.put_lent(b"key", &mut loan, &said, 0).unwrap());
                said.checks.clear();
                assert!(!session.put_lent(b"key", &mut loan, &said, 0).unwrap());
            }
            assert_eq!(loan.bytes(), whole.len() as u64);
            let _ticket = session.commit().unwrap();
            assert_eq!(read(&mut session, b"key").unwrap(), b"before");
        }
        // The last one is still right in itself.
        write(&viper.pool, &loan, &whole);
        assert!(put(&mut session, b"key", &mut loan, &whole).unwrap());
        // It is lent no more, so it can be put once, and taking it back changes nothing.
        assert!(!put(&mut session, b"other", &mut loan, &[]).unwrap());
        viper.take_back(loan);
        let _ticket = session.commit().unwrap();
        assert!(read(&mut session, b"key").unwrap() == whole);
        assert_eq!(viper.space.blocks.free_count() + 3, free);
    }

    /// Whoever is believed and lies has damaged one value, his own, until it is replaced.
    #[test]
    fn a_wrong_check_that_is_believed_damages_that_value_alone() {
        let pool = pool();
        let mut session = open(&pool, 1 << 20);
        let whole = value(2 * ROOM + 100, 1);
        session.put(b"other", &whole, 0).unwrap();
        let viper = Arc::clone(&session.engine);
        let mut loan = viper.lend(b"key", whole.len() as u64).unwrap();
        write(&pool, &loan, &whole);
        let mut wrong = Said {
            is_believed: true,
            ..said(&loan, &whole)
        };
        wrong.checks[1] ^= 1;
        assert!(session.put_lent(b"key", &mut loan, &wrong, 0).unwrap());
        let _ticket = session.commit().unwrap();
        drop((session, viper));
        let mut session = open(&pool, 1 << 20);
        let mut into = b"before".to_vec();
        let refused = session.get(b"key", &mut into).map(drop);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
        assert_eq!(into, b"before");
        assert!(read(&mut session, b"other").unwrap() == whole);
        assert_eq!(session.engine.check().unwrap().findings.len(), 1);
        session.put(b"key", b"right", 0).unwrap();
        let _ticket = session.commit().unwrap();
        assert_eq!(read(&mut session, b"key").unwrap(), b"right");
        assert_eq!(session.engine.check().unwrap().findings, []);
    }

    #[test]
    fn what_has_no_room_of_its_own_is_not_lent() {
        let session = session();
        let viper = &session.engine;
        let large = viper.space.geometry.pages_of(Kind::Large).room();
        for bytes in [0, 1, 4096, large] {
            assert!(viper.lend(b"key", bytes).is_none(), "{bytes}");
        }
        assert!(viper.lend(b"key", u64::MAX).is_none());
        let long = vec![1; 30_000];
        assert!(viper.lend(&long, 100_000).is_none());
        viper.take_back(viper.lend(b"key", large + 1).unwrap());
        for lend_bytes in [0, 24_575] {
            let session = open(&pool(), lend_bytes);
            assert!(session.engine.lender().is_none());
            assert!(session.engine.lend(b"key", 100_000).is_none());
        }
    }

    /// Loans have a limit of their own, the free blocks that others need are not lent, and nothing grows.
    #[test]
    fn loans_leave_room_for_others() {
        let mut session = open(&pool(), 8 << 20);
        let viper = Arc::clone(&session.engine);
        let total = viper.space.blocks.total();
        let mut loans = Vec::new();
        while let Some(loan) = viper.lend(b"key", ROOM as u64 + 1) {
            loans.push(loan);
        }
        let floor = (viper.reserve() / 2).max(2 * RESERVE as u64);
        let free = viper.space.blocks.free_count();
        assert!((floor..floor + 2).contains(&free), "{free} of {floor}");
        assert_eq!(viper.space.blocks.total(), total);
        let used = viper.stats().used_bytes / viper.space.geometry.block_bytes;
        assert_eq!(used + free, total, "lent blocks count as used");
        // Others write into the reserve, and then the pool grows for them.
        for number in 0..100_u32 {
            session
                .put(&number.to_le_bytes(), &value(20_000, 1), 0)
                .unwrap();
        }
        let _ticket = session.commit().unwrap();
        assert!(viper.space.blocks.total() > total);
        loans.into_iter().for_each(|loan| viper.take_back(loan));

        let session = open(&pool(), 100_000);
        let limited = &session.engine;
        // 100,000 bytes are four blocks.
        let one = limited.lend(b"key", 3 * ROOM as u64).unwrap();
        assert!(limited.lend(b"key", ROOM as u64 + 1).is_none());
        let other = limited.lend(b"key", ROOM as u64).unwrap();
        assert!(limited.lend(b"key", ROOM as u64).is_none());
        limited.take_back(one);
        limited.take_back(other);
        limited.take_back(limited.lend(b"key", 4 * ROOM as u64).unwrap());
    }

    /// R10: a loan leaves no trace. What was adopted is there after a restart, and everything else is free.
    #[test]
    fn hole_r10_what_was_lent_and_not_adopted_is_free_after_a_restart() {
        let pool = pool();
        let whole = value(2 * ROOM + 100, 1);
        let mut session = open(&pool, 1 << 20);
        let viper = Arc::clone(&session.engine);
        let [mut kept, lost] =
            [b"kept", b"lost"].map(|key| viper.lend(key, 2 * ROOM as u64 + 100).unwrap());
        for loan in [&kept, &lost] {
            write(&viper.pool, loan, &whole);
        }
        assert!(put(&mut session, b"kept", &mut kept, &whole).unwrap());
        let _ticket = session.commit().unwrap();
        let free = viper.space.blocks.free_count();
        drop((session, lost));
        drop(viper);
        let mut session = open(&pool, 1 << 20);
        assert!(read(&mut session, b"kept").unwrap() == whole);
        assert_eq!(read(&mut session, b"lost"), None);
        // The three blocks of the loan.
        assert_eq!(session.engine.space.blocks.free_count(), free + 3);
        assert_eq!(session.engine.check().unwrap().findings, []);
    }

    /// A record that finds no room leaves the loan as it was.
    #[test]
    fn nothing_leaks_of_a_put_for_which_there_is_no_room() {
        let mut session = session();
        let viper = Arc::clone(&session.engine);
        let whole = value(3 * ROOM, 1);
        let mut loan = viper.lend(b"key", whole.len() as u64).unwrap();
        write(&viper.pool, &loan, &whole);
        let mut number = 0_u32;
        // Fills the pool, the open blocks included.
        for bytes in [200_000, 20_000, 500, 1] {
            let mut put = |session: &mut ViperSession| {
                number += 1;
                session.put(&number.to_le_bytes(), &value(bytes, 2), 0)
            };
            while put(&mut session).is_ok() {}
        }
        let refused = put(&mut session, b"key", &mut loan, &whole);
        assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
        viper.take_back(loan);
        assert_eq!(viper.lending.lent.load(Ordering::Relaxed), 0);
        assert_eq!(read(&mut session, b"key"), None);
        for _ in 0..4 {
            viper.compactor().free_passed(&viper).unwrap();
        }
        assert!(viper.space.blocks.free_count() >= 3);
        assert_eq!(viper.check().unwrap().findings, []);
    }
}
