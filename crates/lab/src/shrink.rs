//! Makes something that was found small: few calls, and a crash that loses only what has to be lost for it.
//!
//! Calls are taken out in halves, quarters and so on down to single ones, as long as what is left is still wrong in
//! some way. Then, in the crash, each place gets everything back that was stored there, if it stays wrong; and of
//! what remains as much as possible is lost whole, because that is easier to understand than half a line.

use crate::call::{Call, Values};
use crate::campaign::{Finding, execute};
use crate::crash::{Crash, Found, Scene, Verdict};
use crate::examine::{Examiner, GoOn, Scrutiny};
use crate::plan::{Fault, Plan};
use crate::profile::Profile;
use crate::run::Run;
use crate::trace::{Step, StepId};
use crate::world::Ground;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long to try.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For all attempts.
    pub time: Duration,
    /// For one, so that a workload in which nothing is wrong any more does not take all the time.
    pub attempt: Duration,
    /// Attempts.
    pub attempts: usize,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            time: Duration::from_secs(20),
            attempt: Duration::from_secs(2),
            attempts: 400,
        }
    }
}

/// Calls at the end of a run in which its crash is looked for.
const LAST_CALLS: usize = 8;

/// Told after each attempt: how many there were, and how many calls are left.
pub type Watch<'a> = &'a dyn Fn(usize, usize);

/// Makes a finding small. Returns it as it is if it cannot be had again.
#[must_use]
pub fn shrink(
    finding: &Finding,
    ground: &Ground,
    scrutiny: &Scrutiny,
    patience: &Patience,
    watch: Watch<'_>,
) -> Found {
    let mut scrutiny = Scrutiny {
        seed: finding.plan.seed,
        ..scrutiny.clone()
    };
    let violation = finding.violation.as_ref();
    if violation.is_none_or(|violation| violation.nested.is_empty()) {
        // Crashes in recovery had nothing to do with it, and take most of the time.
        scrutiny.nested_one_in = 0;
    }
    let mut shrinker = Shrinker {
        ground,
        scrutiny: &scrutiny,
        patience,
        watch,
        until: Instant::now() + patience.time,
        attempts: 0,
        is_cut: false,
        best: Found {
            plan: finding.plan.clone(),
            run: finding.run.as_deref().cloned(),
            crashes: violation
                .map(|violation| violation.crashes())
                .unwrap_or_default(),
            wrong: finding.wrong.clone(),
        },
    };
    shrinker.cut();
    shrinker.faultless();
    shrinker.calls();
    shrinker.parts();
    let mut best = shrinker.best;
    reduce(&mut best, ground, &scrutiny);
    best
}

struct Shrinker<'a> {
    ground: &'a Ground,
    scrutiny: &'a Scrutiny,
    patience: &'a Patience,
    watch: Watch<'a>,
    until: Instant,
    attempts: usize,
    best: Found,
    /// Whether nothing is called after the crash.
    is_cut: bool,
}

impl Shrinker<'_> {
    fn is_over(&self) -> bool {
        self.attempts >= self.patience.attempts || Instant::now() >= self.until
    }

    /// Takes other calls, if they do it too.
    fn attempt(&mut self, calls: Vec<(u32, Call)>, fault: Fault) -> bool {
        if self.is_over() {
            return false;
        }
        self.attempts += 1;
        let plan = with_calls(&self.best.plan, calls, fault);
        let until = self.until.min(Instant::now() + self.patience.attempt);
        let go_on = || Instant::now() < until;
        let found = self.find(plan, &go_on);
        let is_wrong = found.is_some();
        if let Some(found) = found {
            self.best = found;
        }
        (self.watch)(self.attempts, self.best.plan.calls.len());
        is_wrong
    }

    /// Runs a plan and examines the run.
    fn find(&self, plan: Plan, go_on: GoOn<'_>) -> Option<Found> {
        let mut run = match execute(&plan, self.ground) {
            Ok(run) => run,
            Err(wrong) => {
                return Some(Found {
                    plan,
                    run: None,
                    crashes: Vec::new(),
                    wrong,
                });
            }
        };
        let mut examiner = Examiner::new(self.ground, self.scrutiny, go_on);
        if self.is_cut {
            examiner.from = last_calls(&run);
        }
        let violation = examiner.run(&mut run).err()?;
        Some(Found {
            plan,
            run: Some(run),
            crashes: violation.crashes(),
            wrong: violation.wrong,
        })
    }

    /// Leaves out what was called after the crash.
    fn cut(&mut self) {
        let (Some(run), Some(crash)) = (&self.best.run, self.best.crashes.first()) else {
            return;
        };
        let mut begun = vec![0usize; self.best.plan.profile.sessions()];
        for step in run.record.trace.iter().take(crash.step as usize + 1) {
            if let Step::Invoke(call) = step {
                let session = run.record.history.entries[*call as usize].planned_session();
                begun[session as usize] += 1;
            }
        }
        let profile = self.best.plan.profile;
        let mut calls = self.best.plan.calls.clone();
        calls.retain(|(session, call)| {
            let left = &mut begun[*session as usize];
            let is_begun = *left > 0;
            *left = left.saturating_sub(entries(call, profile));
            is_begun
        });
        self.is_cut = true;
        self.is_cut = self.attempt(calls, self.best.plan.fault);
    }

    fn faultless(&mut self) {
        if self.best.plan.fault != Fault::None {
            self.attempt(self.best.plan.calls.clone(), Fault::None);
        }
    }

    /// Takes out calls in ever smaller pieces.
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

    /// Takes out parts of batches and pipelines.
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

