//! Pools on a simulated disk make the same calls as pools on files, and the disk's tap sees each one.
#![cfg(feature = "lab")]

mod medium;

use everdram_pm::lab::{
    Answer, Disk, DiskEvent, DiskTap, Errno, FileOptions, Seed, Waiter, create_files, open_files,
    wait_as, waiting,
};
use everdram_pm::{DATA_AT, Durability, Error, Lane, Pool, ROOT_AT};
use medium::{Crasher, Files, Recorder};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const SEGMENT: u64 = 16 << 10;
const PAGE: u64 = 4096;

fn options() -> FileOptions {
    FileOptions {
        capacity: 1 << 20,
        log_bytes: 8 * SEGMENT,
        segment_bytes: SEGMENT,
        durability: Durability::Always,
        break_write_ahead: false,
    }
}

fn new_pool() -> Files {
    create_files(Seed(7), 3, [1, 2, 3, 4, 5, 6, 7, 8]).unwrap()
}

fn open(files: Files, tap: Option<Arc<dyn DiskTap>>) -> (Arc<Disk>, Arc<Pool>) {
    let disk = Arc::new(Disk::new(files, tap));
    let pool = open_files(&disk, &options(), None).unwrap();
    (disk, pool)
}

fn go(_event: DiskEvent<'_>, _file: &str) -> Answer {
    Answer::Go
}

/// Writes `value` to all words of the line at `at`, and waits for it.
fn put(pool: &Pool, lane: &mut Lane, at: u64, value: u64) -> Result<(), Error> {
    let line = value.to_le_bytes().repeat(8);
    let flushed = lane.stream(at, &line);
    let ordered = lane.fence(flushed);
    pool.wait(ordered.lsn()).map(drop)
}

fn bytes(pool: &Pool) -> Vec<u8> {
    let mut bytes = vec![0; pool.region().len() as usize];
    pool.region().load(0, &mut bytes);
    bytes
}

#[test]
fn what_was_waited_for_is_there_at_the_next_open() {
    let (disk, pool) = open(new_pool(), None);
    assert_eq!((pool.engine(), pool.geometry()[7]), (3, 8));
    assert_eq!(pool.medium().to_string(), "file");
    let extent = pool.allocate(9, 4 * PAGE, PAGE).unwrap();
    assert_eq!(extent.at, DATA_AT);
    let mut lane = pool.lane();
    put(&pool, &mut lane, DATA_AT + 640, 41).unwrap();
    let dirty = lane.store_word(ROOT_AT, 42);
    let flushed = lane.flush(dirty);
    let ordered = lane.fence(flushed);
    pool.wait(ordered.lsn()).unwrap();
    let before = disk.files();
    assert!(before.keys().any(|name| name == "log-000000"), "{before:?}");

    let (again, reopened) = open(before, None);
    assert_eq!(reopened.extents(9), [extent]);
    assert_eq!(reopened.region().load_word(DATA_AT + 640), 41);
    assert_eq!(reopened.region().load_word(ROOT_AT), 42);
    assert!(!reopened.was_clean());
    reopened.close().unwrap();
    drop(reopened);
    let (_disk, closed) = open(again.files(), None);
    assert!(closed.was_clean());
    assert_eq!(closed.region().load_word(DATA_AT + 640), 41);
}

/// Through growth, reuse of segments, checkpoints, and the open itself.
#[test]
fn what_was_waited_for_survives_a_crash_before_any_call() {
    const LINES: u64 = 40;
    let seed = rand::random();
    println!("seed {seed}; put it into the test to repeat");
    let files = new_pool();
    let crasher = Crasher::new(&files, seed);
    *crasher.told.lock().unwrap() = vec![0; LINES as usize];
    let (_disk, pool) = open(files, Some(Arc::clone(&crasher) as Arc<dyn DiskTap>));
    let mut lane = pool.lane();
    pool.allocate(9, 4 * PAGE, PAGE).unwrap();
    for count in 0..400 {
        if count % 5 == 0 {
            pool.allocate(9, PAGE, PAGE).unwrap();
        }
        let line = count * 7 % LINES;
        put(&pool, &mut lane, DATA_AT + line * 320, count + 1).unwrap();
        crasher.told.lock().unwrap()[line as usize] = count + 1;
    }
    assert!(pool.log_usage().1 <= 8 * SEGMENT, "{:?}", pool.log_usage());
    let files = crasher.medium.lock().unwrap().files.len();
    assert!(files <= 9, "{files} files: segments are used again");
    let crashes = std::mem::take(&mut *crasher.crashes.lock().unwrap());
    assert!(crashes.len() > 1000, "{} crashes", crashes.len());
    for (index, (files, told)) in crashes.into_iter().enumerate() {
        let (_disk, pool) = open(files, None);
        for (line, value) in (0..).zip(told).filter(|&(_, value)| value > 0) {
            let found = pool.region().load_word(DATA_AT + line * 320);
            // The put that was under way may be there too; it is the line's next value.
            assert!(
                found == value || found == value + LINES,
                "seed {seed}, crash {index}: line {line} was {value}, is {found}"
            );
        }
    }
}

