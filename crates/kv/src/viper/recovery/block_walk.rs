//! Walking the records of one block, in the order in which they were written.
//!
//! Recovery, compaction, `check` and `inspect` use the same walk, so they agree on what a record is. The walk
//! uses a private copy of the block and trusts only what verifies.
//!
//! # Torn tail or damage
//!
//! A sealed page must verify up to its tail. An open page is read up to the first
//! record that does not verify. A crash may have torn it, and nothing from there on was acknowledged. It is
//! damage if a *later* record of the block verifies and says that it is the first of its fence group. Then
//! everything before it had been fenced.

use crate::error::Error;
use crate::error::corrupt;
use crate::viper::claim::page_order;
use crate::viper::layout::{
    GRAIN, Geometry, Kind, MARKS_PER_WORD, Pages, parse_mark_word, parse_page_word,
    parse_tail_word, word_at,
};
use crate::viper::record::{self, Record, Stamp};
use everdram_pm::Secret;

/// A record that the walk visits.
pub(in crate::viper) struct Visited<'a> {
    /// Byte offset in the pool.
    pub(in crate::viper) at: u64,
    pub(in crate::viper) record: Record,
    /// Its mark is set.
    pub(in crate::viper) dead: bool,
    /// Bytes of the block before it, in the order in which pages are filled.
    pub(in crate::viper) position: u64,
    /// The record's bytes.
    pub(in crate::viper) bytes: &'a [u8],
}

/// The results of the walk, besides records.
#[derive(Default, Debug)]
pub(in crate::viper) struct Walked {
    /// Pages without a tail word: (offset of the page, end of its last good record).
    pub(in crate::viper) open_pages: Vec<(u64, u32)>,
    /// Bytes of records.
    pub(in crate::viper) filled: u64,
    /// Bytes of dead records.
    pub(in crate::viper) dead: u64,
    /// Room that counts as garbage; see [`Pages::slack`].
    pub(in crate::viper) slack: u64,
    /// The last page with records, and where they end.
    last_begun: (u64, u64),
}

/// The block to walk.
pub(in crate::viper) struct BlockWalk<'a> {
    pub(in crate::viper) secret: &'a Secret,
    pub(in crate::viper) geometry: &'a Geometry,
    pub(in crate::viper) block: u32,
    /// First byte of the block.
    pub(in crate::viper) at: u64,
    pub(in crate::viper) kind: Kind,
    pub(in crate::viper) epoch: u32,
}

