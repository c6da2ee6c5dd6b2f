//! A toy machine made persistent: counters that can be added to, each with the LSN of its last change.

use super::{Changes, Collected, Dipper, Found, Machine, Shadow, ShadowShape, Space};
use crate::crl::{Entry, Ledger, Logs, Shape, Step, word_at};
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::Error;
use everdram_pm::{Lane, Pool};
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = 512;
const LOG: u64 = 4096;
const LOGS: usize = 2;
const SHADOW: u32 = 2;

/// The machine: an entry is counter, LSN and summand. A counter is two words of the only segment.
struct Counters;

impl Machine for Counters {
    type Change = u64;

    fn is_sound(&self, entry: &Entry<'_>) -> bool {
        entry.operations == 1
    }

    fn read(&self, entry: &Entry<'_>, into: &mut Collected<u64>) -> Result<(), Error> {
        let [counter, lsn, by] = [0, 8, 16].map(|at| word_at(entry.bytes, at));
        into.push(counter, lsn, by, &[]);
        Ok(())
    }

    fn apply<S: Space>(&self, space: &mut S, changes: Changes<'_, u64>) -> Result<(), Error> {
        let at = 16 * changes.object();
        let [mut lsn, mut value] = [space.load(0, at)?, space.load(0, at + 8)?];
        for (next, by, _) in changes.iter() {
            if next > lsn {
                (lsn, value) = (next, value + by);
            }
        }
        space.store(0, at, &[lsn.to_le_bytes(), value.to_le_bytes()].concat())
    }
}

/// Its memory.
#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, u64>);

impl Space for Memory {
    fn load(&mut self, _segment: usize, at: u64) -> Result<u64, Error> {
        Ok(self.0.get(&at).copied().unwrap_or(0))
    }

    fn store(&mut self, _segment: usize, at: u64, bytes: &[u8]) -> Result<(), Error> {
        for (word, at) in bytes.as_chunks::<8>().0.iter().zip((at..).step_by(8)) {
            self.0.insert(at, u64::from_le_bytes(*word));
        }
        Ok(())
    }
}

/// The persistent machine.
struct Open {
    dipper: Dipper<Counters>,
    lane: Lane,
    memory: Memory,
    entry: Vec<u8>,
}

fn shape() -> ShadowShape {
    ShadowShape {
        owner: SHADOW,
        page_bytes: PAGE,
        segments: 1,
        piece: 3,
        object_pages: 1,
    }
}

impl Open {
    fn new(pool: &Arc<Pool>) -> Result<Open, Error> {
        let at = match pool.extents(1).first() {
            Some(extent) => extent.at,
            None => pool.allocate(1, LOGS as u64 * LOG, 4096)?.at,
        };
        let logs = Shape {
            at,
            count: LOGS,
            log_bytes: LOG,
            entry_most: 64,
            reserved: 0,
        };
        let mut found = ReadFlusher::new(pool.lane());
        let ledger = Ledger::find(pool, &mut found, LOGS)?;
        let notes = ledger.as_ref().map(|ledger| ledger.notes);
        let ledger = ledger.unwrap_or_else(|| Ledger::first(&mut found.lane, LOGS));
        let shadow = Shadow::open(pool, shape(), notes, false)?;
        let logs = Logs::new(Arc::clone(pool), logs, ledger);
        let copied = parking_lot::Mutex::new(Memory::default());
        shadow.copy_out(2, &|segment, at, bytes| {
            copied.lock().store(segment, at, bytes)
        })?;
        let found = Found::read(pool, &logs, &Counters, 2, &|_, _| {})?;
        found.by_object(2, 0, &|_| {}, |changes| {
            Counters.apply(&mut *copied.lock(), changes)
        })?;
        let memory = copied.into_inner();
        let dipper = Dipper::new(logs, shadow, shape().piece);
        Ok(Open {
            dipper,
            lane: pool.lane(),
            memory,
            entry: Vec::new(),
        })
    }

    /// Adds to a counter; durable on return.
    fn add(&mut self, counter: u64, by: u64) -> Result<(), Error> {
        self.dipper.reserve(&[16 * (counter + 1)])?;
        let mut group = loop {
            match self.dipper.logs.begin(counter as usize % LOGS) {
                Some(group) => break group,
                None => drop(self.dipper.step(&Counters, true)?),
            }
        };
        let lsn = self.memory.load(0, 16 * counter)? + 1;
        self.entry.clear();
        self.entry.resize(crate::crl::ENTRY_HEAD, 0);
        let words = [counter, lsn, by].map(u64::to_le_bytes);
        self.entry.extend_from_slice(words.as_flattened());
        let logs = &self.dipper.logs;
        let (_, flushed) = logs.append(&mut self.lane, &mut group, &mut self.entry, 1);
        let _ordered = self.lane.fence(flushed);
        logs.end(group);
        let value = self.memory.load(0, 16 * counter + 8)? + by;
        self.memory.store(
            0,
            16 * counter,
            &[lsn.to_le_bytes(), value.to_le_bytes()].concat(),
        )
    }

