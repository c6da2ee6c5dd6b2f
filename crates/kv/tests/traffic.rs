//! What `dstore` counts of its data file and its logs, and the disk that the data file plays.

use everdram::{EngineKind, Error, Medium, MediumChoice, Options, Store};
use std::time::{Duration, Instant};

const COUNT: u64 = 100;

fn options() -> Options {
    let mut options = Options::default();
    options.engine = Some(EngineKind::Dstore);
    options.medium = MediumChoice::Only(Medium::Emulated);
    options.dstore.data_delay = Some("p4800x".into());
    options
}

fn counts<const N: usize>(store: &Store, names: [&str; N]) -> [u64; N] {
    let stats = store.stats();
    names.map(|name| stats.own(name).unwrap_or_else(|| panic!("no {name}")))
}

#[test]
fn each_block_and_each_record_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.dstore.data_delay = None;
    let store = Store::open(dir.path(), &options).unwrap();
    let mut session = store.session().unwrap();
    let names = [
        "data_written_bytes",
        "data_read_bytes",
        "data_syncs",
        "log_written_bytes",
        "log_waits",
    ];
    assert_eq!(counts(&store, names), [0; 5]);
    for number in 0..COUNT {
        session.put(&number.to_le_bytes(), &[7; 4000]).unwrap();
        // Short values have no block.
        session
            .put(&(COUNT + number).to_le_bytes(), &[7; 100])
            .unwrap();
    }
    let mut value = Vec::new();
    for number in 0..2 * COUNT {
        value.clear();
        session
            .get_into(&number.to_le_bytes(), &mut value)
            .unwrap()
            .unwrap();
    }
    let [written, read, syncs, logged, waits] = counts(&store, names);
    assert_eq!((written, read, syncs), (COUNT * 4096, COUNT * 4096, COUNT));
    assert!((2 * COUNT * 128..2 * COUNT * 320).contains(&logged));
    assert_eq!(waits, 0);
    // A value of many blocks has a map of them, which is on the data file, too.
    let blocks = 300;
    session.put(b"large", &vec![7; blocks * 4096]).unwrap();
    let [more, ..] = counts(&store, names);
    assert!(more > written + blocks as u64 * 4096, "{more}");
}

#[test]
fn a_write_that_waits_for_room_in_the_logs_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    (options.dstore.logs, options.dstore.log_bytes) = (1, 64 << 10);
    let store = Store::open(dir.path(), &options).unwrap();
    let mut session = store.session().unwrap();
    // One commit writes twice what the log holds.
    for number in 0..2 * COUNT {
        session
            .submit_put(&number.to_le_bytes(), &[7; 500])
            .unwrap();
    }
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    let [waits, logged] = counts(&store, ["log_waits", "log_written_bytes"]);
    assert!(logged >= 100_000, "{logged}");
    assert!((1..20).contains(&waits), "{waits}");
}

#[test]
fn a_modelled_disk_takes_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options()).unwrap();
    let delay = store.report().data_delay.clone();
    assert!(delay.is_some_and(|delay| delay.contains("p4800x: 10000 ns a read")));
    let mut session = store.session().unwrap();
    let begun = Instant::now();
    for number in 0..COUNT {
        session.put(&number.to_le_bytes(), &[7; 16 << 10]).unwrap();
    }
    let least = Duration::from_nanos(COUNT * 4 * 8_900);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    let begun = Instant::now();
    for number in 0..COUNT {
        session.get(&number.to_le_bytes()).unwrap().unwrap();
    }
    let least = Duration::from_nanos(COUNT * 10_000);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
}

#[test]
fn a_disk_that_cannot_be_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let refused = |delay: &str, medium| {
        let mut options = options();
        options.medium = medium;
        options.dstore.data_delay = Some(delay.into());
        match Store::open(&path, &options).err() {
            Some(Error::Options(what)) => what,
            other => panic!("{other:?}"),
        }
    };
    let unknown = refused("floppy", MediumChoice::Only(Medium::Emulated));
    assert!(unknown.contains("floppy") && unknown.contains("p4800x"));
    for medium in [MediumChoice::Auto, MediumChoice::Only(Medium::File)] {
        let other = refused("p4800x", medium);
        assert!(other.contains("emulated"), "{other}");
    }
    assert!(!path.exists());
}
