//! One particular crash of a run, rebuilt and judged again.
//!
//! A crash is given by its step of the trace and by the contents of places that it decided. Places that are
//! not named hold everything that was stored. A crash of the recovery that followed may be given as well, and
//! so on.
//!
//! The contents must be possible at that step by the model. If they are not, the run went another way than
//! the one in which the crash was found.

use super::Pick;
use super::after_crash::after_crash;
use super::examine::{Picked, Violation};
use crate::judge::history::{Allowed, Checker, State};
use crate::judge::{Defect, judge};
use crate::medium::image::Image;
use crate::medium::lines::Mute;
use crate::medium::model::Model;
use crate::medium::unit::Unit;
use crate::plan::Plan;
use crate::plan::call::Values;
use crate::plan::profile;
use crate::run::Run;
use crate::run::process::Environment;
use crate::run::recorder::Record;
use crate::run::trace::{DiskStep, Step, StepId};
use everdram_pm::LINE;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// One crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// It came before this step.
    pub step: StepId,
    /// What places hold. The others hold everything that was stored.
    pub held: Picked,
}

/// A defect, with all that it takes to show it.
#[derive(Clone)]
pub struct Failure {
    /// The workload.
    pub plan: Plan,
    /// The run; `None` if it did not come to its end.
    pub run: Option<Run>,
    /// The crash, then the one in its recovery, and so on. Empty: the run itself was wrong.
    pub crashes: Vec<Crash>,
    /// What is wrong.
    pub defect: Defect,
}

impl Violation {
    /// The violation of these crashes; `None` if there are none.
    #[must_use]
    pub fn of(crashes: &[Crash], defect: &Defect) -> Option<Violation> {
        let pair = |crash: &Crash| (crash.step, crash.held.clone());
        let (first, inner) = crashes.split_first()?;
        Some(Violation {
            step: first.step,
            picked: first.held.clone(),
            nested: inner.iter().map(pair).collect(),
            defect: defect.clone(),
        })
    }

    /// The crash, and those in its recovery.
    #[must_use]
    pub fn crashes(&self) -> Vec<Crash> {
        let outer = (self.step, self.picked.clone());
        std::iter::once(outer)
            .chain(self.nested.iter().cloned())
            .map(|(step, held)| Crash { step, held })
            .collect()
    }
}

/// The verdict on a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What it leaves is wrong.
    Defect(Defect),
    /// What it leaves is right.
    Sound,
    /// The run has no such crash.
    Impossible,
}

/// A medium just before a step of a trace.
pub struct Moment {
    /// What is certain.
    pub model: Model,
    /// What a crash decides.
    pub units: Vec<Unit>,
}

impl Moment {
    /// The moment before `step`, from `start` on.
    #[must_use]
    pub fn before(
        step: StepId,
        start: &Image,
        trace: &[Step],
        capacity: u64,
        mute: Option<Mute>,
    ) -> Moment {
        let mut model = Model::new(start, capacity, mute);
        for (id, step) in trace.iter().enumerate().take(step as usize) {
            model.step(id as StepId, step);
        }
        // The random choices do not matter: a crash names contents.
        let units = model.units(&mut profile::random(0, 0));
        Moment { model, units }
    }

    /// Whether a unit can hold these bytes. The choices of a line are a random sample, so for a line each
    /// word must be one that was stored, or the certain one.
    fn is_possible(&self, unit: &Unit, bytes: &[u8]) -> bool {
        if unit.choices.iter().any(|choice| *choice.bytes == *bytes) {
            return true;
        }
        let Some(line) = self.model.lines().and_then(|lines| lines.line(unit.place)) else {
            return false;
        };
        let certain = &unit.choices[0].bytes;
        let mut words = bytes.as_chunks::<8>().0.iter().enumerate();
        bytes.len() as u64 == LINE
            && words.all(|(number, word)| {
                let mut stored = line.atoms().iter().filter(|atom| atom.word() == number);
                certain[number * 8..][..8] == *word
                    || stored.any(|atom| atom.value().to_le_bytes() == *word)
            })
    }

    /// The image that a crash leaves, if it is possible.
    #[must_use]
    pub fn image(&self, crash: &Crash) -> Option<Image> {
        let mut held: BTreeMap<u64, &[u8]> = BTreeMap::new();
        held.extend(crash.held.iter().map(|(place, bytes)| (*place, &**bytes)));
        let mut decided = Vec::with_capacity(self.units.len());
        for unit in &self.units {
            let bytes = match held.remove(&unit.place) {
                None => &unit.choices[unit.newest()].bytes,
                Some(bytes) if self.is_possible(unit, bytes) => bytes,
                Some(_) => return None,
            };
            decided.push(Unit::new(unit.place, bytes.into()));
        }
        let pick: Pick = vec![0; decided.len()];
        held.is_empty().then(|| self.model.image(&decided, &pick))
    }
}

/// A crash point of a run, and what a crash there may leave.
pub struct CrashPoint<'a> {
    environment: &'a Environment,
    mute: Option<Mute>,
    /// The run.
    pub run: &'a Run,
    /// The medium.
    pub moment: Moment,
    /// The states that it may leave, or the defect in an answer before it.
    allowed: Result<Allowed, Defect>,
    now: u64,
}

