//! The persistency model of memory, line by line: Px86, and stricter than the crash model of
//! `docs/persistence.md` where hardware promises less.
//!
//! 1. Aligned words never tear. All other stores are sequences of words.
//! 2. Word stores to one line persist in their order. Words of a bulk store persist in any order among
//!    themselves, but before any later word store to the same line.
//! 3. Words that were streamed past the cache persist in any order until a fence of their actor, also
//!    relative to other stores to the line. If the process dies before that fence, they are left in the
//!    caches like plain stores, as on machines without streaming stores. (On machines with them, entering the
//!    kernel drains the buffers: that is one of the choices.)
//! 4. A flush covers what the line holds at that moment, by any actor. A fence of the actor that flushed
//!    makes it certain.
//! 5. A line may be evicted at any time. So each line holds any allowed choice of what is not certain, and
//!    lines are independent of each other.
//!
//! Only fences make anything certain, so between two fences the images only get more. It is enough to examine
//! the images just before each fence, and at the end.

use super::unit;
use super::unit::Unit;
use crate::run::trace::{Held, Step, StepId};
use everdram_pm::LINE;
use everdram_pm::lab::{Actor, Site, StoreKind};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, HashMap};

const WORDS: usize = (LINE / 8) as usize;
/// All subsets are tried of up to so many optional words.
const SUBSETS_OF: usize = 3;
/// Random subsets of more words.
const RANDOM_SUBSETS: usize = 6;

/// One stored word that is not in the base yet.
#[derive(Clone, Debug)]
pub struct Atom {
    word: usize,
    value: u64,
    kind: StoreKind,
    actor: Actor,
    /// The store.
    pub step: StepId,
    /// Its place in the source.
    pub site: Site,
    certain: bool,
    /// Flushed by some actor, or streamed.
    flushed: bool,
}

/// A line with words that are not in the base yet.
#[derive(Clone, Debug, Default)]
pub struct Line {
    atoms: Vec<Atom>,
}

/// A flush or fence without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Waste {
    /// All words of the flushed lines had been flushed before.
    Flush,
    /// The fence had nothing to order.
    Fence,
}

/// A mutation: events at one place of the source have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mute {
    /// Which.
    pub what: Muted,
    /// Where.
    pub site: (&'static str, u32, u32),
}

/// What is muted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Muted {
    /// A flush.
    Flush,
    /// A fence.
    Fence,
    /// A sync of a file or of the directory.
    Sync,
    /// A store past the cache becomes a plain one that is never flushed.
    Stream,
}

/// A place in the source, for comparison.
#[must_use]
pub fn key(site: Site) -> (&'static str, u32, u32) {
    (site.file(), site.line(), site.column())
}

/// The state of a memory.
pub struct Lines {
    /// The certain bytes, as many as memory has room for.
    base: Vec<u8>,
    base_hash: u64,
    dirty: BTreeMap<u64, Line>,
    /// The lines that an actor flushed since its last fence, and how many atoms each had.
    flushed: HashMap<Actor, Vec<(u64, usize)>>,
    /// The lines that an actor streamed to since its last fence.
    streamed: HashMap<Actor, Vec<u64>>,
    mute: Option<Mute>,
    /// The same memory without the mutation, if there is one.
    sound: Option<Box<Lines>>,
}

impl Lines {
    /// A memory that holds `image` for certain, with room for `capacity` bytes.
    #[must_use]
    pub fn new(image: &[u8], capacity: u64, mute: Option<Mute>) -> Lines {
        let mut base = image.to_vec();
        base.resize(capacity as usize, 0);
        let lines = (0..).zip(base.chunks_exact(LINE as usize));
        Lines {
            base_hash: lines.fold(0, |hash, (line, bytes)| hash ^ unit::hash(line, bytes)),
            base,
            dirty: BTreeMap::new(),
            flushed: HashMap::new(),
            streamed: HashMap::new(),
            mute,
            sound: mute.map(|_| Box::new(Lines::new(image, capacity, None))),
        }
    }

