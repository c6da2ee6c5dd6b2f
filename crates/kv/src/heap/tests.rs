//! Invariants of [`Lines`], in any order of taking and giving back.

use super::adopting::Adopting;
use super::lines::{Claim, Lines};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// Takes as an allocator does: from its chunk, from another one, or from new ones.
fn take(lines: &Lines, claim: &mut Option<Claim>, count: u32, next: &mut u32) -> u64 {
    loop {
        if let Some(line) = lines.take(claim, count) {
            return line;
        }
        assert!(lines.add(*next, 2));
        *next += 2;
    }
}

#[test]
fn nothing_is_handed_out_twice_and_everything_comes_back() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let lines = Lines::new(128, 3);
        let (mut claim, mut next) = (None, 5);
        let mut mine: BTreeMap<u64, u32> = BTreeMap::new();
        for _ in 0..if cfg!(miri) { 100 } else { 3000 } {
            if random.random_bool(0.55) || mine.is_empty() {
                let most = if random.random_bool(0.1) { 125 } else { 6 };
                let count = random.random_range(1..=most);
                let line = take(&lines, &mut claim, count, &mut next);
                assert!(
                    line % 128 >= 3 && line % 128 + u64::from(count) <= 128,
                    "seed {seed}"
                );
                let before = mine.range(..line + u64::from(count)).next_back();
                assert!(
                    before.is_none_or(|(at, n)| at + u64::from(*n) <= line),
                    "seed {seed}"
                );
                mine.insert(line, count);
            } else {
                let nth = random.next_u32() as usize % mine.len();
                let (line, count) = mine.iter().nth(nth).map(|(a, b)| (*a, *b)).unwrap();
                mine.remove(&line);
                lines.give_back(line, count);
            }
        }
        lines.let_go(claim.take().unwrap());
        for (line, count) in std::mem::take(&mut mine) {
            lines.give_back(line, count);
        }
        // Wholly free chunks can become one run.
        let all = lines.chunks() as u32;
        assert_eq!(lines.take_run(all), Some(5), "seed {seed}");
        assert_eq!(lines.take_run(1), None);
        assert_eq!(lines.give_back_run(5), all);
        assert_eq!(lines.taken(), 0);
    }
}

#[test]
fn what_a_pool_says_is_taken_is_not_handed_out() {
    let lines = Lines::new(64, 2);
    assert!(lines.add(0, 6));
    lines.adopt(1, [0b1111_0000].into_iter());
    assert!(lines.adopt_run(3, 2));
    assert!(!lines.adopt_run(4, 2), "one of them is taken");
    assert!(lines.adopt_lines(64 + 8, 3));
    assert!(!lines.adopt_lines(64 + 10, 3) && !lines.adopt_lines(64 + 1, 1));
    assert!(!lines.adopt_lines(3 * 64 + 5, 1) && !lines.adopt_lines(60, 5));
    let (mut claim, mut next, mut seen) = (None, 6, Vec::new());
    while next == 6 {
        seen.push(take(&lines, &mut claim, 1, &mut next));
    }
    seen.pop();
    assert_eq!(seen.len(), 3 * 62 + 62 - 4 - 3);
    assert!(
        seen.iter()
            .all(|line| !(68..75).contains(line) && !(192..320).contains(line))
    );
}

#[test]
fn what_threads_adopt_together_is_taken_once() {
    let lines = Lines::new(64, 0);
    assert!(lines.add(0, 64));
    // Every third line, of most chunks twice; a run over the border of two chunks; and what does not exist.
    let adopted: u32 = std::thread::scope(|scope| {
        let adopt = || {
            let mut adopting = Adopting::of(&lines, true);
            let all = (64..63 * 64).step_by(3);
            all.map(|line| u32::from(adopting.adopt(line, 1).is_ok()))
                .sum::<u32>()
        };
        let other = scope.spawn(adopt);
        adopt() + other.join().unwrap()
    });
    assert_eq!(adopted, 62 * 64 / 3 + 1);
    let mut late = Adopting::of(&lines, false);
    assert_eq!(late.adopt(64 + 1, 2), Ok(()));
    assert_eq!(late.adopt(64 + 2, 1), Err(64 + 2), "not marked yet");
    assert_eq!(late.adopt(60, 4), Ok(()));
    assert_eq!(late.adopt(64 * 64, 1), Ok(()));
    assert_eq!(late.flush(), Err(64 * 64), "no such line");
    assert_eq!(late.adopt(61, 6), Err(61), "marked before");
    assert_eq!((late.adopt(62, 1), late.flush()), (Ok(()), Err(62)));
    lines.count_adopted();
    assert_eq!(lines.taken(), u64::from(adopted) + 2 + 4);
    assert_eq!(lines.free(), 64 * 64 - lines.taken());
    assert_eq!(lines.free_whole(), 64);
    // Wholly free chunks are a run again, and what is free in others is handed out once.
    assert_eq!(lines.take_run(1), Some(63));
    let (mut claim, mut seen) = (None, Vec::new());
    while let Some(line) = lines.take_anywhere(&mut claim, 1) {
        assert!(line < 63 * 64 && (line < 64 || (line - 64) % 3 != 0));
        seen.push(line);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len() as u64, 63 * 64 - u64::from(adopted) - 6);
}

