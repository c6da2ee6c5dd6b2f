//! Chained values: larger than a block, cut into pieces that fill overflow blocks.
//!
//! The pieces are fenced before the record that points at them is written: a record that verifies has its
//! whole value. Pieces that no live record reaches are free blocks to recovery.
//!
//! Values are large, so they are not copied without need. A writer streams a value from the caller's memory;
//! a reader copies it to the caller's buffer and verifies it there.

pub(super) mod lending;

use super::block_table::{Info, State};
use super::layout::{ChainHead, Kind, OVERFLOW_HEAD};
use super::record::Chain;
use super::session::ViperSession;
use crate::error::Error;
use crate::steps::{self, Step};
use everdram_pm::LINE;

// The data of a piece starts a line, so the caller's bytes are whole lines except the last ones.
const _: () = assert!(OVERFLOW_HEAD == LINE);

/// Writes `key` and `value`, one after the other, as a chain.
///
/// # Errors
/// [`Error::NoSpace`]; nothing changed.
pub(super) fn write(session: &mut ViperSession, key: &[u8], value: &[u8]) -> Result<Chain, Error> {
    let room = session.engine.space.geometry.overflow_room() as usize;
    let total = key.len() + value.len();
    let pieces = total.div_ceil(room).max(1);
    let mut blocks = Vec::with_capacity(pieces);
    let begun = steps::begin();
    session.take_blocks(pieces, &mut blocks)?;
    begun.end(Step::Room);
    let name = session.engine.chance.word();
    let mut joined = Vec::new();
    let begun = steps::begin();
    for (piece, &block) in blocks.iter().enumerate() {
        let from = piece * room;
        let data = part(key, value, from, (from + room).min(total), &mut joined);
        let head = ChainHead {
            next: blocks.get(piece + 1).map_or(0, |&next| u64::from(next)),
            piece: piece as u64,
            bytes: data.len() as u64,
            data_check: session.engine.pool.secret().sum(data),
            is_by_writer: false,
            name,
        };
        write_piece(session, block, State::Overflow, head, data);
    }
    begun.end(Step::Store);
    let _ordered = session.settle_and_fence();
    Ok(Chain {
        bytes: total as u64,
        first: blocks.first().copied().unwrap_or(0),
        pieces: pieces as u32,
        key_bytes: key.len() as u64,
        name,
    })
}

/// Bytes `from .. to` of `key` and `value`, one after the other; in `joined` if some of them are the key's.
fn part<'a>(
    key: &[u8],
    value: &'a [u8],
    from: usize,
    to: usize,
    joined: &'a mut Vec<u8>,
) -> &'a [u8] {
    let of_value = from.saturating_sub(key.len())..to.saturating_sub(key.len());
    let value = value.get(of_value).unwrap_or(&[]);
    match key.get(from..to.min(key.len())) {
        None | Some([]) => value,
        Some(key) => {
            joined.clear();
            joined.extend_from_slice(key);
            joined.extend_from_slice(value);
            joined
        }
    }
}

fn write_piece(session: &mut ViperSession, block: u32, state: State, head: ChainHead, data: &[u8]) {
    write_head(session, block, state, head);
    let ViperSession {
        engine,
        lane,
        unfenced,
        ..
    } = session;
    let (lines, last) = data.as_chunks::<{ LINE as usize }>();
    let lines = lines.as_flattened();
    let data_at = engine.space.blocks.at(block) + OVERFLOW_HEAD;
    if !lines.is_empty() {
        unfenced.add(lane.stream(data_at, lines));
    }
    if !last.is_empty() {
        let mut line = [0; LINE as usize];
        line[..last.len()].copy_from_slice(last);
        unfenced.add(lane.stream(data_at + lines.len() as u64, &line));
    }
}

/// Begins the life of a block as a piece.
fn write_head(session: &mut ViperSession, block: u32, state: State, head: ChainHead) {
    let ViperSession {
        engine,
        lane,
        unfenced,
        ..
    } = session;
    let at = engine.space.blocks.at(block);
    let epoch = engine.space.blocks.next_epoch(block);
    if let Some(entry) = engine.space.blocks.get(block) {
        entry.set_filled(head.bytes as u32);
        entry.set(Info {
            state,
            kind: Kind::Overflow,
            epoch,
        });
    }
    let head = head.to_bytes(engine.pool.secret(), at, epoch);
    unfenced.add(lane.stream(at, &head));
}

