//! The images that a crash may leave: the stores of a few operations of one session, cut at its fences.
//!
//! The image is copied before and after each operation. The changes are sorted into *stages* by the kind of
//! the bytes (`docs/format.md` draws them), in the order in which the engine fences them:
//!
//! 1. `Pieces`: blocks of a chained value, fenced before the record that points at them.
//! 2. `Opening`: headers of a newly opened block (all but its first page word), tail words of the block it
//!    follows; or the page word that allows edits in place. Fenced before anything is written there.
//! 3. `Journal`: the record of an atomic batch.
//! 4. `Main`: records, the first page word, the marks of deletes, the root word, an edited value. When this
//!    is fenced, the operation is acknowledged.
//! 5. `Marks`: old copies marked dead. Nobody waits for them: they travel with the next operation's first
//!    stage.
//!
//! A crash leaves every stage before one, any subset of that one, and nothing later. Subsets are taken by
//! words of 8 bytes, which memory keeps whole, or by lines of 64.

use super::contents::Contents;
use super::frozen::{DATA_AT, changed_words, word};
use rand::RngExt;
use rand::rngs::StdRng;

/// The kind of an operation, as far as it decides the order of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A put of any size, a removal of everything, an edit in place.
    Single,
    /// A delete: the fence of its mark acknowledges it.
    Delete,
    /// A batch whose journal has this many bytes. With deletes in it, one mark word may belong to two stages;
    /// its marks are then cut off whole.
    Batch { journal_bytes: usize, deletes: bool },
    /// An operation of many fences: only its whole result is checked.
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Pieces,
    Opening,
    Journal,
    Main,
    Marks,
}

/// Stores between two fences.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Offset and new contents of each word.
    words: Vec<(usize, u64)>,
    /// The number of the operation in flight; earlier ones are acknowledged.
    pub operation: usize,
    /// Once all of the stage is there, so is the operation.
    pub completes: bool,
    /// Subsets of it are not crash images, or cannot be told apart.
    whole: bool,
    /// Marks that the next operation's first fence covers.
    carried: bool,
    /// The journal of a batch may be live in its images.
    pub journal: bool,
}

/// A run of operations and the stages of its stores.
pub struct History {
    pub base: Vec<u8>,
    pub stages: Vec<Stage>,
    /// The contents before operation `i`; one more than operations.
    pub contents: Vec<Contents>,
    last: Vec<u8>,
    block_bytes: usize,
}

/// The part of a stage in an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut {
    Nothing,
    All,
    /// Each line, or each word, with this probability.
    Some {
        chance: f64,
        lines: bool,
    },
    /// All but one word.
    AllButOne,
    /// One word.
    One,
}

impl History {
    pub fn new(base: Vec<u8>, contents: Contents, block_bytes: usize) -> History {
        let (stages, last) = (Vec::new(), base.clone());
        History {
            base,
            stages,
            contents: vec![contents],
            last,
            block_bytes,
        }
    }

    /// Adds an operation with the resulting `image` and `contents`.
    pub fn add(&mut self, shape: Shape, image: Vec<u8>, contents: Contents) {
        let operation = self.contents.len() - 1;
        let changed = changed_words(&self.last, &image);
        // Reclamation that frees pieces of values stores nothing, but first fences the marks that allow it.
        if shape == Shape::Whole
            && let Some(last) = self.stages.last_mut()
        {
            last.carried &= !changed.is_empty();
        }
        let mut ranked: Vec<(Rank, usize)> = Vec::with_capacity(changed.len());
        let opened = changed.iter().any(|&at| self.opens(at, &image));
        let touches_tails = changed
            .iter()
            .any(|&at| part(self.block_bytes, at, &image) == Part::Tail);
        for &at in &changed {
            ranked.push((self.rank(at, &image, shape, opened), at));
        }
        let mut whole =
            shape == Shape::Whole || changed.iter().any(|&at| at < DATA_AT && at != 8192);
        if let Shape::Batch { journal_bytes, .. } = shape {
            whole |= opened || touches_tails;
            // A journal lies in a block of variable size, before the other writes of its batch there.
            let logged = |rank: Rank, at: usize| {
                let variable = word(&image, at / self.block_bytes * self.block_bytes) & 0xff == 2;
                rank == Rank::Main && variable && part(self.block_bytes, at, &image) == Part::Record
            };
            let start = ranked
                .iter()
                .filter(|(rank, at)| logged(*rank, *at))
                .map(|(_, at)| *at)
                .min();
            let end = start.unwrap_or(0) + journal_bytes;
            for (rank, at) in &mut ranked {
                if *at < end && logged(*rank, *at) {
                    *rank = Rank::Journal;
                }
            }
        }
        if whole {
            ranked.iter_mut().for_each(|(rank, _)| *rank = Rank::Main);
        }
        ranked.sort_unstable();
        for group in ranked.chunk_by(|a, b| a.0 == b.0) {
            self.push(operation, shape, group, &image, whole);
        }
        self.contents.push(contents);
        self.last = image;
    }