#[test]
fn threads_that_take_and_give_back_share_no_line() {
    let lines = Lines::new(64, 0);
    assert!(lines.add(0, 64));
    let owner: Vec<AtomicU32> = (0..64 * 64).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for me in 1..=3_u32 {
            let (lines, owner) = (&lines, &owner);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(u64::from(me));
                let (mut claim, mut mine) = (None, Vec::new());
                for _ in 0..if cfg!(miri) { 60 } else { 20_000 } {
                    let count = random.random_range(1..8);
                    let taken = lines.take(&mut claim, count);
                    match taken {
                        Some(line) => {
                            for line in line..line + u64::from(count) {
                                assert_eq!(owner[line as usize].swap(me, Ordering::Relaxed), 0);
                            }
                            mine.push((line, count));
                        }
                        None => assert!(!mine.is_empty()),
                    }
                    while mine.len() > 100 || taken.is_none() && !mine.is_empty() {
                        let (line, count) =
                            mine.swap_remove(random.next_u32() as usize % mine.len());
                        for line in line..line + u64::from(count) {
                            assert_eq!(owner[line as usize].swap(0, Ordering::Relaxed), me);
                        }
                        lines.give_back(line, count);
                    }
                }
            });
        }
    });
}

/// A thread searched all chunks of a full pool and claimed one, which stayed in the list of claimable chunks;
/// another thread claimed it, too.
#[test]
fn a_chunk_has_one_owner() {
    let lines = Lines::new(64, 1);
    assert!(lines.add(0, 1));
    let (mut one, mut other) = (None, None);
    lines.take(&mut one, 20).unwrap();
    lines.let_go(one.take().unwrap());
    lines.take_anywhere(&mut one, 1).unwrap();
    for _ in 0..3 {
        assert_eq!(lines.take(&mut other, 1), None);
        assert_eq!(lines.take_anywhere(&mut other, 1), None);
        lines.let_go(one.take().unwrap());
        lines.take(&mut one, 1).unwrap();
    }
    lines.let_go(one.take().unwrap());
    lines.take_anywhere(&mut other, 1).unwrap();
    assert_eq!(lines.take(&mut one, 1), None);
}

#[cfg(all(feature = "lab", not(miri)))]
#[allow(dead_code, reason = "`tests/moments` needs more of it")]
#[path = "../../tests/moments/memory.rs"]
mod memory;

#[cfg(all(feature = "lab", not(miri)))]
mod records {
    use super::super::{Heap, Redo};
    use super::memory::{Memory, Moment};
    use crate::engine::persist_on_read::ReadFlusher;
    use everdram_pm::lab::{Seed, create, open};
    use everdram_pm::{LINE, Pool};
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    const BYTES: usize = 128 << 10;
    const OWNER: u32 = 1;
    /// Start of the areas for a process's transactions.
    const AREAS: u64 = 4096;

    /// A process that has recovered its pool, and where its areas are. Words for transactions to change
    /// follow them.
    fn process(memory: &Arc<Memory>) -> (Arc<Pool>, Arc<Redo>, u64) {
        let pool = open(&memory.stored(), BYTES as u64, Some(memory.clone())).unwrap();
        let extents = pool.extents(OWNER);
        let is_new = extents.is_empty();
        let at = match extents.first() {
            Some(extent) => extent.at,
            None => pool.allocate(OWNER, 2 * AREAS, AREAS).unwrap().at,
        };
        let redo = Redo::new(Arc::clone(&pool), at, 2, 1024);
        if is_new {
            redo.format(&mut pool.lane());
        }
        let redo = Arc::new(redo);
        let mut found = ReadFlusher::new(pool.lane());
        redo.recover(&mut found, Err).unwrap();
        found.settle();
        (pool, redo, at)
    }

    fn new_memory() -> Arc<Memory> {
        let image = create(Seed(7), 2, [0; 8]).unwrap();
        Arc::new(Memory::new(image, BYTES))
    }

    /// The images after a kill and after a power loss, as [`Memory::stored`] and [`Memory::durable`].
    type Left = (Vec<u8>, Vec<u8>);

