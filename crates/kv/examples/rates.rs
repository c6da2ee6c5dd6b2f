//! Rates of the library on a medium, beside the machine's own: a first impression, not a benchmark.
//!
//! `cargo run --release -p everdram --example rates -- emulated /dev/shm/rates`
//! `cargo run --release -p everdram --example rates -- file /var/tmp/rates`
//!
//! On `file` it prints the machine's bare pwrite + fdatasync rate on a preallocated file first, measured in
//! the same run, and the store's durable puts a second as multiples of it.

use everdram::{Medium, MediumChoice, Options, Session, Store};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const KEY: usize = 16;
const VALUE: usize = 200;
const RUN: Duration = Duration::from_secs(3);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, medium, path] = arguments.as_slice() else {
        return Err("usage: rates emulated|file PATH (a directory that does not exist yet)".into());
    };
    let path = PathBuf::from(path);
    let mut options = Options::default();
    match medium.as_str() {
        "emulated" => {
            options.medium = MediumChoice::Only(Medium::Emulated);
            options.initial_bytes = 1 << 30;
            memory_rates(&Store::open(&path, &options)?)?;
        }
        "file" => {
            options.medium = MediumChoice::Only(Medium::File);
            std::fs::create_dir_all(&path)?;
            let bare = bare_rate(&path)?;
            println!("bare pwrite(4 KiB) + fdatasync      {bare:>10.0} a second");
            file_rates(&Store::open(path.join("pool"), &options)?, bare)?;
            let again = bare_rate(&path)?;
            println!("bare pwrite(4 KiB) + fdatasync      {again:>10.0} a second, again");
        }
        other => return Err(format!("medium {other}: emulated or file").into()),
    }
    std::fs::remove_dir_all(&path)?;
    Ok(())
}

fn key(number: u64) -> [u8; KEY] {
    let mut key = [b'k'; KEY];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// A cheap permutation of 0..count, so that keys are unordered.
fn shuffled(number: u64, count: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count
}

/// Time this thread has spent on a processor, in ns: steadier than the wall clock on a shared machine.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ')
        .next()
        .and_then(|ns| ns.parse().ok())
        .unwrap_or(0)
}

fn timed(what: &str, count: u64, mut each: impl FnMut(u64)) {
    let (start, cpu) = (Instant::now(), cpu_ns());
    for number in 0..count {
        each(number);
    }
    let each = start.elapsed().as_nanos() as f64 / count as f64;
    let cpu = (cpu_ns() - cpu) as f64 / count as f64;
    println!(
        "{what:<28} {each:>6.0} ns  {cpu:>6.0} ns of CPU  {:>6.2} M/s of CPU",
        1e3 / cpu
    );
}

fn memory_rates(store: &Store) -> Result<(), everdram::Error> {
    let count = 1_000_000;
    let value = [7; VALUE];
    let mut session = store.session()?;
    let mut buffer = Vec::with_capacity(VALUE);
    println!(
        "{:?}: {count} records of {KEY} + {VALUE} bytes, one thread",
        store.report().medium
    );
    timed("put, new key", count, |n| {
        assert!(session.put(&key(n), &value).unwrap())
    });
    timed("get", count, |n| {
        buffer.clear();
        assert!(
            session
                .get_into(&key(shuffled(n, count)), &mut buffer)
                .unwrap()
                .is_some()
        );
    });
    timed("get, absent key", count, |n| {
        assert!(
            session
                .get_into(&key(count + n), &mut buffer)
                .unwrap()
                .is_none()
        );
    });
    timed("overwrite", count, |n| {
        session.put(&key(shuffled(n, count)), &value).unwrap();
    });
    timed("put in batches of 16", count, |n| {
        session.submit_put(&key(2 * count + n), &value).unwrap();
        if n % 16 == 15 {
            let ticket = session.commit().unwrap();
            session.wait(ticket).unwrap();
        }
    });
    timed("delete", count, |n| {
        assert!(session.delete(&key(2 * count + n)).unwrap());
    });
    let stats = store.stats();
    println!(
        "{} keys, {:.1} B of index a key",
        stats.keys,
        stats.index_bytes as f64 / stats.keys as f64
    );
    Ok(())
}

fn bare_rate(dir: &Path) -> std::io::Result<f64> {
    let path = dir.join("bare");
    let file = std::fs::File::create(&path)?;
    file.write_all_at(&vec![0; 8 << 20], 0)?;
    file.sync_all()?;
    let block = [7; 4096];
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed() < RUN {
        file.write_all_at(&block, count % 2048 * 4096)?;
        file.sync_data()?;
        count += 1;
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(rate)
}

fn file_rates(store: &Store, bare: f64) -> Result<(), everdram::Error> {
    let value = [7; VALUE];
    // Threads, sessions of each, writes in flight per session.
    for (threads, each, flight) in [(1, 1, 1), (8, 1, 1), (8, 8, 1), (64, 1, 1), (64, 1, 16)] {
        let start = Instant::now();
        let puts: u64 = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads as u64)
                .map(|thread| {
                    let sessions = (0..each).map(|_| store.session().unwrap()).collect();
                    scope.spawn(move || put_for_a_while(sessions, thread, flight, &value, start))
                })
                .collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        let rate = puts as f64 / start.elapsed().as_secs_f64();
        println!(
            "{:>2} sessions on {threads:>2} threads, {flight:>2} in flight each {rate:>10.0} durable puts a second = {:.2} x bare",
            threads * each,
            rate / bare
        );
    }
    Ok(())
}

/// Each session submits and commits; then the thread waits for all of them.
fn put_for_a_while(
    mut sessions: Vec<Session>,
    thread: u64,
    flight: u64,
    value: &[u8],
    start: Instant,
) -> u64 {
    let mut puts = 0;
    while start.elapsed() < RUN {
        let mut tickets = Vec::with_capacity(sessions.len());
        for session in &mut sessions {
            for _ in 0..flight {
                session
                    .submit_put(&key(thread << 40 | puts), value)
                    .unwrap();
                puts += 1;
            }
            tickets.push(session.commit().unwrap());
        }
        for (session, ticket) in sessions.iter_mut().zip(tickets) {
            session.wait(ticket).unwrap();
        }
    }
    puts
}