#[test]
fn one_snapshot_opens_to_the_same_bytes_by_the_same_calls() {
    let (disk, pool) = open(new_pool(), None);
    pool.allocate(9, 8 * PAGE, PAGE).unwrap();
    let mut lane = pool.lane();
    for count in 0..100 {
        put(&pool, &mut lane, DATA_AT + count * 128, count).unwrap();
    }
    let files = disk.files();
    let run = || {
        let recorder = Recorder::new(&files, go);
        let (disk, pool) = open(
            files.clone(),
            Some(Arc::clone(&recorder) as Arc<dyn DiskTap>),
        );
        let mut lane = pool.lane();
        for count in 0..100 {
            put(&pool, &mut lane, DATA_AT + count * 128, count).unwrap();
        }
        pool.close().unwrap();
        let heard = recorder.heard.lock().unwrap().clone();
        (bytes(&pool), disk.files(), heard)
    };
    let (first, second) = (run(), run());
    assert!(first.0 == second.0, "the same memory");
    assert!(first.1 == second.1, "the same files");
    assert_eq!(first.2, second.2, "by the same calls");
}

/// Whichever sync fails, nothing is acknowledged after it, and nothing acknowledged before is lost.
#[test]
fn a_failed_sync_is_the_last() {
    for failing in 0..60 {
        let files = new_pool();
        let syncs = Mutex::new(0);
        let recorder = Recorder::new(&files, move |event: DiskEvent<'_>, _file: &str| {
            if !matches!(event, DiskEvent::Sync { .. }) {
                return Answer::Go;
            }
            let mut syncs = syncs.lock().unwrap();
            *syncs += 1;
            if *syncs - 1 == failing {
                Answer::Fail(Errno::IO)
            } else {
                Answer::Go
            }
        });
        let disk = Arc::new(Disk::new(files, Some(Arc::clone(&recorder) as _)));
        let Ok(pool) = open_files(&disk, &options(), None) else {
            continue;
        };
        let mut told = 0;
        if pool.allocate(9, PAGE, PAGE).is_ok() {
            let mut lane = pool.lane();
            let put = |count| put(&pool, &mut lane, DATA_AT, count);
            told = (1..200).map(put).take_while(Result::is_ok).count() as u64;
        }
        assert!(told < 199, "sync {failing} never failed");
        assert!(matches!(pool.healthy(), Err(Error::Poisoned { .. })));
        assert!(matches!(pool.close(), Err(Error::Poisoned { .. })));
        let (_disk, after) = open(recorder.durable(), None);
        if told > 0 {
            let found = after.region().load_word(DATA_AT);
            assert!(
                found == told || found == told + 1,
                "{told} told, {found} found"
            );
        }
    }
}

#[test]
fn a_call_that_is_skipped_does_nothing() {
    let files = new_pool();
    let recorder = Recorder::new(&files, |event: DiskEvent<'_>, file: &str| {
        if matches!(event, DiskEvent::Sync { .. }) && file.starts_with("log") {
            Answer::Skip
        } else {
            Answer::Go
        }
    });
    let (disk, pool) = open(files, Some(Arc::clone(&recorder) as Arc<dyn DiskTap>));
    pool.allocate(9, PAGE, PAGE).unwrap();
    put(&pool, &mut pool.lane(), DATA_AT, 5).unwrap();
    let found = |files| open(files, None).1.region().load_word(DATA_AT);
    assert_eq!(found(disk.files()), 5, "the process sees it");
    assert_eq!(found(recorder.durable()), 0, "the medium never got it");
}

