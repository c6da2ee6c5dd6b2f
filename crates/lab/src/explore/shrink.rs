//! Shrinks a finding to few calls, and to a crash that loses only what must be lost for it.
//!
//! Calls are removed in halves, quarters and so on down to single ones, as long as the rest still has some
//! defect. Then each place of the crash gets back everything that was stored there, if the defect stays. Of
//! the remaining places as many as possible are lost as a whole, which is easier to understand than half a
//! line.
//!
//! Every intermediate result has a defect, so shrinking may stop at any time.

use super::Effort;
use super::campaign::Finding;
use super::crash::{Crash, CrashPoint, Failure, Verdict};
use super::examine::{Examiner, ExploreOptions, GoOn};
use crate::judge::history::{Checker, SESSIONS};
use crate::judge::judge;
use crate::medium::lines::Mute;
use crate::plan::call::{Call, Values};
use crate::plan::{Fault, Plan};
use crate::run::process::Environment;
use crate::run::trace::{Step, StepId};
use crate::run::{Run, execute};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Limits of shrinking.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// Time for all attempts, and for the crash afterwards.
    pub time: Duration,
    /// Time for one attempt. Without this limit, an attempt without a defect would take all of it.
    pub attempt: Duration,
    /// Attempts.
    pub attempts: usize,
    /// Stops it.
    pub stop: &'a AtomicBool,
}

/// Never set.
static NOBODY: AtomicBool = AtomicBool::new(false);

impl Default for Patience<'_> {
    fn default() -> Self {
        Patience {
            time: Duration::from_secs(20),
            attempt: Duration::from_secs(2),
            attempts: 400,
            stop: &NOBODY,
        }
    }
}

impl Patience<'_> {
    fn is_left(&self, until: Instant) -> bool {
        !self.stop.load(Ordering::Relaxed) && Instant::now() < until
    }
}

/// The crash is looked for in so many calls at the end of a run.
const LAST_CALLS: usize = 8;
/// One part in so many of the time is kept for the crash.
const CRASH_SHARE: u32 = 4;

/// Images of a crash point if each is used and crashed again.
const EFFORTS: [Effort; 3] = [
    Effort {
        exhaustive: 1,
        singles: false,
        random: 0,
        pairs: 0,
    },
    Effort {
        exhaustive: 4,
        singles: false,
        random: 1,
        pairs: 4,
    },
    Effort {
        exhaustive: 64,
        singles: true,
        random: 8,
        pairs: 40,
    },
];

/// Called after each attempt with the number of attempts and of calls left.
pub type Watch<'a> = &'a dyn Fn(usize, usize);

impl From<&Finding> for Failure {
    fn from(finding: &Finding) -> Failure {
        let violation = finding.violation.as_ref();
        Failure {
            plan: finding.plan.clone(),
            run: finding.run.as_deref().cloned(),
            crashes: violation.map_or_else(Vec::new, |violation| violation.crashes()),
            defect: finding.defect.clone(),
        }
    }
}

/// Shrinks a finding. Returns it as it is if it does not come again.
#[must_use]
pub fn shrink(
    finding: &Finding,
    environment: &Environment,
    options: &ExploreOptions,
    patience: &Patience<'_>,
    watch: Watch<'_>,
) -> Failure {
    let until = Instant::now() + patience.time;
    let mut best = Failure::from(finding);
    let option_sets = option_sets(&mut best, environment, options);
    let mut shrinker = Shrinker {
        environment,
        options: options.clone(),
        patience,
        watch,
        until: until - patience.time / CRASH_SHARE,
        attempts: 0,
        is_cut: false,
        best,
    };
    for options in option_sets {
        shrinker.options = options;
        if shrinker.cut() {
            break;
        }
    }
    shrinker.faultless();
    shrinker.calls();
    shrinker.parts();
    let mut best = shrinker.best;
    let go_on = || patience.is_left(until);
    reduce(&mut best, environment, options.mute, &go_on);
    best
}

/// Options with which to look for it again, the quickest first.
fn option_sets(
    found: &mut Failure,
    environment: &Environment,
    options: &ExploreOptions,
) -> Vec<ExploreOptions> {
    let mut options = ExploreOptions {
        seed: found.plan.seed,
        ..options.clone()
    };
    if !shows_later(found, environment, &options) {
        // Nested crashes were not needed for it, and take most of the time.
        options.nested_one_in = 0;
        return vec![options];
    }
    // A small run has few images, so each has its recovery crashed. That takes long, so there must be few.
    options.nested_one_in = 1;
    options.used_one_in = 1;
    let few = EFFORTS.into_iter().map(|effort| ExploreOptions {
        effort,
        lazy: 0,
        ..options.clone()
    });
    few.collect()
}

