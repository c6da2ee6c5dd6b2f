//! Memory is given back to the page cache while lanes store and readers read, without any effect on them.
//!
//! Tests that count rounds stop the log's threads and do their work.

use crate::io::faults::Faults;
use crate::log::{Log, Shared};
use crate::memory::region::Backing;
use crate::{Lane, Medium, MediumChoice, Pool, PoolOptions};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const CHUNK: u64 = super::super::chunks::CHUNK;
const LINE: u64 = 64;

fn open(path: &Path) -> Arc<Pool> {
    let options = PoolOptions {
        medium: MediumChoice::Only(Medium::File),
        max_bytes: 1 << 30,
        ..PoolOptions::default()
    };
    Pool::open(path, &options).unwrap()
}

/// Opens a pool and stops the threads of its log.
fn open_alone(path: &Path) -> Arc<Pool> {
    let pool = open(path);
    let log = log(&pool);
    let background = log.background.lock().take().unwrap();
    background.stop(&log.shared);
    log.shared.stopping.store(false, Ordering::SeqCst);
    pool
}

fn log(pool: &Pool) -> &Log {
    pool.log().unwrap()
}

/// One round of the checkpointer; returns how many chunks were given back.
fn round(log: &Shared) -> usize {
    log.checkpoint().unwrap();
    log.give_back()
}

/// In memory where possible: no test here depends on the disk.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// Anonymous memory in `at .. at + bytes`, and the number of mappings.
fn anonymous(pool: &Pool, at: u64, bytes: u64) -> (u64, usize) {
    let memory = log(pool).shared.memory.as_ref().unwrap();
    let from = memory.reservation.base().as_ptr() as u64 + at;
    let (mut inside, mut anonymous, mut mappings) = (false, 0, 0);
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let address = |digits| u64::from_str_radix(digits, 16).unwrap();
            inside = address(start) < from + bytes && from < address(end);
            mappings += usize::from(inside);
        } else if inside && first == "Anonymous:" {
            anonymous += 1024 * words.next().unwrap().parse::<u64>().unwrap();
        }
    }
    (anonymous, mappings)
}

/// Writes `value` to every word of `at .. at + bytes`, durably.
fn fill(lane: &mut Lane, at: u64, bytes: u64, value: u64) {
    let lines = value.to_le_bytes().repeat(512);
    for page in (at..at + bytes).step_by(lines.len()) {
        let flushed = lane.stream(page, &lines);
        let _ordered = lane.fence(flushed);
        log(lane.pool()).shared.prepare_segments().unwrap();
    }
    let pool = lane.pool();
    let _durable = pool.sync().unwrap();
}

fn check(pool: &Pool, at: u64, bytes: u64, value: u64) {
    for word in (at..at + bytes).step_by(8) {
        assert_eq!(pool.region().load_word(word), value, "at {word}");
    }
}

#[test]
fn what_nobody_stores_to_is_memory_of_the_page_cache() {
    let directory = directory();
    let pool = open_alone(directory.path());
    let (at, bytes) = (pool.allocate(1, 8 * CHUNK, CHUNK).unwrap().at, 8 * CHUNK);
    let mut lane = pool.lane();
    fill(&mut lane, at, bytes, 7);
    assert_eq!(anonymous(&pool, at, bytes).0, bytes);

    let shared = &log(&pool).shared;
    assert_eq!(round(shared), 0, "it was stored to since the round before");
    assert_eq!(round(shared), 8);
    assert_eq!(
        anonymous(&pool, at, bytes),
        (0, 1),
        "one mapping, no memory"
    );
    check(&pool, at, bytes, 7);
    assert!(!shared.holds_memory());

    // A store without a flush makes a page of memory. It is written like any other, and given back.
    lane.exchange_word_late(at + CHUNK, 7, 8).unwrap();
    assert_eq!(anonymous(&pool, at, bytes), (4096, 1));
    assert!(shared.holds_memory());
    assert_eq!([round(shared), round(shared), round(shared)], [0, 0, 1]);
    assert_eq!(anonymous(&pool, at, bytes), (0, 1));
    assert_eq!(pool.region().load_word(at + CHUNK), 8);
    lane.exchange_word_late(at + CHUNK, 8, 7).unwrap();

    drop((lane, pool));
    let pool = open_alone(directory.path());
    assert_eq!(pool.region().load_word(at + CHUNK), 8, "it was written");
    check(&pool, at, CHUNK, 7);
    assert_eq!(
        anonymous(&pool, at, bytes),
        (0, 1),
        "the log had nothing to apply"
    );
}

