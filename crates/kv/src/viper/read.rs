//! Reading records in place: by location, copied out, verified on the copy (V6, V16).
//!
//! A location is the byte offset of a record divided by [`UNIT`]. A reader that follows one holds an epoch
//! pin older than the look-up, so the block is not reused meanwhile. Records do not change once they are
//! published, except 8-byte words of fixed-size values, which are read as whole words.
//!
//! Prefetching for several keys at once: a processor runs some hundreds of instructions ahead while it waits
//! for memory. A prefetch of a page whose address it must translate first stalls it like a load. So the
//! prefetches of one kind stand close together, in loops of a few instructions; all else is computed between
//! these loops.

use super::Viper;
use super::block_table::{Blocks, Info, State};
use super::layout::{
    ChainHead, FixedShape, Geometry, Kind, OVERFLOW_HEAD, Pages, parse_mark_word, word_at,
};
use super::record::{self, Chain, Head, Record, RecordKind};
use crate::concurrency::epoch::Pin;
use crate::concurrency::seam::looks;
use crate::error::{Error, corrupt};
use crate::index::KeyHash;
use everdram_pm::{Pool, Region};

/// Locations count in words of 8 bytes: 40 bits reach 8 TiB.
pub(crate) const UNIT: u64 = 8;

/// The greater offsets that locations can name lie in the log.
pub(super) const POOL_END: u64 = 1 << 42;

/// Lines that are fetched before the length of a record is known.
const READ_AHEAD: usize = 4;

/// Bytes that are reserved at once for a chained value. A record of a damaged pool may claim any length, so
/// more memory is allocated only for pieces that verify.
const RESERVE_MAX: u64 = 1 << 20;

/// The parts of a pool that readers need.
pub(crate) struct Reader<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) geometry: &'a Geometry,
    pub(crate) blocks: &'a Blocks,
}

/// Where a record lies, resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    /// Byte offset in the pool.
    pub(crate) at: u64,
    pub(crate) info: Info,
    /// First byte of its block.
    pub(crate) block_at: u64,
}

impl Spot {
    /// Of a record in the log.
    pub(super) fn below() -> Spot {
        Spot {
            at: NOWHERE,
            info: Info {
                state: State::Outside,
                kind: Kind::Variable,
                epoch: 0,
            },
            block_at: NOWHERE,
        }
    }

    /// Whether the record lies in the log.
    pub(super) fn is_below(&self) -> bool {
        self.at == NOWHERE
    }
}

/// Where a record is marked dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkPlace {
    /// Offset of the mark word in the pool.
    pub(crate) at: u64,
    /// Its bit there.
    pub(crate) bit: u64,
    /// The life of its block.
    pub(crate) epoch: u32,
    /// The mark word, if it was read and verified.
    pub(crate) verified: Option<u64>,
}

/// The page that a record lies in.
pub(crate) struct Page<'a> {
    /// First byte.
    pub(crate) at: u64,
    pub(crate) pages: &'a Pages,
}

/// Where a chained record's value lies.
pub(crate) fn chain_of(record: &Record, scratch: &[u8]) -> Result<Chain, Error> {
    scratch
        .get(record.value())
        .and_then(Chain::parse)
        .ok_or_else(|| corrupt(0, "a record does not say where its value lies"))
}

#[cold]
pub(crate) fn damaged_mark(at: u64) -> Error {
    corrupt(at, "a mark word of a page does not verify")
}