/// Whether what the crash left is sound, so that the defect takes another crash, or recovery and use once
/// more.
fn shows_later(found: &mut Failure, environment: &Environment, options: &ExploreOptions) -> bool {
    let (Some(run), [first, others @ ..]) = (&mut found.run, &found.crashes[..]) else {
        return false;
    };
    if !others.is_empty() {
        return true;
    }
    let crash_point = CrashPoint::before(first.step, run, environment, options.mute);
    let Ok(crashed) = crash_point.crashed(None, first) else {
        return false;
    };
    let record = &mut run.record;
    let mut checker = Checker::new(environment.profile.keys());
    let at = first.step as usize;
    for (id, step) in record.trace.iter().enumerate().take(at + 1) {
        // The defect may be the answer right after the crash point.
        let counts = id < at || matches!(step, Step::Return(_));
        if counts
            && checker
                .step(step, &record.history, &mut record.values)
                .is_err()
        {
            return false;
        }
    }
    let allowed = checker.allowed(&record.history, &mut record.values);
    judge(environment, crashed.image, allowed, &record.values).is_ok()
}

struct Shrinker<'a> {
    environment: &'a Environment,
    options: ExploreOptions,
    patience: &'a Patience<'a>,
    watch: Watch<'a>,
    until: Instant,
    attempts: usize,
    best: Failure,
    /// Whether nothing is called after the crash.
    is_cut: bool,
}

impl Shrinker<'_> {
    fn is_over(&self) -> bool {
        self.attempts >= self.patience.attempts || !self.patience.is_left(self.until)
    }

    /// Replaces the calls, if the defect stays.
    fn attempt(&mut self, calls: Vec<(u32, Call)>, fault: Fault) -> bool {
        if self.is_over() {
            return false;
        }
        self.attempts += 1;
        let plan = with_calls(&self.best.plan, calls, fault);
        let until = self.until.min(Instant::now() + self.patience.attempt);
        let go_on = || self.patience.is_left(until);
        let found = self.find(plan, &go_on);
        let is_wrong = found.is_some();
        if let Some(found) = found {
            self.best = found;
        }
        (self.watch)(self.attempts, self.best.plan.calls.len());
        is_wrong
    }

    /// Runs a plan and examines the run.
    fn find(&self, plan: Plan, go_on: GoOn<'_>) -> Option<Failure> {
        let mut run = match execute(&plan, self.environment) {
            Ok(run) => run,
            Err(defect) => {
                return Some(Failure {
                    plan,
                    run: None,
                    crashes: Vec::new(),
                    defect,
                });
            }
        };
        let mut examiner = Examiner::new(self.environment, &self.options, go_on);
        if self.is_cut {
            examiner.from = last_calls(&run);
        }
        let violation = examiner.run(&mut run).err()?;
        Some(Failure {
            plan,
            run: Some(run),
            crashes: violation.crashes(),
            defect: violation.defect,
        })
    }

    /// Removes the calls after the crash. Returns whether the defect stayed.
    fn cut(&mut self) -> bool {
        let (Some(run), Some(crash)) = (&self.best.run, self.best.crashes.first()) else {
            return false;
        };
        let mut begun = vec![0usize; SESSIONS as usize];
        for step in run.record.trace.iter().take(crash.step as usize + 1) {
            if let Step::Invoke(call) = step {
                let session = run.record.history.entries[*call as usize].planned_session();
                begun[session as usize] += 1;
            }
        }
        let mut calls = self.best.plan.calls.clone();
        calls.retain(|(session, call)| {
            let left = &mut begun[*session as usize];
            let is_begun = *left > 0;
            *left = left.saturating_sub(entries(call));
            is_begun
        });
        self.is_cut = true;
        self.is_cut = self.attempt(calls, self.best.plan.fault);
        self.is_cut
    }

    fn faultless(&mut self) {
        if self.best.plan.fault != Fault::None {
            self.attempt(self.best.plan.calls.clone(), Fault::None);
        }
    }

    /// Removes calls, in ever smaller pieces.
    fn calls(&mut self) {
        let mut piece = self.best.plan.calls.len().div_ceil(2);
        while piece > 0 && !self.is_over() {
            let mut is_smaller = false;
            let mut at = 0;
            while at < self.best.plan.calls.len() && !self.is_over() {
                let end = (at + piece).min(self.best.plan.calls.len());
                if self.attempt(without(&self.best.plan, at..end), self.best.plan.fault) {
                    is_smaller = true;
                } else {
                    at = end;
                }
            }
            piece = match piece {
                1 if is_smaller => 1,
                1 => 0,
                larger => larger.div_ceil(2),
            };
        }
    }

    /// Removes parts of batches and pipelines.
    fn parts(&mut self) {
        let mut at = 0;
        while at < self.best.plan.calls.len() && !self.is_over() {
            let mut part = 0;
            while let Some(calls) = without_part(&self.best.plan, at, part) {
                if !self.attempt(calls, self.best.plan.fault) {
                    part += 1;
                }
            }
            at += 1;
        }
    }
}

