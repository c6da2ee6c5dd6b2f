//! Examines a run: walks its trace, stops at every crash point, and judges the images that are possible
//! there.

use super::after_crash::after_crash;
use super::budget::Budget;
use super::{Effort, Pick};
use crate::explore;
use crate::judge::history::{Allowed, Checker, State};
use crate::judge::{Care, Defect, catching_panics, compare, judge_lazily, judge_with};
use crate::medium::image::Image;
use crate::medium::lazy::Oracle;
use crate::medium::lines::Mute;
use crate::medium::model::Model;
use crate::medium::unit;
use crate::medium::unit::{FILES, Unit};
use crate::plan::profile;
use crate::run::Run;
use crate::run::process::{Environment, Process};
use crate::run::recorder::Record;
use crate::run::trace::{Step, StepId, Trace};
use rand::RngExt;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

/// For so many images of a crash point, one more is decided as recovery reads.
const LAZY_SHARE: usize = 6;

/// How to examine.
#[derive(Clone, Debug)]
pub struct ExploreOptions {
    /// Images of a crash point.
    pub effort: Effort,
    /// The recovery of one image in so many is crashed, too; 0: none.
    pub nested_one_in: u64,
    /// One in so many of these is also used after recovery, and crashed meanwhile; 0: none.
    pub used_one_in: u64,
    /// How deep crashes nest. 2: a crash during the recovery from a crash, or during the use after it.
    pub depth: u32,
    /// Images of a crash point that are decided as recovery reads; 0: none.
    pub lazy: usize,
    /// Images of a crash point in recovery, or in the use after it.
    pub nested_effort: Effort,
    /// A mutation: events without effect.
    pub mute: Option<Mute>,
    /// Images of a run without nested crashes; `None`: as many as [`ExploreOptions::effort`] says.
    pub images: Option<u64>,
    /// Least images of each crash point, if those of the run are limited. 0: some points have none.
    pub each: u64,
    /// Images of the nested crashes of one image, if those of the run are limited.
    pub nested_images: u64,
    /// The seed of random choices.
    pub seed: u64,
}

impl ExploreOptions {
    /// So many images of each run, others each day: for tests that have little time for a long run.
    pub fn of_the_day(images: u64) -> ExploreOptions {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        ExploreOptions {
            images: Some(images),
            seed: since.map_or(0, |since| since.as_secs() / (24 * 3600)),
            ..ExploreOptions::default()
        }
    }
}

impl Default for ExploreOptions {
    fn default() -> ExploreOptions {
        ExploreOptions {
            effort: Effort::default(),
            nested_one_in: 64,
            used_one_in: 32,
            depth: 2,
            lazy: 24,
            nested_effort: Effort {
                exhaustive: 8,
                singles: true,
                random: 1,
                pairs: 0,
            },
            mute: None,
            images: None,
            each: 1,
            nested_images: 24,
            seed: 0,
        }
    }
}

/// Counts of what was examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Calls of these runs.
    pub calls: u64,
    /// Crash points, those in recovery included.
    pub points: u64,
    /// Images drawn.
    pub drawn: u64,
    /// Images recovered and judged.
    pub judged: u64,
    /// Different ones among them.
    pub unique: u64,
    /// Judged images of nested crashes.
    pub nested: u64,
    /// Judged images that were decided as recovery read them.
    pub lazy: u64,
    /// The deepest nesting.
    pub depth: u32,
}

impl Totals {
    /// Adds others.
    pub fn add(&mut self, other: &Totals) {
        self.runs += other.runs;
        self.calls += other.calls;
        self.points += other.points;
        self.drawn += other.drawn;
        self.judged += other.judged;
        self.unique += other.unique;
        self.nested += other.nested;
        self.lazy += other.lazy;
        self.depth = self.depth.max(other.depth);
    }

