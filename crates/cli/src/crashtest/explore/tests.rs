//! Exploring a program without one of its fences, from what is found to what is saved and done again; and
//! answers that are none.

use super::again::Again;
use super::*;
use everdram::EngineKind;
use everdram_lab::campaign::Finding;
use everdram_lab::explain::{ExplainedCall, ExplainedCrash, Explanation};
use everdram_lab::lines::{Mute, Muted, key};
use everdram_lab::plan::Plan;
use everdram_lab::plan_text::{self, Saved};
use everdram_lab::run::execute;
use everdram_lab::trace::{Step, name};
use finding::follow;
use serde_json::Value;
use std::collections::HashMap;

const SEED: u64 = 7;

/// The fence that commits pass most often.
fn fence(campaign: &Campaign) -> Mute {
    let environment = campaign.environment(Medium::Pmem, Profile::Variable);
    let plan = Plan::draw(EngineKind::Viper, Medium::Pmem, Profile::Variable, SEED, 60);
    let run = execute(&plan, &environment).unwrap();
    let mut sites = HashMap::new();
    for step in &run.record.trace {
        match step {
            Step::Fence { site, .. } if name(site).contains("viper/commit.rs") => {
                *sites.entry(key(site)).or_insert(0) += 1;
            }
            _ => {}
        }
    }
    let busiest = sites.into_iter().max_by_key(|(_, count)| *count);
    Mute {
        what: Muted::Fence,
        site: busiest.unwrap().0,
    }
}

fn sound() -> Campaign {
    Campaign {
        media: vec![Medium::Pmem],
        profiles: vec![Profile::Variable],
        seed: SEED,
        workers: 1,
        limit: Limit {
            time: None,
            runs: Some(1),
            ..Campaign::default().limit
        },
        ..Campaign::default()
    }
}

/// A campaign over a program that forgets a fence.
fn broken() -> Campaign {
    let mut campaign = sound();
    campaign.options.mute = Some(fence(&campaign));
    campaign
}

fn found(campaign: &Campaign) -> Finding {
    let mut tally = campaign.run(&|_| {}, &AtomicBool::new(false));
    tally.findings.pop().expect("a violation")
}

