//! Does again what a saved plan says, and looks at the very image that was wrong then.
//!
//! A run is decided by its plan, but for the code: once that has changed, or where several threads were not
//! scheduled quite the same, the run may go another way and never have the crash that was meant. Then the
//! whole run is examined instead.

use super::campaign::execute;
use super::crash::{Found, Scene, Verdict, shape};
use super::examine::{Examiner, GoOn, Scrutiny, Totals};
use crate::plan::Manner;
use crate::plan::text::Saved;
use crate::run::Run;
use crate::run::world::Ground;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs of several threads until one goes the way that was saved.
const THREADED_RUNS: usize = 10;

/// What came of it.
pub struct Replay {
    /// What is wrong, if anything is.
    pub found: Option<Found>,
    /// Whether it was the saved image that was judged, and nothing else.
    pub is_exact: bool,
    /// Whether everything was looked at until something was wrong; otherwise nobody wanted to go on.
    pub is_complete: bool,
    /// What was looked at otherwise.
    pub totals: Totals,
}

/// What there is to save of something that was found.
#[must_use]
pub fn save(found: &Found) -> Saved {
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
pub fn replay(saved: &Saved, ground: &Ground, scrutiny: &Scrutiny, go_on: GoOn<'_>) -> Replay {
    let attempts = match saved.plan.manner {
        Manner::Threads { .. } | Manner::Stops(..) => THREADED_RUNS,
        Manner::Turns => 1,
    };
    let mut other = None;
    for _ in 0..attempts {
        let mut run = match execute(&saved.plan, ground) {
            Ok(run) => run,
            Err(wrong) => return exact(Some(failed(saved, wrong))),
        };
        match again(saved, ground, scrutiny, &mut run) {
            Verdict::Right => return exact(None),
            Verdict::Wrong(wrong) => {
                return exact(Some(Found {
                    plan: saved.plan.clone(),
                    run: Some(run),
                    crashes: saved.crashes.clone(),
                    wrong,
                }));
            }
            Verdict::Impossible => other = Some(run),
        }
    }
    match other {
        None => exact(None),
        Some(run) => everything(saved, ground, scrutiny, go_on, run),
    }
}

fn exact(found: Option<Found>) -> Replay {
    Replay {
        found,
        is_exact: true,
        is_complete: true,
        totals: Totals::default(),
    }
}

fn failed(saved: &Saved, wrong: String) -> Found {
    Found {
        plan: saved.plan.clone(),
        run: None,
        crashes: Vec::new(),
        wrong,
    }
}

/// Judges the saved image, if the run has it.
fn again(saved: &Saved, ground: &Ground, scrutiny: &Scrutiny, run: &mut Run) -> Verdict {
    let trace = &run.record.trace;
    let Some(crash) = saved.crashes.first() else {
        return Verdict::Impossible;
    };
    let step = crash.step as usize;
    if step > trace.len() || shape(&trace[..step]) != saved.shape {
        return Verdict::Impossible;
    }
    Scene::before(crash.step, run, ground, scrutiny.mute).verdict(&saved.crashes)
}

fn everything(
    saved: &Saved,
    ground: &Ground,
    scrutiny: &Scrutiny,
    go_on: GoOn<'_>,
    mut run: Run,
) -> Replay {
    let scrutiny = Scrutiny {
        seed: saved.plan.seed,
        ..scrutiny.clone()
    };
    let is_cut_short = AtomicBool::new(false);
    let go_on = || {
        let goes_on = go_on();
        is_cut_short.fetch_or(!goes_on, Ordering::Relaxed);
        goes_on
    };
    let mut examiner = Examiner::new(ground, &scrutiny, &go_on);
    let violation = examiner.run(&mut run).err();
    let totals = examiner.totals;
    Replay {
        is_complete: violation.is_some() || !is_cut_short.into_inner(),
        found: violation.map(|violation| Found {
            plan: saved.plan.clone(),
            crashes: violation.crashes(),
            run: Some(run),
            wrong: violation.wrong,
        }),
        is_exact: false,
        totals,
    }
}