impl<'a> CrashPoint<'a> {
    /// The moment before `step`.
    #[must_use]
    pub fn before(
        step: StepId,
        run: &'a mut Run,
        environment: &'a Environment,
        mute: Option<Mute>,
    ) -> CrashPoint<'a> {
        let mut checker = Checker::new(environment.profile.keys());
        let record = &mut run.record;
        let allowed = allowed_before(step, &mut checker, record);
        let run: &'a Run = run;
        let capacity = environment.options.max_bytes;
        CrashPoint {
            environment,
            mute,
            run,
            moment: Moment::before(step, &run.start, &run.record.trace, capacity, mute),
            allowed,
            now: checker.now(),
        }
    }

    /// Judges what these crashes leave, each within what follows the one before. The first is at this point.
    #[must_use]
    pub fn verdict(&self, crashes: &[Crash]) -> Verdict {
        let mut left: Option<(Crashed, State)> = None;
        for crash in crashes {
            let mut crashed = match self.crashed(left.as_ref().map(|(crashed, _)| crashed), crash) {
                Ok(crashed) => crashed,
                Err(verdict) => return verdict,
            };
            let is_first = left.is_none();
            let allowed = match (left, &mut crashed.after_crash) {
                (Some((_, state)), Some((record, _))) => {
                    let mut checker = Checker::from_state(state, self.now);
                    allowed_before(crash.step, &mut checker, record)
                }
                _ => self.allowed.clone(),
            };
            let judged = allowed.and_then(|allowed| {
                let image = crashed.image.clone();
                judge(self.environment, image, &allowed, crashed.values(self.run))
            });
            match judged {
                Ok(state) => left = Some((crashed, state)),
                Err(defect) if is_first => return Verdict::Defect(defect),
                Err(defect) => return Verdict::Defect(format!("after another crash, {defect}")),
            }
        }
        let used = left.map(|(crashed, _)| {
            after_crash(
                self.environment,
                &crashed.image,
                crashed.values(self.run),
                true,
            )
        });
        match used {
            Some(Err(defect)) => Verdict::Defect(defect),
            _ => Verdict::Sound,
        }
    }

    /// What a crash leaves: of the run or, after another crash, of the process that came then.
    ///
    /// # Errors
    /// The crash is impossible, or recovery fails before it.
    pub fn crashed(&self, before: Option<&Crashed>, crash: &Crash) -> Result<Crashed, Verdict> {
        self.environment.clock.set(self.now);
        let Some(before) = before else {
            let image = self.moment.image(crash).ok_or(Verdict::Impossible)?;
            return Ok(Crashed {
                after_crash: None,
                image,
            });
        };
        let values = before.values(self.run);
        let before = &before.image;
        let record =
            after_crash(self.environment, before, values, true).map_err(Verdict::Defect)?;
        if crash.step as usize > record.trace.len() {
            return Err(Verdict::Impossible);
        }
        let capacity = self.environment.options.max_bytes;
        let moment = Moment::before(crash.step, before, &record.trace, capacity, self.mute);
        let image = moment.image(crash).ok_or(Verdict::Impossible)?;
        Ok(Crashed {
            after_crash: Some((record, moment)),
            image,
        })
    }
}

/// The states that are allowed before a step. If that step is an answer, it counts.
fn allowed_before(
    step: StepId,
    checker: &mut Checker,
    record: &mut Record,
) -> Result<Allowed, Defect> {
    for (id, event) in record.trace.iter().enumerate().take(step as usize + 1) {
        if id < step as usize || matches!(event, Step::Return(_)) {
            checker.step(event, &record.history, &mut record.values)?;
        }
    }
    Ok(checker.allowed(&record.history, &mut record.values).clone())
}

/// What a crash left.
pub struct Crashed {
    /// If it is not the first crash: the process since the one before, and the medium at the moment of this
    /// one.
    pub after_crash: Option<(Record, Moment)>,
    /// The image.
    pub image: Image,
}

impl Crashed {
    /// The values that keys may hold.
    fn values<'a>(&'a self, run: &'a Run) -> &'a Values {
        match &self.after_crash {
            Some((record, _)) => &record.values,
            None => &run.record.values,
        }
    }
}

/// A hash of the events of a run: kinds, places, actors and their order. Contents and lines of the source do
/// not count.
#[must_use]
pub fn shape(trace: &[Step]) -> u64 {
    trace.iter().fold(0, |hash, step| {
        let words = match step {
            Step::Store {
                actor, at, bytes, ..
            } => [1, u64::from(*actor), *at, bytes.len() as u64],
            Step::Flush {
                actor, at, bytes, ..
            } => [2, u64::from(*actor), *at, *bytes],
            Step::Fence { actor, .. } => [3, u64::from(*actor), 0, 0],
            Step::Load { .. } => [4, 0, 0, 0],
            Step::Disk { step, .. } => disk_shape(step),
            Step::Invoke(call) => [5, u64::from(*call), 0, 0],
            Step::Return(call) => [6, u64::from(*call), 0, 0],
            Step::Clock(now) => [7, *now, 0, 0],
            Step::Death => [100, 0, 0, 0],
            Step::Outage(held) => [101, held.len() as u64, 0, 0],
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        xxh3_64_with_seed(&bytes, hash)
    })
}

fn disk_shape(step: &DiskStep) -> [u64; 4] {
    match step {
        DiskStep::Create { file, .. } => [8, u64::from(*file), 0, 0],
        DiskStep::Unlink { file } => [9, u64::from(*file), 0, 0],
        DiskStep::Write { file, at, bytes } => [10, u64::from(*file), *at, bytes.len() as u64],
        DiskStep::SetLen { file, bytes } => [11, u64::from(*file), *bytes, 0],
        DiskStep::Allocate { file, at, bytes } => [12, u64::from(*file), *at, *bytes],
        DiskStep::Sync { file, ok } => [13, u64::from(*file), u64::from(*ok), 0],
        DiskStep::SyncDirectory { ok, .. } => [14, u64::from(*ok), 0, 0],
        DiskStep::Rename { file, .. } => [15, u64::from(*file), 0, 0],
    }
}