/// The disk fills up at some point: growth is refused and changes nothing, and the log continues in its
/// segments. It used to be poisoned when there was no room for the name of a segment, rather than for its
/// bytes.
#[test]
fn a_full_disk_stops_growth_and_not_the_log() {
    let files = new_pool();
    let full = Arc::new(Mutex::new(false));
    let now = Arc::clone(&full);
    let judge = move |event: DiskEvent<'_>, _file: &str| match event {
        DiskEvent::Allocate { .. } | DiskEvent::Create { .. } if *now.lock().unwrap() => {
            Answer::Fail(Errno::NOSPC)
        }
        _ => Answer::Go,
    };
    let recorder = Recorder::new(&files, judge);
    let (disk, pool) = open(files, Some(recorder));
    let extent = pool.allocate(9, PAGE, PAGE).unwrap();
    *full.lock().unwrap() = true;
    let refused = pool.allocate(9, PAGE, PAGE);
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    let mut lane = pool.lane();
    for count in 1..=300 {
        put(&pool, &mut lane, DATA_AT, count).unwrap();
    }
    let (_disk, after) = open(disk.files(), None);
    assert_eq!(after.extents(9), [extent]);
    assert_eq!(after.region().load_word(DATA_AT), 300);
}

/// A log that writers filled without waiting is shortened by checkpoints.
#[test]
fn a_log_that_grew_is_cut() {
    let files = new_pool();
    let recorder = Recorder::new(&files, go);
    let (disk, pool) = open(files, Some(Arc::clone(&recorder) as Arc<dyn DiskTap>));
    pool.allocate(9, 64 * PAGE, PAGE).unwrap();
    let mut lane = pool.lane();
    let mut last = None;
    for count in 0..64 {
        let flushed = lane.stream(DATA_AT + count * PAGE, &[count as u8 + 1; PAGE as usize]);
        last = Some(lane.fence(flushed));
    }
    pool.wait(last.unwrap().lsn()).unwrap();
    pool.checkpoint().unwrap();
    assert!(recorder.count("unlink", "log") > 0, "files too many");
    assert!(pool.log_usage().1 <= 8 * SEGMENT, "{:?}", pool.log_usage());
    let (_disk, after) = open(disk.files(), None);
    for count in 0..64 {
        let word = u64::from_le_bytes([count as u8 + 1; 8]);
        assert_eq!(after.region().load_word(DATA_AT + count * PAGE), word);
    }
}

/// A checkpoint copies a page with a store whose cause, fenced by another lane meanwhile, waits to be
/// written. Of the two pages that it writes, the disk loses the one with the cause. Returns whether the
/// effect then shows without its cause.
fn effect_without_cause(break_write_ahead: bool) -> bool {
    const CAUSE: u64 = DATA_AT;
    const EFFECT: u64 = DATA_AT + 2 * PAGE;
    let files = new_pool();
    let writer: Arc<Mutex<Option<Lane>>> = Arc::default();
    let meanwhile = Arc::clone(&writer);
    let recorder = Recorder::new(&files, move |event: DiskEvent<'_>, file: &str| {
        // The sync of a batch; preparing a segment syncs the whole file.
        let batch = |event| matches!(event, DiskEvent::Sync { data_only, .. } if data_only);
        if batch(event) && file.starts_with("log") {
            let lane = meanwhile.lock().unwrap().take();
            if let Some(mut lane) = lane {
                let cause = lane.stream(CAUSE, &[1; 64]);
                let ordered = lane.fence(cause);
                let _stays_in_the_cache = lane.publish(EFFECT, 1, &ordered);
            }
        }
        match event {
            DiskEvent::Write { at: CAUSE, .. } if file == "image" => Answer::Skip,
            _ => Answer::Go,
        }
    });
    let disk = Arc::new(Disk::new(files, Some(Arc::clone(&recorder) as _)));
    let options = FileOptions {
        break_write_ahead,
        ..options()
    };
    let pool = open_files(&disk, &options, None).unwrap();
    pool.allocate(9, 3 * PAGE, PAGE).unwrap();
    let mut lane = pool.lane();
    let flushed = lane.stream(EFFECT + 64, &[2; 64]);
    let _unwaited = lane.fence(flushed);
    *writer.lock().unwrap() = Some(pool.lane());
    pool.checkpoint().unwrap();
    let (_disk, after) = open(recorder.durable(), None);
    let there = |at| after.region().load_word(at) != 0;
    there(EFFECT) && !there(CAUSE)
}

#[test]
fn the_write_ahead_rule_can_be_left_out_and_is_needed() {
    assert!(!effect_without_cause(false));
    assert!(effect_without_cause(true));
}

/// Lets two threads run in turns.
#[derive(Default)]
struct Turns {
    /// Whose turn it is, and which threads are done.
    state: Mutex<(usize, [bool; 2])>,
    passed: Condvar,
}

impl Turns {
    fn pass(&self, me: usize, done: bool) {
        let mut state = self.state.lock().unwrap();
        state.1[me] |= done;
        if !state.1[1 - me] {
            state.0 = 1 - me;
        }
        self.passed.notify_all();
        if !done {
            drop(self.passed.wait_while(state, |state| state.0 != me));
        }
    }
}

