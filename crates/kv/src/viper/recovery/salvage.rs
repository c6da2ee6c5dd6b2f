//! Salvage: reading damaged blocks as far as possible.
//!
//! Checks are keyed by place and life of the block, so any bytes that verify are a real record, however they
//! were found. The length of a record that does not verify cannot be trusted, so salvage searches for the
//! next place that verifies. It mends words of page headers: by their own check if one byte is wrong,
//! otherwise from other words. A salvaged store has its image in private memory, so it stores the mended
//! words there for later readers.
//!
//! Invariants:
//! - Salvage takes only what verifies. It notes what it skips, with the key that the bytes seem to hold.
//! - A mark that cannot be read marks nothing: its record counts as live, and loses to a newer one like any
//!   other.
//! - After the last place in a block known to be fenced, a record that does not verify is a torn end, as in
//!   recovery.

use super::block_walk::{BlockWalk, Visited, Walked, copy_block};
use crate::engine::damage::{Damage, Doubt};
use crate::error::Error;
use crate::stats::Finding;
use crate::viper::Viper;
use crate::viper::checkpoint::load;
use crate::viper::claim::page_order;
use crate::viper::layout::{
    ChainHead, GRAIN, Kind, MARKS_PER_WORD, OVERFLOW_HEAD, Pages, begun_epoch, mark_word,
    page_word, parse_mark_word, parse_page_word, parse_tail_word, tail_word, word_at,
};
use crate::viper::read::chain_of;
use crate::viper::record::{self, Record, RecordKind};

/// A finding, and the key whose state it puts in doubt.
pub(in crate::viper) struct Flaw {
    pub(in crate::viper) finding: Finding,
    pub(in crate::viper) doubt: Option<(Vec<u8>, Doubt)>,
    /// Only the beginning of that key is known; it has this many bytes.
    key_bytes: Option<u64>,
    /// The key was replaced or removed: only older states of it are in doubt.
    is_dead: bool,
}

impl Flaw {
    fn new(block: u32, at: u64, bytes: u64, what: impl std::fmt::Display) -> Flaw {
        Flaw {
            finding: Finding {
                bytes,
                ..Finding::new(at, format!("block {block}: {what}"))
            },
            doubt: None,
            key_bytes: None,
            is_dead: false,
        }
    }

    fn missing(mut self, records: u64) -> Flaw {
        self.finding.missing = records;
        self
    }

    fn stale(mut self) -> Flaw {
        self.finding.stale = true;
        self
    }
}