/// The step that the last calls of a run begin with. If nothing is called after the crash, that is where it will be;
/// looking everywhere takes so long that few attempts could be made.
fn last_calls(run: &Run) -> StepId {
    let trace = &run.record.trace;
    let calls = trace.iter().enumerate().rev();
    let mut calls = calls.filter(|(_, step)| matches!(step, Step::Invoke(_)));
    calls.nth(LAST_CALLS).map_or(0, |(id, _)| id as StepId)
}

/// Entries of the history that a call makes.
fn entries(call: &Call, profile: Profile) -> usize {
    match call {
        Call::Pipeline(parts) => parts.len(),
        Call::Advance(_) => 0,
        Call::Tend | Call::Reclaim | Call::Checkpoint if profile == Profile::Threads => 0,
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
    let (Call::Batch(parts) | Call::Pipeline(parts)) = &mut calls.get_mut(at)?.1 else {
        return None;
    };
    if part >= parts.len() || parts.len() == 1 {
        return None;
    }
    parts.remove(part);
    Some(calls)
}

/// The plan with other calls, and with the values that these name and no others.
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

/// Gives back what did not have to be lost.
fn reduce(found: &mut Found, ground: &Ground, scrutiny: &Scrutiny) {
    let Some(step) = found.crashes.first().map(|crash| crash.step) else {
        return;
    };
    let Some(run) = &mut found.run else {
        return;
    };
    let scene = Scene::before(step, run, ground, scrutiny.mute);
    let mut crashes = found.crashes.clone();
    for level in 0..crashes.len() {
        give_back(&scene, &mut crashes, level);
    }
    lose_whole(&scene, &mut crashes);
    if let Verdict::Wrong(wrong) = scene.verdict(&crashes) {
        found.crashes = crashes;
        found.wrong = wrong;
    }
}

fn is_wrong(scene: &Scene<'_>, crashes: &[Crash]) -> bool {
    matches!(scene.verdict(crashes), Verdict::Wrong(_))
}

/// Takes places out of what was lost, in ever smaller pieces.
fn give_back(scene: &Scene<'_>, crashes: &mut Vec<Crash>, level: usize) {
    let mut piece = crashes[level].held.len();
    while piece > 0 {
        let mut at = 0;
        while at < crashes[level].held.len() {
            let mut fewer = crashes.clone();
            let end = (at + piece).min(fewer[level].held.len());
            fewer[level].held.drain(at..end);
            if is_wrong(scene, &fewer) {
                *crashes = fewer;
            } else {
                at = end;
            }
        }
        piece /= 2;
    }
}

/// Loses whole what the outermost crash lost in part.
fn lose_whole(scene: &Scene<'_>, crashes: &mut Vec<Crash>) {
    for number in 0..crashes[0].held.len() {
        let place = crashes[0].held[number].0;
        let Some(unit) = scene.moment.units.iter().find(|unit| unit.place == place) else {
            continue;
        };
        let mut more = crashes.clone();
        more[0].held[number].1 = unit.choices[0].bytes.clone();
        if is_wrong(scene, &more) {
            *crashes = more;
        }
    }
}
