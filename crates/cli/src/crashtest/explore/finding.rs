//! What becomes of a finding: saved as a plan, made small, saved again, and explained.
//!
//! It is saved before it is made small, which takes a while and may be interrupted. A plan that cannot be
//! saved is said to be so beside everything else that there is to say.

use super::plan_file::PlanFile;
use crate::terminal::{Progress, Tone, paint, row};
use crate::units::count;
use everdram_lab::campaign::{Campaign, Finding};
use everdram_lab::crash::Failure;
use everdram_lab::examine::ExploreOptions;
use everdram_lab::explain::{ExplainedCall, Explanation, explain};
use everdram_lab::plan_text;
use everdram_lab::process::Environment;
use everdram_lab::replay;
use everdram_lab::shrink::{Patience, shrink};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A finding, made small and saved.
pub(super) struct Followed {
    finding: Finding,
    calls: usize,
    explanation: Explanation,
    kept: Kept,
    /// Whether Ctrl-C came before it was as small as it gets.
    is_interrupted: bool,
}

/// How to have something again.
pub(super) struct Kept {
    file: anyhow::Result<PlanFile>,
    /// Why the file does not hold the last plan that it was given.
    trouble: Option<anyhow::Error>,
    /// Looks for it from the beginning, if there is no file.
    search: String,
    /// Whether sessions called at the same time.
    is_threaded: bool,
}

impl Kept {
    /// Saves the plan of what was found at `depth`, where the runs of a campaign make so many `calls`: some
    /// of them more, some fewer.
    pub(super) fn new(
        found: &Failure,
        directory: &Path,
        stem: &str,
        (calls, depth): (usize, u32),
    ) -> Kept {
        let plan = &found.plan;
        Kept {
            file: PlanFile::create(directory, stem, &plan_text::write(&replay::save(found))),
            trouble: None,
            search: format!(
                "everdram crashtest --engine {} --medium {} --profile {} --seed {} --ops {calls} --depth {depth} --runs 1",
                plan.engine, plan.medium, plan.profile, plan.seed,
            ),
            is_threaded: plan.manner.is_threaded(),
        }
    }

    fn replace(&mut self, found: &Failure) {
        if let Ok(file) = &mut self.file {
            let text = plan_text::write(&replay::save(found));
            self.trouble = file.replace(&text).err();
        }
    }

    fn command(&self) -> String {
        match &self.file {
            Ok(file) => format!("everdram crashtest --plan {}", file.path().display()),
            Err(_) => self.search.clone(),
        }
    }

    pub(super) fn print(&self) {
        if let Err(error) = &self.file {
            println!("{}", paint(Tone::Bad, &format!("not saved: {error:#}")));
        }
        if let Some(error) = &self.trouble {
            println!("saved as it was before it was made small: {error:#}");
        }
        println!("do it again with");
        println!("  {}", self.command());
        if self.is_threaded {
            println!(
                "  (threads are scheduled by the seed, which repeats a run almost always, but not quite)"
            );
        }
        println!();
    }

    /// Enters into an object where the plan is, or why it is nowhere.
    pub(super) fn enter(&self, object: &mut Value) {
        let path = self.file.as_ref().ok();
        object["plan"] = path.map(|file| file.path().display().to_string()).into();
        let trouble = self.file.as_ref().err().or(self.trouble.as_ref());
        object["not_saved"] = trouble.map(|error| format!("{error:#}")).into();
        object["repeat"] = self.command().into();
    }
}

/// Makes a finding small, explains it, and saves the plan that does it again.
pub(super) fn follow(
    finding: &Finding,
    campaign: &Campaign,
    directory: &Path,
    stop: &AtomicBool,
    quiet: bool,
) -> Followed {
    let plan = &finding.plan;
    let environment = campaign.environment(plan.medium, plan.profile);
    let stem = format!(
        "everdram-crash-{}-{}-{}-{}",
        plan.engine, plan.medium, plan.profile, plan.seed
    );
    let mut kept = Kept::new(
        &Failure::from(finding),
        directory,
        &stem,
        (campaign.calls, campaign.options.depth),
    );
    let mut found = small(finding, &environment, &campaign.options, stop, quiet);
    kept.replace(&found);
    let followed = Followed {
        finding: finding.clone(),
        calls: found.plan.calls.len(),
        explanation: explain(&mut found, &environment, campaign.options.mute),
        kept,
        is_interrupted: stop.load(Ordering::Relaxed),
    };
    if !quiet {
        followed.print();
    }
    followed
}

fn small(
    finding: &Finding,
    environment: &Environment,
    options: &ExploreOptions,
    stop: &AtomicBool,
    quiet: bool,
) -> Failure {
    let patience = Patience {
        stop,
        ..Patience::default()
    };
    let begun = Instant::now();
    let progress = Progress::start("shrinking", patience.time.as_millis() as u64, quiet);
    progress.begin(&format!(
        "a violation with {} calls",
        finding.plan.calls.len()
    ));
    let found = shrink(
        finding,
        environment,
        options,
        &patience,
        &|attempts, calls| {
            let at = begun.elapsed().as_millis() as u64;
            progress.at(at, &format!("{calls} calls left after {attempts} attempts"));
        },
    );
    progress.finish();
    found
}

impl Followed {
    fn print(&self) {
        let plan = &self.finding.plan;
        let title = format!(
            "violation: {} {} {}, seed {}",
            plan.engine, plan.medium, plan.profile, plan.seed
        );
        println!("{}", paint(Tone::Bad, &title));
        row(
            "found after",
            format_args!("{} unique images", count(self.finding.after)),
        );
        let rest = match self.is_interrupted {
            true => " (interrupted: perhaps fewer, too)",
            false => "",
        };
        row(
            "calls",
            format_args!("{} of {} are enough{rest}", self.calls, plan.calls.len()),
        );
        print!("{}", self.explanation);
        self.kept.print();
    }

    pub(super) fn to_json(&self) -> Value {
        let plan = &self.finding.plan;
        let mut object = explanation_json(&self.explanation);
        object["engine"] = plan.engine.name().into();
        object["medium"] = plan.medium.to_string().into();
        object["profile"] = plan.profile.to_string().into();
        object["seed"] = plan.seed.into();
        object["found_after_unique_images"] = self.finding.after.into();
        self.kept.enter(&mut object);
        object
    }
}

pub(super) fn explanation_json(explanation: &Explanation) -> Value {
    let calls = |told: &[ExplainedCall]| -> Vec<Value> {
        told.iter()
            .map(|told| {
                json!({
                    "number": told.number, "session": told.session, "call": told.call,
                    "acknowledged": told.answer.is_some(), "answer": told.answer,
                })
            })
            .collect()
    };
    let crashes: Vec<Value> = explanation
        .crashes
        .iter()
        .map(|explained| {
            let lost = explained.lost.iter();
            let lost = lost.map(|loss| json!({ "place": loss.place, "sites": loss.sites }));
            json!({
                "calls": calls(&explained.calls), "moment": explained.moment, "lost": lost.collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({ "wrong": explanation.defect, "calls": calls(&explanation.calls), "crashes": crashes })
}