    /// What was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Totals) -> Totals {
        Totals {
            runs: self.runs - before.runs,
            calls: self.calls - before.calls,
            points: self.points - before.points,
            drawn: self.drawn - before.drawn,
            judged: self.judged - before.judged,
            unique: self.unique - before.unique,
            nested: self.nested - before.nested,
            lazy: self.lazy - before.lazy,
            depth: self.depth,
        }
    }
}

/// An image that was not recovered as it should be.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The crash came before this step of the trace.
    pub step: StepId,
    /// What the crash decided.
    pub picked: Picked,
    /// The crash in the process that followed, by a step of its own trace, and so on inwards.
    pub nested: Vec<(StepId, Picked)>,
    /// What is wrong.
    pub defect: Defect,
}

/// Places that a crash decided, and what they hold: see [`Unit`].
pub type Picked = Vec<(u64, Box<[u8]>)>;

fn picked(units: &[Unit], pick: &Pick) -> Picked {
    let chosen = units.iter().zip(pick);
    chosen
        .map(|(unit, &choice)| (unit.place, unit.choices[choice].bytes.clone()))
        .collect()
}

/// Whether to go on. Called once for each image that was judged.
pub type GoOn<'a> = &'a (dyn Fn() -> bool + Sync);

/// Examines one run.
pub struct Examiner<'a> {
    environment: &'a Environment,
    options: &'a ExploreOptions,
    go_on: GoOn<'a>,
    seen: HashSet<u64>,
    images: HashSet<u64>,
    /// The last image of certain bytes alone: its hash and the clock, and the state that it recovered to.
    certain: Option<((u64, u64), State)>,
    /// What was examined.
    pub totals: Totals,
    /// Called after each crash point of the run with what was examined so far.
    pub on_progress: Option<&'a (dyn Fn(&Totals) + Sync)>,
    /// Called with the trace of each process that came after a crash.
    pub on_trace: Option<&'a dyn Fn(&Trace)>,
    /// Crash points before this step are skipped.
    pub from: StepId,
}

