//! A saved plan done again: is it still wrong?
//!
//! If the saved image can be had, it is judged and nothing else is looked at. Otherwise the whole run is
//! examined, and the answer is only there once that is complete.

use super::End;
use super::finding::{Kept, explanation_json};
use crate::settings::usage;
use crate::terminal::{Tone, paint, row};
use crate::units::{count, time};
use anyhow::Context;
use everdram_lab::campaign::Campaign;
use everdram_lab::crash::Failure;
use everdram_lab::examine::ExploreOptions;
use everdram_lab::explain::{Explanation, explain};
use everdram_lab::plan::Manner;
use everdram_lab::plan_text::{self, Saved};
use everdram_lab::process::Environment;
use everdram_lab::replay::{self, Replay};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A plan is not longer than this.
const PLAN_BYTES: u64 = 64 << 20;

/// What a replay gave.
pub(super) struct Again {
    replayed: Replay,
    explanation: Option<Explanation>,
    /// What was found, if it is not what the plan says; that one is kept.
    kept: Option<Kept>,
    took: Duration,
    pub(super) end: End,
}

/// Does a saved plan again, and says if it is still wrong.
pub(super) fn replay(
    file: &Path,
    options: &ExploreOptions,
    budget: Duration,
    stop: &AtomicBool,
    json: bool,
) -> anyhow::Result<End> {
    let saved = read(file)?;
    let again = judge(&saved, file, options, budget, stop);
    if json {
        println!("{}", again.to_json(&saved));
    } else {
        again.print(file, &saved);
    }
    Ok(again.end)
}

/// Does it again, and keeps what is found if it is not what `file` says.
pub(super) fn judge(
    saved: &Saved,
    file: &Path,
    options: &ExploreOptions,
    budget: Duration,
    stop: &AtomicBool,
) -> Again {
    let environment = Environment::of(&saved.plan);
    let begun = Instant::now();
    let go_on = || !stop.load(Ordering::Relaxed) && begun.elapsed() < budget;
    let mut replayed = replay::replay(saved, &environment, options, &go_on);
    let took = begun.elapsed();
    let kept = match &replayed.found {
        Some(found) if !replayed.is_exact => Some(keep(found, file, options.depth)),
        _ => None,
    };
    let found = replayed.found.as_mut();
    let explanation = found.map(|found| explain(found, &environment, options.mute));
    let end = match &explanation {
        Some(_) => End::Defect,
        None if replayed.is_complete => End::Sound,
        None if stop.load(Ordering::Relaxed) => End::Interrupted,
        None => End::TooSoon,
    };
    Again {
        replayed,
        explanation,
        kept,
        took,
        end,
    }
}

fn keep(found: &Failure, file: &Path, depth: u32) -> Kept {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let directory = file.parent().unwrap_or(Path::new(""));
    // What the run was drawn with is not in a plan.
    let drawn = (Campaign::default().calls, depth);
    Kept::new(found, directory, &format!("{stem}.again"), drawn)
}

pub(super) fn read(file: &Path) -> anyhow::Result<Saved> {
    let reading = || format!("reading {}", file.display());
    let mut text = String::new();
    let opened = File::open(file).with_context(reading)?;
    let read = opened.take(PLAN_BYTES).read_to_string(&mut text);
    read.with_context(reading)?;
    plan_text::read(&text).map_err(|error| usage(format!("{}: {error}", file.display())))
}

impl Again {
    pub(super) fn to_json(&self, saved: &Saved) -> Value {
        let plan = &saved.plan;
        let explanation = self.explanation.as_ref();
        let mut object = explanation.map_or_else(|| json!({}), explanation_json);
        object["engine"] = plan.engine.name().into();
        object["medium"] = plan.medium.to_string().into();
        object["profile"] = plan.profile.to_string().into();
        object["seed"] = plan.seed.into();
        object["same_image"] = self.replayed.is_exact.into();
        object["images"] = self.replayed.totals.judged.into();
        object["complete"] = self.replayed.is_complete.into();
        object["sound"] = (self.end == End::Sound).into();
        if let Some(kept) = &self.kept {
            kept.enter(&mut object);
        }
        object
    }

    fn print(&self, file: &Path, saved: &Saved) {
        let plan = &saved.plan;
        println!("{}", paint(Tone::Strong, "everdram crashtest --plan"));
        row("plan", file.display());
        row(
            "workload",
            format_args!(
                "{} {} {}, seed {}, {} calls",
                plan.engine,
                plan.medium,
                plan.profile,
                plan.seed,
                plan.calls.len()
            ),
        );
        if !self.replayed.is_exact {
            println!("{}", other_way(saved));
            row(
                "images judged",
                format_args!(
                    "{} in {}",
                    count(self.replayed.totals.judged),
                    time(self.took)
                ),
            );
        }
        if let Some(explanation) = &self.explanation {
            print!("{explanation}");
        }
        println!("{}", self.verdict());
        if let Some(kept) = &self.kept {
            kept.print();
        }
    }

    fn verdict(&self) -> String {
        match (self.end, self.replayed.is_exact) {
            (End::Defect, true) => paint(Tone::Bad, "it is still wrong"),
            (End::Defect, false) => paint(Tone::Bad, "something is wrong"),
            (End::Sound, true) => paint(Tone::Good, "it is not wrong any more"),
            (End::Sound, false) => paint(Tone::Good, "nothing is wrong in this run"),
            (End::Interrupted, _) => {
                "interrupted: nothing is wrong in what was examined until then".into()
            }
            (End::TooSoon, _) => "nothing is wrong in the part that was examined".into(),
        }
    }
}

/// Why it is not the saved image that was judged.
fn other_way(saved: &Saved) -> String {
    let why = match (saved.crashes.is_empty(), saved.plan.manner) {
        (true, _) => "the plan names no crash",
        (false, Manner::Threads { .. } | Manner::Stops(..)) => {
            "the threads were scheduled another way, or the code has changed, so that the saved crash cannot happen"
        }
        (false, _) => {
            "the run took another way than the one that was saved: the saved crash cannot happen in it"
        }
    };
    format!("  {why}; every crash of the run is examined instead")
}