/// Takes the flaws.
type Note<'a> = &'a mut dyn FnMut(Flaw);
/// Takes records.
type Visit<'a> = &'a mut dyn FnMut(Visited<'_>) -> Result<(), Error>;

impl Damage {
    pub(in crate::viper) fn note_flaw(&self, flaw: Flaw) {
        match (flaw.doubt, flaw.key_bytes) {
            (Some((key, doubt)), None) if flaw.is_dead => self.doubt_older(key, doubt),
            (Some((key, doubt)), None) => self.doubt(key, doubt),
            (Some((key, doubt)), Some(bytes)) => self.doubt_beginning(key, bytes, doubt),
            (None, _) => {}
        }
        self.note(flaw.finding);
    }
}

impl Viper {
    /// Continues after damage if the pool is being salvaged.
    ///
    /// # Errors
    /// The error itself otherwise.
    pub(in crate::viper) fn tolerate(&self, error: Error) -> Result<(), Error> {
        match &self.damage {
            Some(damage) => damage.note_error(error),
            None => Err(error),
        }
    }
}

/// The word that verifies after a change of one byte, if there is exactly one.
fn mend(word: u64, verifies: impl Fn(u64) -> bool) -> Option<u64> {
    let bytes = (0..8).flat_map(|byte| (1..256_u64).map(move |flip| flip << (8 * byte)));
    let mut mended = bytes.map(|flip| word ^ flip).filter(|word| verifies(*word));
    let first = mended.next()?;
    mended.next().is_none().then_some(first)
}

/// The floor of a pool whose root word does not verify: from its checkpoint of the index, if there is one.
pub(in crate::viper) fn floor(viper: &Viper, error: Error) -> Result<u64, Error> {
    let (Some(damage), Error::Corrupt { offset, what, .. }) = (&viper.damage, &error) else {
        return Err(error);
    };
    damage.note(Finding {
        bytes: 8,
        stale: true,
        ..Finding::new(
            *offset,
            format!("{what}, so keys that FLUSHALL removed may be there again"),
        )
    });
    let floor = load::find(&viper.reader()).map(|found| found.summary.floor);
    Ok(floor.unwrap_or(0))
}

/// Kind and life of a block whose page word is damaged, as `error` says; mends the word. `None`: no other
/// word says what the block was, and it is skipped.
///
/// # Errors
/// The given one, unless the pool is being salvaged.
pub(in crate::viper) fn life(
    viper: &Viper,
    block: u32,
    error: Error,
) -> Result<Option<(Kind, u32)>, Error> {
    let (Some(damage), Error::Corrupt { what, .. }) = (&viper.damage, &error) else {
        return Err(error);
    };
    let at = viper.space.blocks.at(block);
    let (secret, region) = (viper.pool.secret(), viper.pool.region());
    let mended = mend(region.load_word(at), |word| {
        parse_page_word(secret, at, word).is_some()
    });
    let by_itself = mended.and_then(|word| parse_page_word(secret, at, word));
    let (found, how) = match by_itself {
        Some(found) => (
            Some(found),
            "one byte of it was wrong, and nothing is missing for it",
        ),
        None => (
            life_by_others(viper, at),
            "other words of the block say what it was; if it had been given back, what was removed may be there again",
        ),
    };
    let Some((kind, epoch)) = found else {
        let bytes = viper.space.geometry.block_bytes;
        let what = format!("{what}, and nothing else says what the block held");
        damage.note_flaw(Flaw::new(block, at, bytes, what).missing(1));
        return Ok(None);
    };
    store(viper, at, page_word(secret, at, kind, epoch));
    let flaw = Flaw::new(block, at, 8, format!("{what}; {how}"));
    damage.note_flaw(match by_itself {
        Some(_) => flaw,
        None => flaw.stale(),
    });
    Ok(Some((kind, epoch)))
}

/// Notes a block that looks never claimed, but is not empty. A kill in the middle of writes leaves such a
/// block; so does a zeroed sector at the start of one that was in use.
pub(in crate::viper) fn doubt_unused(viper: &Viper, block: u32) {
    let Some(damage) = &viper.damage else {
        return;
    };
    let at = viper.space.blocks.at(block);
    let mut image = Vec::new();
    let bytes = viper.space.geometry.block_bytes;
    copy_block(viper.pool.region(), at, bytes, &mut image);
    let pages = viper.space.geometry.pages_of(Kind::Variable);
    let mut pages = image.chunks(pages.bytes as usize);
    // An interrupted claim may have left bytes in a header.
    let is_empty = |page: &[u8]| page.iter().skip(64).all(|byte| *byte == 0);
    if !pages.all(is_empty) {
        let what = "it looks as if it had never been used, and has data in it: what an interrupted write left, or what was \
                    there before its first sector was lost";
        damage.note_flaw(Flaw::new(block, at, bytes, what));
    }
}

/// Kind and life of a block, from its other words.
fn life_by_others(viper: &Viper, at: u64) -> Option<(Kind, u32)> {
    let (secret, region) = (viper.pool.secret(), viper.pool.region());
    let pages = viper.space.geometry.pages_of(Kind::Variable);
    let tail = region.load_word(at + 8);
    let words = (1..pages.count).filter_map(|page| {
        let page_at = at + page * pages.bytes;
        parse_page_word(secret, page_at, region.load_word(page_at))
    });
    let of_pages = words
        .filter(|(kind, _)| matches!(kind, Kind::Variable | Kind::Fixed | Kind::FixedEdited))
        // Pages left from an earlier life have a smaller number.
        .max_by_key(|(_, epoch)| *epoch)
        // They prove nothing if a later life was begun in the block.
        .filter(|(_, epoch)| begun_epoch(secret, at, *epoch, tail) == *epoch);
    of_pages.or_else(|| life_by_content(viper, at, tail))
}

/// Kind and life of a block of one page. Its tail word has only half of the life's number, so the life is the
/// one in which the content verifies.
fn life_by_content(viper: &Viper, at: u64, tail: u64) -> Option<(Kind, u32)> {
    /// Lives to try.
    const LIVES: u32 = 16 << 16;
    let (secret, geometry) = (viper.pool.secret(), &viper.space.geometry);
    let low = u32::from((tail >> 24) as u16);
    let epochs = (0..LIVES).step_by(1 << 16).map(|high| high | low);
    let epoch = epochs
        .into_iter()
        .find(|epoch| parse_tail_word(secret, at, *epoch, tail).is_some())?;
    let mut head = [0; OVERFLOW_HEAD as usize];
    viper.pool.region().load(at, &mut head);
    head[..8].copy_from_slice(&page_word(secret, at, Kind::Overflow, epoch).to_le_bytes());
    if ChainHead::parse(secret, at, &head).is_some() {
        return Some((Kind::Overflow, epoch));
    }
    let mut image = Vec::new();
    copy_block(viper.pool.region(), at, geometry.block_bytes, &mut image);
    let walk = BlockWalk {
        secret,
        geometry,
        block: viper.space.blocks.number(at),
        at,
        kind: Kind::Large,
        epoch,
    };
    let pages = geometry.pages_of(Kind::Large);
    let record = walk.record(at, pages.header, pages.bytes, &mut image);
    record.map(|_| (Kind::Large, epoch))
}

/// Stores into the private memory of a read-only pool.
fn store(viper: &Viper, at: u64, word: u64) {
    let _stays_here = viper.pool.lane().store_word(at, word);
}

/// As [`BlockWalk::run`], for a pool that is being salvaged: damage is noted. `image` holds the block's
/// bytes.
///
/// # Errors
/// Any error of `visit`.
pub(in crate::viper) fn walk(
    viper: &Viper,
    damage: &Damage,
    walk: &BlockWalk<'_>,
    image: &mut [u8],
    visit: Visit<'_>,
) -> Result<Walked, Error> {
    let is_sound = walk.run(image, &mut |_| Ok(())).is_ok();
    if is_sound {
        return walk.run(image, visit);
    }
    let (walked, mended) = walk_damaged(walk, image, visit, &mut |flaw| damage.note_flaw(flaw))?;
    for (at, word) in mended {
        store(viper, at, word);
    }
    Ok(walked)
}

/// As [`BlockWalk::run`], for a block that may be damaged anywhere. Also returns the words that were mended
/// in `image`, with their offsets in the pool.
///
/// # Errors
/// Any error of `visit`.
pub(in crate::viper) fn walk_damaged(
    walk: &BlockWalk<'_>,
    image: &mut [u8],
    visit: Visit<'_>,
    note: Note<'_>,
) -> Result<(Walked, Vec<(u64, u64)>), Error> {
    let pages = walk.geometry.pages_of(walk.kind);
    let mut mended = Vec::new();
    let mut surveys = Vec::new();
    for turn in 0..pages.count {
        let number = page_order(pages, walk.block, walk.epoch, turn);
        let range = (number * pages.bytes) as usize..((number + 1) * pages.bytes) as usize;
        let Some(bytes) = image.get_mut(range) else {
            continue;
        };
        let mut page = Page {
            walk,
            pages,
            at: walk.at + number * pages.bytes,
            bytes,
        };
        page.mend_words(&mut mended, note);
        surveys.push(page.survey(&mut mended, note));
    }
    // Everything before this place had been fenced.
    let fenced = surveys.iter().enumerate().rev();
    let fenced = fenced
        .filter_map(|(turn, survey)| Some((turn, survey.fenced_up_to?)))
        .next();
    let mut walked = Walked::default();
    let mut last_begun = (0, pages.header);
    let mut is_torn = false;
    for (turn, survey) in surveys.iter().enumerate() {
        let number = page_order(pages, walk.block, walk.epoch, turn as u64);
        let range = (number * pages.bytes) as usize..((number + 1) * pages.bytes) as usize;
        let Some(bytes) = image.get_mut(range) else {
            continue;
        };
        let mut page = Page {
            walk,
            pages,
            at: walk.at + number * pages.bytes,
            bytes,
        };
        let mut end = pages.header;
        for part in &survey.parts {
            let was_fenced = fenced.is_some_and(|fenced| (turn, part.at) < fenced);
            is_torn |= part.record.is_none() && !was_fenced;
            if is_torn {
                break;
            }
            match part.record {
                None => page.skip(part, note),
                Some(record) => {
                    let dead = record.kind.is_grave() || page.is_dead(part.at);
                    walked.filled += part.length;
                    walked.dead += if dead { part.length } else { 0 };
                    end = part.at + part.length;
                    visit(Visited {
                        at: page.at + part.at,
                        record,
                        dead,
                        position: turn as u64 * pages.bytes + part.at,
                        bytes: page.slice(part),
                    })?;
                }
            }
        }
        if end > pages.header {
            last_begun = (turn as u64, end);
        }
        if survey.is_open {
            walked.open_pages.push((page.at, end as u32));
        }
    }
    let (turn, end) = last_begun;
    walked.slack = pages.slack(turn, end);
    Ok((walked, mended))
}

/// A record of a page, or bytes between records.
struct Part {
    /// First byte, in the page.
    at: u64,
    length: u64,
    record: Option<Record>,
}

struct Survey {
    parts: Vec<Part>,
    /// The page has no tail.
    is_open: bool,
    /// Everything before this byte, in this page and earlier ones, had been fenced.
    fenced_up_to: Option<u64>,
}

/// A page and its bytes.
struct Page<'a> {
    walk: &'a BlockWalk<'a>,
    pages: &'a Pages,
    /// First byte in the pool.
    at: u64,
    bytes: &'a mut [u8],
}

