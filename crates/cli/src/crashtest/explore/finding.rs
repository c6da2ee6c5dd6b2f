//! What becomes of a finding: made small, explained, saved as a plan; and a saved plan done again.

use crate::Outcome;
use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint, row};
use crate::units::{count, time};
use anyhow::Context;
use everdram_lab::campaign::{Campaign, Finding};
use everdram_lab::crash::Found;
use everdram_lab::examine::Scrutiny;
use everdram_lab::explain::{Explanation, explain};
use everdram_lab::plan_text::{self, Saved};
use everdram_lab::profile::Profile;
use everdram_lab::replay::{self, Replay};
use everdram_lab::shrink::{Patience, shrink};
use everdram_lab::world::Ground;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A plan is not longer than this.
const PLAN_BYTES: u64 = 64 << 20;

/// A finding, made small and saved.
pub(super) struct Followed {
    finding: Finding,
    calls: usize,
    explanation: Explanation,
    file: PathBuf,
}

/// Makes a finding small, explains it, and saves the plan that does it again.
pub(super) fn follow(
    finding: &Finding,
    campaign: &Campaign,
    quiet: bool,
) -> anyhow::Result<Followed> {
    let plan = &finding.plan;
    let ground = campaign.ground(plan.medium, plan.profile);
    let mut found = small(finding, &ground, &campaign.scrutiny, quiet);
    let explanation = explain(&mut found, &ground, campaign.scrutiny.mute);
    let name = format!(
        "everdram-crash-{}-{}-{}.plan",
        plan.medium, plan.profile, plan.seed
    );
    let followed = Followed {
        finding: finding.clone(),
        calls: found.plan.calls.len(),
        explanation,
        file: PathBuf::from(name),
    };
    if !quiet {
        followed.print();
    }
    save(&found, &followed.file, quiet)?;
    Ok(followed)
}

/// Saves what was found, and says how to have it again.
fn save(found: &Found, file: &Path, quiet: bool) -> anyhow::Result<()> {
    std::fs::write(file, plan_text::write(&replay::save(found)))
        .with_context(|| format!("saving {}", file.display()))?;
    if !quiet {
        println!("do it again with");
        println!("  {}", command(file));
        if found.plan.profile == Profile::Threads {
            println!(
                "  (threads are scheduled by the seed, which repeats a run almost always, but not quite)"
            );
        }
        println!();
    }
    Ok(())
}

fn small(finding: &Finding, ground: &Ground, scrutiny: &Scrutiny, quiet: bool) -> Found {
    let patience = Patience::default();
    let begun = Instant::now();
    let progress = Progress::start("shrinking", patience.time.as_millis() as u64, quiet);
    progress.begin(&format!(
        "a violation with {} calls",
        finding.plan.calls.len()
    ));
    let found = shrink(finding, ground, scrutiny, &patience, &|attempts, calls| {
        let at = begun.elapsed().as_millis() as u64;
        progress.at(at, &format!("{calls} calls left after {attempts} attempts"));
    });
    progress.finish();
    found
}

impl Followed {
    fn print(&self) {
        let plan = &self.finding.plan;
        let title = format!(
            "violation: {} {}, seed {}",
            plan.medium, plan.profile, plan.seed
        );
        println!("{}", paint(Tone::Bad, &title));
        row(
            "found after",
            format_args!("{} unique images", count(self.finding.after)),
        );
        row(
            "calls",
            format_args!("{} of {} are enough", self.calls, plan.calls.len()),
        );
        print!("{}", self.explanation);
    }

    pub(super) fn to_json(&self) -> Value {
        let plan = &self.finding.plan;
        let mut object = explanation_json(&self.explanation);
        object["medium"] = plan.medium.to_string().into();
        object["profile"] = plan.profile.to_string().into();
        object["seed"] = plan.seed.into();
        object["found_after_unique_images"] = self.finding.after.into();
        object["plan"] = self.file.display().to_string().into();
        object["repeat"] = command(&self.file).into();
        object
    }
}

fn command(file: &Path) -> String {
    format!("everdram crashtest --plan {}", file.display())
}

