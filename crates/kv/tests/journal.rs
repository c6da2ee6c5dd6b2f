//! A journal (`everdram::crl`) under threads, and what it refuses. Crashes are in
//! `crates/lab/tests/journal.rs`.

use everdram::crl::{Journal, Volatile};
use everdram::stats::Finding;
use everdram::{Error, Medium, MediumChoice, Options, Store};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

/// Each key with its version and its value.
type Table = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

#[derive(Default)]
struct Map(Mutex<Table>);

impl Volatile for Map {
    fn show(&self, key: &[u8], version: u64, value: Option<&[u8]>) {
        assert_ne!(key, b"panic", "as it was asked to");
        let mut map = self.0.lock().unwrap();
        match value {
            Some(value) => map.insert(key.to_vec(), (version, value.to_vec())),
            None => map.remove(key),
        };
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        self.0.lock().unwrap().get(key).map(|(version, _)| *version)
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

/// Threads write the same keys into different logs, many laps long: the map decides the order of the logs.
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
            // Like a killed process.
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

/// The log has an entry that the map lacks: cleaning would take it for an old one.
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

/// A journal with a few keys, closed.
fn filled(path: &Path, medium: Medium) {
    let journal = Journal::open(path, &small_on(medium, 2), Map::default()).unwrap();
    let mut writer = journal.writer();
    for number in 0..20_u8 {
        writer.put(&[b'k', number % 8], &needle(number)).unwrap();
    }
    assert!(writer.remove(b"k\0").unwrap());
    drop(writer);
    journal.close().unwrap();
}

fn needle(number: u8) -> Vec<u8> {
    format!("needle {number:03} in the image").into_bytes()
}

fn field(inspection: &everdram::stats::Inspection, name: &str) -> String {
    let mut fields = inspection.fields.iter();
    let found = fields.find(|(field, _)| field == name);
    found
        .unwrap_or_else(|| panic!("no {name}: {inspection:?}"))
        .1
        .clone()
}

fn files(path: &Path) -> BTreeMap<std::ffi::OsString, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    entries
        .map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// Inspecting a journal's pool reported an engine unknown to this everdram.
#[test]
fn what_a_journal_holds_is_told_and_stays_as_it_is() {
    for medium in [Medium::Emulated, Medium::File] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        filled(&path, medium);
        let before = files(&path);
        let (kind, report) = everdram::inspect::check(&path, None).unwrap();
        assert_eq!((kind, &report.findings[..]), ("journal", &[][..]));
        assert_eq!((report.blocks, report.records, report.live), (2, 21, 7));
        let found = everdram::inspect::inspect(&path).unwrap();
        assert_eq!(field(&found, "engine"), "journal (number 64)");
        assert_eq!(field(&found, "logs"), "2 of 16384 bytes");
        assert_eq!(field(&found, "entries in the logs"), "21");
        // A put is two lines here, a removal one; and seven puts are current.
        let (used, live) = (20 * 128 + 64, 7 * 128);
        assert_eq!(report.bytes, used);
        let occupancy = field(&found, "occupancy");
        assert!(occupancy.starts_with("2624 bytes, "), "{occupancy}");
        assert_eq!((found.stats.keys, found.stats.used_bytes), (7, used));
        assert_eq!(found.stats.live_bytes, live);
        let [logs] = &found.kinds[..] else {
            panic!("{:?}", found.kinds);
        };
        assert_eq!((logs.blocks, logs.garbage_bytes), (2, used - live));
        assert_eq!(found.space_map.len(), 2);
        assert!(before == files(&path), "looking changed the pool");
    }
}

/// Damage to acknowledged entries is a finding of a check, and an error everywhere else.
#[test]
fn a_damaged_journal_is_told_from_a_sound_one() {
    const LEDGERS: [usize; 2] = [8192 + 512, 8192 + 2048];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    filled(&path, Medium::Emulated);
    let image = path.join("image");
    let sound = std::fs::read(&image).unwrap();
    let place_of = |number| {
        let needle = needle(number);
        let mut places = sound.windows(needle.len());
        places.position(|bytes| bytes == needle).unwrap()
    };
    let damaged = |places: &[usize]| {
        let mut bytes = sound.clone();
        places.iter().for_each(|at| bytes[*at] ^= 1);
        std::fs::write(&image, bytes).unwrap();
        let (_, report) = everdram::inspect::check(&path, None).unwrap();
        let refused = [
            everdram::inspect::inspect(&path).map(drop),
            Journal::open(&path, &small(2), Map::default()).map(drop),
        ];
        let is_damage = |result: Result<(), Error>| matches!(result, Err(Error::Corrupt { .. }));
        let are_refused = refused.map(is_damage);
        (report.findings, are_refused)
    };
    for number in [0, 1, 9, 18] {
        let at = place_of(number);
        let (findings, refused) = damaged(&[at]);
        let [Finding { offset, what, .. }] = &findings[..] else {
            panic!("{number}: {findings:?}");
        };
        let entry = *offset as usize..*offset as usize + 128;
        assert!(entry.contains(&at), "{at} is not in {entry:?}: {what}");
        assert_eq!(refused, [true; 2]);
    }
    // The pool survives the loss of one ledger, not of both.
    assert_eq!(damaged(&LEDGERS[..1]), (vec![], [false; 2]));
    let (findings, refused) = damaged(&LEDGERS);
    assert_eq!((findings.len(), refused), (1, [true; 2]));
    // A torn entry is not damage: the last one, which no later entry confirms.
    let last = place_of(19).next_multiple_of(64) + 64 + 48;
    assert_eq!(damaged(&[last]).0, []);
}

/// A program died after it had created the pool, and nothing in it.
#[test]
fn a_journal_that_was_only_begun_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (engine, geometry) = everdram::crl::identity(&small(2)).unwrap();
    let options = everdram_pm::PoolOptions {
        medium: MediumChoice::Only(Medium::Emulated),
        engine,
        geometry,
        engines: vec![engine],
        max_bytes: 1 << 30,
        ..everdram_pm::PoolOptions::default()
    };
    drop(everdram_pm::Pool::open(&path, &options).unwrap());
    let (kind, report) = everdram::inspect::check(&path, None).unwrap();
    assert_eq!(
        (kind, report),
        ("journal", everdram::stats::CheckReport::default())
    );
    let found = everdram::inspect::inspect(&path).unwrap();
    assert_eq!(field(&found, "engine"), "journal (number 64)");
    assert_eq!(found.stats.keys, 0);
}