    fn values(&self) -> BTreeMap<u64, u64> {
        let values = self
            .memory
            .0
            .iter()
            .filter(|(at, value)| *at % 16 == 8 && **value > 0);
        values.map(|(at, value)| (at / 16, *value)).collect()
    }

    fn checkpoint(&self) {
        while self.dipper.step(&Counters, true).unwrap() != Step::Idle {}
    }
}

/// Adds to counters, in an order that a seed gives.
fn load(open: &mut Open, seed: u64, calls: u64) {
    for call in 0..calls {
        let random = (seed + call).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        open.add(random % 700, call % 5 + 1).unwrap();
    }
}

#[test]
fn counters_survive_restarts_between_and_during_checkpoints() {
    let pool = Pool::heap(1 << 20, 1, [0; 8]);
    let mut open = Open::new(&pool).unwrap();
    for round in 0..12 {
        load(&mut open, 1000 * round, 150);
        for _ in 0..round {
            open.dipper.step(&Counters, true).unwrap();
        }
        let values = open.values();
        drop(open);
        open = Open::new(&pool).unwrap();
        assert_eq!(open.values(), values, "round {round}");
    }
    load(&mut open, 1, 1);
    open.checkpoint();
    assert!(open.dipper.logs.are_empty());
    let checkpoints = &open.dipper.counts().checkpoints;
    assert!(checkpoints.load(std::sync::atomic::Ordering::Relaxed) > 0);
}

#[test]
fn a_shadow_takes_no_more_room_than_it_reserves() {
    let pool = Pool::heap(1 << 20, 1, [0; 8]);
    let mut open = Open::new(&pool).unwrap();
    load(&mut open, 0, 700);
    open.checkpoint();
    let (bytes, _) = open.dipper.shadow(Shadow::bytes);
    for round in 1..20 {
        load(&mut open, 700 * round, 300);
        open.checkpoint();
    }
    assert_eq!(open.dipper.shadow(Shadow::bytes).0, bytes);
}

#[test]
fn each_damaged_page_is_noticed() {
    let pool = Pool::heap(1 << 20, 1, [0; 8]);
    let mut open = Open::new(&pool).unwrap();
    load(&mut open, 0, 700);
    open.checkpoint();
    let values = open.values();
    drop(open);
    let (mut lane, mut noticed) = (pool.lane(), 0);
    for extent in pool.extents(SHADOW) {
        for at in (extent.at..extent.at + extent.bytes).step_by(PAGE as usize) {
            let word = pool.region().load_word(at + 64);
            let _ = lane.store_word(at + 64, !word);
            match Open::new(&pool) {
                Ok(open) => assert_eq!(open.values(), values, "a free page counts"),
                Err(Error::Corrupt { .. }) => noticed += 1,
                Err(other) => panic!("{other}"),
            }
            let _ = lane.store_word(at + 64, word);
        }
    }
    assert!(noticed > 22, "{noticed}");
}

/// Every moment of a run is a moment at which the process may be killed.
#[cfg(feature = "lab")]
#[test]
fn every_moment_recovers() {
    use everdram_pm::Region;
    use everdram_pm::lab::{self, Event, Perform, Seed, Source, Tap};
    use parking_lot::Mutex;

    #[derive(Default)]
    struct Moments(Mutex<Vec<Vec<u8>>>);
    impl Tap for Moments {
        fn actor(&self) -> u32 {
            0
        }
        fn event(&self, region: &Region, _: Source, _: Event<'_>, perform: Perform<'_>) -> bool {
            let done = perform();
            self.0.lock().push(region.snapshot());
            done
        }
        fn load(&self, _: &Region, _: u64, _: u64) {}
    }

    let image = lab::create(Seed(1), 1, [0; 8]).unwrap();
    let moments = Arc::new(Moments::default());
    let pool = lab::open(&image, 256 << 10, Some(moments.clone())).unwrap();
    let mut open = Open::new(&pool).unwrap();
    let mut expected = vec![open.values()];
    let mut ends = vec![moments.0.lock().len()];
    for call in 0..90 {
        open.add(call * 7 % 40, call + 1).unwrap();
        expected.push(open.values());
        ends.push(moments.0.lock().len());
    }
    let images = std::mem::take(&mut *moments.0.lock());
    for (number, image) in images.iter().enumerate().skip(ends[0]) {
        let pool = lab::open(image, 256 << 10, None).unwrap();
        let found = Open::new(&pool).unwrap().values();
        let done = ends.partition_point(|end| *end <= number) - 1;
        let fits = found == expected[done] || Some(&found) == expected.get(done + 1);
        assert!(fits, "moment {number}, after {done} calls: {found:?}");
    }
}
