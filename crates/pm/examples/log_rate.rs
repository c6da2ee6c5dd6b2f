//! What a durable record costs on ordinary files, compared with one write and one `fdatasync` for each.
//!
//! ```text
//! cargo run --release -p everdram-pm --example log_rate -- [DIRECTORY] [SECONDS] [SESSIONS]
//! ```
//!
//! Each row alternates short runs of the log with short runs of two bare loops, because disks are shared and
//! their rates drift: a write of 4 KiB to a preallocated file, then `fdatasync`, and the same with 64 KiB,
//! which is about what group commit can do at most. The ratios are between the medians: durable records to
//! bare syncs, and to the records that fit the 64 KiB writes.

use everdram_pm::{Lsn, Medium, MediumChoice, Pool, PoolOptions};
use std::error::Error;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A record of 216 bytes takes four lines.
const RECORD: u64 = 256;
/// Bytes of the small and of the large bare write.
const BLOCK: usize = 4 << 10;
const GROUP: usize = 64 << 10;
const BARE_BYTES: usize = 8 << 20;
/// Records that a session writes before it starts over.
const RECORDS: u64 = 1024;
const SESSIONS_MAX: u64 = 64;
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds: f64 = arguments.next().map_or(Ok(0.3), |text| text.parse())?;
    let span = Duration::from_secs_f64(seconds);
    let directory = parent.join(format!("log_rate.{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let outcome = measure(&directory, span);
    std::fs::remove_dir_all(&directory)?;
    outcome
}

fn measure(directory: &std::path::Path, span: Duration) -> Result<(), Box<dyn Error>> {
    let file = std::fs::File::create_new(directory.join("bare"))?;
    file.write_all_at(&vec![0; BARE_BYTES], 0)?;
    file.sync_all()?;
    let options = PoolOptions {
        medium: MediumChoice::Only(Medium::File),
        ..PoolOptions::default()
    };
    let pool = Pool::open(&directory.join("pool"), &options)?;
    let at = pool.allocate(1, SESSIONS_MAX * RECORDS * RECORD, 4096)?.at;
    println!(
        "{:>8} {:>8} {:>12} {:>12} {:>12} {:>8} {:>8}",
        "sessions", "tickets", "4 KiB/s", "64 KiB/s", "records/s", "of 4", "of 64"
    );
    let only = std::env::args()
        .nth(3)
        .and_then(|sessions| sessions.parse().ok());
    for (sessions, tickets) in [(1, 1), (2, 1), (8, 1), (64, 1), (8, 8), (1, 64), (64, 16)] {
        if only.is_some_and(|only: u64| only != sessions) {
            continue;
        }
        let (mut bare, mut grouped, mut log) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            bare.push(bare_rate(&file, BLOCK, span)?);
            grouped.push(bare_rate(&file, GROUP, span)?);
            log.push(log_rate(&pool, at, sessions, tickets, span)?);
        }
        let (bare, grouped, log) = (median(bare), median(grouped), median(log));
        let limit = grouped * GROUP as f64 / RECORD as f64;
        println!(
            "{sessions:>8} {tickets:>8} {bare:>12.0} {grouped:>12.0} {log:>12.0} {:>8.2} {:>8.2}",
            log / bare,
            log / limit
        );
    }
    println!(
        "fence of an uncontended 256-byte group: {:.0} ns",
        fence_ns(&pool, at)?
    );
    pool.close()?;
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Writes of `bytes` and syncs, one by one.
fn bare_rate(file: &std::fs::File, bytes: usize, span: Duration) -> Result<f64, Box<dyn Error>> {
    let block = vec![1; bytes];
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < span {
        file.write_all_at(&block, (count * bytes % BARE_BYTES) as u64)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Durable records a second of `sessions` threads, each with `tickets` in flight.
fn log_rate(
    pool: &Arc<Pool>,
    at: u64,
    sessions: u64,
    tickets: u64,
    span: Duration,
) -> Result<f64, Box<dyn Error>> {
    let total = AtomicU64::new(0);
    let begun = Instant::now();
    let run = |session: u64| -> Result<(), everdram_pm::Error> {
        let mut lane = pool.lane();
        let mut count = 0;
        while begun.elapsed() < span {
            let mut lsn = Lsn(0);
            for _ in 0..tickets {
                let place = at + (session * RECORDS + count % RECORDS) * RECORD;
                let written = lane.stream(place, &[count as u8; RECORD as usize]);
                lsn = lane.fence(written).lsn();
                count += 1;
            }
            let _durable = pool.wait(lsn)?;
        }
        total.fetch_add(count, Ordering::Relaxed);
        Ok(())
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..sessions)
            .map(|session| scope.spawn(move || run(session)))
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a session panicked")??;
        }
        Ok::<(), Box<dyn Error>>(())
    })?;
    Ok(total.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

/// Nanoseconds of one record and its fence, without the wait.
fn fence_ns(pool: &Arc<Pool>, at: u64) -> Result<f64, Box<dyn Error>> {
    const GROUPS: u64 = 2000;
    let mut lane = pool.lane();
    let mut rounds = Vec::new();
    for _ in 0..20 {
        let begun = Instant::now();
        let mut lsn = Lsn(0);
        for count in 0..GROUPS {
            let written = lane.stream(at + count % RECORDS * RECORD, &[3; RECORD as usize]);
            lsn = lane.fence(written).lsn();
        }
        rounds.push(begun.elapsed().as_nanos() as f64 / GROUPS as f64);
        let _durable = pool.wait(lsn)?;
    }
    Ok(median(rounds))
}