impl<'a> Reader<'a> {
    fn region(&self) -> &'a Region {
        self.pool.region()
    }

    /// Resolves a byte offset.
    #[inline(always)]
    pub(crate) fn spot(&self, at: u64) -> Result<Spot, Error> {
        self.try_spot(at)
            .ok_or_else(|| corrupt(at, "a location outside the pool"))
    }

    #[inline(always)]
    pub(crate) fn try_spot(&self, at: u64) -> Option<Spot> {
        if at >= POOL_END {
            return None;
        }
        let block = self.blocks.number(at);
        Some(Spot {
            at,
            info: self.blocks.get(block)?.info(),
            block_at: self.blocks.at(block),
        })
    }

    /// The page of a record.
    #[inline]
    pub(crate) fn page(&self, spot: &Spot) -> Page<'a> {
        let pages = self.geometry.pages_of(spot.info.kind);
        // Blocks have less than 2^24 bytes, and narrow divisions are quicker.
        let within = (spot.at - spot.block_at) as u32 % pages.bytes as u32;
        Page {
            at: spot.at - u64::from(within),
            pages,
        }
    }

    /// Starts fetching the first lines of a record of any kind.
    #[inline]
    pub(crate) fn prefetch(&self, at: u64) {
        self.region().prefetch::<READ_AHEAD>(at);
    }

    /// Starts fetching the first lines of the record at byte `at`, which hold its head and most keys.
    #[inline]
    pub(crate) fn prefetch_start(&self, at: u64) {
        self.region().prefetch::<2>(at);
    }

    /// Copies the record at `at` into `scratch` and parses it; does not verify it.
    #[inline(always)]
    pub(crate) fn copy(&self, spot: &Spot, scratch: &mut Vec<u8>) -> Result<Record, Error> {
        self.try_copy(spot, scratch)
            .ok_or_else(|| corrupt(spot.at, "the head of a record is damaged"))
    }

    /// As [`Reader::copy`]; `None` if the head is invalid, or its record reaches past the block.
    #[inline(always)]
    fn try_copy(&self, spot: &Spot, scratch: &mut Vec<u8>) -> Option<Record> {
        if let Some(shape) = self.shape_of(spot) {
            return self.copy_slot(shape, spot, scratch);
        }
        let word = self.region().load_word(spot.at);
        let head = Head::parse(word)?;
        let whole = self.place_for(spot, head.bytes(), scratch)?;
        self.region().load(spot.at, whole);
        // Without this, the record might have other lengths than the head in the copy that is verified.
        (word_at(whole, 0) == word).then(|| head.record(whole))
    }

    /// As [`Reader::try_copy`], in a fixed-size page.
    #[inline(always)]
    fn copy_slot(&self, shape: &FixedShape, spot: &Spot, scratch: &mut Vec<u8>) -> Option<Record> {
        let whole = self.place_for(spot, shape.slot_bytes() as usize, scratch)?;
        if spot.info.kind == Kind::FixedEdited {
            // Edits may change its words while they are copied, one by one.
            let middle = (shape.value_at() + 8).min(whole.len());
            let (start, rest) = whole.split_at_mut(middle);
            self.region().load(spot.at, start);
            looks!();
            self.region().load(spot.at + start.len() as u64, rest);
        } else {
            self.region().load(spot.at, whole);
        }
        record::parse_slot(shape, whole)
    }

    /// Memory for a copy of a record of so many bytes; `None` if they reach past its block or the pool.
    #[inline(always)]
    fn place_for<'s>(
        &self,
        spot: &Spot,
        bytes: usize,
        scratch: &'s mut Vec<u8>,
    ) -> Option<&'s mut [u8]> {
        let room = spot.block_at + self.geometry.block_bytes - spot.at;
        if bytes as u64 > room || !self.region().contains(spot.at, bytes as u64) {
            return None;
        }
        if scratch.len() < bytes {
            scratch.resize(bytes, 0);
        }
        scratch.get_mut(..bytes)
    }

    /// The shape of the record at `spot`, if it lies in a page of slots.
    #[inline(always)]
    fn shape_of(&self, spot: &Spot) -> Option<&'a FixedShape> {
        self.geometry
            .fixed
            .as_ref()
            .filter(|_| spot.info.kind.is_fixed())
    }

    /// The record at `spot` if it is an ordinary one of `key`, without its value and not verified: enough to
    /// replace, remove or edit it. `None` decides nothing: the caller loads the whole record.
    #[inline(always)]
    pub(crate) fn header(&self, spot: &Spot, key: &[u8], scratch: &mut Vec<u8>) -> Option<Record> {
        let record = self.start(spot, scratch)?;
        (scratch.get(record.key()) == Some(key)).then_some(record)
    }

    /// The record at `spot` if it is an ordinary one, up to its key, which is then in `scratch`; not
    /// verified.
    #[inline(always)]
    pub(crate) fn start(&self, spot: &Spot, scratch: &mut Vec<u8>) -> Option<Record> {
        if let Some(shape) = self.shape_of(spot) {
            return self.start_of_slot(shape, spot, scratch);
        }
        let word = self.region().load_word(spot.at);
        let head = Head::parse(word)?;
        let bytes = head.start_bytes();
        let room = spot.block_at + self.geometry.block_bytes - spot.at;
        if head.bytes() as u64 > room {
            return None;
        }
        if scratch.len() < bytes {
            scratch.resize(bytes, 0);
        }
        let start = &mut scratch[..bytes];
        self.region().load(spot.at, start);
        let record = head.record(start);
        (word_at(start, 0) == word && record.kind == RecordKind::Value).then_some(record)
    }

    /// As [`Reader::start`], in a fixed-size page.
    #[inline(always)]
    fn start_of_slot(
        &self,
        shape: &FixedShape,
        spot: &Spot,
        scratch: &mut Vec<u8>,
    ) -> Option<Record> {
        let bytes = shape.value_at();
        if scratch.len() < bytes {
            scratch.resize(bytes, 0);
        }
        self.region().load(spot.at, &mut scratch[..bytes]);
        record::parse_slot_start(shape, &scratch[..bytes])
    }

    /// Starts fetching the mark word of a record, to write it.
    #[inline]
    pub(crate) fn prefetch_mark(&self, place: &MarkPlace) {
        self.region().prefetch_to_write(place.at);
    }

    /// Whether the copy in `scratch` is intact.
    #[inline(always)]
    pub(crate) fn verify(&self, spot: &Spot, record: &Record, scratch: &mut [u8]) -> bool {
        let secret = self.pool.secret();
        let Some(bytes) = scratch.get_mut(..record.bytes as usize) else {
            return false;
        };
        match self.shape_of(spot) {
            Some(shape) => {
                let edited = spot.info.kind == Kind::FixedEdited;
                record::verify_slot(secret, shape, bytes, spot.at, spot.info.epoch, edited)
            }
            None => record::verify(secret, bytes, spot.at, spot.info.epoch),
        }
    }

    /// Copies and verifies. Afterwards `spot` has the state of the block for which the copy verified.
    #[inline(always)]
    pub(crate) fn load(&self, spot: &mut Spot, scratch: &mut Vec<u8>) -> Result<Record, Error> {
        let record = self.copy(spot, scratch)?;
        if self.verify(spot, &record, scratch) {
            Ok(record)
        } else {
            self.load_again(spot, scratch)
        }
    }

    /// The block may have been opened for in-place updates between resolving the spot and copying.
    #[cold]
    fn load_again(&self, spot: &mut Spot, scratch: &mut Vec<u8>) -> Result<Record, Error> {
        let fresh = self.spot(spot.at)?;
        if fresh.info.kind != spot.info.kind {
            let record = self.copy(&fresh, scratch)?;
            if self.verify(&fresh, &record, scratch) {
                *spot = fresh;
                return Ok(record);
            }
        }
        Err(corrupt(spot.at, "the checksum of a record does not hold"))
    }

    /// Whether a verified record, its copy in `scratch`, is of `key`.
    #[inline(always)]
    pub(crate) fn is_of(&self, record: &Record, scratch: &[u8], key: &[u8]) -> Result<bool, Error> {
        let held = scratch.get(record.key()).unwrap_or(&[]);
        if record.kind != RecordKind::BigKey {
            return Ok(held == key);
        }
        if !key.starts_with(held) {
            return Ok(false);
        }
        let mut whole = Vec::new();
        self.big_key(record, scratch, &mut whole)?;
        Ok(whole == key)
    }

    /// The whole key of a verified record, in `scratch` or in `buffer`.
    pub(crate) fn key<'b>(
        &self,
        record: &Record,
        scratch: &'b [u8],
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], Error> {
        if record.kind != RecordKind::BigKey {
            return Ok(scratch.get(record.key()).unwrap_or(&[]));
        }
        self.big_key(record, scratch, buffer)?;
        Ok(buffer)
    }

    fn big_key(&self, record: &Record, scratch: &[u8], into: &mut Vec<u8>) -> Result<(), Error> {
        let chain = chain_of(record, scratch)?;
        let wanted = chain.key_bytes as usize;
        into.clear();
        let mut pieces = Pieces::new(self, &chain);
        while into.len() < wanted && pieces.append(into)? {}
        into.truncate(wanted);
        Ok(())
    }

    /// Length of a verified record's value in bytes.
    pub(crate) fn value_bytes(&self, record: &Record, scratch: &[u8]) -> Result<u64, Error> {
        if !record.kind.is_chained() {
            return Ok(record.value().len() as u64);
        }
        chain_of(record, scratch).map(|chain| chain.bytes - chain.key_bytes)
    }

    /// Appends the value of a verified record, its copy in `scratch`.
    #[inline(always)]
    pub(crate) fn value(
        &self,
        record: &Record,
        scratch: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if !record.kind.is_chained() {
            into.extend_from_slice(scratch.get(record.value()).unwrap_or(&[]));
            return Ok(());
        }
        let before = into.len();
        let result = self.chained_value(&chain_of(record, scratch)?, into);
        if result.is_err() {
            into.truncate(before);
        }
        result
    }

    /// As [`Reader::value`], for a chained record. On an error, `into` may hold part of the value.
    fn chained_value(&self, chain: &Chain, into: &mut Vec<u8>) -> Result<(), Error> {
        let ahead = chain.bytes.min(RESERVE_MAX).next_multiple_of(8);
        into.reserve(ahead as usize);
        let mut key_left = chain.key_bytes as usize;
        let mut pieces = Pieces::new(self, chain);
        let mut from = into.len();
        while pieces.append(into)? {
            let key = key_left.min(into.len() - from);
            into.drain(from..from + key);
            key_left -= key;
            from = into.len();
        }
        Ok(())
    }

    /// Where the record at `spot` is marked dead.
    #[inline]
    pub(crate) fn mark_of(&self, spot: &Spot) -> MarkPlace {
        let page = self.page(spot);
        let place = self
            .geometry
            .place(spot.info.kind, page.pages, spot.at - page.at);
        let per_word = super::layout::MARKS_PER_WORD;
        MarkPlace {
            at: page.at + 16 + place / per_word * 8,
            bit: 1 << (place % per_word),
            epoch: spot.info.epoch,
            verified: None,
        }
    }

    /// Where the record at `spot` is marked dead, its mark word read and verified.
    #[inline]
    pub(crate) fn verified_mark_of(&self, spot: &Spot) -> Result<MarkPlace, Error> {
        let place = self.mark_of(spot);
        self.verified_mark(place)
            .ok_or_else(|| damaged_mark(place.at))
    }

    /// The place with its mark word, if that verifies.
    #[inline]
    pub(crate) fn verified_mark(&self, place: MarkPlace) -> Option<MarkPlace> {
        let word = self.region().load_word(place.at);
        let is_intact = parse_mark_word(self.pool.secret(), place.at, place.epoch, word).is_some();
        is_intact.then_some(MarkPlace {
            verified: Some(word),
            ..place
        })
    }

    /// Where the record at byte `at` is marked dead.
    #[inline]
    pub(crate) fn mark_place(&self, at: u64) -> Result<MarkPlace, Error> {
        self.spot(at).map(|spot| self.mark_of(&spot))
    }

    /// The 48 bits of a mark word.
    pub(crate) fn marks(&self, mark_at: u64, epoch: u32) -> Result<u64, Error> {
        let word = self.region().load_word(mark_at);
        parse_mark_word(self.pool.secret(), mark_at, epoch, word)
            .ok_or_else(|| damaged_mark(mark_at))
    }

    /// The blocks of a chain, by their headers alone.
    pub(crate) fn chain_blocks(&self, chain: &Chain) -> Result<Vec<u32>, Error> {
        let mut blocks = Vec::new();
        self.chain_blocks_into(chain, &mut blocks).map(|()| blocks)
    }

    /// As [`Reader::chain_blocks`]; on damage, `blocks` has those before it.
    pub(super) fn chain_blocks_into(
        &self,
        chain: &Chain,
        blocks: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let mut pieces = Pieces::new(self, chain);
        while let Some(block) = pieces.next_block()? {
            blocks.push(block);
        }
        Ok(())
    }
}

