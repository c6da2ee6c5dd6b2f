//! The limits that a store's rates are shares of: records in a pool, an index in memory, and nothing else.
//!
//! A record is a header of 16 bytes, a key and a value, packed or padded to whole lines. The index is an
//! array of 8-byte entries on huge pages, used at the slot of a random number: no hash, no tag, no collision.
//! Every record is durable before the next operation of a loop begins, and batches when they end.

use super::Settings;
use super::random::Sequence;
use crate::named::named;
use crate::subject::Error;
use crate::timing::{Sample, Stopwatch};
use everdram_pm::limits::{Memory, Pages, fence, flush, prefetch, stream};
use everdram_pm::{FlushKind, LINE};
use std::hint::black_box;

const HEADER_BYTES: usize = 16;
const LINE_BYTES: usize = LINE as usize;

/// Records of a batch.
pub const BATCH: usize = 16;

named! {
    /// A loop over records.
    Kind, "loop":
    PutFlushed = "put-flushed": "packed record stored and flushed, fence, random index write",
    PutStreamed = "put-streamed": "packed record streamed, fence, random index write",
    PutPadded = "put-padded": "record padded to lines streamed, fence, random index write",
    Get = "get": "random index entry read, then its record, independent",
    UpdateWord = "update-8": "8 bytes of a random record stored, flushed, fence",
    BatchPacked = "batch-16-packed": "16 packed records streamed, fence; no index",
    BatchPadded = "batch-16-padded": "16 records padded to lines streamed, fence; no index",
    MultiGet = "multi-get-16": "16 index entries, then 16 records, prefetched and read",
}

/// A pool full of records and an index over them.
pub struct Records {
    pool: Memory,
    index: Memory,
    kind: FlushKind,
    records: u64,
    operations: u64,
    record_bytes: usize,
    key_bytes: usize,
    slots: u64,
    seed: u64,
}

impl Records {
    /// Allocates and populates both.
    ///
    /// # Errors
    /// If there is not as much memory.
    pub fn new(settings: &Settings) -> Result<Records, Error> {
        let record_bytes = HEADER_BYTES + settings.key_bytes + settings.value_bytes;
        let padded_bytes = record_bytes.next_multiple_of(LINE_BYTES) as u64;
        anyhow::ensure!(
            (1..1 << 31).contains(&settings.records) && record_bytes < 1 << 20,
            "{} records of {record_bytes} bytes: 1 to 2 billion records of less than 1 MiB",
            settings.records
        );
        let pool = Memory::file(&settings.dir, (settings.records + 1) * padded_bytes)?;
        pool.populate(0, pool.len())?;
        let slots = settings.records.next_power_of_two();
        let index = Memory::anonymous(slots * 8, Pages::Huge)?;
        index.populate(0, index.len())?;
        let mut records = Records {
            pool,
            index,
            kind: FlushKind::detect(),
            records: settings.records,
            operations: settings.operations(),
            record_bytes,
            key_bytes: settings.key_bytes,
            slots,
            seed: 0,
        };
        records.fill();
        Ok(records)
    }

    /// Every slot names some record, so that a read is one index line and one record whatever slot it picks.
    fn fill(&mut self) {
        let mut random = Sequence::new(1);
        for slot in self.index.words_mut() {
            *slot = random.below(self.records) as u64;
        }
        for (number, byte) in self.pool.bytes_mut().iter_mut().enumerate() {
            *byte = number as u8;
        }
    }

    /// One repetition.
    pub fn run(&mut self, kind: Kind) -> Sample {
        self.seed += 1;
        match kind {
            Kind::PutFlushed => self.put_flushed(),
            Kind::PutStreamed => self.put_packed(1, true),
            Kind::PutPadded => self.put_padded(1, true),
            Kind::Get => self.get(),
            Kind::UpdateWord => self.update_word(),
            Kind::BatchPacked => self.put_packed(BATCH, false),
            Kind::BatchPadded => self.put_padded(BATCH, false),
            Kind::MultiGet => self.multi_get(),
        }
    }

    fn put_flushed(&mut self) -> Sample {
        let mut random = Sequence::new(self.seed);
        let mut record = vec![7; self.record_bytes];
        let index = self.index.words_mut();
        let places = self.pool.bytes_mut().chunks_exact_mut(self.record_bytes);
        let watch = Stopwatch::start();
        for (place, number) in places.zip(0..self.operations) {
            record[..8].copy_from_slice(&number.to_le_bytes());
            place.copy_from_slice(&record);
            flush(self.kind, place);
            fence();
            index[random.below(self.slots)] = number;
        }
        watch.stop(self.operations)
    }