/// One of the two threads.
struct Turn(Arc<Turns>, usize);

impl Waiter for Turn {
    fn wait(&self) {
        self.0.pass(self.1, false);
    }
}

/// Two threads that are stopped at every call on the disk, with the log's and the superblock's locks held:
/// neither may block on the other. The log is too small for their writes, so both also make room, and both
/// grow the image.
#[test]
fn scheduled_threads_never_block_each_other() {
    let (report, result) = channel();
    let watched = std::thread::spawn(move || {
        let files = new_pool();
        let recorder = Recorder::new(&files, |_event: DiskEvent<'_>, _file: &str| {
            waiting();
            Answer::Go
        });
        let (disk, pool) = open(files, Some(Arc::clone(&recorder) as Arc<dyn DiskTap>));
        let turns = Arc::new(Turns::default());
        std::thread::scope(|scope| {
            for me in 0..2 {
                let (pool, turns) = (Arc::clone(&pool), Arc::clone(&turns));
                scope.spawn(move || {
                    let turn = Arc::new(Turn(Arc::clone(&turns), me));
                    wait_as(turn, || work(&pool, me as u64));
                    turns.pass(me, true);
                });
            }
        });
        let (_disk, after) = open(disk.files(), None);
        assert_eq!(after.extents(9)[0].bytes, 16 * PAGE);
        for me in 0..2 {
            assert_eq!(after.region().load_word(ROOT_AT + me * 64), 120);
        }
        let heard = recorder.heard.lock().unwrap().len();
        assert!(heard > 150, "{heard}");
        report.send(()).unwrap();
    });
    match result.recv_timeout(Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("they block each other"),
        _ => watched.join().unwrap(),
    }
}

/// The work of one of two threads: it waits for some of its writes, and lets the log fill up with the rest.
fn work(pool: &Arc<Pool>, me: u64) {
    waiting();
    let mut lane = pool.lane();
    for count in 1..=120 {
        if count % 15 == 0 {
            pool.allocate(9, PAGE, PAGE).unwrap();
        }
        let flushed = lane.stream(ROOT_AT + 1024 + me * 1024, &[count as u8; 1024]);
        let _unwaited = lane.fence(flushed);
        if count % 6 == 0 {
            put(pool, &mut lane, ROOT_AT + me * 64, count).unwrap();
        }
    }
}

#[test]
fn sites_name_the_code_that_asked() {
    let files = new_pool();
    let recorder = Recorder::new(&files, go);
    let (_disk, pool) = open(files, Some(Arc::clone(&recorder) as Arc<dyn DiskTap>));
    pool.allocate(9, PAGE, PAGE).unwrap();
    put(&pool, &mut pool.lane(), DATA_AT, 5).unwrap();
    pool.checkpoint().unwrap();
    let sites = recorder.sites.lock().unwrap();
    let files: std::collections::BTreeSet<_> = sites
        .iter()
        .filter_map(|site| site.file().rsplit('/').next())
        .collect();
    let expected = [
        "carrier.rs",
        "checkpoint.rs",
        "growth.rs",
        "segment.rs",
        "writer.rs",
    ];
    for name in expected {
        assert!(files.contains(name), "{name} is not among {files:?}");
    }
    let is_seam = |file: &str| file.ends_with("io/mod.rs") || file.ends_with("disk.rs");
    assert!(!sites.iter().any(|site| is_seam(site.file())), "{files:?}");
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Run it with `cargo test --release -p everdram-pm --features lab --test disk -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn recoveries_per_second() {
    let (disk, pool) = open(new_pool(), None);
    pool.allocate(9, (128 << 10) - DATA_AT, PAGE).unwrap();
    let mut lane = pool.lane();
    for count in 0..8 {
        put(&pool, &mut lane, DATA_AT + count * 128, count).unwrap();
    }
    let files = disk.files();
    let lengths: Vec<_> = files.values().map(Vec::len).collect();
    let options = FileOptions {
        capacity: 128 << 10,
        ..options()
    };
    const ROUNDS: u32 = 20_000;
    let measure = |what: &str, run: &dyn Fn()| {
        let begun = processor_time();
        for _ in 0..ROUNDS {
            run();
        }
        println!("{what}: {:?}", (processor_time() - begun) / ROUNDS);
    };
    println!("files of {lengths:?} bytes");
    measure("copying the files", &|| {
        std::hint::black_box(files.clone());
    });
    measure("copying the files, opening, dropping", &|| {
        let disk = Arc::new(Disk::new(files.clone(), None));
        std::hint::black_box(open_files(&disk, &options, None).unwrap());
    });
}