#[test]
fn what_recovery_applied_is_given_back_too() {
    let directory = directory();
    let pool = open_alone(directory.path());
    let (at, bytes) = (pool.allocate(1, 4 * CHUNK, CHUNK).unwrap().at, 4 * CHUNK);
    fill(&mut pool.lane(), at, bytes, 9);
    drop(pool);
    let pool = open_alone(directory.path());
    assert_eq!(anonymous(&pool, at, bytes).0, bytes);
    let shared = &log(&pool).shared;
    assert_eq!([round(shared), round(shared)], [0, 4]);
    assert_eq!(anonymous(&pool, at, bytes).0, 0);
    check(&pool, at, bytes, 9);
}

/// A late store that was found while memory was given back had its page marked, but no group of the log. The
/// next checkpoint wrote a page that no recovery knew of. If its sync failed, the page cache had it and the
/// disk did not.
#[test]
fn what_is_found_while_memory_is_given_back_is_logged() {
    let directory = directory();
    let pool = open_alone(directory.path());
    let (at, bytes) = (pool.allocate(1, 4 * CHUNK, CHUNK).unwrap().at, 4 * CHUNK);
    let mut lane = pool.lane();
    fill(&mut lane, at, bytes, 3);
    let shared = &log(&pool).shared;
    assert_eq!([round(shared), round(shared)], [0, 4]);
    lane.exchange_word_late(at + CHUNK, 3, 4).unwrap();
    assert_eq!([round(shared), round(shared)], [0, 0]);
    let _durable = pool.sync().unwrap();
    drop((lane, pool));
    let pool = open_alone(directory.path());
    assert_eq!(
        pool.region().load_word(at + CHUNK),
        4,
        "only the log has it"
    );
}

#[test]
fn a_poisoned_pool_keeps_everything() {
    let directory = directory();
    let faults = Faults::install(directory.path());
    let pool = open_alone(directory.path());
    let (at, bytes) = (pool.allocate(1, 4 * CHUNK, CHUNK).unwrap().at, 4 * CHUNK);
    let mut lane = pool.lane();
    fill(&mut lane, at, bytes, 3);
    let shared = &log(&pool).shared;
    assert_eq!(round(shared), 0);
    // The log's sync succeeds, the image's fails: the disk may hold anything of what was written.
    lane.exchange_word_late(at + CHUNK, 3, 4).unwrap();
    assert_eq!(round(shared), 3, "all but the chunk with the late store");
    assert_eq!(round(shared), 0, "the late store is found, and logged");
    faults.fail_sync_after(1);
    assert!(shared.checkpoint().is_err());
    assert_eq!([shared.give_back(), shared.give_back()], [0, 0]);
    assert_eq!(anonymous(&pool, at, bytes).0, CHUNK);
    assert_eq!(pool.region().load_word(at + CHUNK), 4);
}

/// The state of one writer of the stress test.
struct Writer {
    lane: Lane,
    random: StdRng,
    /// The contents of its lines.
    lines: Vec<u64>,
    /// How often it raised each of the shared words.
    raised: Vec<u64>,
}

const CHUNKS: u64 = 8;
const WRITERS: u64 = 2;
/// One shared word, then a line for each writer, side by side on the same pages across the whole image.
const GROUP: u64 = LINE * (1 + WRITERS);
const GROUPS: u64 = CHUNKS * CHUNK / GROUP;

fn line_at(base: u64, group: u64, writer: u64) -> u64 {
    base + group * GROUP + LINE * (1 + writer)
}

