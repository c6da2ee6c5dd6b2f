//! Chained values: larger than a block, cut into pieces that fill overflow blocks.
//!
//! The pieces are fenced before the record that points at them is written: a record that verifies has its
//! whole value. Pieces that no live record reaches are free blocks to recovery.

use super::blocks::{Info, State};
use super::layout::{ChainHead, Kind, OVERFLOW_HEAD};
use super::record::Chain;
use super::session::ViperSession;
use crate::error::Error;

/// Writes `key` and `value`, one after the other, as a chain.
///
/// # Errors
/// [`Error::NoSpace`]; nothing changed.
pub(super) fn write(session: &mut ViperSession, key: &[u8], value: &[u8]) -> Result<Chain, Error> {
    let geometry = session.engine.geometry;
    let room = geometry.overflow_room() as usize;
    let total = key.len() + value.len();
    let pieces = total.div_ceil(room).max(1);
    let mut blocks = Vec::with_capacity(pieces);
    session.take_blocks(pieces, &mut blocks)?;
    let name = session.engine.chance.word();
    let mut image = Vec::with_capacity(geometry.block_bytes as usize);
    for (piece, &block) in blocks.iter().enumerate() {
        image.clear();
        image.resize(OVERFLOW_HEAD as usize, 0);
        let from = piece * room;
        let to = (from + room).min(total);
        image.extend_from_slice(key.get(from..to.min(key.len())).unwrap_or(&[]));
        let (from, to) = (from.saturating_sub(key.len()), to.saturating_sub(key.len()));
        image.extend_from_slice(value.get(from..to).unwrap_or(&[]));
        let next = blocks.get(piece + 1).map_or(0, |&next| u64::from(next));
        let data = image.get(OVERFLOW_HEAD as usize..).unwrap_or(&[]);
        let data_check = session.engine.pool.secret().sum(data);
        let head = ChainHead {
            next,
            piece: piece as u64,
            bytes: data.len() as u64,
            data_check,
            name,
        };
        write_piece(session, block, head, &mut image);
    }
    session.count_used_blocks(pieces as u64);
    session.settle_and_fence();
    Ok(Chain {
        bytes: total as u64,
        first: blocks.first().copied().unwrap_or(0),
        pieces: pieces as u32,
        key_bytes: key.len() as u64,
        name,
    })
}

fn write_piece(session: &mut ViperSession, block: u32, head: ChainHead, image: &mut Vec<u8>) {
    let engine = &session.engine;
    let at = engine.blocks.at(block);
    let epoch = engine.blocks.next_epoch(block);
    let secret = engine.pool.secret();
    if let Some(place) = image.first_chunk_mut::<{ OVERFLOW_HEAD as usize }>() {
        *place = head.to_bytes(secret, at, epoch);
    }
    image.resize(image.len().next_multiple_of(64), 0);
    if let Some(entry) = engine.blocks.get(block) {
        entry.set_filled(head.bytes as u32);
        entry.set(Info {
            state: State::Overflow,
            kind: Kind::Overflow,
            epoch,
        });
    }
    let flushed = session.lane.stream(at, image);
    session.unfenced.add(flushed);
}
