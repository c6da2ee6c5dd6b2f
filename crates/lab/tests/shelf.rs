//! A toy machine over a real pool and its shelf: values in a log, which files are the log in a manifest, and
//! in memory how much of the log counts.
//!
//! The manifest `list` names the log and says how many records it had when the manifest was written. Memory
//! has one word: the number of a log, and of its records. A put appends a record, syncs it, and stores the
//! word. A compaction writes a new log, and replaces the manifest by a rename. What a crash leaves is opened
//! and read by the code that opens every shelf; each flush, fence and sync is needed.

use everdram_lab::explore::{Effort, explore};
use everdram_lab::image::{Files, Image};
use everdram_lab::lines::{Mute, Muted, key};
use everdram_lab::model::Model;
use everdram_lab::recorder::Recorder;
use everdram_lab::trace::{DiskStep, Step};
use everdram_lab::{profile, unit::FILES};
use everdram_pm::lab::{Disk, Seed};
use everdram_pm::{Error, Pool, ROOT_AT, Shelf, ShelfFile, lab};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

const KEYS: usize = 3;
const CAPACITY: u64 = 1 << 17;
const RECORD: u64 = 512;
/// What each key holds; 0 is nothing.
type State = [u8; KEYS];

fn name(log: u32) -> String {
    format!("{log}.log")
}

/// Opens the pool and its shelf.
fn open(image: &Image, recorder: Option<&Arc<Recorder>>) -> Result<(Arc<Pool>, Shelf), Error> {
    let tap = recorder.map(|recorder| Arc::clone(recorder) as _);
    let disk = Arc::new(Disk::new(
        image.files.clone(),
        recorder.map(|recorder| Arc::clone(recorder) as _),
    ));
    let memory = image.memory.as_ref().expect("it has a memory");
    let pool = lab::open_beside(memory, CAPACITY, tap, &disk)?;
    let shelf = Shelf::open(&pool, &pool.path().join("shelf"), true)?;
    Ok((pool, shelf))
}

/// The number of the log, of its records, and what they say.
fn recovered(pool: &Pool, shelf: &Shelf) -> Result<(u32, u32, State), Error> {
    let mut list = [0; 8];
    shelf.open_to_read("list")?.read_at(0, &mut list)?;
    let [log, listed] = halves(u64::from_le_bytes(list));
    let [of, counted] = halves(pool.region().load_word(ROOT_AT));
    let records = if of == log { counted } else { listed };
    let file = shelf.open_to_read(&name(log))?;
    let mut state = State::default();
    for record in 0..u64::from(records) {
        let mut bytes = [0; 2];
        file.read_at(record * RECORD, &mut bytes)?;
        state[usize::from(bytes[0])] = bytes[1];
    }
    Ok((log, records, state))
}

fn word(log: u32, records: u32) -> u64 {
    u64::from(log) << 32 | u64::from(records)
}

fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

struct Machine {
    pool: Arc<Pool>,
    shelf: Shelf,
    log: u32,
    records: u32,
    file: ShelfFile,
}

impl Machine {
    fn append(&mut self, key: usize, value: u8) {
        let mut record = [0; RECORD as usize];
        record[..2].copy_from_slice(&[key as u8, value]);
        let at = u64::from(self.records) * RECORD;
        self.file.write_at(at, &record).unwrap();
        self.records += 1;
    }

    fn put(&mut self, key: usize, value: u8) {
        self.append(key, value);
        self.file.data_sync().unwrap();
        let mut lane = self.pool.lane();
        let stored = lane.store_word(ROOT_AT, word(self.log, self.records));
        let flushed = lane.flush(stored);
        let _ordered = lane.fence(flushed);
    }

    fn compact(&mut self, state: State) {
        let old = name(self.log);
        self.log += 1;
        self.records = 0;
        self.file = self.shelf.create(&name(self.log)).unwrap();
        for (key, value) in state.into_iter().enumerate() {
            self.append(key, value);
        }
        self.file.data_sync().unwrap();
        let list = self.shelf.create("list.new").unwrap();
        let bytes = word(self.log, self.records).to_le_bytes();
        list.write_at(0, &bytes).unwrap();
        list.sync().unwrap();
        // Without this, the new manifest may name a log that has no name.
        self.shelf.sync().unwrap();
        self.shelf.rename("list.new", "list").unwrap();
        // And without this, the old one may name a log that is gone.
        self.shelf.sync().unwrap();
        self.shelf.unlink(&old).unwrap();
    }
}

struct Run {
    start: Image,
    trace: Vec<Step>,
    /// After each call.
    states: Vec<State>,
}