impl Writer {
    /// Stores at random, in one chunk for a while and then in another, so that the others become quiet. It is
    /// slow enough for rounds to end.
    fn run(&mut self, base: u64, number: u64, stop: &AtomicBool) {
        let mut chunk = 0;
        while !stop.load(Ordering::Relaxed) {
            if self.random.random_ratio(1, 64) {
                chunk = self.next_chunk(base);
            }
            for _ in 0..self.random.random_range(0..2000) {
                std::hint::spin_loop();
            }
            let group = chunk * (GROUPS / CHUNKS) + self.random.random_range(0..GROUPS / CHUNKS);
            if self.random.random_ratio(1, 3) {
                self.raise(base + group * GROUP, group);
            } else {
                self.write(line_at(base, group, number), group);
            }
        }
    }

    /// Any chunk, but preferably one that is about to be given back.
    fn next_chunk(&mut self, base: u64) -> u64 {
        let chunk = self.random.random_range(0..CHUNKS);
        let memory = log(self.lane.pool()).shared.memory.as_ref().unwrap();
        (chunk..CHUNKS)
            .find(|chunk| memory.chunks.is_watched(base / CHUNK + chunk))
            .unwrap_or(chunk)
    }

    /// Raises a shared word, without a flush.
    fn raise(&mut self, at: u64, group: u64) {
        let mut found = self.lane.pool().region().load_word(at);
        while let Err(other) = self.lane.exchange_word_late(at, found, found + 1) {
            found = other;
        }
        self.raised[group as usize] += 1;
    }

    fn write(&mut self, at: u64, group: u64) {
        let line = &mut self.lines[group as usize];
        *line += 1;
        let flushed = match self.random.random_range(0..3) {
            0 => {
                let dirty = self.lane.store(at, &line.to_le_bytes().repeat(8));
                self.lane.flush(dirty)
            }
            _ => self.lane.stream(at, &line.to_le_bytes().repeat(8)),
        };
        if self.random.random_ratio(1, 16) {
            let _ordered = self.lane.fence(flushed);
        }
    }
}

/// Reads lines of all writers: no word ever decreases.
fn read(pool: &Pool, base: u64, seed: u64, stop: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut seen = vec![0; GROUPS as usize];
    let mut line = [0; LINE as usize];
    while !stop.load(Ordering::Relaxed) {
        let group = random.random_range(0..GROUPS);
        pool.region().load(line_at(base, group, 0), &mut line);
        let word = u64::from_le_bytes(line[..8].try_into().unwrap());
        let before = &mut seen[group as usize];
        assert!(word >= *before, "group {group}: {word} after {before}");
        *before = word;
    }
}

/// Every byte is what its writer stored last; `late`: also the words that were never flushed.
fn check_all(pool: &Pool, base: u64, writers: &[Writer], late: bool) {
    for group in 0..GROUPS {
        let raised: u64 = writers.iter().map(|one| one.raised[group as usize]).sum();
        let found = pool.region().load_word(base + group * GROUP);
        assert!(found == raised || !late && found <= raised);
        for (number, writer) in (0..).zip(writers) {
            let mut line = [0; LINE as usize];
            pool.region().load(line_at(base, group, number), &mut line);
            let stored = writer.lines[group as usize];
            let wanted = stored.to_le_bytes().repeat(8);
            assert_eq!(line[..], wanted, "group {group} of writer {number}");
        }
    }
}

/// `EVERDRAM_SEED` repeats the stores of a run, but not the schedule of its threads.
fn seed() -> u64 {
    let seed = std::env::var("EVERDRAM_SEED").ok();
    let seed = seed.map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("EVERDRAM_SEED={seed}");
    seed
}