/// Makes a chain of blocks whose bytes are there already, and flushed: writes their heads, and one fence
/// covers both. `is_by_writer`: the checks of the pieces are seeded with the name; otherwise they are keyed.
pub(super) fn adopt(
    session: &mut ViperSession,
    pieces: &[Adopted],
    name: u64,
    is_by_writer: bool,
) -> Chain {
    for (number, piece) in pieces.iter().enumerate() {
        let next = pieces.get(number + 1);
        let head = ChainHead {
            next: next.map_or(0, |next| u64::from(next.block)),
            piece: number as u64,
            bytes: piece.bytes,
            data_check: piece.check,
            is_by_writer,
            name,
        };
        write_head(session, piece.block, State::Overflow, head);
    }
    let _ordered = session.settle_and_fence();
    Chain {
        bytes: pieces.iter().map(|piece| piece.bytes).sum(),
        first: pieces.first().map_or(0, |piece| piece.block),
        pieces: pieces.len() as u32,
        key_bytes: 0,
        name,
    }
}

/// A piece that others have written.
pub(super) struct Adopted {
    pub(super) block: u32,
    pub(super) bytes: u64,
    pub(super) check: u64,
}

/// Pieces that a [`Stream`] writes between fences: unfenced data may take memory.
const STREAM_UNFENCED: u32 = 64;

/// A chain that is written as its bytes come, for a caller that does not have all of them at once. The caller
/// holds no stripe and no pin.
pub(super) struct Stream<'a> {
    session: &'a mut ViperSession,
    /// The state of its blocks in the block table.
    state: State,
    name: u64,
    /// Blocks written so far, and their lives.
    written: Vec<(u32, u32)>,
    /// The block of the piece that is being filled.
    next: u32,
    piece: Vec<u8>,
    bytes: u64,
}

