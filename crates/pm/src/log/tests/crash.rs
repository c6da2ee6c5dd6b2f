//! Random scripts, a power loss at any call, and a model of the images allowed afterwards.
//!
//! The model is the crash model of the media. A line shows one of its versions. If it shows one stored after
//! a fence, everything fenced before that is there. Everything that was waited for is there.

use super::{Bench, DATA, Open, SEGMENT};
use crate::memory::position::Lsn;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const LINES: u64 = 2048;
const LANES: usize = 3;

/// One version of a line. Fences are numbered; 0 is the recovered state.
#[derive(Clone, Copy, Debug)]
struct Version {
    value: u64,
    /// The last fence before the store.
    after_fence: u64,
    /// The fence that covers it; `u64::MAX` before that.
    fence: u64,
}

/// The allowed images.
struct Model {
    lines: Vec<Vec<Version>>,
    fences: u64,
    acknowledged: u64,
    next_value: u64,
}

impl Model {
    fn new() -> Model {
        let zero = Version {
            value: 0,
            after_fence: 0,
            fence: 0,
        };
        Model {
            lines: vec![vec![zero]; LINES as usize],
            fences: 0,
            acknowledged: 0,
            next_value: 1,
        }
    }

    fn store(&mut self, line: u64) -> u64 {
        let value = self.next_value;
        self.next_value += 1;
        let version = Version {
            value,
            after_fence: self.fences,
            fence: u64::MAX,
        };
        self.lines[line as usize].push(version);
        value
    }

    /// A fence of one lane over what it flushed: (line, value then). It does not cover what another lane
    /// stored there later, even if the group happens to copy it: a large group was appended earlier.
    fn fence(&mut self, flushed: &mut Vec<(u64, u64)>) -> u64 {
        self.fences += 1;
        for (line, value) in flushed.drain(..) {
            for version in self.lines[line as usize]
                .iter_mut()
                .filter(|version| version.fence == u64::MAX && version.value <= value)
            {
                version.fence = self.fences;
            }
        }
        self.fences
    }

    /// Returns the fault of the recovered image, or makes it the new base.
    fn check(&mut self, open: &Open) -> Result<(), String> {
        let mut must = self.acknowledged;
        let mut shown = Vec::new();
        for (line, versions) in (0..).zip(&self.lines) {
            let mut bytes = [0; 64];
            open.region.load(DATA + line * 64, &mut bytes);
            let value = u64::from_le_bytes(*bytes.first_chunk().unwrap());
            let index = versions.iter().position(|version| version.value == value);
            let index =
                index.ok_or_else(|| format!("line {line} shows {value}, which was never there"))?;
            must = must.max(versions[index].after_fence);
            shown.push(index);
        }
        for (line, (versions, &index)) in self.lines.iter().zip(&shown).enumerate() {
            if let Some(lost) = versions[index + 1..]
                .iter()
                .find(|version| version.fence <= must)
            {
                return Err(format!(
                    "line {line} shows {:?} but {lost:?} must be there: {must}",
                    versions[index]
                ));
            }
        }
        for (versions, index) in self.lines.iter_mut().zip(shown) {
            *versions = vec![Version {
                value: versions[index].value,
                after_fence: 0,
                fence: 0,
            }];
        }
        self.fences = 0;
        self.acknowledged = 0;
        Ok(())
    }
}

/// Runs random steps until the machine goes off, or a limit is reached.
fn run_script(open: &Open, model: &mut Model, random: &mut StdRng) {
    let mut groups: Vec<_> = (0..LANES).map(|_| open.log.group()).collect();
    let mut touched: Vec<Vec<(u64, u64)>> = vec![Vec::new(); LANES];
    let mut last = (Lsn(0), 0);
    for _ in 0..random.random_range(1..120) {
        if open.log.healthy().is_err() {
            return;
        }
        let lane = random.random_range(0..LANES);
        match random.random_range(0..100) {
            0..30 => {
                for _ in 0..random.random_range(1..8) {
                    let line = lane as u64 * 512 + random.random_range(0..512);
                    let value = model.store(line);
                    open.line(&mut groups[lane], DATA + line * 64, value);
                    touched[lane].push((line, value));
                }
            }
            30..50 => {
                let line = 1536 + random.random_range(0..512);
                let value = model.store(line);
                open.word(&mut groups[lane], DATA + line * 64, value);
                // A later flush of the line by another lane covers this store, too.
                touched[lane].push((line, value));
            }
            50..54 => {
                for line in 0..300 {
                    let value = model.store(lane as u64 * 512 + line);
                    open.line(
                        &mut groups[lane],
                        DATA + (lane as u64 * 512 + line) * 64,
                        value,
                    );
                    touched[lane].push((lane as u64 * 512 + line, value));
                }
            }
            54..80 => {
                let closed = (groups[lane].close(), model.fence(&mut touched[lane]));
                // A fence of an empty group covers only the earlier groups of its lane.
                last = if closed.0 > last.0 { closed } else { last };
            }
            80..95 => {
                if open.log.wait(last.0).is_ok() {
                    model.acknowledged = model.acknowledged.max(last.1);
                }
            }
            _ => {
                let _ = open.log.checkpoint();
            }
        }
    }
}

/// A series of power losses on one pool; returns the first fault.
fn campaign(seed: u64, rounds: u32) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let bench = Bench::new(DATA + LINES * 64);
    let mut model = Model::new();
    for round in 0..rounds {
        let at = |error: String| format!("seed {seed}, round {round}: {error}");
        // Sometimes the machine goes off during recovery, too.
        if random.random_range(0..3) == 0 {
            bench.faults.off_after(random.random_range(0..30));
            drop(bench.open());
            bench.faults.crash(random.random()).unwrap();
        }
        let open = bench.open().map_err(|error| at(error.to_string()))?;
        model.check(&open).map_err(at)?;
        bench.faults.off_after(random.random_range(0..60));
        run_script(&open, &mut model, &mut random);
        if random.random_range(0..8) == 0 && open.log.close().is_ok() {
            model.acknowledged = model.fences;
        }
        drop(open);
        // After a killed process everything can be read, but the next crash may lose what no sync covered.
        if random.random_range(0..3) == 0 {
            bench.faults.on();
        } else {
            bench.faults.crash(random.random()).unwrap();
        }
    }
    Ok(())
}

#[test]
fn what_was_acknowledged_survives_a_power_loss_at_any_call() {
    let first: u64 = std::env::var("EVERDRAM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    for seed in first..first + 60 {
        if let Err(error) = campaign(seed, 40) {
            panic!("{error}; repeat with EVERDRAM_SEED={seed}");
        }
    }
}

#[test]
fn positions_go_on_where_a_clean_close_left_them() {
    let bench = Bench::new(DATA + LINES * 64);
    let mut last = 0;
    for value in 1..100 {
        let open = bench.open().unwrap();
        assert_eq!(open.region.load_word(DATA), value - 1);
        let mut group = open.log.group();
        open.line(&mut group, DATA, value);
        let lsn = group.close();
        assert!(lsn.0 > last && lsn.0 < last + SEGMENT);
        last = lsn.0;
        open.log.close().unwrap();
        assert_eq!(open.log.usage().0, 0);
    }
}