    /// Whether a crash now may leave something else than without the mutation. `true` if there is none.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        let open = |(line, held): (&u64, &Line)| {
            let atoms = held.atoms.iter();
            (
                *line,
                atoms
                    .map(|atom| (atom.kind, atom.certain))
                    .collect::<Vec<_>>(),
            )
        };
        self.sound
            .as_ref()
            .is_none_or(|sound| !self.dirty.iter().map(open).eq(sound.dirty.iter().map(open)))
    }

    /// The certain bytes.
    #[must_use]
    pub fn base(&self) -> &[u8] {
        &self.base
    }

    /// The hash of the image that a pick makes.
    #[must_use]
    pub fn hash(&self, units: &[Unit], pick: &[usize]) -> u64 {
        let chosen = units.iter().zip(pick);
        chosen.fold(self.base_hash, |hash, (unit, &choice)| {
            hash ^ self.line_hash(unit.place) ^ unit.choices[choice].hash
        })
    }

    /// The hash of the certain bytes of a line.
    #[must_use]
    pub fn line_hash(&self, line: u64) -> u64 {
        let at = (line * LINE) as usize;
        unit::hash(line, &self.base[at..at + LINE as usize])
    }

    /// Lines that are not certain.
    pub fn dirty(&self) -> impl Iterator<Item = (u64, &Line)> {
        self.dirty.iter().map(|(&line, held)| (line, held))
    }

    /// A line that is not certain.
    #[must_use]
    pub fn line(&self, line: u64) -> Option<&Line> {
        self.dirty.get(&line)
    }

    fn is_muted(&self, what: Muted, site: Site) -> bool {
        self.mute
            .is_some_and(|mute| mute.what == what && mute.site == key(site))
    }

    /// Takes in one step. Returns whether it was a flush or fence without effect.
    pub fn step(&mut self, id: StepId, step: &Step) -> Option<Waste> {
        if let Some(sound) = &mut self.sound {
            sound.step(id, step);
        }
        match step {
            Step::Store {
                actor,
                at,
                bytes,
                kind,
                site,
            } => {
                self.store(id, *actor, *at, bytes, *kind, site);
                None
            }
            Step::Flush {
                actor,
                at,
                bytes,
                site,
            } => {
                if self.is_muted(Muted::Flush, site) {
                    return None;
                }
                self.flush(*actor, *at, *bytes).then_some(Waste::Flush)
            }
            Step::Fence { actor, site } => {
                if self.is_muted(Muted::Fence, site) {
                    return None;
                }
                self.fence(*actor).then_some(Waste::Fence)
            }
            Step::Death => {
                self.abandon();
                None
            }
            Step::Outage(held) => {
                self.lose(held);
                None
            }
            _ => None,
        }
    }

    /// The process died: words that were streamed and not fenced are like plain stores from here on.
    fn abandon(&mut self) {
        self.streamed.clear();
        let held = self.dirty.values_mut().flat_map(|held| &mut held.atoms);
        for atom in held.filter(|atom| atom.kind == StoreKind::Stream && !atom.certain) {
            atom.kind = StoreKind::Bulk;
            atom.flushed = false;
        }
    }

    /// Power failed and left this. Lines that are not named hold everything that was stored.
    fn lose(&mut self, held: &Held) {
        self.flushed.clear();
        self.streamed.clear();
        let held: HashMap<u64, &[u8]> =
            held.iter().map(|(line, bytes)| (*line, &**bytes)).collect();
        let open: Vec<u64> = self.dirty.keys().copied().collect();
        for line in open {
            let stored = self.seen(line);
            let bytes = held.get(&line).copied().unwrap_or(&stored);
            self.base_hash ^= self.line_hash(line) ^ unit::hash(line, bytes);
            self.base[(line * LINE) as usize..][..LINE as usize].copy_from_slice(bytes);
        }
        self.dirty.clear();
    }

    fn store(
        &mut self,
        step: StepId,
        actor: Actor,
        at: u64,
        bytes: &[u8],
        kind: StoreKind,
        site: Site,
    ) {
        let muted = kind == StoreKind::Stream && self.is_muted(Muted::Stream, site);
        let kind = if muted { StoreKind::Bulk } else { kind };
        for (index, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let at = at + 8 * index as u64;
            let line = at / LINE;
            self.dirty.entry(line).or_default().atoms.push(Atom {
                word: (at % LINE / 8) as usize,
                value: u64::from_le_bytes(*word),
                kind,
                actor,
                step,
                site,
                certain: false,
                flushed: kind == StoreKind::Stream,
            });
            if kind == StoreKind::Stream {
                let lines = self.streamed.entry(actor).or_default();
                if lines.last() != Some(&line) {
                    lines.push(line);
                }
            }
        }
    }

    /// Whether the flush had no effect.
    fn flush(&mut self, actor: Actor, at: u64, bytes: u64) -> bool {
        let mut useful = false;
        let on_the_way = self.flushed.entry(actor).or_default();
        for line in at / LINE..(at + bytes).div_ceil(LINE) {
            let Some(held) = self.dirty.get_mut(&line) else {
                continue;
            };
            useful |= held.atoms.iter().any(|atom| !atom.flushed && !atom.certain);
            for atom in &mut held.atoms {
                atom.flushed = true;
            }
            on_the_way.push((line, held.atoms.len()));
        }
        !useful
    }

    /// Whether the fence had no effect.
    fn fence(&mut self, actor: Actor) -> bool {
        let flushed = self.flushed.remove(&actor).unwrap_or_default();
        let streamed = self.streamed.remove(&actor).unwrap_or_default();
        let empty = flushed.is_empty() && streamed.is_empty();
        for &(line, count) in &flushed {
            if let Some(held) = self.dirty.get_mut(&line) {
                for atom in held.atoms.iter_mut().take(count) {
                    atom.certain |= atom.kind != StoreKind::Stream;
                }
            }
        }
        for &line in &streamed {
            if let Some(held) = self.dirty.get_mut(&line) {
                for atom in &mut held.atoms {
                    atom.certain |= atom.kind == StoreKind::Stream && atom.actor == actor;
                }
            }
        }
        for line in flushed
            .iter()
            .map(|&(line, _)| line)
            .chain(streamed.iter().copied())
        {
            self.settle(line);
        }
        empty
    }

    /// Moves the certain words at the front of a line to the base.
    fn settle(&mut self, line: u64) {
        let Some(held) = self.dirty.get_mut(&line) else {
            return;
        };
        let certain = held.atoms.iter().take_while(|atom| atom.certain).count();
        let at = (line * LINE) as usize;
        let base = &mut self.base[at..at + LINE as usize];
        self.base_hash ^= unit::hash(line, base);
        for atom in held.atoms.drain(..certain) {
            base[atom.word * 8..][..8].copy_from_slice(&atom.value.to_le_bytes());
        }
        self.base_hash ^= unit::hash(line, base);
        let drained = certain;
        if held.atoms.is_empty() {
            self.dirty.remove(&line);
        }
        // Other actors have counted these atoms when they flushed.
        for lines in self.flushed.values_mut() {
            for (other, count) in lines.iter_mut().filter(|(other, _)| *other == line) {
                let _ = other;
                *count = count.saturating_sub(drained);
            }
        }
    }

    /// The bytes of a line as the process sees them.
    #[must_use]
    pub fn seen(&self, line: u64) -> [u8; LINE as usize] {
        let mut bytes = self.certain(line);
        for atom in self.dirty.get(&line).into_iter().flat_map(|l| &l.atoms) {
            bytes[atom.word * 8..][..8].copy_from_slice(&atom.value.to_le_bytes());
        }
        bytes
    }

    fn certain(&self, line: u64) -> [u8; LINE as usize] {
        let at = (line * LINE) as usize;
        let mut bytes = [0; LINE as usize];
        bytes.copy_from_slice(&self.base[at..at + LINE as usize]);
        bytes
    }

    /// Words that a crash may lose, where that changes the image: not flushed, or flushed and not fenced.
    pub fn loose(&self) -> impl Iterator<Item = (u64, &Atom)> {
        self.dirty.iter().flat_map(|(&line, held)| {
            let certain = self.certain(line);
            let atoms = held.atoms.iter().enumerate();
            atoms
                .filter(move |(nth, atom)| {
                    // A later word that is certain hides it.
                    let mut later = held.atoms[nth + 1..].iter();
                    !atom.certain
                        && certain[atom.word * 8..][..8] != atom.value.to_le_bytes()
                        && !later.any(|later| later.certain && later.word == atom.word)
                })
                .map(|(_, atom)| atom)
                .map(move |atom| (line, atom))
        })
    }

    /// What a crash at this moment leaves open.
    pub fn units(&self, random: &mut StdRng) -> Vec<Unit> {
        self.dirty
            .iter()
            .map(|(&line, held)| held.unit(line, &self.certain(line), random))
            .collect()
    }
}