impl<'a> Stream<'a> {
    pub(super) fn new(session: &'a mut ViperSession, state: State) -> Result<Stream<'a>, Error> {
        let name = session.engine.chance.word();
        let next = take_one(session)?;
        Ok(Stream {
            session,
            state,
            name,
            written: Vec::new(),
            next,
            piece: Vec::new(),
            bytes: 0,
        })
    }

    /// Adds words, little-endian.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the caller can then only call [`Stream::give_up`].
    pub(super) fn push(&mut self, words: &[u64]) -> Result<(), Error> {
        // The room of a piece is a multiple of a word, so whole words fill it.
        let room = self.session.engine.space.geometry.overflow_room() as usize / 8;
        let mut words = words;
        while !words.is_empty() {
            let free = room - self.piece.len() / 8;
            if free == 0 {
                self.turn()?;
                continue;
            }
            let (fitting, rest) = words.split_at(free.min(words.len()));
            self.piece
                .extend(fitting.iter().flat_map(|word| word.to_le_bytes()));
            words = rest;
        }
        Ok(())
    }

    /// Writes the full piece and begins the next one.
    fn turn(&mut self) -> Result<(), Error> {
        let following = take_one(self.session)?;
        self.write_piece(following);
        self.next = following;
        if self.written.len().is_multiple_of(STREAM_UNFENCED as usize) {
            let _ordered = self.session.settle_and_fence();
        }
        Ok(())
    }

    fn write_piece(&mut self, following: u32) {
        let head = ChainHead {
            next: u64::from(following),
            piece: self.written.len() as u64,
            bytes: self.piece.len() as u64,
            data_check: self.session.engine.pool.secret().sum(&self.piece),
            is_by_writer: false,
            name: self.name,
        };
        let epoch = self.session.engine.space.blocks.next_epoch(self.next);
        self.written.push((self.next, epoch));
        self.bytes += head.bytes;
        write_piece(self.session, self.next, self.state, head, &self.piece);
        self.piece.clear();
    }

    /// Writes the last piece and fences all of them. Returns the chain, and its blocks with their lives.
    pub(super) fn finish(mut self) -> (Chain, Vec<(u32, u32)>) {
        self.write_piece(0);
        let _ordered = self.session.settle_and_fence();
        let chain = Chain {
            bytes: self.bytes,
            first: self.written.first().map_or(0, |&(block, _)| block),
            pieces: self.written.len() as u32,
            key_bytes: 0,
            name: self.name,
        };
        (chain, self.written)
    }

    /// Frees everything that was written.
    pub(super) fn give_up(self) {
        let ordered = self.session.settle_and_fence();
        let blocks = &self.session.engine.space.blocks;
        blocks.give_back(self.next);
        for (block, epoch) in self.written {
            blocks.release(block, epoch, &ordered);
        }
    }
}

/// Times that a stream makes room by eviction for a block that others may take.
const TRIES_MAX: u32 = 64;

/// Takes a block. With a tier below, records leave for it; the caller holds no stripe and no pin.
fn take_one(session: &mut ViperSession) -> Result<u32, Error> {
    let mut taken = Vec::with_capacity(1);
    for evictions in 0.. {
        match session.take_blocks(1, &mut taken) {
            Err(Error::NoSpace(_))
                if session.engine.below.is_some()
                    && evictions < TRIES_MAX
                    && session.engine.evict_for(0) => {}
            outcome => {
                outcome?;
                break;
            }
        }
    }
    let none = || Error::NoSpace("no free block".into());
    taken.first().copied().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::super::read::Pieces;
    use super::super::record::{Order, RecordKind};
    use super::super::{Viper, layout::Geometry};
    use super::*;
    use crate::engine::EngineSession;
    use crate::engine::backend::Backend;
    use crate::engine::kind::EngineKind;
    use crate::options::Options;
    use everdram_pm::Pool;
    use std::path::Path;
    use std::sync::Arc;

    fn session() -> ViperSession {
        let options = Options {
            initial_bytes: 1 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 4 << 20,
            reclaim_background: false,
            ..Options::default()
        };
        let geometry = Geometry::new(4096, 6, None).unwrap();
        let pool = Pool::heap(4 << 20, EngineKind::Viper.number(), geometry.to_words());
        let viper = Viper::over(pool, Path::new("heap"), &options).unwrap();
        ViperSession::new(viper).unwrap()
    }

    fn bytes(count: usize, salt: usize) -> Vec<u8> {
        (0..count).map(|byte| (byte * 31 + salt) as u8).collect()
    }

    /// Appends a whole chain to `into`.
    fn read(session: &ViperSession, chain: &Chain, into: &mut Vec<u8>) -> Result<(), Error> {
        let reader = session.engine.reader();
        let mut pieces = Pieces::new(&reader, chain);
        while pieces.append(into)? {}
        Ok(())
    }

    /// Writes a chain into blocks full of ones, checks each of its bytes, and reads it back.
    fn write_and_look(session: &mut ViperSession, key: &[u8], value: &[u8]) {
        let viper = Arc::clone(&session.engine);
        let region = viper.pool.region();
        let block_bytes = viper.space.geometry.block_bytes;
        let room = viper.space.geometry.overflow_room() as usize;
        let whole = [key, value].concat();
        let count = whole.len().div_ceil(room).max(1);
        let mut blocks = Vec::new();
        viper.space.blocks.claim(count, false, &mut blocks).unwrap();
        for &block in &blocks {
            let ones = vec![0xff; block_bytes as usize];
            let dirty = session.lane.store(viper.space.blocks.at(block), &ones);
            session.unfenced.add(session.lane.flush(dirty));
        }
        session.reserved.clone_from(&blocks);
        let chain = write(session, key, value).unwrap();
        assert_eq!(chain.bytes as usize, whole.len());
        assert_eq!((chain.pieces as usize, chain.first), (count, blocks[0]));
        assert_eq!(viper.reader().chain_blocks(&chain).unwrap(), blocks);
        for (piece, &block) in blocks.iter().enumerate() {
            let data = &whole[piece * room..whole.len().min((piece + 1) * room)];
            let mut found = vec![0; block_bytes as usize];
            region.load(viper.space.blocks.at(block), &mut found);
            let found = &found[OVERFLOW_HEAD as usize..];
            let (found, behind) = found.split_at(data.len());
            assert!(found == data, "piece {piece}");
            let (padding, untouched) =
                behind.split_at(data.len().next_multiple_of(64) - data.len());
            assert!(padding.iter().all(|&byte| byte == 0), "piece {piece}");
            assert!(untouched.iter().all(|&byte| byte == 0xff), "piece {piece}");
        }
        let mut found = b"before".to_vec();
        read(session, &chain, &mut found).unwrap();
        assert!(found == [b"before", &whole[..]].concat());
        viper.retire_chain(chain);
        crate::viper::compaction::reclaim_all(&viper).unwrap();
    }

    #[test]
    fn every_byte_is_in_its_place_and_is_read_back() {
        let mut session = session();
        let room = session.engine.space.geometry.overflow_room() as usize;
        for value in [
            0,
            1,
            63,
            64,
            65,
            room - 1,
            room,
            room + 1,
            2 * room + 64,
            3 * room,
        ] {
            for key in [0, 1, 64, room - 1, room, room + 70] {
                // Callers have values at any address.
                let held = bytes(value + 7, 3);
                let place = (value + key) % 7;
                write_and_look(&mut session, &bytes(key, 5), &held[place..place + value]);
            }
        }
    }

    /// A caller could take part of a damaged value for the whole one. On an error its buffer must be as it
    /// was.
    #[test]
    fn nothing_of_a_damaged_value_is_left_with_the_caller() {
        let mut session = session();
        let room = session.engine.space.geometry.overflow_room();
        let value = bytes(2 * room as usize + 1000, 1);
        session.put(b"key", &value, 0).unwrap();
        session.commit_pending().unwrap();
        let viper = Arc::clone(&session.engine);
        let (old, _) = session.find(viper.hash(b"key"), b"key").unwrap().unwrap();
        let blocks = viper.reader().chain_blocks(&old.chain.unwrap()).unwrap();
        for (piece, &block) in blocks.iter().enumerate() {
            // Next block, length, name; then the data, first to last word.
            for within in [16, 32, 56, OVERFLOW_HEAD, OVERFLOW_HEAD + 992] {
                let at = viper.space.blocks.at(block) + within;
                let word = viper.pool.region().load_word(at);
                let _ = session.lane.store_word(at, word ^ 1 << 40);
                let mut into = b"before".to_vec();
                let refused = session.get(b"key", &mut into).map(|_| ());
                let place = format!("piece {piece}, byte {within}");
                assert!(
                    matches!(refused, Err(Error::Corrupt { .. })),
                    "{place}: {refused:?}"
                );
                assert_eq!(into, b"before", "{place}");
                let _ = session.lane.store_word(at, word);
            }
        }
        let mut into = Vec::new();
        assert!(session.get(b"key", &mut into).unwrap().is_some());
        assert!(into == value);
    }

    /// A record may claim any chain. Reading it costs memory only for pieces that exist.
    #[test]
    fn a_record_that_claims_too_much_takes_little_memory() {
        let mut session = session();
        let chain = write(&mut session, b"", &bytes(50_000, 1)).unwrap();
        let most = Chain {
            bytes: u64::MAX,
            ..chain
        };
        let claims = [
            most,
            Chain {
                pieces: u32::MAX,
                ..most
            },
            Chain {
                key_bytes: u64::MAX,
                ..most
            },
            Chain { pieces: 0, ..chain },
            Chain { pieces: 2, ..chain },
            Chain {
                bytes: 49_999,
                ..chain
            },
            Chain { bytes: 0, ..chain },
        ];
        for (number, claim) in claims.into_iter().enumerate() {
            let kind = RecordKind::Chained;
            let payload = claim.to_bytes();
            let location = session
                .write(kind, b"key", &payload, 0, Order::new(1, false))
                .unwrap();
            let _ordered = session.settle_and_fence();
            let viper = Arc::clone(&session.engine);
            let reader = viper.reader();
            let mut spot = reader
                .spot(location.get() * super::super::read::UNIT)
                .unwrap();
            let record = reader.load(&mut spot, &mut session.scratch).unwrap();
            let mut into = b"before".to_vec();
            let refused = reader.value(&record, &session.scratch, &mut into);
            assert!(
                matches!(refused, Err(Error::Corrupt { .. })),
                "claim {number}: {refused:?}"
            );
            assert_eq!(into, b"before", "claim {number}");
            assert!(into.capacity() < 4 << 20, "claim {number}");
        }
    }
}
