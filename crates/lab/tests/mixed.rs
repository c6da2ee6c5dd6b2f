//! A toy machine that keeps values in a file and their index in memory: one image of a crash has both, and
//! each of the machine's flushes, fences and syncs is needed.
//!
//! The file `values` begins with a sector that has its generation. Memory has two indexes, by turns for each
//! generation: for each key the sector of its value, in a line of its own. A put writes and syncs a sector
//! before it stores its number. A compaction makes another file with the other index, and renames it.

use everdram_lab::explore::{Effort, explore};
use everdram_lab::image::{Files, Image};
use everdram_lab::lines::{Mute, Muted, key};
use everdram_lab::model::Model;
use everdram_lab::sectors::SECTOR;
use everdram_lab::trace::{DiskStep, Step};
use everdram_lab::{profile, unit::FILES};
use everdram_pm::{LINE, lab::StoreKind};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::panic::Location;

const KEYS: usize = 3;
/// What each key holds; 0 is nothing.
type State = [u8; KEYS];

struct Machine {
    trace: Vec<Step>,
    /// Number, generation and sectors of the file.
    file: (u32, u8, u64),
    /// After each call.
    states: Vec<State>,
}

impl Machine {
    #[track_caller]
    fn disk(&mut self, step: DiskStep) {
        let site = Location::caller();
        self.trace.push(Step::Disk { step, site });
    }

    fn write(&mut self, file: u32, sector: u64, byte: u8) {
        let (at, bytes) = (sector * SECTOR as u64, [byte; SECTOR].into());
        self.disk(DiskStep::Write { file, at, bytes });
    }

    #[track_caller]
    fn index(&mut self, generation: u8, key: usize, sector: u64) {
        let (actor, site, at) = (0, Location::caller(), line(generation, key) as u64 * LINE);
        self.trace.push(Step::Store {
            actor,
            at,
            bytes: sector.to_le_bytes().into(),
            kind: StoreKind::Word,
            site,
        });
        let bytes = 8;
        let flush = Step::Flush {
            actor,
            at,
            bytes,
            site,
        };
        self.trace.push(flush);
    }

    #[track_caller]
    fn fence(&mut self) {
        let (actor, site) = (0, Location::caller());
        self.trace.push(Step::Fence { actor, site });
    }

    fn put(&mut self, key: usize, value: u8) {
        let (file, generation, sectors) = self.file;
        self.file.2 += 1;
        self.write(file, sectors, value);
        self.disk(DiskStep::Sync { file, ok: true });
        self.index(generation, key, sectors);
        self.fence();
    }

    fn compact(&mut self, state: State) {
        let (file, generation) = (self.file.0 + 1, self.file.1 + 1);
        let (new, name) = ("new".into(), "values".into());
        self.disk(DiskStep::Create { file, name: new });
        self.write(file, 0, generation);
        for (sector, value) in (1..).zip(state) {
            self.write(file, sector, value);
            self.index(generation, sector as usize - 1, sector);
        }
        self.disk(DiskStep::Sync { file, ok: true });
        self.fence();
        self.disk(DiskStep::Rename { file, name });
        let folder = String::new();
        self.disk(DiskStep::SyncDirectory { folder, ok: true });
        self.file = (file, generation, 1 + KEYS as u64);
    }

    /// A run of a few calls; a value of 0 stands for a compaction.
    fn run() -> Machine {
        let (trace, file, states) = (Vec::new(), (0, 0, 1), vec![State::default()]);
        let mut machine = Machine {
            trace,
            file,
            states,
        };
        for (number, call) in (1..).zip([(0, 1), (1, 2), (0, 3), (0, 0), (2, 4), (0, 5), (0, 0)]) {
            let mut state = machine.states[machine.states.len() - 1];
            machine.trace.push(Step::Invoke(number));
            match call {
                (_, 0) => machine.compact(state),
                (key, value) => {
                    state[key] = value;
                    machine.put(key, value);
                }
            }
            machine.states.push(state);
            machine.trace.push(Step::Return(number));
        }
        machine
    }

    /// Recovers what crashes leave: how many images, and at how many moments both lines and sectors were
    /// open; or what is wrong.
    fn examine(&self, mute: Option<Mute>) -> Result<(u64, u64), String> {
        let start = Image {
            memory: Some(vec![0; 2 * KEYS * LINE as usize]),
            files: Files::from([("values".into(), vec![0; SECTOR])]),
        };
        let mut model = Model::new(&start, 2 * KEYS as u64 * LINE, mute);
        let mut random = profile::random(1, 1);
        let (mut images, mut mixed, mut defect) = (0, 0, None);
        let (mut begun, mut answered) = (0, 0);
        for (id, step) in (0..).zip(&self.trace) {
            if model.is_point(step) || matches!(step, Step::Invoke(_)) {
                let units = model.units(&mut random);
                let lines = units.partition_point(|unit| unit.place < FILES);
                mixed += u64::from((1..units.len()).contains(&lines));
                let _ = explore(&units, &Effort::default(), &mut random, &mut |pick| {
                    images += 1;
                    let state = recovered(&model.image(&units, pick));
                    if state.is_some_and(|state| self.states[answered..=begun].contains(&state)) {
                        return ControlFlow::Continue(());
                    }
                    defect = Some(format!("before step {id}: {state:?}"));
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
        Ok((images, mixed))
    }
}

fn line(generation: u8, key: usize) -> usize {
    usize::from(generation % 2) * KEYS + key
}

fn recovered(image: &Image) -> Option<State> {
    let (memory, file) = (image.memory.as_ref()?, image.files.get("values")?);
    let mut state = State::default();
    for (key, value) in state.iter_mut().enumerate() {
        match memory[line(*file.first()?, key) * LINE as usize] {
            0 => {}
            sector => *value = *file.get(usize::from(sector) * SECTOR)?,
        }
    }
    Some(state)
}

#[test]
fn what_is_in_memory_and_what_is_in_files_crash_together() {
    let machine = Machine::run();
    let (images, mixed) = machine.examine(None).expect("the machine is sound");
    println!("{images} images, {mixed} crash points with both lines and sectors");
    assert!(images > 1000 && mixed > 3, "{images} images, {mixed} mixed");
    let persists = machine.trace.iter().filter_map(|step| match step {
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
        let found = machine.examine(Some(Mute { what, site }));
        println!("without the {what:?} of line {}: {found:?}", site.1);
        assert!(found.is_err(), "{what:?} of line {} is not needed", site.1);
    }
}