/// Walks the pieces of a chain in order. The caller holds an epoch pin, as readers do.
pub(crate) struct Pieces<'a> {
    reader: &'a Reader<'a>,
    chain: &'a Chain,
    /// The next piece, and its block if there is one.
    piece: u32,
    block: u32,
    /// Bytes in the pieces so far.
    seen: u64,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(reader: &'a Reader<'a>, chain: &'a Chain) -> Pieces<'a> {
        Pieces {
            reader,
            chain,
            piece: 0,
            block: chain.first,
            seen: 0,
        }
    }

    /// Appends the verified bytes of the next piece to `into`; `false` at the end of the chain.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; `into` is unchanged.
    pub(crate) fn append(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        if self.piece == self.chain.pieces {
            return self.whole().map(|()| false);
        }
        let (head, at) = self.next_head()?;
        let room = self.reader.geometry.overflow_room();
        if head.bytes > room.min(self.chain.bytes - self.seen) {
            return Err(corrupt(at, "a piece of a value has a wrong length"));
        }
        self.seen += head.bytes;
        let before = into.len();
        let region = self.reader.pool.region();
        let data_at = at + OVERFLOW_HEAD;
        region.load_behind(data_at, head.bytes.next_multiple_of(8), into);
        into.truncate(before + head.bytes as usize);
        if !head.holds(self.reader.pool.secret(), &into[before..]) {
            into.truncate(before);
            let what = "the checksum of a piece of a value does not hold";
            return Err(corrupt(data_at, what));
        }
        Ok(true)
    }

    /// The header of the next piece and the first byte of its data; `None` at the end of the chain.
    pub(super) fn next_piece(&mut self) -> Result<Option<(ChainHead, u64)>, Error> {
        if self.piece == self.chain.pieces {
            return Ok(None);
        }
        let (head, at) = self.next_head()?;
        Ok(Some((head, at + OVERFLOW_HEAD)))
    }

    /// The block of the next piece, by the headers alone; `None` at the end of the chain.
    pub(crate) fn next_block(&mut self) -> Result<Option<u32>, Error> {
        if self.piece == self.chain.pieces {
            return Ok(None);
        }
        let block = self.block;
        self.next_head().map(|_| Some(block))
    }

    /// The verified header of the next piece, and where its block starts.
    fn next_head(&mut self) -> Result<(ChainHead, u64), Error> {
        let Reader { pool, blocks, .. } = self.reader;
        let at = blocks.at(self.block);
        if blocks.get(self.block).is_none()
            || !pool.region().contains(at, self.reader.geometry.block_bytes)
        {
            return Err(corrupt(at, "a chained value leads outside the pool"));
        }
        let mut bytes = [0; OVERFLOW_HEAD as usize];
        pool.region().load(at, &mut bytes);
        let expected = (u64::from(self.piece), self.chain.name);
        match ChainHead::parse(pool.secret(), at, &bytes) {
            Some((head, _)) if (head.piece, head.name) == expected => {
                self.piece += 1;
                self.block = head.next as u32;
                Ok((head, at))
            }
            _ => Err(corrupt(
                at,
                "the header of a piece of a value does not verify",
            )),
        }
    }

    fn whole(&self) -> Result<(), Error> {
        if self.seen == self.chain.bytes {
            return Ok(());
        }
        let at = self.reader.blocks.at(self.chain.first);
        Err(corrupt(at, "a chained value is too short"))
    }
}

