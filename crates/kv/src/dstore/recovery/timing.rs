//! How long recovery takes, and how much memory a store needs: two million objects with keys of 16 bytes. The
//! file system of `/dev/shm` is the persistent memory, and needs 2 GiB. Blocks are small: recovery reads
//! none, and the metadata are the same.
//!
//! ```text
//! cargo test --release -p everdram --lib dstore::recovery::timing -- --ignored --nocapture
//! ```

use crate::dstore::Dstore;
use crate::dstore::layout::SHADOW_OWNER;
use crate::dstore::session::DstoreSession;
use crate::engine::backend::Backend;
use crate::engine::kind::EngineKind;
use crate::engine::{Engine, EngineSession, open};
use crate::index::{DEPTH_FIRST, Hasher, Index, KeyHash, Location};
use crate::options::{Create, DstoreOptions, Options};
use everdram_pm::{Dram, Medium, MediumChoice, Pool};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const OBJECTS: u64 = 2_000_000;
/// How often each open is repeated; the best one counts, since the machine is shared.
const TIMES: usize = 5;

fn options() -> Options {
    Options {
        engine: Some(EngineKind::Dstore),
        medium: MediumChoice::Only(Medium::Emulated),
        dstore: DstoreOptions {
            block_bytes: 512,
            inline_bytes: 0,
            ..DstoreOptions::default()
        },
        ..Options::default()
    }
}

fn open_at(path: &Path, create: Create) -> Arc<Dstore> {
    let options = Options {
        create,
        ..options()
    };
    let pool = open::pool(path, &options).unwrap();
    Dstore::over(pool, path, &options).unwrap()
}

/// 16 bytes that look like chance.
fn key_of(number: u64) -> [u8; 16] {
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let text = format!("{word:016x}");
    text.as_bytes().try_into().unwrap()
}

/// A store of all objects, whose logs are empty.
fn fill(path: &Path) -> Arc<Dstore> {
    let dstore = open_at(path, Create::New);
    let mut session = DstoreSession::new(Arc::clone(&dstore)).unwrap();
    for number in 0..OBJECTS {
        session.put(&key_of(number), b"small", 0).unwrap();
        if number % 128 == 0 {
            session.commit_pending().unwrap();
        }
    }
    session.commit_pending().unwrap();
    drop(session);
    dstore.checkpoint_all().unwrap();
    dstore
}

/// Changes objects until the logs are nearly full, and checkpoints none of it.
fn fill_logs(dstore: &Arc<Dstore>) {
    let mut session = DstoreSession::new(Arc::clone(dstore)).unwrap();
    let mut changes: u64 = 0;
    // Above 90 %, the session would begin a checkpoint itself.
    while dstore.dipper.logs.fill() < 88 {
        for _ in 0..64 {
            let key = key_of(changes.wrapping_mul(7_368_787) % OBJECTS);
            session.put(&key, b"other", 0).unwrap();
            changes += 1;
        }
        session.commit_pending().unwrap();
    }
}

/// Copies a pool as a crash would leave it, with a data file that is empty but for its header.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let other = to.join(entry.file_name());
        if entry.file_name() != "data" {
            fs::copy(entry.path(), &other).unwrap();
            continue;
        }
        let mut header = [0; 8192];
        File::open(entry.path())
            .unwrap()
            .read_exact(&mut header)
            .unwrap();
        fs::write(&other, header).unwrap();
        let file = File::options().write(true).open(&other).unwrap();
        file.set_len(entry.metadata().unwrap().len()).unwrap();
    }
}

/// Copying and summing this many bytes, and inserting this many words into an index.
fn arena(pool: &Pool, bytes: u64, words: u64) -> Duration {
    const THREADS: u64 = 2;
    const PAGE: u64 = 4096;
    let epochs = crate::concurrency::epoch::Epochs::new(1);
    let index = Index::new(epochs, Hasher::new(&options().chance()), DEPTH_FIRST).unwrap();
    let memory = Dram::reserve(None).unwrap();
    let extents = pool.extents(SHADOW_OWNER);
    let pages = extents.iter().flat_map(|extent| {
        let first = extent.at.next_multiple_of(PAGE);
        (first..extent.at + extent.bytes - PAGE).step_by(PAGE as usize)
    });
    let pages: Vec<u64> = pages.collect();
    let begun = Instant::now();
    memory.grow_to(bytes).unwrap();
    index.make_room(words).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (memory, pages, index) = (&memory, &pages, &index);
            scope.spawn(move || {
                let mut page = vec![0; PAGE as usize];
                for number in (thread..bytes / PAGE).step_by(THREADS as usize) {
                    let at = pages[number as usize % pages.len()];
                    pool.region().load(at, &mut page);
                    std::hint::black_box(pool.secret().sum(&page));
                    memory.store(number * PAGE, &page);
                }
                let hash = |number: u64| {
                    let word = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let word = (word ^ word >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93);
                    // The threads do not share a segment.
                    KeyHash(word >> 1 | thread << 63)
                };
                for number in 0..words / THREADS {
                    index.prefetch(hash(number + 16));
                    let location = Location::new(number + 1).unwrap();
                    let mut again = |_: &[Location], _: &mut Vec<KeyHash>| unreachable!();
                    index
                        .insert_alone(hash(number), location, &mut again)
                        .unwrap();
                }
            });
        }
    });
    begun.elapsed()
}

/// Time that all threads of this process have spent on processors, in steps of 10 ms.
fn cpu_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(") ").next().unwrap().split(' ');
    let ticks = fields
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap());
    10 * ticks.sum::<u64>()
}

fn measure(what: &str, from: &Path, at: &Path) {
    let mut best = (u64::MAX, String::new());
    let mut limit = Duration::MAX;
    for _ in 0..TIMES {
        copy(from, at);
        let before = cpu_ms();
        let dstore = open_at(at, Create::Never);
        let opened = cpu_ms();
        assert_eq!(dstore.len(), OBJECTS);
        let stats = dstore.stats();
        let own: Vec<String> = stats
            .own
            .iter()
            .map(|(name, number)| format!("{name} {}", number.unwrap_or(0)))
            .collect();
        let text = format!(
            "{} records; index and order {} bytes; pool {} bytes; {}",
            stats.recovered_records,
            stats.index_bytes,
            stats.pool_bytes,
            own.join(", ")
        );
        best = best.min((stats.recovery_us, text));
        limit = limit.min(arena(&dstore.pool, OBJECTS * 96, OBJECTS));
        let (dram, cpu) = (
            stats.index_bytes / OBJECTS,
            [opened - before, cpu_ms() - opened],
        );
        println!(
            "{what}: {} us, {} ms of processors, arena {}; {dram} bytes of DRAM an object",
            stats.recovery_us, cpu[0], cpu[1]
        );
    }
    let ratio = best.0 as f64 / limit.as_micros() as f64;
    println!(
        "{what}: best {} us, {ratio:.2} x arena ({limit:?}); {}",
        best.0, best.1
    );
}

#[test]
#[ignore = "fills gigabytes of /dev/shm, for a minute"]
fn recovery_of_two_million_objects() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| dir.path().join(name);
    let begun = Instant::now();
    let dstore = fill(&path("pool"));
    println!("filled in {:?}", begun.elapsed());
    copy(&path("pool"), &path("clean"));
    fill_logs(&dstore);
    copy(&path("pool"), &path("full"));
    drop(dstore);
    fs::remove_dir_all(path("pool")).unwrap();
    measure("clean", &path("clean"), &path("open"));
    measure("logs full", &path("full"), &path("open"));
}
