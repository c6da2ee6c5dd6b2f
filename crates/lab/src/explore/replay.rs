//! Replays a saved plan, and judges the image that was wrong then.
//!
//! The same plan makes the same run unless the code has changed or threads were scheduled in another way. If
//! the run does not have the saved crash, the whole run is examined instead.

use super::crash::{CrashPoint, Failure, Verdict, shape};
use super::examine::{Examiner, ExploreOptions, GoOn, Totals};
use crate::plan::Manner;
use crate::plan::text::Saved;
use crate::run::process::Environment;
use crate::run::{Run, execute};
use std::sync::atomic::{AtomicBool, Ordering};

/// Attempts to repeat a run of threads.
const THREADED_RUNS: usize = 10;

/// The result of a replay.
pub struct Replay {
    /// The defect, if there is one.
    pub found: Option<Failure>,
    /// Whether it was the saved image that was judged, and nothing else.
    pub is_exact: bool,
    /// Whether the examination came to its end, or to a defect, and was not stopped.
    pub is_complete: bool,
    /// What was examined.
    pub totals: Totals,
}

/// A failure as a plan to save.
#[must_use]
pub fn save(found: &Failure) -> Saved {
    let crash = found.crashes.first();
    let until = found.run.as_ref().zip(crash).map(|(run, crash)| {
        let trace = &run.record.trace;
        shape(&trace[..(crash.step as usize).min(trace.len())])
    });
    Saved {
        plan: found.plan.clone(),
        crashes: found.crashes.clone(),
        shape: until.unwrap_or_default(),
    }
}

/// Replays a saved plan.
#[must_use]
pub fn replay(
    saved: &Saved,
    environment: &Environment,
    options: &ExploreOptions,
    go_on: GoOn<'_>,
) -> Replay {
    let attempts = match saved.plan.manner {
        Manner::Threads { .. } | Manner::Stops(..) => THREADED_RUNS,
        Manner::Turns => 1,
    };
    let mut other = None;
    for _ in 0..attempts {
        let mut run = match execute(&saved.plan, environment) {
            Ok(run) => run,
            Err(defect) => return exact(Some(failed(saved, defect))),
        };
        match again(saved, environment, options, &mut run) {
            Verdict::Sound => return exact(None),
            Verdict::Defect(defect) => {
                return exact(Some(Failure {
                    plan: saved.plan.clone(),
                    run: Some(run),
                    crashes: saved.crashes.clone(),
                    defect,
                }));
            }
            Verdict::Impossible => other = Some(run),
        }
    }
    match other {
        None => exact(None),
        Some(run) => everything(saved, environment, options, go_on, run),
    }
}

fn exact(found: Option<Failure>) -> Replay {
    Replay {
        found,
        is_exact: true,
        is_complete: true,
        totals: Totals::default(),
    }
}

fn failed(saved: &Saved, defect: String) -> Failure {
    Failure {
        plan: saved.plan.clone(),
        run: None,
        crashes: Vec::new(),
        defect,
    }
}

/// Judges the saved image, if the run has it.
fn again(
    saved: &Saved,
    environment: &Environment,
    options: &ExploreOptions,
    run: &mut Run,
) -> Verdict {
    let trace = &run.record.trace;
    let Some(crash) = saved.crashes.first() else {
        return Verdict::Impossible;
    };
    let step = crash.step as usize;
    if step > trace.len() || shape(&trace[..step]) != saved.shape {
        return Verdict::Impossible;
    }
    CrashPoint::before(crash.step, run, environment, options.mute).verdict(&saved.crashes)
}

fn everything(
    saved: &Saved,
    environment: &Environment,
    options: &ExploreOptions,
    go_on: GoOn<'_>,
    mut run: Run,
) -> Replay {
    let options = ExploreOptions {
        seed: saved.plan.seed,
        ..options.clone()
    };
    let is_cut_short = AtomicBool::new(false);
    let go_on = || {
        let goes_on = go_on();
        is_cut_short.fetch_or(!goes_on, Ordering::Relaxed);
        goes_on
    };
    let mut examiner = Examiner::new(environment, &options, &go_on);
    let violation = examiner.run(&mut run).err();
    let totals = examiner.totals;
    Replay {
        is_complete: violation.is_some() || !is_cut_short.into_inner(),
        found: violation.map(|violation| Failure {
            plan: saved.plan.clone(),
            crashes: violation.crashes(),
            run: Some(run),
            defect: violation.defect,
        }),
        is_exact: false,
        totals,
    }
}
