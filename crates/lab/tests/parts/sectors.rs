//! The model of a disk: each rule of its module text by itself.

use everdram_lab::image::{Files, Image};
use everdram_lab::model::Model;
use everdram_lab::profile;
use everdram_lab::sectors::{Part, SECTOR, part};
use everdram_lab::trace::{DiskStep, Step, StepId};
use everdram_lab::unit::Unit;
use rand::RngExt;
use std::collections::{BTreeSet, HashMap};
use std::panic::Location;

/// The file that is there from the beginning.
const FILE: u32 = 0;

/// A disk, and how many steps it has taken.
struct Disk {
    model: Model,
    steps: StepId,
    /// Whether the last step was a sync that succeeded.
    is_synced: bool,
}

impl Disk {
    /// A disk with a file of `sectors` sectors of dots.
    fn new(sectors: usize) -> Disk {
        let files = Files::from([("file".to_owned(), vec![b'.'; sectors * SECTOR])]);
        Disk {
            model: Model::new(&Image::of_files(files), 0, None),
            steps: 0,
            is_synced: false,
        }
    }

    fn step(&mut self, step: DiskStep) {
        let site = Location::caller();
        self.is_synced = matches!(
            step,
            DiskStep::Sync { ok: true, .. } | DiskStep::SyncDirectory { ok: true, .. }
        );
        self.model.step(self.steps, &Step::Disk { step, site });
        self.steps += 1;
    }

    fn write(&mut self, file: u32, at: usize, bytes: &[u8]) {
        self.step(DiskStep::Write {
            file,
            at: at as u64,
            bytes: bytes.into(),
        });
    }

    fn length(&mut self, bytes: u64) {
        self.step(DiskStep::SetLen { file: FILE, bytes });
    }

    fn create(&mut self, file: u32, name: &str) {
        let name = name.to_owned();
        self.step(DiskStep::Create { file, name });
    }

    fn rename(&mut self, file: u32, name: &str) {
        let name = name.to_owned();
        self.step(DiskStep::Rename { file, name });
    }

    fn sync(&mut self, file: u32, ok: bool) {
        self.step(DiskStep::Sync { file, ok });
    }

    fn sync_directory(&mut self, ok: bool) {
        self.step(DiskStep::SyncDirectory {
            folder: String::new(),
            ok,
        });
    }

    /// Everything that a crash may leave.
    fn after_crash(&self) -> Vec<Files> {
        self.images(&self.model.units(&mut profile::random(1, 1)))
    }

    /// Everything that a crash may leave that decides these.
    fn images(&self, units: &[Unit]) -> Vec<Files> {
        let mut picks = vec![Vec::new()];
        for unit in units {
            picks = picks
                .into_iter()
                .flat_map(|pick: Vec<usize>| {
                    (0..unit.choices.len()).map(move |choice| [&pick[..], &[choice]].concat())
                })
                .collect();
        }
        let images = picks.iter().map(|pick| self.model.image(units, pick));
        images.map(|image| image.files).collect()
    }

    /// The first byte of each sector of a file, in each image that has it; `-` where it is missing.
    #[track_caller]
    fn expect(&self, name: &str, allowed: &[&str]) {
        let images = self.after_crash();
        let found: BTreeSet<String> = images
            .iter()
            .map(|files| match files.get(name) {
                None => "-".to_owned(),
                Some(bytes) => bytes
                    .chunks(SECTOR)
                    .map(|sector| shown(sector[0]))
                    .collect(),
            })
            .collect();
        let allowed = allowed.iter().map(|&bytes| bytes.to_owned()).collect();
        assert_eq!(found, allowed);
    }
}

fn shown(byte: u8) -> char {
    if byte == 0 { '0' } else { char::from(byte) }
}

#[test]
fn a_write_is_torn_between_sectors_and_nowhere_else() {
    let mut disk = Disk::new(3);
    disk.write(FILE, 100, &[b'a'; SECTOR]);
    let images = disk.after_crash();
    assert_eq!(images.len(), 4);
    let bytes: BTreeSet<&[u8]> = images.iter().map(|files| &files["file"][..]).collect();
    assert_eq!(bytes.len(), 4);
    for bytes in bytes {
        assert!(matches!(&bytes[100..SECTOR], part if part == [b'a'; 412] || part == [b'.'; 412]));
        assert!(
            matches!(&bytes[SECTOR..][..100], part if part == [b'a'; 100] || part == [b'.'; 100])
        );
        // What was not written is as it was.
        assert_eq!(bytes[..100], [b'.'; 100]);
        assert_eq!(bytes[SECTOR + 100..], [b'.'; 2 * SECTOR - 100]);
    }
}