/// A run of a few calls; a value of 0 stands for a compaction.
fn run() -> Run {
    let recorder = Arc::new(Recorder::default());
    let created = Image {
        memory: Some(lab::create(Seed(1), 0, [0; 8]).unwrap()),
        files: Files::from([
            ("shelf/1.log".into(), Vec::new()),
            ("shelf/list".into(), word(1, 0).to_le_bytes().into()),
        ]),
    };
    let (pool, shelf) = open(&created, Some(&recorder)).unwrap();
    let opening = recorder.take().trace;
    let syncs = opening.iter().filter(|step| {
        let folder = match step {
            Step::Disk {
                step: DiskStep::SyncDirectory { folder, ok: true },
                ..
            } => folder,
            _ => return false,
        };
        folder == "shelf/"
    });
    assert_eq!(syncs.count(), 1, "names that are found are made durable");
    let mut run = Run {
        start: Image {
            memory: Some(pool.region().snapshot()),
            files: created.files,
        },
        trace: Vec::new(),
        states: vec![State::default()],
    };
    let file = shelf.open_file("1.log").unwrap();
    let (log, records) = (1, 0);
    let mut machine = Machine {
        pool,
        shelf,
        log,
        records,
        file,
    };
    for (number, call) in (1..).zip([(0, 1), (1, 2), (0, 3), (0, 0), (2, 4), (0, 5), (0, 0)]) {
        let mut state = run.states[run.states.len() - 1];
        match call {
            (_, 0) => machine.compact(state),
            (key, value) => {
                state[key] = value;
                machine.put(key, value);
            }
        }
        run.states.push(state);
        run.trace.push(Step::Invoke(number));
        run.trace.extend(recorder.take().trace);
        run.trace.push(Step::Return(number));
    }
    run
}

impl Run {
    /// Recovers what crashes leave: how many images, at how many moments both lines and files were open, and
    /// in how many images the new manifest was not yet there; or what is wrong.
    fn examine(&self, mute: Option<Mute>) -> Result<[u64; 3], String> {
        let mut model = Model::new(&self.start, CAPACITY, mute);
        let mut random = profile::random(1, 1);
        let (mut images, mut mixed, mut waiting, mut defect) = (0, 0, 0, None);
        let (mut begun, mut answered) = (0, 0);
        for (id, step) in (0..).zip(&self.trace) {
            if model.is_point(step) || matches!(step, Step::Invoke(_)) {
                let units = model.units(&mut random);
                let lines = units.partition_point(|unit| unit.place < FILES);
                mixed += u64::from((1..units.len()).contains(&lines));
                let _ = explore(&units, &Effort::default(), &mut random, &mut |pick| {
                    images += 1;
                    let image = model.image(&units, pick);
                    waiting += u64::from(image.files.contains_key("shelf/list.new"));
                    let state = open(&image, None)
                        .and_then(|(pool, shelf)| recovered(&pool, &shelf))
                        .map(|(_, _, state)| state)
                        .map_err(|error| error.to_string());
                    let allowed = &self.states[answered..=begun];
                    if state.as_ref().is_ok_and(|state| allowed.contains(state)) {
                        return ControlFlow::Continue(());
                    }
                    defect = Some(format!("before step {id}: {state:?}, and not {allowed:?}"));
                    ControlFlow::Break(())
                });
            }
            match (&defect, step) {
                (Some(defect), _) => return Err(defect.clone()),
                (_, Step::Invoke(number)) => begun = *number as usize,
                (_, Step::Return(number)) => answered = *number as usize,
                _ => {}
            }
            model.step(id, step);
        }
        Ok([images, mixed, waiting])
    }
}

#[test]
fn a_pool_and_its_shelf_crash_together() {
    let run = run();
    let [images, mixed, waiting] = run.examine(None).expect("the machine is sound");
    println!(
        "{images} images, {mixed} crash points with both lines and files, {waiting} with a manifest that waits"
    );
    assert!(images > 100 && waiting > 10, "{images}, {waiting}");
    let persists = run.trace.iter().filter_map(|step| match step {
        Step::Flush { site, .. } => Some((Muted::Flush, site)),
        Step::Fence { site, .. } => Some((Muted::Fence, site)),
        Step::Disk {
            step: DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. },
            site,
        } => Some((Muted::Sync, site)),
        _ => None,
    });
    let persists: HashSet<_> = persists.map(|(what, site)| (what, key(site))).collect();
    assert_eq!(persists.len(), 7);
    for (what, site) in persists {
        let found = run.examine(Some(Mute { what, site }));
        println!("without the {what:?} of line {}: {found:?}", site.1);
        assert!(found.is_err(), "{what:?} of line {} is not needed", site.1);
    }
}