fn explanation_json(explanation: &Explanation) -> Value {
    let calls: Vec<Value> = explanation
        .calls
        .iter()
        .map(|told| {
            json!({
                "number": told.number, "session": told.session, "call": told.call,
                "acknowledged": told.answer.is_some(), "answer": told.answer,
            })
        })
        .collect();
    let crashes: Vec<Value> = explanation
        .crashes
        .iter()
        .map(|scar| {
            let lost = scar.lost.iter();
            let lost = lost.map(|loss| json!({ "place": loss.place, "sites": loss.sites }));
            json!({ "moment": scar.moment, "lost": lost.collect::<Vec<_>>() })
        })
        .collect();
    json!({ "wrong": explanation.wrong, "calls": calls, "crashes": crashes })
}

/// Does a saved plan again, and says if it is still wrong.
pub(super) fn replay(
    file: &Path,
    scrutiny: &Scrutiny,
    budget: Duration,
    json: bool,
) -> anyhow::Result<Outcome> {
    let saved = read(file)?;
    let plan = &saved.plan;
    let ground = Ground::new(plan.profile, plan.medium);
    let begun = Instant::now();
    let mut replayed = replay::replay(&saved, &ground, scrutiny, &|| begun.elapsed() < budget);
    let explanation = replayed
        .found
        .as_mut()
        .map(|found| explain(found, &ground, scrutiny.mute));
    let outcome = match &explanation {
        Some(_) => Outcome::Damaged,
        None => Outcome::Sound,
    };
    if json {
        let mut object = explanation
            .as_ref()
            .map_or_else(|| json!({}), explanation_json);
        object["medium"] = plan.medium.to_string().into();
        object["profile"] = plan.profile.to_string().into();
        object["seed"] = plan.seed.into();
        object["same_image"] = replayed.is_exact.into();
        object["images"] = replayed.totals.judged.into();
        object["sound"] = explanation.is_none().into();
        println!("{object}");
    } else {
        print_replay(
            file,
            &saved,
            &replayed,
            explanation.as_ref(),
            begun.elapsed(),
        );
    }
    if let (Some(found), false) = (&replayed.found, replayed.is_exact) {
        // It is not what the plan says; that one is kept.
        save(found, &file.with_extension("again.plan"), json)?;
    }
    Ok(outcome)
}

fn read(file: &Path) -> anyhow::Result<Saved> {
    let reading = || format!("reading {}", file.display());
    let mut text = String::new();
    let opened = File::open(file).with_context(reading)?;
    let read = opened.take(PLAN_BYTES).read_to_string(&mut text);
    read.with_context(reading)?;
    plan_text::read(&text).map_err(|error| usage(format!("{}: {error}", file.display())))
}

fn print_replay(
    file: &Path,
    saved: &Saved,
    replayed: &Replay,
    explanation: Option<&Explanation>,
    took: Duration,
) {
    let plan = &saved.plan;
    println!("{}", paint(Tone::Strong, "everdram crashtest --plan"));
    row("plan", file.display());
    row(
        "workload",
        format_args!(
            "{} {}, seed {}, {} calls",
            plan.medium,
            plan.profile,
            plan.seed,
            plan.calls.len()
        ),
    );
    if !replayed.is_exact {
        println!("{}", other_way(saved));
        row(
            "images judged",
            format_args!("{} in {}", count(replayed.totals.judged), time(took)),
        );
    }
    if let Some(explanation) = explanation {
        print!("{explanation}");
    }
    let verdict = match (explanation.is_some(), replayed.is_exact) {
        (true, true) => paint(Tone::Bad, "it is still wrong"),
        (true, false) => paint(Tone::Bad, "something is wrong"),
        (false, true) => paint(Tone::Good, "it is not wrong any more"),
        (false, false) => paint(Tone::Good, "nothing is wrong in this run"),
    };
    println!("{verdict}");
}

/// Why it is not the saved image that was judged.
fn other_way(saved: &Saved) -> String {
    let why = match (saved.crashes.is_empty(), saved.plan.profile) {
        (true, _) => "the plan names no crash",
        (false, Profile::Threads) => {
            "the threads were scheduled another way, or the code has changed, so that the saved crash cannot happen"
        }
        (false, _) => {
            "the run took another way than the one that was saved: the saved crash cannot happen in it"
        }
    };
    format!("  {why}; every crash of the run is examined instead")
}