#[test]
fn writes_have_no_order_until_a_sync() {
    let mut disk = Disk::new(2);
    disk.write(FILE, 0, b"a");
    disk.write(FILE, SECTOR, b"b");
    disk.expect("file", &["..", "a.", ".b", "ab"]);
    // A sector may have gone out at any time.
    disk.write(FILE, 0, b"c");
    disk.expect("file", &["..", "a.", "c.", ".b", "ab", "cb"]);
    disk.sync(FILE, true);
    disk.expect("file", &["cb"]);
    disk.write(FILE, SECTOR, b"d");
    disk.expect("file", &["cb", "cd"]);
}

#[test]
fn a_sync_is_of_its_own_file() {
    let mut disk = Disk::new(1);
    disk.create(7, "other");
    disk.sync_directory(true);
    disk.write(FILE, 0, b"a");
    disk.write(7, 0, b"b");
    disk.sync(7, true);
    disk.expect("file", &[".", "a"]);
    disk.expect("other", &["b"]);
}

#[test]
fn a_file_has_any_of_its_lengths_until_a_sync() {
    let mut disk = Disk::new(1);
    disk.write(FILE, SECTOR, &[b'a'; SECTOR]);
    // Longer, and what was written there is not: zeros.
    disk.expect("file", &[".", ".0", ".a"]);
    disk.length(3 * SECTOR as u64);
    disk.expect("file", &[".", ".0", ".a", ".00", ".a0"]);
    disk.sync(FILE, true);
    disk.expect("file", &[".a0"]);
    disk.step(DiskStep::Allocate {
        file: FILE,
        at: 0,
        bytes: 4 * SECTOR as u64,
    });
    disk.expect("file", &[".a0", ".a00"]);
    // Room inside a file is no change.
    disk.sync(FILE, true);
    disk.step(DiskStep::Allocate {
        file: FILE,
        at: 0,
        bytes: SECTOR as u64,
    });
    disk.expect("file", &[".a00"]);
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let mut disk = Disk::new(2);
    disk.length(10);
    disk.length(2 * SECTOR as u64);
    disk.sync(FILE, true);
    let images = disk.after_crash();
    assert_eq!(images.len(), 1);
    assert_eq!(images[0]["file"][..10], [b'.'; 10]);
    assert_eq!(images[0]["file"][10..], [0; 2 * SECTOR - 10]);
}

#[test]
fn names_wait_for_the_directory() {
    let mut disk = Disk::new(1);
    disk.create(7, "other");
    disk.write(7, 0, b"a");
    disk.sync(7, true);
    disk.expect("other", &["-", "a"]);
    disk.sync_directory(true);
    disk.expect("other", &["a"]);
    disk.step(DiskStep::Unlink { file: 7 });
    disk.sync(7, true);
    disk.expect("other", &["-", "a"]);
    disk.sync_directory(true);
    disk.expect("other", &["-"]);
    disk.expect("file", &["."]);
}

/// The names that an image has, and the first byte behind each.
fn listing(files: &Files) -> String {
    let entries = files.iter();
    let entries = entries.map(|(name, bytes)| format!("{name}:{}", shown(bytes[0])));
    entries.collect::<Vec<_>>().join(" ")
}

/// What a rename replaces is there until the directory is synced, and never together with what replaces it;
/// the file is never under both names, nor under none.
#[test]
fn a_rename_happens_whole() {
    let mut disk = Disk::new(1);
    disk.create(7, "new");
    disk.write(7, 0, b"a");
    disk.sync(7, true);
    disk.sync_directory(true);
    let expect = |disk: &Disk, allowed: &[&str]| {
        let found: BTreeSet<String> = disk.after_crash().iter().map(listing).collect();
        let allowed = allowed.iter().map(|&listing| listing.to_owned()).collect();
        assert_eq!(found, allowed);
    };
    disk.rename(7, "file");
    expect(&disk, &["file:. new:a", "file:a"]);
    // One that fails loses nothing, and a sync of the file says nothing of its name.
    disk.sync_directory(false);
    disk.sync(7, true);
    expect(&disk, &["file:. new:a", "file:a"]);
    // What the file is called next waits for what it was called before.
    disk.rename(7, "last");
    expect(&disk, &["file:. new:a", "file:a", "last:a"]);
    // A file of another name knows nothing of that.
    disk.create(8, "apart");
    disk.write(8, 0, b"b");
    disk.sync(8, true);
    assert_eq!(disk.after_crash().len(), 6);
    disk.sync_directory(true);
    expect(&disk, &["apart:b last:a"]);
}

