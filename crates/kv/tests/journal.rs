//! A journal (`everdram::crl`) under threads, and what it refuses. Crashes are in `crates/lab/tests/journal.rs`.

use everdram::crl::{Journal, Volatile};
use everdram::{Error, Medium, MediumChoice, Options, Store};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Each key with its LSN and its value.
type Table = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

#[derive(Default)]
struct Map(Mutex<Table>);

impl Volatile for Map {
    fn show(&self, key: &[u8], lsn: u64, value: Option<&[u8]>) {
        assert_ne!(key, b"panic", "as it was asked to");
        let mut map = self.0.lock().unwrap();
        match value {
            Some(value) => map.insert(key.to_vec(), (lsn, value.to_vec())),
            None => map.remove(key),
        };
    }

    fn lsn(&self, key: &[u8]) -> Option<u64> {
        self.0.lock().unwrap().get(key).map(|(lsn, _)| *lsn)
    }
}

fn small(logs: u32) -> Options {
    small_on(Medium::Emulated, logs)
}

fn small_on(medium: Medium, logs: u32) -> Options {
    let mut options = Options::default();
    options.medium = MediumChoice::Only(medium);
    (options.bullet.logs, options.bullet.log_bytes) = (logs, 16 << 10);
    options
}

fn state(journal: &Journal<Map>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let map = journal.map().0.lock().unwrap();
    let plain = |(key, (_, value)): (&Vec<u8>, &(u64, Vec<u8>))| (key.clone(), value.clone());
    map.iter().map(plain).collect()
}

/// Threads that write the same keys into different logs, many times round: the order of the logs is the map's.
#[test]
fn what_the_map_showed_last_is_what_the_next_run_finds() {
    write_and_open_again(&small(3), 3_000);
}

#[test]
fn what_the_map_showed_last_is_on_files() {
    write_and_open_again(&small_on(Medium::File, 3), 250);
}

fn write_and_open_again(options: &Options, rounds: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut before = BTreeMap::new();
    for run in 0..5_u64 {
        let journal = Journal::open(&path, options, Map::default()).unwrap();
        assert_eq!(state(&journal), before, "run {run}");
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let journal = &journal;
                scope.spawn(move || {
                    let mut writer = journal.writer();
                    for round in 0..rounds {
                        let key = [b'k', (round * (thread + 3) % 31) as u8];
                        match (round + thread) % 5 {
                            0 => drop(writer.remove(&key).unwrap()),
                            _ => writer
                                .put(&key, format!("{run} {thread} {round}").as_bytes())
                                .unwrap(),
                        }
                    }
                });
            }
        });
        let (used, most) = journal.used_bytes();
        assert!(used <= 2 * most + 8192, "{used} of {most}");
        before = state(&journal);
        match run % 2 {
            0 => journal.close().unwrap(),
            // As a process that is killed.
            _ => drop(journal),
        }
    }
}

#[test]
fn a_map_that_is_too_large_is_refused_and_can_shrink() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path().join("journal"), &small(2), Map::default()).unwrap();
    let mut writer = journal.writer();
    let mut count = 0_u32;
    let refused = loop {
        match writer.put(&count.to_le_bytes(), &[7; 100]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert!(count > 40, "{count}");
    assert_eq!(state(&journal).len(), count as usize);
    drop(writer);
    drop(journal);
    let journal = Journal::open(dir.path().join("journal"), &small(2), Map::default()).unwrap();
    assert_eq!(state(&journal).len(), count as usize);
    let mut writer = journal.writer();
    for key in 0..count {
        assert!(writer.remove(&key.to_le_bytes()).unwrap(), "{key}");
    }
    for key in 0..count {
        writer.put(&key.to_le_bytes(), &[8; 100]).unwrap();
    }
}

#[test]
fn what_does_not_fit_an_entry_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = Journal::open(&path, &small(1), Map::default()).unwrap();
    let mut writer = journal.writer();
    let refused = writer.put(b"key", &[7; 512]).unwrap_err();
    assert!(matches!(refused, Error::ValueLength(512)), "{refused}");
    let refused = writer.put(b"", b"").unwrap_err();
    assert!(matches!(refused, Error::KeyLength(0)), "{refused}");
    drop(writer);
    journal.close().unwrap();
    let refused = Store::open(&path, &Options::default())
        .map(drop)
        .unwrap_err();
    assert!(
        matches!(refused, Error::Engine { number: 64, .. }),
        "{refused}"
    );
}

/// The log has what the map has not: cleaning would take that for something old.
#[test]
fn a_map_that_panics_takes_no_more_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = Journal::open(&path, &small(1), Map::default()).unwrap();
    let put = |key: &[u8]| journal.writer().put(key, b"value");
    put(b"key").unwrap();
    let panicked = std::thread::scope(|scope| scope.spawn(|| put(b"panic")).join());
    assert!(panicked.is_err());
    assert!(matches!(put(b"key").unwrap_err(), Error::Halted(_)));
}