#[test]
fn no_store_is_lost_while_memory_is_given_back() {
    const GIVEN: u64 = 400;
    let seed = seed();
    let directory = directory();
    let pool = open(directory.path());
    let base = pool.allocate(1, CHUNKS * CHUNK, CHUNK).unwrap().at;
    let (stop, given) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer {
            lane: pool.lane(),
            random: StdRng::seed_from_u64(seed ^ number),
            lines: vec![0; GROUPS as usize],
            raised: vec![0; GROUPS as usize],
        })
        .collect();
    std::thread::scope(|scope| {
        let (pool, stop) = (&pool, &stop);
        let mut threads = vec![scope.spawn(move || read(pool, base, seed, stop))];
        for (number, writer) in (0..).zip(&mut writers) {
            threads.push(scope.spawn(move || writer.run(base, number, stop)));
        }
        while given.load(Ordering::Relaxed) < GIVEN && !threads.iter().any(|one| one.is_finished())
        {
            given.fetch_add(round(&log(pool).shared) as u64, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
    check_all(&pool, base, &writers, true);
    for writer in &mut writers {
        let flushed = writer.lane.flush_range(base, 8);
        let _ordered = writer.lane.fence(flushed);
    }
    let _durable = pool.sync().unwrap();
    let shared = &log(&pool).shared;
    while shared.holds_memory() {
        round(shared);
    }
    assert_eq!(anonymous(&pool, base, CHUNKS * CHUNK).0, 0);
    check_all(&pool, base, &writers, true);
    for writer in &mut writers {
        // Drop the lanes, so that only the data for the comparison remains.
        writer.lane = Pool::heap(1 << 20, 0, [0; 8]).lane();
    }
    drop(pool);
    check_all(&open(directory.path()), base, &writers, true);
}

/// Run it with
/// `cargo test --release -p everdram-pm --features faults opening_after_a_kill -- --ignored --nocapture`.
/// `EVERDRAM_AT` is a directory on the medium to measure.
#[test]
#[ignore = "a measurement"]
fn opening_after_a_kill() {
    const IMAGE: u64 = 1 << 30;
    let place = std::env::var("EVERDRAM_AT").unwrap_or_else(|_| "/dev/shm".into());
    for (name, bytes, stores) in [
        ("a batch for each line, all over a GiB", 64, 1),
        ("64 lines to a group, all over a GiB", 64, 64),
        ("a group for each page, one after another", 4096, 1),
    ] {
        let directory = tempfile::tempdir_in(&place).unwrap();
        let options = PoolOptions {
            max_bytes: 2 * IMAGE,
            medium: MediumChoice::Only(Medium::File),
            ..PoolOptions::default()
        };
        let pool = Pool::open(directory.path(), &options).unwrap();
        let at = pool.allocate(1, IMAGE, CHUNK).unwrap().at;
        let shared = &log(&pool).shared;
        let holds_back = shared.checkpointing.lock();
        let mut random = StdRng::seed_from_u64(1);
        let mut lane = pool.lane();
        let lines = vec![7; bytes];
        for group in 0.. {
            if pool.log_usage().0 > shared.options.log_bytes - (2 << 20) {
                break;
            }
            let mut stored = None;
            for _ in 0..stores {
                let page = match bytes {
                    64 => random.random_range(0..IMAGE / 4096),
                    _ => group,
                };
                lane.stream(at + page * 4096, &lines).join(&mut stored);
            }
            let ordered = lane.fence(stored.unwrap());
            if stores * bytes == 64 || group % 256 == 0 {
                let _durable = pool.wait(ordered.lsn()).unwrap();
                shared.prepare_segments().unwrap();
            }
        }
        let _durable = pool.sync().unwrap();
        let used = pool.log_usage().0 >> 20;
        // The files of a killed process, copied before it can clean up.
        let killed = tempfile::tempdir_in(&place).unwrap();
        for file in std::fs::read_dir(directory.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), killed.path().join(file.file_name())).unwrap();
        }
        drop((holds_back, lane));
        drop(pool);
        rustix::fs::sync();
        let begun = std::time::Instant::now();
        let pool = Pool::open(killed.path(), &options).unwrap();
        println!("{name}: {used} MiB of log, {:?}", begun.elapsed());
        drop(pool);
    }
}