impl<'a> Examiner<'a> {
    /// An examiner with nothing seen.
    #[must_use]
    pub fn new(
        environment: &'a Environment,
        options: &'a ExploreOptions,
        go_on: GoOn<'a>,
    ) -> Examiner<'a> {
        Examiner {
            environment,
            options,
            go_on,
            seen: HashSet::new(),
            images: HashSet::new(),
            certain: None,
            totals: Totals {
                depth: 1,
                ..Totals::default()
            },
            on_progress: None,
            on_trace: None,
            from: 0,
        }
    }

    /// Examines a run until the first violation.
    ///
    /// # Errors
    /// The violation.
    pub fn run(&mut self, run: &mut Run) -> Result<(), Violation> {
        self.totals.runs += 1;
        self.totals.calls += run.record.history.entries.len() as u64;
        let mut random = profile::random(self.options.seed, 2);
        let capacity = self.environment.options.max_bytes;
        let mut model = Model::new(&run.start, capacity, self.options.mute);
        let mut checker = Checker::new(self.environment.profile.keys());
        let Record {
            trace,
            history,
            values,
            own,
        } = &mut run.record;
        let images = self.options.images;
        let each = self.options.each;
        let mut budget = images.map(|images| Budget::new(images, (trace, self.from), own, each));
        let (mut changed, mut told) = (true, false);
        for (id, step) in trace.iter().enumerate() {
            let id = id as StepId;
            if is_point(&model, step) && changed && id >= self.from {
                if std::mem::take(&mut told) && self.options.images.is_some() {
                    let allowed = checker.allowed(history, values).clone();
                    self.environment.clock.set(checker.now());
                    self.certain((&model, id), &allowed, values)?;
                }
                let most = budget.as_ref().map(|budget| budget.share(id, &mut random));
                if most != Some(0) {
                    let allowed = checker.allowed(history, values).clone();
                    self.environment.clock.set(checker.now());
                    let before = self.totals.judged - self.totals.nested;
                    self.point((&model, id, most), &allowed, values, &mut random)?;
                    if let Some(budget) = &mut budget {
                        budget.spend(self.totals.judged - self.totals.nested - before);
                    }
                }
                changed = false;
                if let Some(on_progress) = self.on_progress {
                    on_progress(&self.totals);
                }
                if !(self.go_on)() {
                    return Ok(());
                }
            }
            if let Some(budget) = &mut budget
                && id >= self.from
            {
                budget.pass(id, step);
            }
            changed |= model.is_change(step) || matches!(step, Step::Return(_));
            checker
                .step(step, history, values)
                .map_err(|defect| Violation {
                    step: id,
                    picked: Vec::new(),
                    nested: Vec::new(),
                    defect,
                })?;
            told |= matches!(step, Step::Return(_)) && checker.is_within_a_call();
            model.step(id, step);
        }
        let allowed = checker.allowed(history, values).clone();
        self.environment.clock.set(checker.now());
        let end = trace.len() as StepId;
        let most = budget.map(|budget| budget.share(end, &mut random).max(1));
        self.point((&model, end, most), &allowed, values, &mut random)
    }

    /// Judges the image of a crash point that has the certain bytes alone. If a call was answered with an
    /// effect of another call that is not durable yet, this image shows it.
    fn certain(
        &mut self,
        (model, step): (&Model, StepId),
        allowed: &Allowed,
        values: &crate::plan::call::Values,
    ) -> Result<(), Violation> {
        if !model.is_changed() {
            return Ok(());
        }
        let units = model.units(&mut profile::random(self.options.seed, u64::from(step)));
        let least = vec![0; units.len()];
        let hash = model.hash(&units, &least);
        let when = (hash, self.environment.clock.now());
        // Mostly it is the same image as before, and only the allowed states are others.
        let known = self.certain.as_ref().filter(|(known, _)| *known == when);
        if known.is_some_and(|(_, state)| allowed.states.contains(state)) {
            return Ok(());
        }
        self.totals.drawn += 1;
        self.totals.judged += 1;
        self.totals.unique += u64::from(self.images.insert(hash));
        let image = model.image(&units, &least);
        let judged = judge_with(Care::of(hash), self.environment, image, allowed, values);
        let state = judged.map_err(|defect| Violation {
            step,
            picked: picked(&units, &least),
            nested: Vec::new(),
            defect,
        })?;
        self.certain = Some((when, state));
        Ok(())
    }

    /// Judges the images of one crash point, `most` of them.
    fn point(
        &mut self,
        (model, step, most): (&Model, StepId, Option<u64>),
        allowed: &Allowed,
        values: &crate::plan::call::Values,
        random: &mut rand::rngs::StdRng,
    ) -> Result<(), Violation> {
        self.totals.points += 1;
        let units = model.units(random);
        let mut found = None;
        let effort = self.options.effort;
        // Where the mutation does not show in images, only nested crashes can go wrong.
        let is_changed = model.is_changed();
        let _ = chosen(&units, (&effort, most), random, &mut |pick| {
            self.totals.drawn += 1;
            let hash = model.hash(&units, pick);
            let one_in = self.options.nested_one_in;
            let is_nested = self.options.depth > 1 && one_in > 0 && hash.is_multiple_of(one_in);
            if !(is_changed || is_nested)
                || !self.seen.insert(hash ^ allowed.number.rotate_left(17))
            {
                return ControlFlow::Continue(());
            }
            self.totals.judged += 1;
            self.totals.unique += u64::from(self.images.insert(hash));
            let image = model.image(&units, pick);
            let kept = is_nested.then(|| image.clone());
            let defect = match judge_with(Care::of(hash), self.environment, image, allowed, values)
            {
                Err(defect) => Some((defect, Vec::new())),
                Ok(state) => kept.and_then(|image| {
                    self.nested(&image, &state, values, (2, is_changed), hash)
                        .err()
                }),
            };
            if let Some((defect, nested)) = defect {
                found = Some(Violation {
                    step,
                    picked: picked(&units, pick),
                    nested,
                    defect,
                });
                return ControlFlow::Break(());
            }
            if (self.go_on)() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        if let Some(violation) = found {
            return Err(violation);
        }
        if !is_changed {
            return Ok(());
        }
        let leaves = most.map_or(self.options.lazy, |most| most as usize / LAZY_SHARE);
        self.lazily((model, step, leaves), &units, allowed, values, random)
    }

    /// Judges images whose lines are decided as recovery reads them.
    fn lazily(
        &mut self,
        (model, step, leaves): (&Model, StepId, usize),
        units: &[Unit],
        allowed: &Allowed,
        values: &crate::plan::call::Values,
        random: &mut rand::rngs::StdRng,
    ) -> Result<(), Violation> {
        // Few images were all tried before.
        if model.lines().is_none() || explore::count(units) <= self.options.effort.exhaustive {
            return Ok(());
        }
        // Recovery reads files as a whole, so they are decided before it starts.
        let (lines, files) = units.split_at(units.partition_point(|unit| unit.place < FILES));
        let mut script = Vec::new();
        for leaf in 0..leaves {
            if !(self.go_on)() {
                break;
            }
            // Depth first changes what is read last. Every other script is random.
            let is_next = leaf % 2 == 0;
            let (tried, in_files): (Vec<usize>, Pick) = if is_next {
                (script.clone(), files.iter().map(Unit::newest).collect())
            } else {
                let mut draw = |choices| random.random_range(0..choices);
                let tried = (0..64).map(|_| draw(64)).collect();
                let in_files = files.iter().map(|unit| draw(unit.choices.len()));
                (tried, in_files.collect())
            };
            let oracle = Arc::new(Oracle::new(lines, tried));
            let judged = judge_lazily(
                self.environment,
                model.image(files, &in_files),
                &oracle,
                allowed,
                values,
                |unit| random.random_range(0..unit.choices.len()),
            );
            let mut picked = oracle.chosen();
            let certain = model.hash(files, &in_files);
            let hash = picked.iter().fold(certain, |hash, (place, bytes)| {
                hash ^ model.place_hash(*place) ^ unit::hash(*place, bytes)
            });
            picked.extend(self::picked(files, &in_files));
            self.totals.judged += 1;
            self.totals.drawn += 1;
            self.totals.lazy += 1;
            self.totals.unique += u64::from(self.images.insert(hash));
            if let Err(defect) = judged {
                return Err(Violation {
                    step,
                    picked,
                    nested: Vec::new(),
                    defect,
                });
            }
            if is_next {
                match oracle.next() {
                    Some(next) => script = next,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Crashes the recovery of an image, and sometimes the use that follows, at each crash point. What is
    /// left must recover to an allowed state: until the first call, that is `state`. With the depth of these
    /// crashes comes whether the mutation may show in the image.
    fn nested(
        &mut self,
        image: &Image,
        state: &State,
        values: &crate::plan::call::Values,
        (depth, is_changed): (u32, bool),
        hash: u64,
    ) -> Result<(), (Defect, Vec<(StepId, Picked)>)> {
        self.totals.depth = self.totals.depth.max(depth);
        let one_in = self.options.used_one_in;
        let is_used = one_in > 0 && hash.rotate_left(32).is_multiple_of(one_in);
        let Record {
            trace,
            history,
            mut values,
            own,
        } = after_crash(self.environment, image, values, is_used)
            .map_err(|defect| (defect, Vec::new()))?;
        let images = self.options.images.map(|_| self.options.nested_images);
        let mut budget = images.map(|images| Budget::new(images, (&trace, 0), &own, 0));
        if let Some(on_trace) = self.on_trace {
            on_trace(&trace);
        }
        let mut random = profile::random(self.options.seed, hash | 1);
        let mut checker = Checker::from_state(state.clone(), self.environment.clock.now());
        let mut model = Model::new(image, self.environment.options.max_bytes, self.options.mute);
        let mut changed = true;
        for id in 0..=trace.len() {
            let step = trace.get(id);
            if changed && step.is_none_or(|step| is_point(&model, step)) {
                changed = false;
                self.totals.points += 1;
                let depth = (depth, is_changed || model.is_changed());
                let allowed = checker.allowed(&history, &mut values).clone();
                let most = budget
                    .as_ref()
                    .map(|budget| budget.share(id as StepId, &mut random));
                let before = self.totals.nested;
                let point = (&model, id as StepId, most);
                self.nested_point(point, &allowed, &values, depth, &mut random)?;
                if let Some(budget) = &mut budget {
                    budget.spend(self.totals.nested - before);
                }
            }
            let Some(step) = step else { break };
            if let Some(budget) = &mut budget {
                budget.pass(id as StepId, step);
            }
            changed |= model.is_change(step) || matches!(step, Step::Return(_));
            checker
                .step(step, &history, &mut values)
                .map_err(|defect| (defect, vec![(id as StepId, Picked::new())]))?;
            model.step(id as StepId, step);
        }
        Ok(())
    }

    fn nested_point(
        &mut self,
        (model, step, most): (&Model, StepId, Option<u64>),
        allowed: &Allowed,
        values: &crate::plan::call::Values,
        (depth, is_changed): (u32, bool),
        random: &mut rand::rngs::StdRng,
    ) -> Result<(), (Defect, Vec<(StepId, Picked)>)> {
        let units = model.units(random);
        let mut found = None;
        let effort = self.options.nested_effort;
        let _ = chosen(&units, (&effort, most), random, &mut |pick| {
            let hash = model.hash(&units, pick);
            self.totals.drawn += 1;
            let asked = allowed.number.rotate_left(17) ^ u64::from(depth).rotate_left(40);
            let is_deeper = depth < self.options.depth && hash.is_multiple_of(16);
            if !(is_changed || is_deeper) || !self.seen.insert(hash ^ asked) {
                return ControlFlow::Continue(());
            }
            self.totals.judged += 1;
            self.totals.nested += 1;
            self.totals.unique += u64::from(self.images.insert(hash));
            let image = model.image(&units, pick);
            let deeper = is_deeper.then(|| image.clone());
            let place = || (step, picked(&units, pick));
            match judge_with(Care::of(hash), self.environment, image, allowed, values) {
                Err(defect) => {
                    let defect = format!("after another crash, {defect}");
                    found = Some((defect, vec![place()]));
                    return ControlFlow::Break(());
                }
                Ok(state) => {
                    let result = deeper.map_or(Ok(()), |image| {
                        self.nested(&image, &state, values, (depth + 1, is_changed), hash)
                    });
                    if let Err((defect, mut inner)) = result {
                        inner.insert(0, place());
                        found = Some((defect, inner));
                        return ControlFlow::Break(());
                    }
                }
            }
            if (self.go_on)() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        found.map_or(Ok(()), Err)
    }
}

/// Visits `most` picks of a crash point, or as many as the effort says.
fn chosen(
    units: &[Unit],
    (effort, most): (&Effort, Option<u64>),
    random: &mut rand::rngs::StdRng,
    visit: &mut dyn FnMut(&Pick) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match most {
        Some(most) => explore::sample(units, most, random, visit),
        None => explore::explore(units, effort, random, visit),
    }
}

/// Whether the moment before a step has to be examined: images get fewer there, or allowed states more.
fn is_point(model: &Model, step: &Step) -> bool {
    model.is_point(step) || matches!(step, Step::Invoke(_) | Step::Clock(_))
}

/// Reads a recovered image without using it, for replays.
///
/// # Errors
/// What is wrong.
pub fn look(
    environment: &Environment,
    image: Image,
    allowed: &Allowed,
    values: &crate::plan::call::Values,
) -> Result<State, Defect> {
    catching_panics(|| {
        let process = Process::open(
            environment,
            image,
            &crate::run::process::Observers::default(),
        )
        .map_err(|error| format!("recovery refused it: {error}"))?;
        compare(&process, allowed, values)
    })
}