/// The part of each record to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Its head and key, and its mark word to be written. The caller prefetched the index's lines when it
    /// locked the keys.
    Head,
    /// All of it, unless it is long.
    Whole,
}

/// In the list of places: the index has no candidate, so the key is absent.
pub(super) const NOWHERE: u64 = u64::MAX;

/// Addresses being fetched. A session keeps the lists, so that no call allocates.
#[derive(Default)]
pub(super) struct Ahead {
    hashes: Vec<KeyHash>,
    places: Vec<u64>,
    marks: Vec<u64>,
}

impl Ahead {
    /// Starts fetching the records of these keys.
    pub(super) fn start(
        &mut self,
        engine: &Viper,
        pin: &Pin<'_>,
        hashes: impl Iterator<Item = KeyHash>,
        what: What,
    ) {
        self.hashes.clear();
        self.hashes.extend(hashes);
        if what == What::Whole {
            for &hash in &self.hashes {
                engine.index.prefetch(hash);
            }
        }
        self.places.clear();
        self.places.extend(self.hashes.iter().map(|&hash| {
            let location = engine.index.candidates(hash, pin).next();
            location.map_or(NOWHERE, |location| location.get() * UNIT)
        }));
        let region = engine.pool.region();
        region.prefetch_each(&self.places);
        match what {
            What::Whole => {
                // The processor has translated the pages' addresses by now.
                for &at in &self.places {
                    region.prefetch::<4>(at);
                }
            }
            What::Head => {
                let reader = engine.reader();
                let places = self.places.iter().filter(|&&at| at != NOWHERE);
                let marks = places.filter_map(|&at| reader.mark_place(at).ok());
                self.marks.clear();
                self.marks.extend(marks.map(|mark| mark.at));
                region.prefetch_each_to_write(&self.marks);
            }
        }
    }

    /// The first candidate of the index for each key, or [`NOWHERE`]. The record at it stays while the pin
    /// holds; the caller checks that it is the key's.
    pub(super) fn places(&self) -> &[u64] {
        &self.places
    }
}