impl Page<'_> {
    fn flaw(&self, within: u64, bytes: u64, what: impl std::fmt::Display) -> Flaw {
        Flaw::new(self.walk.block, self.at + within, bytes, what)
    }

    fn set_word(&mut self, within: u64, word: u64, mended: &mut Vec<(u64, u64)>) {
        let place = self.bytes.get_mut(within as usize..);
        if let Some(place) = place.and_then(|rest| rest.first_chunk_mut::<8>()) {
            *place = word.to_le_bytes();
            mended.push((self.at + within, word));
        }
    }

    /// Makes the page word and mark words verify.
    fn mend_words(&mut self, mended: &mut Vec<(u64, u64)>, note: Note<'_>) {
        let (secret, at) = (self.walk.secret, self.at);
        let (kind, epoch) = (self.walk.kind, self.walk.epoch);
        let found = parse_page_word(secret, at, word_at(self.bytes, 0));
        let is_same = |other: Kind| other == kind || other.is_fixed() && kind.is_fixed();
        if !found.is_some_and(|(other, life)| life == epoch && is_same(other)) {
            note(self.flaw(
                0,
                8,
                "a page word does not verify; the block's first one says the same, and nothing is missing for it",
            ));
            self.set_word(0, page_word(secret, at, kind, epoch), mended);
        }
        for word in 0..self.pages.mark_words {
            let within = 16 + 8 * word;
            let stored = word_at(self.bytes, within as usize);
            if parse_mark_word(secret, at + within, epoch, stored).is_none() {
                note(self.flaw(
                    within,
                    8,
                    "a mark word does not verify: the records that it marks are all taken for live, so what was removed \
                     may be there again",
                ).stale());
                self.set_word(within, mark_word(secret, at + within, epoch, 0), mended);
            }
        }
    }

    /// Finds the records that verify, up to the tail or, without one, in the whole page.
    fn survey(&mut self, mended: &mut Vec<(u64, u64)>, note: Note<'_>) -> Survey {
        let (secret, epoch, at) = (self.walk.secret, self.walk.epoch, self.at);
        let is_tail = |word| {
            let tail = parse_tail_word(secret, at, epoch, word).map(u64::from);
            tail.is_some_and(|tail| {
                tail == 0 || (self.pages.header..=self.pages.bytes).contains(&tail)
            })
        };
        let stored = word_at(self.bytes, 8);
        let mut tail = Some(stored).filter(|word| is_tail(*word));
        let is_damaged = tail.is_none();
        if is_damaged {
            tail = mend(stored, is_tail);
        }
        let known = tail.and_then(|word| parse_tail_word(secret, at, epoch, word));
        let end = match known {
            None | Some(0) => self.pages.bytes,
            Some(end) => u64::from(end),
        };
        let mut parts = self.parts(end);
        if known.is_none() {
            // The end is unknown; assume the last record that verifies.
            while parts.last().is_some_and(|part| part.record.is_none()) {
                parts.pop();
            }
        }
        let last = parts.last().map(|part| part.at + part.length);
        let end = match known {
            Some(0) => 0,
            Some(end) => u64::from(end),
            None => last.unwrap_or(self.pages.header),
        };
        if is_damaged {
            let how = match known {
                Some(_) => "one byte of it was wrong, and nothing is missing for it",
                None => "records at the end of the page may be missing",
            };
            let what = format!("a tail word does not verify; {how}");
            note(self.flaw(8, 8, what).missing(u64::from(known.is_none())));
            self.set_word(8, tail_word(secret, at, epoch, end as u32), mended);
        }
        let firsts = parts.iter().rev();
        let mut firsts = firsts.filter(|part| part.record.is_some_and(|one| one.stamp.first));
        let fenced_up_to = match end {
            0 => firsts.next().map(|part| part.at),
            // A finished page without records proves nothing.
            end => (end > self.pages.header).then_some(end),
        };
        Survey {
            parts,
            is_open: end == 0,
            fenced_up_to,
        }
    }

    /// The records up to byte `end`, and the bytes between them.
    fn parts(&mut self, end: u64) -> Vec<Part> {
        let step = match (&self.walk.geometry.fixed, self.walk.kind.is_fixed()) {
            (Some(shape), true) => shape.slot_bytes(),
            _ => GRAIN,
        };
        // Bytes to read in search of records: in a damaged pool, any place may look like a long record.
        let mut budget = 64 * self.pages.bytes;
        let mut parts: Vec<Part> = Vec::new();
        let mut at = self.pages.header;
        while at < end {
            let record = match budget {
                0 => None,
                _ => self.walk.record(self.at, at, end, self.bytes),
            };
            let length = match &record {
                Some(record) => u64::from(record.bytes),
                None => step.min(end - at),
            };
            match (parts.last_mut(), record) {
                (
                    Some(Part {
                        length: before,
                        record: None,
                        ..
                    }),
                    None,
                ) => *before += length,
                _ => parts.push(Part { at, length, record }),
            }
            if record.is_none() {
                let claimed = self.claimed(at, end);
                let claimed = claimed.map_or(GRAIN, |record| u64::from(record.bytes));
                budget = budget.saturating_sub(claimed);
            }
            at += length;
        }
        parts
    }

    /// The record that the bytes at `at` claim to be.
    fn claimed(&self, at: u64, end: u64) -> Option<Record> {
        let rest = self.bytes.get(at as usize..end as usize)?;
        match (&self.walk.geometry.fixed, self.walk.kind.is_fixed()) {
            (Some(shape), true) => record::parse_slot(shape, rest),
            _ => record::parse(rest),
        }
    }

    fn slice(&self, part: &Part) -> &[u8] {
        let range = part.at as usize..(part.at + part.length) as usize;
        self.bytes.get(range).unwrap_or(&[])
    }

    fn is_dead(&self, at: u64) -> bool {
        let place = self.walk.geometry.place(self.walk.kind, self.pages, at);
        let word = word_at(self.bytes, (16 + place / MARKS_PER_WORD * 8) as usize);
        word >> (place % MARKS_PER_WORD) & 1 == 1
    }

    /// Notes bytes that do not verify, as the records that they claim to be.
    fn skip(&mut self, part: &Part, note: Note<'_>) {
        let end = part.at + part.length;
        let mut at = part.at;
        while at < end
            && let Some(record) = self.claimed(at, end)
        {
            note(self.skipped(at, &record));
            at += u64::from(record.bytes);
        }
        if at < end {
            let what = "bytes between records do not verify, and do not say what they were";
            let records = match (&self.walk.geometry.fixed, self.walk.kind.is_fixed()) {
                (Some(shape), true) => (end - at).div_ceil(shape.slot_bytes()),
                _ => 1,
            };
            note(self.flaw(at, end - at, what).missing(records));
        }
    }

    /// The flaw of a record that does not verify.
    fn skipped(&mut self, at: u64, record: &Record) -> Flaw {
        let bytes = u64::from(record.bytes);
        let key = record.key();
        let from = at as usize;
        let key = self.bytes.get(from + key.start..from + key.end);
        let key = key.map(<[u8]>::to_vec);
        let doubt = Doubt {
            version: record.stamp.version,
            offset: self.at + at,
        };
        if self.is_dead(at) {
            let what = "a record that had been replaced or removed does not verify: nothing is missing for it";
            let mut flaw = self.flaw(at, bytes, what);
            // What it replaced may lie in another block, without its mark, or in the log of a lower tier.
            let is_known = record.kind != RecordKind::BigKey && !record.kind.is_journal();
            flaw.doubt = key.filter(|_| is_known).map(|key| (key, doubt));
            flaw.is_dead = true;
            return flaw;
        }
        let is_key_sound = self.is_key_sound(at, record);
        if record.kind.is_journal() {
            let what = "the record of a batch does not verify: if it was not finished, its writes are missing";
            return self.flaw(at, bytes, what).missing(1);
        }
        let what = match (is_key_sound, record.kind) {
            (true, _) => "the value of a record does not verify",
            (false, RecordKind::BigKey) => {
                "a record does not verify, and what is known of its key is how it may begin"
            }
            (false, _) => "a record does not verify, so the key that is read in it may be wrong",
        };
        let mut flaw = self.flaw(at, bytes, what).missing(1);
        if record.kind == RecordKind::BigKey {
            let chain = self.bytes.get(from..).map(|rest| chain_of(record, rest));
            flaw.key_bytes = chain.and_then(Result::ok).map(|chain| chain.key_bytes);
        }
        flaw.doubt = key.clone().map(|key| (key, doubt));
        flaw.finding.key = key;
        flaw
    }

    /// Whether the key of a slot verifies. A slot's check has two halves, and one covers the key.
    fn is_key_sound(&mut self, at: u64, record: &Record) -> bool {
        let walk = self.walk;
        let (Some(shape), true) = (&walk.geometry.fixed, walk.kind.is_fixed()) else {
            return false;
        };
        let range = at as usize..at as usize + record.bytes as usize;
        let Some(slot) = self.bytes.get(range) else {
            return false;
        };
        let mut slot = slot.to_vec();
        record::verify_slot(
            walk.secret,
            shape,
            &mut slot,
            self.at + at,
            walk.epoch,
            true,
        )
    }
}