impl Atom {
    /// The actor that stored it.
    #[must_use]
    pub fn actor(&self) -> Actor {
        self.actor
    }

    /// How it was stored.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Whether no acknowledgement waits for it.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.kind == StoreKind::Late
    }

    /// Whether it was flushed, or streamed.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.flushed
    }

    /// Its number in its line.
    #[must_use]
    pub fn word(&self) -> usize {
        self.word
    }

    /// The stored word.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Whether it went past the cache.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        self.kind == StoreKind::Stream
    }

    /// Whether it survives any crash, although an earlier word of the line may not.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.certain
    }

    /// Its offset in the image, if it is of this line.
    #[must_use]
    pub fn at(&self, line: u64) -> u64 {
        line * LINE + 8 * self.word as u64
    }
}

impl Line {
    /// The places in the source that stored the uncertain words.
    pub fn sites(&self) -> impl Iterator<Item = Site> {
        self.atoms
            .iter()
            .filter(|atom| !atom.certain)
            .map(|atom| atom.site)
    }

    /// The words that are not in the base yet, in order.
    #[must_use]
    pub fn atoms(&self) -> &[Atom] {
        &self.atoms
    }

    fn applied(&self, certain: &[u8], takes: impl Fn(usize, &Atom) -> bool) -> Vec<u8> {
        let mut bytes = certain.to_vec();
        for (index, atom) in self.atoms.iter().enumerate() {
            if atom.certain || takes(index, atom) {
                bytes[atom.word * 8..][..8].copy_from_slice(&atom.value.to_le_bytes());
            }
        }
        bytes
    }

