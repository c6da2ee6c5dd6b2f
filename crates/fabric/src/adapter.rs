//! The network adapter of a link within one process: the memory it exposes, and what peers do with it.
//!
//! The thread that writes plays the adapter of the other side. In a window of a pool it has a lane of its
//! own, so that its stores are those of one more actor: ordinary stores that a crash may keep or lose, until
//! a durable write, which it flushes and fences before it completes. That covers the write's own bytes alone,
//! as on `tcp`. With a seed each write lands in pieces, in an order drawn from it; nobody may rely on another
//! one.

use everdram_fabric_sys::Access;
use everdram_pm::{Dirty, Flushed, Lane, Window};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that a pool stores at once.
const WORD: usize = 8;
/// Most pieces of one write.
const PIECES: usize = 16;

/// What peers reach under a key.
enum Memory {
    Own(Vec<u8>),
    Pool {
        window: Arc<Window>,
        /// Of the window.
        part: Range<usize>,
        access: Access,
        lane: Lane,
    },
}

/// See the module text.
#[derive(Default)]
pub(crate) struct Adapter {
    exposed: HashMap<u64, Memory>,
    /// Cuts and orders the pieces of a write.
    random: Option<StdRng>,
    last_commit_ns: u64,
}

impl Adapter {
    pub(crate) fn seeded(seed: u64) -> Adapter {
        Adapter {
            exposed: HashMap::new(),
            random: Some(StdRng::seed_from_u64(seed)),
            last_commit_ns: 0,
        }
    }

    /// Zeroed memory under a new key.
    pub(crate) fn expose(&mut self, bytes: usize) -> u64 {
        self.add(Memory::Own(vec![0; bytes]))
    }

    /// A part of a window of a pool under a new key.
    ///
    /// # Panics
    /// If the window does not have it.
    pub(crate) fn expose_part(
        &mut self,
        window: &Arc<Window>,
        part: Range<usize>,
        access: Access,
    ) -> u64 {
        assert!(part.start <= part.end && part.end <= window.len());
        self.add(Memory::Pool {
            window: Arc::clone(window),
            part,
            access,
            lane: window.pool().lane(),
        })
    }

    fn add(&mut self, memory: Memory) -> u64 {
        // As with a real adapter, a key cannot be guessed from another one.
        let key = rand::random();
        self.exposed.insert(key, memory);
        key
    }

    pub(crate) fn unexpose(&mut self, key: u64) {
        self.exposed.remove(&key);
    }

    pub(crate) fn unexpose_all(&mut self) {
        self.exposed.clear();
    }

    /// A peer writes; durably, if it asked for that. `false`: it may not, or the pool has failed.
    pub(crate) fn write(&mut self, key: u64, at: u64, bytes: &[u8], is_durable: bool) -> bool {
        let Some(memory) = self.exposed.get_mut(&key) else {
            return false;
        };
        match memory {
            Memory::Own(memory) => match range(at, bytes.len(), memory.len()) {
                Some(range) => {
                    memory[range].copy_from_slice(bytes);
                    true
                }
                None => false,
            },
            Memory::Pool {
                window,
                part,
                access,
                lane,
            } => {
                let may = matches!(access, Access::Write | Access::ReadWrite);
                let Some(range) = range(at, bytes.len(), part.len()).filter(|_| may) else {
                    return false;
                };
                let stored = store(
                    lane,
                    window.at() + (part.start + range.start) as u64,
                    bytes,
                    &mut self.random,
                );
                if !is_durable {
                    return true;
                }
                let begun = Instant::now();
                let is_done = commit(lane, stored);
                self.last_commit_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                is_done
            }
        }
    }

    /// Nanoseconds that the last durable write took to become durable, once it was there.
    pub(crate) fn last_commit_ns(&self) -> u64 {
        self.last_commit_ns
    }