/// The step at which the last calls of a run begin. Once the calls after the crash are removed, the crash is
/// there; looking everywhere would leave time for few attempts.
fn last_calls(run: &Run) -> StepId {
    let trace = &run.record.trace;
    let calls = trace.iter().enumerate().rev();
    let mut calls = calls.filter(|(_, step)| matches!(step, Step::Invoke(_)));
    calls.nth(LAST_CALLS).map_or(0, |(id, _)| id as StepId)
}

/// Entries of the history that a call makes.
fn entries(call: &Call) -> usize {
    match call {
        Call::Pipeline(parts) | Call::Slow(parts, _) => parts.len(),
        Call::Advance(_) => 0,
        _ => 1,
    }
}

fn without(plan: &Plan, range: Range<usize>) -> Vec<(u32, Call)> {
    let calls = plan.calls.iter().enumerate();
    calls
        .filter(|(number, _)| !range.contains(number))
        .map(|(_, call)| call.clone())
        .collect()
}

fn without_part(plan: &Plan, at: usize, part: usize) -> Option<Vec<(u32, Call)>> {
    let mut calls = plan.calls.clone();
    let parts = calls.get_mut(at)?.1.parts_mut()?;
    if part >= parts.len() || parts.len() == 1 {
        return None;
    }
    parts.remove(part);
    Some(calls)
}

/// The plan with other calls, and with the values of these alone.
fn with_calls(plan: &Plan, mut calls: Vec<(u32, Call)>, fault: Fault) -> Plan {
    let mut values = Values::default();
    for (_, call) in &mut calls {
        for number in call.values_mut() {
            *number = values.number(plan.values.bytes(*number));
        }
    }
    Plan {
        calls,
        values,
        fault,
        ..plan.clone()
    }
}

/// Gives back what need not be lost.
fn reduce(found: &mut Failure, environment: &Environment, mute: Option<Mute>, go_on: GoOn<'_>) {
    let Some(step) = found.crashes.first().map(|crash| crash.step) else {
        return;
    };
    let Some(run) = &mut found.run else {
        return;
    };
    let crash_point = CrashPoint::before(step, run, environment, mute);
    let mut crashes = found.crashes.clone();
    for level in 0..crashes.len() {
        give_back(&crash_point, &mut crashes, level, go_on);
    }
    lose_whole(&crash_point, &mut crashes, go_on);
    if let Verdict::Defect(defect) = crash_point.verdict(&crashes) {
        found.crashes = crashes;
        found.defect = defect;
    }
}

fn is_wrong(crash_point: &CrashPoint<'_>, crashes: &[Crash]) -> bool {
    matches!(crash_point.verdict(crashes), Verdict::Defect(_))
}

/// Gives places back, in ever smaller pieces.
fn give_back(
    crash_point: &CrashPoint<'_>,
    crashes: &mut Vec<Crash>,
    level: usize,
    go_on: GoOn<'_>,
) {
    let mut piece = crashes[level].held.len();
    while piece > 0 {
        let mut at = 0;
        while at < crashes[level].held.len() {
            if !go_on() {
                return;
            }
            let mut fewer = crashes.clone();
            let end = (at + piece).min(fewer[level].held.len());
            fewer[level].held.drain(at..end);
            if is_wrong(crash_point, &fewer) {
                *crashes = fewer;
            } else {
                at = end;
            }
        }
        piece /= 2;
    }
}

/// Loses whole places that the outermost crash lost in part.
fn lose_whole(crash_point: &CrashPoint<'_>, crashes: &mut Vec<Crash>, go_on: GoOn<'_>) {
    for number in 0..crashes[0].held.len() {
        if !go_on() {
            return;
        }
        let place = crashes[0].held[number].0;
        let Some(unit) = crash_point
            .moment
            .units
            .iter()
            .find(|unit| unit.place == place)
        else {
            continue;
        };
        let mut more = crashes.clone();
        more[0].held[number].1 = unit.choices[0].bytes.clone();
        if is_wrong(crash_point, &more) {
            *crashes = more;
        }
    }
}