impl BlockWalk<'_> {
    /// Visits the records of the block whose bytes are in `image`. `image` is scratch afterwards.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at the first damage; any error of `visit`.
    pub(in crate::viper) fn run(
        &self,
        image: &mut [u8],
        visit: &mut dyn FnMut(Visited<'_>) -> Result<(), Error>,
    ) -> Result<Walked, Error> {
        let pages = self.geometry.pages_of(self.kind);
        let mut walked = Walked {
            last_begun: (0, pages.header),
            ..Walked::default()
        };
        let mut torn = None;
        for turn in 0..pages.count {
            let page = page_order(pages, self.block, self.epoch, turn);
            let page_at = self.at + page * pages.bytes;
            let range = (page * pages.bytes) as usize..((page + 1) * pages.bytes) as usize;
            let Some(bytes) = image.get_mut(range) else {
                return Err(corrupt(page_at, "a page outside its block"));
            };
            self.page(
                pages,
                (turn, page),
                page_at,
                bytes,
                &mut torn,
                &mut walked,
                visit,
            )?;
        }
        let (turn, end) = walked.last_begun;
        walked.slack = pages.slack(turn, end);
        Ok(walked)
    }

    #[allow(clippy::too_many_arguments)] // one page's share of `run`
    fn page(
        &self,
        pages: &Pages,
        (turn, page): (u64, u64),
        page_at: u64,
        bytes: &mut [u8],
        torn: &mut Option<u64>,
        walked: &mut Walked,
        visit: &mut dyn FnMut(Visited<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let tail = self.header(pages, page, page_at, bytes)?;
        let mut at = pages.header;
        let end = if tail == 0 {
            pages.bytes
        } else {
            u64::from(tail)
        };
        if end < pages.header || end > pages.bytes {
            return Err(corrupt(page_at + 8, "a tail word points outside its page"));
        }
        while torn.is_none() && at < end {
            let Some(record) = self.record(page_at, at, end, bytes) else {
                if tail != 0 {
                    return Err(corrupt(
                        page_at + at,
                        "a record of a full page does not verify",
                    ));
                }
                break;
            };
            let dead = record.kind.is_grave() || self.is_dead(pages, at, bytes);
            let length = u64::from(record.bytes);
            walked.filled += length;
            walked.dead += if dead { length } else { 0 };
            let copy = bytes
                .get(at as usize..(at + length) as usize)
                .unwrap_or(&[]);
            visit(Visited {
                at: page_at + at,
                record,
                dead,
                position: turn * pages.bytes + at,
                bytes: copy,
            })?;
            at += length;
        }
        if at > pages.header {
            walked.last_begun = (turn, at);
        }
        if tail == 0 {
            // This cuts off the bytes that a crash tore, for good: nothing after them counts.
            self.nothing_fenced_after(page_at, at, pages, bytes, torn)?;
            walked.open_pages.push((page_at, at as u32));
        } else if let Some(torn_at) = *torn
            && u64::from(tail) != pages.header
        {
            return Err(corrupt(
                torn_at,
                "a record does not verify, and a later page was finished",
            ));
        }
        Ok(())
    }

    /// Verifies the page's header. Returns the tail, 0 if the page is open.
    fn header(&self, pages: &Pages, page: u64, page_at: u64, bytes: &[u8]) -> Result<u32, Error> {
        let secret = self.secret;
        let sound =
            parse_page_word(secret, page_at, word_at(bytes, 0)).is_some_and(|(kind, epoch)| {
                epoch == self.epoch
                    && (kind == self.kind || kind.is_fixed() && self.kind.is_fixed())
            });
        if !sound {
            return Err(corrupt(
                page_at,
                format!("the page word of page {page} does not verify"),
            ));
        }
        for word in 0..pages.mark_words {
            let mark_at = page_at + 16 + 8 * word;
            let stored = word_at(bytes, (16 + 8 * word) as usize);
            if parse_mark_word(secret, mark_at, self.epoch, stored).is_none() {
                return Err(corrupt(mark_at, "a mark word of a page does not verify"));
            }
        }
        parse_tail_word(secret, page_at, self.epoch, word_at(bytes, 8))
            .ok_or_else(|| corrupt(page_at + 8, "a tail word does not verify"))
    }

    /// The verified record at byte `at` of the page, if there is one.
    pub(in crate::viper) fn record(
        &self,
        page_at: u64,
        at: u64,
        end: u64,
        bytes: &mut [u8],
    ) -> Option<Record> {
        let rest = bytes.get_mut(at as usize..end as usize)?;
        match (&self.geometry.fixed, self.kind.is_fixed()) {
            (Some(shape), true) => {
                let parsed = record::parse_slot(shape, rest)?;
                let slot = rest.get_mut(..parsed.bytes as usize)?;
                let stored = word_at(slot, 8).to_le_bytes();
                let edited = self.kind == Kind::FixedEdited;
                let sound =
                    record::verify_slot(self.secret, shape, slot, page_at + at, self.epoch, edited);
                slot.get_mut(8..16)?.copy_from_slice(&stored);
                sound.then_some(parsed)
            }
            _ => {
                let parsed = record::parse(rest)?;
                let whole = rest.get_mut(..parsed.bytes as usize)?;
                let stored = word_at(whole, 16).to_le_bytes();
                let sound = record::verify(self.secret, whole, page_at + at, self.epoch);
                whole.get_mut(16..24)?.copy_from_slice(&stored);
                sound.then_some(parsed)
            }
        }
    }

    /// Whether the record at byte `at` of a page with a verified header is marked dead.
    fn is_dead(&self, pages: &Pages, at: u64, bytes: &[u8]) -> bool {
        let place = self.geometry.place(self.kind, pages, at);
        let word = word_at(bytes, (16 + place / MARKS_PER_WORD * 8) as usize);
        word >> (place % MARKS_PER_WORD) & 1 == 1
    }

    /// Whether the bytes at `at` could be a record that says it is the first of its group. Cheaper than
    /// verifying it.
    fn claims_first(&self, at: u64, bytes: &[u8]) -> bool {
        let stamp_at = if self.kind.is_fixed() { at } else { at + 8 };
        Stamp::from_word(word_at(bytes, stamp_at as usize)).first
    }

    /// Searches an open page after byte `at` for a record that proves damage before it.
    fn nothing_fenced_after(
        &self,
        page_at: u64,
        at: u64,
        pages: &Pages,
        bytes: &mut [u8],
        torn: &mut Option<u64>,
    ) -> Result<(), Error> {
        let step = match (&self.geometry.fixed, self.kind.is_fixed()) {
            (Some(shape), true) => shape.slot_bytes(),
            _ => GRAIN,
        };
        // In the page where the log ends, the record at its end proves nothing; in later pages, any record
        // does.
        let mut look = if torn.is_some() { at } else { at + step };
        let torn_at = *torn.get_or_insert(page_at + at);
        while look + GRAIN <= pages.bytes {
            if self.claims_first(look, bytes)
                && self.record(page_at, look, pages.bytes, bytes).is_some()
            {
                let what = format!(
                    "a record does not verify, but byte {} shows that it had been made durable",
                    page_at + look
                );
                return Err(corrupt(torn_at, what));
            }
            look += step;
        }
        Ok(())
    }
}

/// Copies the bytes of a block.
pub(in crate::viper) fn copy_block(
    region: &everdram_pm::Region,
    at: u64,
    bytes: u64,
    into: &mut Vec<u8>,
) {
    into.resize(bytes as usize, 0);
    region.load(at, into);
}
