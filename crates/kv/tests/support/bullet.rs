//! The layout of a pool of the engine `bullet`, found as the engine finds it: see docs/format.md.

use everdram_pm::{Medium, MediumChoice, Pool, PoolOptions, ROOT_AT};
use std::ops::Range;
use std::path::Path;

const LINE: u64 = 64;
const ENTRY_HEAD: u64 = 32;
const LINK: u64 = 6;

/// Ranges of the image.
#[derive(Default)]
pub struct Map {
    /// The root, and both ledgers.
    pub books: Vec<Range<usize>>,
    /// The retired words of the areas, and the records of the last transactions.
    pub areas: Vec<Range<usize>>,
    /// Log entries that a later entry confirms as fenced.
    pub entries: Vec<Range<usize>>,
    /// What was written to each log since the last fence but one, and the objects that it names. Damage to
    /// that cannot be told from a write in progress at the power failure.
    pub last: Vec<Range<usize>>,
    /// Descriptors and bits of the heap's chunks.
    pub chunks: Vec<Range<usize>>,
    /// Lines of buckets that have objects, and one that has none.
    pub buckets: Vec<Range<usize>>,
    /// Objects that the table names, and those that only a log names.
    pub objects: Vec<Range<usize>>,
}

/// A pool under examination.
pub struct Looked {
    pub pool: std::sync::Arc<Pool>,
    geometry: [u64; 8],
}

impl Looked {
    pub fn at(directory: &Path, medium: Medium) -> Looked {
        let options = PoolOptions {
            medium: MediumChoice::Only(medium),
            read_only: true,
            max_bytes: 1 << 30,
            ..PoolOptions::default()
        };
        let pool = Pool::open(directory, &options).unwrap();
        let geometry = pool.geometry();
        Looked { pool, geometry }
    }

    pub fn word(&self, at: u64) -> u64 {
        self.pool.region().load_word(at)
    }

    pub fn bytes(&self, at: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.pool.region().load(at, &mut bytes);
        bytes
    }

    pub fn logs(&self) -> u64 {
        self.geometry[1]
    }

    pub fn log_bytes(&self) -> u64 {
        self.geometry[2]
    }

    pub fn area(&self, number: u64) -> u64 {
        self.pool.extents(1)[0].at + number * self.geometry[3]
    }

    fn areas(&self) -> u64 {
        self.logs().min(16)
    }

    /// The offset of a log position.
    pub fn place(&self, log: u64, position: u64) -> u64 {
        self.area(self.areas()) + log * self.log_bytes() + position % self.log_bytes()
    }

    pub fn head(&self, log: u64) -> u64 {
        self.word(ROOT_AT + 512 + 56 + 8 * log)
    }

    /// The check of an entry with these bytes (of padding: of its head).
    pub fn entry_check(&self, at: u64, position: u64, bytes: &[u8]) -> u64 {
        let secret = self.pool.secret();
        let words = [secret.sum(&bytes[8..]), at ^ 0x65 << 56, position];
        secret.sum_words(words).max(1)
    }

    /// The entries of a log: positions, and the position that each says was fenced before it; and where the
    /// log ends.
    pub fn entries(&self, log: u64) -> (Vec<(u64, u64)>, u64) {
        let (mut entries, mut position) = (Vec::new(), self.head(log));
        while position < self.head(log) + self.log_bytes() {
            let at = self.place(log, position);
            let sizes = self.word(at + 16);
            let bytes = (sizes as u32) as u64 * LINE;
            let sealed = if sizes >> 32 == 0 { ENTRY_HEAD } else { bytes };
            let left = self.log_bytes() - position % self.log_bytes();
            if bytes == 0
                || bytes > left
                || self.entry_check(at, position, &self.bytes(at, sealed)) != self.word(at)
            {
                break;
            }
            entries.push((position, self.word(at + 24)));
            position += bytes;
        }
        (entries, position)
    }

    fn object(&self, at: u64) -> Range<usize> {
        let lengths = self.word(at + 32);
        let [key, value] = [lengths as u32, (lengths >> 32) as u32];
        let bytes = 40 + u64::from(key).next_multiple_of(8) + u64::from(value).next_multiple_of(8);
        range(at, bytes)
    }

    pub fn map(&self) -> Map {
        let mut map = Map::default();
        let ledger = 56 + 8 * self.logs();
        map.books = vec![
            range(ROOT_AT, 32),
            range(ROOT_AT + 512, ledger),
            range(ROOT_AT + 2048, ledger),
        ];
        for area in (0..self.areas()).map(|number| self.area(number)) {
            map.areas
                .extend([range(area, 8), range(area + LINE, 24 + 64)]);
        }
        for log in 0..self.logs() {
            self.map_log(log, &mut map);
        }
        let chunk_bytes = self.geometry[4] * LINE;
        for extent in self.pool.extents(2) {
            let mut at = extent.at;
            while at < extent.at + extent.bytes {
                let descriptor = self.word(at);
                let (chunks, header) = match descriptor {
                    0 => (1, 8 + self.geometry[4] / 8),
                    _ => (u64::from((descriptor >> 8) as u32), 8),
                };
                map.chunks.push(range(at, header));
                at += chunks * chunk_bytes;
            }
        }
        let [current, old, done] = [0, 8, 16].map(|at| self.word(ROOT_AT + at));
        for (array, from) in [(current, 0), (old, done)] {
            let (at, depth) = (array / LINE * LINE, array % LINE);
            let buckets = match (array, old) {
                (0, _) => 0..0,
                (_, old) if array == current && old != 0 => 0..2 * done,
                _ => from..1 << depth,
            };
            buckets.for_each(|bucket| self.map_bucket(at + bucket * LINE, &mut map));
        }
        map
    }

    fn map_log(&self, log: u64, map: &mut Map) {
        let (entries, end) = self.entries(log);
        let fenced = entries.last().map_or(end, |(_, ordered)| *ordered);
        for (nth, (position, _)) in entries.iter().enumerate() {
            let at = self.place(log, *position);
            let next = entries.get(nth + 1).map_or(end, |(next, _)| *next);
            let kind = if *position < fenced {
                &mut map.entries
            } else {
                &mut map.last
            };
            kind.push(range(at, next - position));
            if self.word(at + 16) >> 32 > 0 && self.word(at + ENTRY_HEAD) >> 48 & 0xff == LINK {
                let object = self.object(self.word(at + 64));
                let kind = if *position < fenced {
                    &mut map.objects
                } else {
                    &mut map.last
                };
                kind.push(object);
            }
        }
    }

    fn map_bucket(&self, mut at: u64, map: &mut Map) {
        while at != 0 {
            let slots: Vec<u64> = (0..7).map(|slot| self.word(at + slot * 8)).collect();
            let objects = slots.iter().filter(|slot| **slot != 0);
            let objects: Vec<_> = objects
                .map(|slot| self.object((slot & ((1 << 42) - 1)) * LINE))
                .collect();
            if !objects.is_empty() || map.buckets.is_empty() {
                map.buckets.push(range(at, LINE));
            }
            map.objects.extend(objects);
            at = self.word(at + 56) & ((1 << 48) - LINE);
        }
    }
}

fn range(at: u64, bytes: u64) -> Range<usize> {
    at as usize..(at + bytes) as usize
}