    fn push(
        &mut self,
        operation: usize,
        shape: Shape,
        group: &[(Rank, usize)],
        image: &[u8],
        whole: bool,
    ) {
        let rank = group[0].0;
        let mut words: Vec<(usize, u64)> =
            group.iter().map(|&(_, at)| (at, word(image, at))).collect();
        let mut journal = matches!(shape, Shape::Batch { .. });
        let both = rank == Rank::Marks && matches!(shape, Shape::Batch { deletes: true, .. });
        let stage = match rank {
            // Marks have no fence of their own: the next operation fences them.
            Rank::Marks => Stage {
                words,
                operation: operation + 1,
                completes: false,
                whole: both,
                carried: true,
                journal,
            },
            _ => {
                let mut whole = whole;
                if let Some(marks) = self.stages.pop_if(|last| last.carried) {
                    whole |= marks.whole;
                    journal |= marks.journal;
                    // A word that changes again is not cut twice.
                    words.extend(
                        marks
                            .words
                            .iter()
                            .filter(|(at, _)| !has(&words, *at))
                            .collect::<Vec<_>>(),
                    );
                }
                Stage {
                    words,
                    operation,
                    completes: rank == Rank::Main,
                    whole,
                    carried: false,
                    journal,
                }
            }
        };
        self.stages.push(stage);
    }

    /// Whether a page word of a new life at its start opens a block.
    fn opens(&self, at: usize, image: &[u8]) -> bool {
        if at < DATA_AT || !at.is_multiple_of(self.block_bytes) {
            return false;
        }
        let (old, new) = (word(&self.last, at), word(image, at));
        matches!(new & 0xff, 2 | 3 | 5) && old >> 8 & 0xffff_ffff != new >> 8 & 0xffff_ffff
    }

    fn rank(&self, at: usize, image: &[u8], shape: Shape, opened: bool) -> Rank {
        let block_at = at / self.block_bytes * self.block_bytes;
        let fresh = at >= DATA_AT && self.opens(block_at, image);
        match part(self.block_bytes, at, image) {
            Part::Piece => Rank::Pieces,
            Part::FirstPageWord if fresh => Rank::Main,
            Part::FirstPageWord | Part::PageWord => Rank::Opening,
            Part::Tail if opened => Rank::Opening,
            Part::Mark if fresh => Rank::Opening,
            Part::Mark if shape == Shape::Delete => Rank::Main,
            Part::Mark => Rank::Marks,
            Part::Root | Part::Tail | Part::Record => Rank::Main,
        }
    }

    /// The image with every stage before `stage` and a part of it; returns whether that part is all of it.
    pub fn image(&self, stage: usize, cut: Cut, random: &mut StdRng) -> (Vec<u8>, bool) {
        let mut image = self.base.clone();
        for before in &self.stages[..stage] {
            put(&mut image, &before.words);
        }
        let words = &self.stages[stage].words;
        let cut = match (self.stages[stage].whole, cut) {
            (true, Cut::Some { .. } | Cut::AllButOne | Cut::One) => Cut::Nothing,
            (_, cut) => cut,
        };
        let one = words[random.random_range(0..words.len())].0;
        let salt: u64 = random.random();
        let picked: Vec<(usize, u64)> = words
            .iter()
            .filter(|(at, _)| match cut {
                Cut::Nothing => false,
                Cut::All => true,
                Cut::Some { chance, lines } => {
                    coin(salt, if lines { at / 64 } else { *at }) < chance
                }
                Cut::AllButOne => *at != one,
                Cut::One => *at == one,
            })
            .copied()
            .collect();
        put(&mut image, &picked);
        (image, picked.len() == words.len())
    }
}

/// The owner of a word of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Before the first extent.
    Root,
    FirstPageWord,
    PageWord,
    Tail,
    Mark,
    Piece,
    Record,
}

/// The part of the word at `at`, in an image with blocks of `block_bytes`.
pub fn part(block_bytes: usize, at: usize, image: &[u8]) -> Part {
    if at < DATA_AT {
        return Part::Root;
    }
    let block_at = at / block_bytes * block_bytes;
    let kind = word(image, block_at) & 0xff;
    let (page_bytes, header) = match kind {
        5 => (
            block_bytes,
            (16 + 8 * (block_bytes / 16).div_ceil(48)).next_multiple_of(64),
        ),
        6 => return Part::Piece,
        _ => (4096, 64),
    };
    match (at - block_at) % page_bytes {
        0 if at == block_at => Part::FirstPageWord,
        0 => Part::PageWord,
        8 => Part::Tail,
        within if within < header => Part::Mark,
        _ => Part::Record,
    }
}

fn has(words: &[(usize, u64)], at: usize) -> bool {
    words.iter().any(|word| word.0 == at)
}

fn put(image: &mut [u8], words: &[(usize, u64)]) {
    for &(at, word) in words {
        image[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// A number from 0 to 1 that depends only on its arguments.
fn coin(salt: u64, number: usize) -> f64 {
    let mut mixed = salt ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}