    /// The images after crashes at each fence of `work`.
    fn at_fences(memory: &Arc<Memory>, work: impl FnOnce()) -> Vec<Left> {
        let left = Arc::new(Mutex::new(Vec::new()));
        let (here, into) = (memory.clone(), left.clone());
        memory.watch(Moment::Fence, move || {
            into.lock().unwrap().push((here.stored(), here.durable()));
        });
        work();
        memory.unwatch();
        std::mem::take(&mut *left.lock().unwrap())
    }

    /// A process was killed after it had marked a transaction's record as retired, and before that was
    /// durable. The next one saw the mark in the caches, and changed the same words by transactions of
    /// another area. A power loss took the mark, and the old record was in force again.
    #[test]
    fn a_record_that_a_dead_process_retired_stays_retired() {
        let new = new_memory();
        let (pool, redo, at) = process(&new);
        let word = at + AREAS;
        let (_first, mut second) = (redo.txn().unwrap(), redo.txn().unwrap());
        second.set(word, 1);
        let mut left = at_fences(&new, || second.commit(&mut pool.lane(), None));
        // The last fence is the one after the mark.
        let (stored, durable) = left.pop().unwrap();
        let found = Arc::new(Memory::found(stored, durable, BYTES));
        let (pool, redo, _) = process(&found);
        let mut first = redo.txn().unwrap();
        first.set(word, 2);
        first.commit(&mut pool.lane(), None);
        let crashed = Arc::new(Memory::new(found.durable(), BYTES));
        let (pool, _redo, _) = process(&crashed);
        assert_eq!(pool.region().load_word(word), 2);
    }

    /// A power failure left all but one word of a transaction's record durable. The next process wrote
    /// another record in its place, and a second power failure left only that word of it durable. The first
    /// record then verified.
    #[test]
    fn two_torn_records_do_not_make_one() {
        /// Bytes of the record that hold the second edit's operand.
        const OPERAND: Range<usize> = 48..56;
        let torn = |memory: &Arc<Memory>, first: u64, lost: bool| {
            let (pool, redo, at) = process(memory);
            let word = at + AREAS;
            assert_eq!(pool.region().load_word(word), 0);
            let mut txn = redo.txn().unwrap();
            txn.set(word, first);
            txn.set(word + 8, 5);
            let left = at_fences(memory, || txn.commit(&mut pool.lane(), None));
            // The first fence is the one after the record.
            let (stored, mut durable) = left.into_iter().next().unwrap();
            let record = (at + LINE) as usize;
            for byte in 0..LINE as usize {
                if OPERAND.contains(&byte) != lost {
                    durable[record + byte] = stored[record + byte];
                }
            }
            Arc::new(Memory::new(durable, BYTES))
        };
        let once = torn(&new_memory(), 1, true);
        let twice = torn(&once, 2, false);
        let (pool, _redo, at) = process(&twice);
        assert_eq!(pool.region().load_word(at + AREAS), 0);
    }

    /// Headers of real chunks are longer than those of the lab, and a run may be one chunk: old data in the
    /// lines of its header must be gone before the run ends.
    #[test]
    fn a_run_of_one_chunk_becomes_a_chunk_without_objects() {
        const HEAP: u32 = 2;
        const LINES: u32 = 1024;
        const CAPACITY: usize = 256 << 10;
        let open_heap = |memory: &Arc<Memory>| {
            let pool = open(&memory.stored(), CAPACITY as u64, Some(memory.clone())).unwrap();
            let mut found = ReadFlusher::new(pool.lane());
            let most = CAPACITY as u64;
            let heap =
                Heap::open(Arc::clone(&pool), &mut found, HEAP, LINES, [0, most], Err).unwrap();
            found.settle();
            (pool, heap)
        };
        let new = Arc::new(Memory::new(create(Seed(7), 2, [0; 8]).unwrap(), CAPACITY));
        let (pool, heap) = open_heap(&new);
        let mut lane = pool.lane();
        // All lines of a chunk except the descriptor's, and one more.
        let bytes = u64::from(LINES - 2) * LINE;
        let at = heap.take(&mut lane, &mut None, bytes).unwrap();
        assert_eq!(
            heap.bytes(),
            (u64::from(LINES) * LINE, u64::from(LINES) * LINE)
        );
        let flushed = lane.stream(at, &vec![0xff; bytes as usize]);
        let _ordered = lane.fence(flushed);
        let mut left = at_fences(&new, || heap.give_back(&mut lane, at, bytes));
        left.push((new.stored(), new.durable()));
        let taken = left.into_iter().map(|(_, durable)| {
            let memory = Arc::new(Memory::new(durable, CAPACITY));
            open_heap(&memory).1.bytes().1
        });
        let taken: Vec<u64> = taken.collect();
        // A run, another run, and a chunk without taken lines.
        let run = u64::from(LINES) * LINE;
        assert_eq!(taken, [run, run, 0]);
    }
}
