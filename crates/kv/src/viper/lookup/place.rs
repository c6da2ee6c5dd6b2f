//! Values that are read where they lie, by peers without a thread here. (RDMP-KV section III-A: the
//! two-phase GET.)
//!
//! Only chained values are placed. A record in a page has no check that a peer could verify: its own is made
//! with the pool's secret, which no peer may know, and covers its place, from which compaction moves it. A
//! piece of a chain never changes while its chain lives, and its block is not reused as long as somebody may
//! have found the chain: a lease of the epochs, which begins before the look-up, holds it.
//!
//! The check that a peer verifies is not persistent, unless a peer made it: then it is the pool's, too.
//! Otherwise it is made when a session places a piece for the first time, of bytes that verify by the pool's
//! own check, and kept.

use super::super::layout::{ChainHead, OVERFLOW_HEAD};
use super::super::read::{Pieces, Reader, chain_of};
use super::super::record::{Record, RecordKind};
use super::super::session::ViperSession;
use crate::engine::{Found, Piece, Placed, Placing};
use crate::error::{Error, corrupt};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Checks that a session keeps: some 3 MiB.
const CHECKS_MAX: usize = 1 << 16;

impl ViperSession {
    /// Where the value of `key` lies, if it is a long one; otherwise reads it.
    #[cold]
    pub(in crate::viper) fn place_slow(
        &mut self,
        key: &[u8],
        how: &Placing,
        into: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<(Found, Option<Placed>)>, Error> {
        // Before the look: what is found from here on stays.
        if self.engine.is_readable && self.engine.epochs.lease(how.hold) {
            let Some(looked) = self.read(key, None)? else {
                return Ok(None);
            };
            let before = pieces.len();
            if looked.record.kind == RecordKind::Chained {
                let placed = self.place_pieces(&looked.record, how, pieces);
                if let Some(placed) = placed.map_err(|error| self.engine.at_path(error))? {
                    return Ok(Some((self.found(&looked), Some(placed))));
                }
            }
            pieces.truncate(before);
        }
        Ok(self.get_slow(key, into)?.map(|found| (found, None)))
    }

    /// The pieces of the record in `scratch`; `None`: it is to be read.
    fn place_pieces(
        &mut self,
        record: &Record,
        how: &Placing,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<Placed>, Error> {
        let chain = chain_of(record, &self.scratch)?;
        let is_placed = chain.key_bytes == 0
            && chain.bytes > how.longer_than
            && chain.pieces as usize <= how.pieces_max;
        if !is_placed {
            return Ok(None);
        }
        if self.checks.len() + chain.pieces as usize > CHECKS_MAX {
            self.checks.clear();
        }
        let reader = self.engine.reader();
        let (room, mut left) = (reader.geometry.overflow_room(), chain.bytes);
        let mut walk = Pieces::new(&reader, &chain);
        while let Some((head, offset)) = walk.next_piece()? {
            if head.bytes > room.min(left) {
                let at = offset - OVERFLOW_HEAD;
                return Err(corrupt(at, "a piece of a value has a wrong length"));
            }
            left -= head.bytes;
            pieces.push(Piece {
                offset,
                bytes: head.bytes,
                check: check_of(&reader, &mut self.checks, &head, offset)?,
            });
        }
        if left > 0 {
            let at = reader.blocks.at(chain.first);
            return Err(corrupt(at, "a chained value is too short"));
        }
        Ok(Some(Placed {
            bytes: chain.bytes,
            seed: chain.name,
        }))
    }
}

/// The check of the piece whose bytes begin at this place. They are read if it is not known.
fn check_of(
    reader: &Reader<'_>,
    known: &mut HashMap<(u64, u64), u64>,
    head: &ChainHead,
    offset: u64,
) -> Result<u64, Error> {
    if head.is_by_writer {
        return Ok(head.data_check);
    }
    if let Some(&check) = known.get(&(offset, head.name)) {
        return Ok(check);
    }
    let mut data = Vec::new();
    let region = reader.pool.region();
    region.load_behind(offset, head.bytes.next_multiple_of(8), &mut data);
    data.truncate(head.bytes as usize);
    if !head.holds(reader.pool.secret(), &data) {
        let what = "the checksum of a piece of a value does not hold";
        return Err(corrupt(offset, what));
    }
    let check = xxh3_64_with_seed(&data, head.name);
    known.insert((offset, head.name), check);
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::super::super::{Viper, layout::Geometry};
    use super::*;
    use crate::engine::backend::Backend;
    use crate::engine::kind::EngineKind;
    use crate::engine::{Engine, EngineSession};
    use crate::options::Options;
    use everdram_pm::Pool;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(3600);

    fn session(keep_room: bool) -> ViperSession {
        let options = Options {
            initial_bytes: 1 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 8 << 20,
            reclaim_background: false,
            keep_room,
            ..Options::default()
        };
        let geometry = Geometry::new(4096, 6, None).unwrap();
        let pool = Pool::heap(8 << 20, EngineKind::Viper.number(), geometry.to_words());
        let viper = Viper::over(pool, Path::new("heap"), &options).unwrap();
        ViperSession::new(viper).unwrap()
    }

    fn value(bytes: usize, salt: u8) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8 ^ salt).collect()
    }

    fn how(hold: Duration) -> Placing {
        Placing {
            longer_than: 20_000,
            hold,
            pieces_max: 4,
        }
    }

    type Answer = Option<(Vec<u8>, Option<(Placed, Vec<Piece>)>)>;