fn plans(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn again(campaign: &Campaign, file: &Path, stop: bool) -> (Again, Saved) {
    let saved = again::read(file).unwrap();
    let stop = AtomicBool::new(stop);
    let budget = Duration::from_secs(3600);
    let again = again::judge(&saved, file, &campaign.options, budget, &stop);
    (again, saved)
}

#[test]
fn what_is_found_is_saved_and_done_again() {
    let directory = tempfile::tempdir().unwrap();
    let campaign = broken();
    let end = explore(&campaign, directory.path(), &AtomicBool::new(false), false);
    assert_eq!(end, End::Defect);
    let files = plans(directory.path());
    let [file] = &files[..] else {
        panic!("{files:?}")
    };
    let (again, saved) = again(&campaign, file, false);
    assert!(saved.plan.calls.len() < campaign.calls / 3);
    let json = again.to_json(&saved);
    assert_eq!(
        (again.end, &json["same_image"]),
        (End::Defect, &true.into())
    );
    assert_eq!(json["plan"], Value::Null, "it is the plan that was given");
    let crashes = json["crashes"].as_array().unwrap();
    let is_lossy = |crash: &Value| !crash["lost"].as_array().unwrap().is_empty();
    assert!(crashes.iter().any(is_lossy), "{json}");
}

#[test]
fn what_is_interrupted_is_saved_as_it_was_found() {
    let directory = tempfile::tempdir().unwrap();
    let campaign = broken();
    let finding = found(&campaign);
    let stop = AtomicBool::new(true);
    let json = follow(&finding, &campaign, directory.path(), &stop, true).to_json();
    let file = Path::new(json["plan"].as_str().unwrap());
    let saved = again::read(file).unwrap();
    assert_eq!(saved.plan.calls.len(), finding.plan.calls.len());
    let command = json["repeat"].as_str().unwrap();
    assert!(command.ends_with(&file.display().to_string()), "{command}");
    assert_eq!(again(&campaign, file, false).0.end, End::Defect);
}

#[test]
fn what_cannot_be_saved_is_told_all_the_same() {
    let campaign = broken();
    let finding = found(&campaign);
    let stop = AtomicBool::new(true);
    let nowhere = Path::new("not-there");
    let json = follow(&finding, &campaign, nowhere, &stop, true).to_json();
    assert_eq!(json["plan"], Value::Null);
    let trouble = json["not_saved"].as_str().unwrap();
    assert!(trouble.starts_with("saving not-there/"), "{trouble}");
    assert!(!json["wrong"].as_str().unwrap().is_empty());
    let command = "everdram crashtest --engine viper --medium pmem --profile variable --seed 7 --ops 60 --depth 2 --runs 1";
    assert_eq!(json["repeat"], command);
}

#[test]
fn a_run_that_goes_another_way_is_saved_beside_its_plan() {
    let directory = tempfile::tempdir().unwrap();
    let campaign = broken();
    let file = directory.path().join("old.plan");
    let saved = Saved {
        plan: found(&campaign).plan,
        crashes: Vec::new(),
        shape: 0,
    };
    let text = plan_text::write(&saved);
    std::fs::write(&file, &text).unwrap();
    let (again, saved) = again(&campaign, &file, false);
    let json = again.to_json(&saved);
    assert_eq!(
        (again.end, &json["same_image"]),
        (End::Defect, &false.into())
    );
    let beside = directory.path().join("old.again.plan");
    assert_eq!(json["plan"], beside.display().to_string());
    assert!(beside.exists());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn without_an_answer_nothing_is_sound() {
    let directory = tempfile::tempdir().unwrap();
    let stopped = AtomicBool::new(true);
    let end = explore(&sound(), directory.path(), &stopped, true);
    assert_eq!(end, End::Interrupted);
    let mut hasty = sound();
    hasty.limit.time = Some(Duration::ZERO);
    let end = explore(&hasty, directory.path(), &AtomicBool::new(false), true);
    assert_eq!(end, End::TooSoon);

    let file = directory.path().join("whole.plan");
    let plan = Plan::draw(EngineKind::Viper, Medium::Pmem, Profile::Variable, SEED, 6);
    let text = plan_text::write(&Saved {
        plan,
        crashes: Vec::new(),
        shape: 0,
    });
    std::fs::write(&file, text).unwrap();
    let (interrupted, saved) = again(&sound(), &file, true);
    let json = interrupted.to_json(&saved);
    assert_eq!(interrupted.end, End::Interrupted);
    assert_eq!(
        (&json["complete"], &json["sound"]),
        (&false.into(), &false.into())
    );
    let running = AtomicBool::new(false);
    let options = ExploreOptions::default();
    let hasty = again::judge(&saved, &file, &options, Duration::ZERO, &running);
    assert_eq!(hasty.end, End::TooSoon);
    let (whole, saved) = again(&sound(), &file, false);
    let json = whole.to_json(&saved);
    assert_eq!(whole.end, End::Sound);
    assert_eq!(
        (&json["complete"], &json["sound"]),
        (&true.into(), &true.into())
    );
}

#[test]
fn what_is_called_between_two_crashes_is_told_with_the_second() {
    let told = |call: &str, answer: Option<&str>| ExplainedCall {
        number: 0,
        session: 1,
        call: call.into(),
        answer: answer.map(str::to_owned),
    };
    let explained = |calls, moment: &str| ExplainedCrash {
        calls,
        moment: moment.into(),
        lost: Vec::new(),
    };
    let explanation = Explanation {
        defect: "key 1 is back".into(),
        calls: vec![told("put k1", Some("done"))],
        crashes: vec![
            explained(Vec::new(), "of the run"),
            explained(vec![told("delete k1", None)], "of the next process"),
        ],
    };
    let json = finding::explanation_json(&explanation);
    assert_eq!(json["calls"][0]["call"], "put k1");
    assert_eq!(json["crashes"][0]["calls"], Value::Array(Vec::new()));
    let call = &json["crashes"][1]["calls"][0];
    assert_eq!(
        (&call["call"], &call["acknowledged"], &call["answer"]),
        (&"delete k1".into(), &false.into(), &Value::Null)
    );
    let text = explanation.to_string();
    let places = ["put k1", "of the run", "delete k1", "of the next process"];
    let places = places.map(|words| text.find(words).expect(words));
    assert!(places.is_sorted(), "{text}");
}