    /// The allowed contents of this line; see the rules in the module text.
    fn unit(&self, line: u64, certain: &[u8], random: &mut StdRng) -> Unit {
        let is_word = |atom: &Atom| atom.kind.is_word();
        let words: Vec<usize> = (0..self.atoms.len())
            .filter(|&index| is_word(&self.atoms[index]))
            .collect();
        let certain_words = words
            .iter()
            .rposition(|&index| self.atoms[index].certain)
            .map_or(0, |last| last + 1);
        let mut unit = Unit::new(line, self.applied(certain, |_, _| false).into());
        unit.commits = !words.is_empty();
        // If the first `there` word stores have persisted, so have all bulk stores before the last of these.
        // Bulk stores between that one and the next word store, and streamed words, are optional.
        for there in certain_words..=words.len() {
            let from = there.checked_sub(1).map_or(0, |last| words[last] + 1);
            let to = words.get(there).copied().unwrap_or(self.atoms.len());
            let sure = |index: usize, atom: &Atom| index < from && atom.kind != StoreKind::Stream;
            let optional: Vec<usize> = (0..self.atoms.len())
                .filter(|&index| {
                    let atom = &self.atoms[index];
                    !atom.certain
                        && match atom.kind {
                            StoreKind::Stream => true,
                            StoreKind::Bulk => (from..to).contains(&index),
                            StoreKind::Word | StoreKind::Late => false,
                        }
                })
                .collect();
            for subset in subsets(optional.len(), random) {
                let takes = |index: usize, atom: &Atom| {
                    sure(index, atom)
                        || optional
                            .iter()
                            .position(|&other| other == index)
                            .is_some_and(|bit| subset >> bit & 1 == 1)
                };
                unit.add(&self.applied(certain, takes));
            }
        }
        for (index, atom) in self.atoms.iter().enumerate() {
            let next = self.atoms.get(index + 1);
            if next.is_some_and(|next| next.step == atom.step) {
                continue;
            }
            let prefix = unit.add(&self.applied(certain, |other, _| other <= index));
            unit.prefixes.push((atom.step, prefix));
        }
        let newest = unit.add(&self.applied(certain, |_, _| true));
        unit.put_last(newest);
        unit
    }
}

/// Subsets of `count` words, as bits: all, if there are few; otherwise none, all, each word alone, each word
/// missing, each prefix, and some at random.
fn subsets(count: usize, random: &mut StdRng) -> Vec<u128> {
    let count = count.min(127);
    let all = (1u128 << count) - 1;
    if count <= SUBSETS_OF {
        return (0..=all).collect();
    }
    let mut found = vec![0, all];
    for bit in 0..count {
        found.push(1 << bit);
        found.push(all & !(1 << bit));
        found.push((1 << bit) - 1);
    }
    for _ in 0..RANDOM_SUBSETS {
        found.push(random.random::<u128>() & all);
    }
    found.sort_unstable();
    found.dedup();
    found
}

const _: () = assert!(WORDS == 8);