    /// The value, or where it lies.
    fn ask(session: &mut ViperSession, key: &[u8], how: &Placing) -> Result<Answer, Error> {
        let (mut into, mut pieces) = (Vec::new(), Vec::new());
        let found = session.get_or_place(key, how, &mut into, &mut pieces)?;
        Ok(found.map(|(_, placed)| (into, placed.map(|placed| (placed, pieces)))))
    }

    /// What a peer reads, if all of it verifies.
    fn read_there(session: &ViperSession, placed: &Placed, pieces: &[Piece]) -> Option<Vec<u8>> {
        let mut whole = Vec::new();
        for piece in pieces {
            let mut data = Vec::new();
            let words = piece.bytes.next_multiple_of(8);
            let region = session.engine.pool.region();
            region.load_behind(piece.offset, words, &mut data);
            data.truncate(piece.bytes as usize);
            if xxh3_64_with_seed(&data, placed.seed) != piece.check {
                return None;
            }
            whole.extend(data);
        }
        assert_eq!(whole.len() as u64, placed.bytes);
        Some(whole)
    }

    fn placed(session: &mut ViperSession, key: &[u8], hold: Duration) -> (Placed, Vec<Piece>) {
        let answer = ask(session, key, &how(hold)).unwrap();
        let (read, placed) = answer.expect("the key is there");
        assert!(read.is_empty());
        placed.expect("it is placed")
    }

    #[test]
    fn long_values_are_placed_and_others_are_read() {
        let mut session = session(true);
        for bytes in [0, 100, 20_000, 24_000, 30_000, 90_000, 120_000] {
            let whole = value(bytes, 1);
            session.put(b"key", &whole, 0).unwrap();
            let (read, placed) = ask(&mut session, b"key", &how(LONG)).unwrap().unwrap();
            // Records of one page have no pieces; 120,000 bytes are more than four.
            assert_eq!(
                placed.is_some(),
                (30_000..=90_000).contains(&bytes),
                "{bytes}"
            );
            match placed {
                None => assert!(read == whole, "{bytes}"),
                Some((placed, pieces)) => {
                    assert!(read_there(&session, &placed, &pieces).unwrap() == whole);
                    // Another time nothing is summed up.
                    assert_eq!(session.checks.len(), pieces.len());
                    session.checks.values_mut().for_each(|check| *check ^= 1);
                    let (_, again) = ask(&mut session, b"key", &how(LONG)).unwrap().unwrap();
                    assert_eq!(again.unwrap().1[0].check, pieces[0].check ^ 1);
                    session.checks.clear();
                }
            }
        }
        assert!(ask(&mut session, b"other", &how(LONG)).unwrap().is_none());
        session.put(b"key", &value(50_000, 1), 1).unwrap();
        assert!(ask(&mut session, b"key", &how(LONG)).unwrap().is_none());
        // A key that is longer than a page lies in its chain.
        let (key, whole) = (value(30_000, 3), value(50_000, 4));
        session.put(&key, &whole, 0).unwrap();
        let (read, placed) = ask(&mut session, &key, &how(LONG)).unwrap().unwrap();
        assert!(placed.is_none() && read == whole);
    }

    #[test]
    fn a_pool_that_gives_room_back_places_nothing() {
        let mut session = session(false);
        assert!(session.engine.readable().is_none());
        let whole = value(50_000, 1);
        session.put(b"key", &whole, 0).unwrap();
        let (read, placed) = ask(&mut session, b"key", &how(LONG)).unwrap().unwrap();
        assert!(placed.is_none() && read == whole);
    }

    /// Overwrites the key and frees what can be freed; the number of free blocks.
    fn overwrite(session: &mut ViperSession, salt: u8) -> u64 {
        session.put(b"key", &value(50_000, salt), 0).unwrap();
        session.commit_pending().unwrap();
        let viper = Arc::clone(&session.engine);
        for _ in 0..4 {
            viper.compactor().free_passed(&viper).unwrap();
        }
        viper.space.blocks.free_count()
    }

    #[test]
    fn what_was_placed_stays_for_its_time() {
        let mut session = session(true);
        overwrite(&mut session, 0);
        let (first, pieces) = placed(&mut session, b"key", LONG);
        let free = overwrite(&mut session, 1);
        for salt in 2..12 {
            assert!(
                overwrite(&mut session, salt) < free,
                "a block is free again"
            );
        }
        let read = read_there(&session, &first, &pieces).unwrap();
        assert!(read == value(50_000, 0));
    }

    /// R5: without a lease that lasts, the blocks are used again, and whoever reads late notices.
    #[test]
    fn hole_r5_what_lies_in_a_reused_block_does_not_verify() {
        let mut session = session(true);
        overwrite(&mut session, 0);
        let (first, pieces) = placed(&mut session, b"key", Duration::from_millis(1));
        let begun = Instant::now();
        let mut salt = 0_u8;
        while read_there(&session, &first, &pieces).is_some() {
            salt = salt.wrapping_add(1).max(1);
            overwrite(&mut session, salt);
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "no block is reused"
            );
        }
    }

    #[test]
    fn a_damaged_piece_is_an_error_and_no_place() {
        let mut session = session(true);
        overwrite(&mut session, 0);
        let (_, pieces) = placed(&mut session, b"key", LONG);
        session.checks.clear();
        let (head, data) = (
            pieces[1].offset - OVERFLOW_HEAD + 16,
            pieces[1].offset + 992,
        );
        for at in [head, data] {
            let word = session.engine.pool.region().load_word(at);
            let _ = session.lane.store_word(at, word ^ 1 << 40);
            let refused = ask(&mut session, b"key", &how(LONG)).map(|_| ());
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
            let _ = session.lane.store_word(at, word);
        }
        assert!(ask(&mut session, b"key", &how(LONG)).is_ok());
    }
}