/// A sync makes names of its folder certain, and of no other.
#[test]
fn folders_are_synced_apart() {
    let mut disk = Disk::new(1);
    for (file, name) in [(7, "new"), (8, "shelf/new"), (9, "shelf/deep/new")] {
        disk.create(file, name);
        disk.write(file, 0, b"a");
        disk.sync(file, true);
    }
    let names = |disk: &Disk| {
        let images = disk.after_crash();
        let lists = images.iter().map(|files| files.keys().cloned().collect());
        lists.collect::<BTreeSet<Vec<String>>>()
    };
    assert_eq!(names(&disk).len(), 8);
    let sync = |disk: &mut Disk, folder: &str| {
        let folder = folder.to_owned();
        disk.step(DiskStep::SyncDirectory { folder, ok: true });
    };
    sync(&mut disk, "shelf/");
    let left = names(&disk);
    assert_eq!(left.len(), 4);
    let is_there = |list: &Vec<String>| list.contains(&"shelf/new".into());
    assert!(left.iter().all(is_there), "{left:?}");
    disk.rename(8, "shelf/last");
    sync(&mut disk, "");
    let left = names(&disk);
    assert_eq!(left.len(), 4);
    assert!(
        left.iter().all(|list| list.contains(&"new".into())),
        "{left:?}"
    );
    sync(&mut disk, "shelf/");
    sync(&mut disk, "shelf/deep/");
    let all = ["file", "new", "shelf/deep/new", "shelf/last"].map(String::from);
    assert_eq!(names(&disk), BTreeSet::from([all.to_vec()]));
}

#[test]
fn a_sync_of_the_directory_makes_no_contents_certain() {
    let mut disk = Disk::new(1);
    disk.create(7, "other");
    disk.write(7, 0, b"a");
    disk.sync_directory(true);
    disk.expect("other", &["", "0", "a"]);
}

#[test]
fn what_a_failed_sync_lost_no_later_one_saves() {
    let mut disk = Disk::new(2);
    disk.write(FILE, 0, b"a");
    disk.sync(FILE, false);
    disk.expect("file", &["..", "a."]);
    disk.sync(FILE, true);
    disk.expect("file", &["..", "a."]);
    // What is written after it is as good as ever, and a sector that is written again, too.
    disk.write(FILE, SECTOR, b"b");
    disk.sync(FILE, true);
    disk.expect("file", &[".b", "ab"]);
    disk.write(FILE, 0, b"c");
    disk.sync(FILE, true);
    disk.expect("file", &["cb"]);
}

#[test]
fn a_directory_may_be_synced_again() {
    let mut disk = Disk::new(1);
    disk.create(7, "other");
    disk.sync_directory(false);
    disk.expect("other", &["-", ""]);
    disk.sync_directory(true);
    disk.expect("other", &[""]);
}

/// Different images have different hashes: none is passed over because another one looked like it.
#[test]
fn no_two_images_have_one_hash() {
    for seed in 0..SEEDS {
        let mut random = profile::random(seed, 17);
        let mut back: HashMap<u64, Files> = HashMap::new();
        random_steps(seed, |disk| {
            let units = disk.model.units(&mut random);
            for _ in 0..8 {
                let pick: Vec<usize> = units
                    .iter()
                    .map(|unit| random.random_range(0..unit.choices.len()))
                    .collect();
                let image = disk.model.image(&units, &pick);
                let found = back
                    .entry(disk.model.hash(&units, &pick))
                    .or_insert_with(|| image.files.clone());
                assert_eq!(*found, image.files, "seed {seed}");
            }
        });
    }
}