    /// Packed: the line that a fence finds partly filled is streamed as it is, and again when it is full.
    fn put_packed(&mut self, batch: usize, has_index: bool) -> Sample {
        let mut random = Sequence::new(self.seed);
        let index = self.index.words_mut();
        let lines = self.pool.lines_mut();
        let mut staged = vec![0; LINE_BYTES + batch * self.record_bytes + LINE_BYTES];
        let record = vec![7; self.record_bytes];
        let (mut filled, mut at) = (0, 0);
        let rounds = self.operations / batch as u64;
        let watch = Stopwatch::start();
        for round in 0..rounds {
            for number in 0..batch {
                let place = &mut staged[filled..][..self.record_bytes];
                place.copy_from_slice(&record);
                place[..8].copy_from_slice(&(round * batch as u64 + number as u64).to_le_bytes());
                filled += self.record_bytes;
            }
            let used = filled.div_ceil(LINE_BYTES);
            stream(self.kind, &mut lines[at..at + used], staged.as_chunks().0);
            fence();
            let whole = filled / LINE_BYTES;
            staged.copy_within(whole * LINE_BYTES..(whole + 1) * LINE_BYTES, 0);
            (at, filled) = (at + whole, filled % LINE_BYTES);
            if has_index {
                index[random.below(self.slots)] = round;
            }
        }
        watch.stop(rounds * batch as u64)
    }

    fn put_padded(&mut self, batch: usize, has_index: bool) -> Sample {
        let mut random = Sequence::new(self.seed);
        let index = self.index.words_mut();
        let record_lines = self.record_bytes.div_ceil(LINE_BYTES);
        let places = self.pool.lines_mut().chunks_exact_mut(record_lines * batch);
        let mut staged = vec![0; record_lines * LINE_BYTES];
        let record = vec![7; self.record_bytes];
        let rounds = self.operations / batch as u64;
        let watch = Stopwatch::start();
        for (place, round) in places.zip(0..rounds) {
            for (place, number) in place.chunks_exact_mut(record_lines).zip(0u64..) {
                staged[..self.record_bytes].copy_from_slice(&record);
                staged[..8].copy_from_slice(&(round * batch as u64 + number).to_le_bytes());
                stream(self.kind, place, staged.as_chunks().0);
            }
            fence();
            if has_index {
                index[random.below(self.slots)] = round;
            }
        }
        watch.stop(rounds * batch as u64)
    }

    fn get(&mut self) -> Sample {
        let mut random = Sequence::new(self.seed);
        let (index, pool) = (self.index.words(), self.pool.bytes());
        let record_bytes = self.record_bytes;
        let mut sum = 0;
        let watch = Stopwatch::start();
        for _ in 0..self.operations {
            let record = index[random.below(self.slots)] as usize * record_bytes;
            sum ^= fold(&pool[record..record + record_bytes]);
        }
        let sample = watch.stop(self.operations);
        black_box(sum);
        sample
    }

    fn update_word(&mut self) -> Sample {
        let mut random = Sequence::new(self.seed);
        let value_at = (HEADER_BYTES + self.key_bytes).next_multiple_of(8);
        let word = value_at.min(self.record_bytes.saturating_sub(8));
        let (records, record_bytes) = (self.records, self.record_bytes);
        let words = self.pool.words_mut();
        let watch = Stopwatch::start();
        for number in 0..self.operations {
            let place = &mut words[(random.below(records) * record_bytes + word) / 8];
            *place = number;
            flush(self.kind, place);
            fence();
        }
        watch.stop(self.operations)
    }

    fn multi_get(&mut self) -> Sample {
        let mut random = Sequence::new(self.seed);
        let (index, pool) = (self.index.words(), self.pool.bytes());
        let record_bytes = self.record_bytes;
        let rounds = self.operations / BATCH as u64;
        let (mut slots, mut records) = ([0; BATCH], [0; BATCH]);
        let mut sum = 0;
        let watch = Stopwatch::start();
        for _ in 0..rounds {
            for slot in &mut slots {
                *slot = random.below(self.slots);
                prefetch(&index[*slot]);
            }
            for (slot, record) in slots.iter().zip(&mut records) {
                *record = index[*slot] as usize * record_bytes;
                let lines = &pool[*record..*record + record_bytes];
                lines.iter().step_by(LINE_BYTES).for_each(prefetch);
                prefetch(&lines[record_bytes - 1]);
            }
            for record in records {
                sum ^= fold(&pool[record..record + record_bytes]);
            }
        }
        let sample = watch.stop(rounds * BATCH as u64);
        black_box(sum);
        sample
    }
}

/// Reads every byte.
#[inline]
fn fold(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words
        .iter()
        .fold(0, |sum, word| sum ^ u64::from_le_bytes(*word));
    rest.iter().fold(words, |sum, byte| sum ^ u64::from(*byte))
}