    /// A peer reads. `None`: it may not.
    pub(crate) fn read(&self, key: u64, at: u64, bytes: usize) -> Option<Vec<u8>> {
        let memory = self.exposed.get(&key)?;
        let may = match memory {
            Memory::Own(_) => true,
            Memory::Pool { access, .. } => matches!(access, Access::Read | Access::ReadWrite),
        };
        may.then(|| memory.copy(at, bytes))?
    }

    /// The owner of the memory looks at it. `false`: there is no such memory.
    pub(crate) fn look(&self, key: u64, at: u64, into: &mut [u8]) -> bool {
        match self.exposed.get(&key) {
            Some(Memory::Own(memory)) => match range(at, into.len(), memory.len()) {
                Some(range) => {
                    into.copy_from_slice(&memory[range]);
                    true
                }
                None => false,
            },
            Some(memory) => match memory.copy(at, into.len()) {
                Some(bytes) => {
                    into.copy_from_slice(&bytes);
                    true
                }
                None => false,
            },
            None => false,
        }
    }
}

impl Memory {
    fn copy(&self, at: u64, bytes: usize) -> Option<Vec<u8>> {
        match self {
            Memory::Own(memory) => memory.get(range(at, bytes, memory.len())?).map(Vec::from),
            Memory::Pool { window, part, .. } => {
                let range = range(at, bytes, part.len())?;
                let range = part.start + range.start..part.start + range.end;
                // A pool is read in whole words, and a window has whole ones.
                let from = range.start / WORD * WORD;
                let mut words = vec![0; range.end.next_multiple_of(WORD) - from];
                let region = window.pool().region();
                region.load(window.at() + from as u64, &mut words);
                words
                    .get(range.start - from..range.end - from)
                    .map(Vec::from)
            }
        }
    }
}

/// The range of so many bytes from `at` on, if memory of `length` has it.
fn range(at: u64, bytes: usize, length: usize) -> Option<Range<usize>> {
    let at = usize::try_from(at).ok()?;
    let end = at.checked_add(bytes).filter(|&end| end <= length)?;
    Some(at..end)
}

/// Stores bytes at an offset of the pool: whole words, of which the first and the last keep what lies beside
/// the bytes. An adapter stores single bytes; a word is the least of a pool. So whoever stores to the same
/// word meanwhile loses it, which nobody does who has given it away.
fn store(lane: &mut Lane, at: u64, bytes: &[u8], random: &mut Option<StdRng>) -> Vec<Dirty> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let from = at / WORD as u64 * WORD as u64;
    let skip = (at - from) as usize;
    let end = skip + bytes.len();
    let mut words = vec![0; end.next_multiple_of(WORD)];
    let last = words.len() - WORD;
    let region = lane.pool().region();
    if skip > 0 {
        words[..WORD].copy_from_slice(&region.load_word(from).to_le_bytes());
    }
    if !end.is_multiple_of(WORD) {
        let word = region.load_word(from + last as u64);
        words[last..].copy_from_slice(&word.to_le_bytes());
    }
    words[skip..end].copy_from_slice(bytes);
    let mut cuts = vec![0, words.len()];
    if let Some(random) = random {
        cuts.extend((2..PIECES).map(|_| random.random_range(0..=words.len() / WORD) * WORD));
        cuts.sort_unstable();
        cuts.dedup();
    }
    let mut pieces: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
    if let Some(random) = random {
        pieces.shuffle(random);
    }
    let stores = pieces
        .into_iter()
        .map(|piece| lane.store(from + piece.start as u64, &words[piece]));
    stores.collect()
}

/// Makes stores durable. `false`: the pool takes no more.
fn commit(lane: &mut Lane, stored: Vec<Dirty>) -> bool {
    let mut flushed = None;
    for dirty in stored {
        let piece: Flushed = lane.flush(dirty);
        piece.join(&mut flushed);
    }
    match flushed {
        None => lane.pool().is_healthy(),
        Some(flushed) => {
            let ordered = lane.fence(flushed);
            lane.pool().wait(ordered.lsn()).is_ok()
        }
    }
}

#[cfg(test)]
mod tests;