/// Equal images have equal hashes: on whichever way they were reached, and whatever numbers their files have.
#[test]
fn an_image_has_one_hash() {
    for seed in 0..SEEDS {
        let mut random = profile::random(seed, 19);
        random_steps(seed, |disk| {
            let units = disk.model.units(&mut random);
            for _ in 0..8 {
                let pick: Vec<usize> = units
                    .iter()
                    .map(|unit| random.random_range(0..unit.choices.len()))
                    .collect();
                let image = disk.model.image(&units, &pick);
                let other = Model::new(&image, 0, None);
                let hashes = [disk.model.hash(&units, &pick), other.hash(&[], &[])];
                assert_eq!(hashes[0], hashes[1], "seed {seed}");
            }
        });
    }
    // A file created again under its name, beside one that comes before it.
    let mut disk = Disk::new(1);
    disk.create(1, "other");
    disk.sync_directory(true);
    disk.step(DiskStep::Unlink { file: 1 });
    disk.create(2, "a first");
    disk.create(3, "other");
    disk.write(3, 0, b"again");
    let units = disk.model.units(&mut profile::random(1, 1));
    for number in 0..1 << units.len() {
        let pick: Vec<usize> = (0..units.len()).map(|unit| number >> unit & 1).collect();
        let image = disk.model.image(&units, &pick);
        let other = Model::new(&image, 0, None);
        assert_eq!(disk.model.hash(&units, &pick), other.hash(&[], &[]));
    }
}

/// What the program sees is the same image before a sync and after it, and has the same hash.
#[test]
fn a_sync_changes_neither_what_is_seen_nor_its_hash() {
    let mut compared = 0;
    for seed in 0..SEEDS {
        let mut before = None;
        random_steps(seed, |disk| {
            let units = disk.model.units(&mut profile::random(1, 1));
            let newest: Vec<usize> = units.iter().map(Unit::newest).collect();
            let image = disk.model.image(&units, &newest);
            let seen = (image, disk.model.hash(&units, &newest));
            if let Some((image, hash)) = before.replace(seen.clone())
                && disk.is_synced
            {
                assert!(image == seen.0, "seed {seed}: another image");
                assert_eq!(hash, seen.1, "seed {seed}");
                compared += 1;
            }
        });
    }
    assert!(compared > 300, "{compared}");
}

/// Images get fewer by syncs that succeed alone, so that it is enough to look just before each.
#[test]
fn nothing_but_a_sync_rules_images_out() {
    let mut ruled_out = 0;
    for seed in 0..SEEDS {
        let mut before: Vec<Unit> = Vec::new();
        let mut named: Vec<Files> = Vec::new();
        random_steps(seed, |disk| {
            let mut after = disk.model.units(&mut profile::random(1, 1));
            let is_entry = |unit: &Unit| part(unit.place).1 == Part::Entry;
            let entries: Vec<Unit> = after.extract_if(.., |unit| is_entry(unit)).collect();
            let names: Vec<Files> = disk.images(&entries);
            let is_kept = |files: &Files| names.contains(files);
            assert!(
                disk.is_synced || named.iter().all(is_kept),
                "seed {seed}: names"
            );
            named = names;
            for unit in &before {
                let same = after.iter().find(|other| other.place == unit.place);
                let holds =
                    |bytes| same.is_some_and(|same| same.choices.iter().any(|c| c.bytes == bytes));
                for choice in &unit.choices {
                    let is_there = holds(choice.bytes.clone());
                    assert!(
                        is_there || disk.is_synced,
                        "seed {seed}: {} lost a content",
                        unit.place
                    );
                    ruled_out += u64::from(!is_there);
                }
            }
            before = after;
        });
    }
    assert!(ruled_out > 1000, "{ruled_out}");
}

/// Runs of random steps.
const SEEDS: u64 = 60;

/// Random steps on two files, so small that they meet; `look` is called after each.
fn random_steps(seed: u64, mut look: impl FnMut(&Disk)) {
    let mut random = profile::random(seed, 13);
    let mut disk = Disk::new(2);
    disk.create(1, "other");
    for _ in 0..60 {
        let file = random.random_range(0..2);
        let at = random.random_range(0..3 * SECTOR);
        match random.random_range(0..13) {
            12 => {
                let name = ["file", "other", "third"][random.random_range(0..3)];
                disk.rename(file, name);
            }
            0..6 => disk.write(file, at, &[random.random_range(b'a'..b'd'); 80]),
            6 => disk.length(at as u64),
            7 => disk.step(DiskStep::Unlink { file: 1 }),
            8 => disk.create(1, "other"),
            9 => disk.sync_directory(random.random_range(0..3) > 0),
            _ => disk.sync(file, random.random_range(0..3) > 0),
        }
        look(&disk);
    }
}
