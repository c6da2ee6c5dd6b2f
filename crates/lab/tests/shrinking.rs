//! What shows only after a second crash is made small, too.
//!
//! One image in many is used after its recovery and crashed again. A run of few calls has few images: with
//! one in many of them, nothing would be found again in what is left of a workload, and it could not be made
//! smaller.

use everdram::EngineKind;
use everdram_lab::call::Call;
use everdram_lab::campaign::Finding;
use everdram_lab::crash::Failure;
use everdram_lab::examine::{Examiner, ExploreOptions};
use everdram_lab::image::Medium;
use everdram_lab::lines::{Mute, Muted, key};
use everdram_lab::plan::{Fault, Manner, Plan};
use everdram_lab::plan_text::{read, write};
use everdram_lab::process::Environment;
use everdram_lab::profile::Profile;
use everdram_lab::replay::{replay, save};
use everdram_lab::run::execute;
use everdram_lab::shrink::{Patience, shrink};
use everdram_lab::trace::{Step, name};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PROFILE: Profile = Profile::Variable;
const SEEDS: u64 = 2;
/// Images of a run that are judged until it is given up.
const IMAGES: u64 = 4_000;

/// A workload of one process.
fn plan(seed: u64) -> Plan {
    let mut plan = Plan::draw(EngineKind::Viper, Medium::Pmem, PROFILE, seed, 60);
    plan.fault = Fault::None;
    // What is to be found again exactly is decided by the plan alone.
    plan.manner = Manner::Turns;
    let ends = |call: &Call| matches!(call, Call::Kill | Call::Reopen);
    plan.calls.retain(|(_, call)| !ends(call));
    plan
}

/// The fences of the engine that workloads pass.
fn fences(environment: &Environment) -> impl Iterator<Item = Mute> {
    let mut sites = BTreeSet::new();
    for seed in 0..SEEDS {
        let run = execute(&plan(seed), environment).unwrap();
        sites.extend(run.record.trace.iter().filter_map(|step| match step {
            Step::Fence { site, .. } if name(site).contains("viper/") => Some(key(site)),
            _ => None,
        }));
    }
    sites.into_iter().map(|site| Mute {
        what: Muted::Fence,
        site,
    })
}

/// Looks at runs without a fence until one shows it only after a second crash.
fn find(environment: &Environment, mute: Mute) -> Option<Finding> {
    for seed in 0..SEEDS {
        let plan = plan(seed);
        let options = ExploreOptions {
            seed,
            nested_one_in: 8,
            mute: Some(mute),
            ..ExploreOptions::default()
        };
        let mut run = execute(&plan, environment).unwrap();
        let judged = AtomicU64::new(0);
        let go_on = || judged.fetch_add(1, Ordering::Relaxed) < IMAGES;
        let examined = Examiner::new(environment, &options, &go_on).run(&mut run);
        let Err(violation) = examined else {
            continue;
        };
        if violation.nested.is_empty() {
            continue;
        }
        return Some(Finding {
            defect: violation.defect.clone(),
            violation: Some(violation),
            plan,
            after: 0,
            run: Some(run.into()),
        });
    }
    None
}

#[test]
fn what_shows_after_a_second_crash_is_made_small() {
    let environment = Environment::new(EngineKind::Viper, PROFILE, Medium::Pmem);
    // Attempts are what ends it, however long they take.
    let patience = Patience {
        time: Duration::from_secs(24 * 3600),
        attempt: Duration::from_secs(3600),
        attempts: 30,
        ..Patience::default()
    };
    let (mut findings, mut stayed) = (0, 0);
    for mute in fences(&environment) {
        let Some(finding) = find(&environment, mute) else {
            continue;
        };
        let options = ExploreOptions {
            mute: Some(mute),
            ..ExploreOptions::default()
        };
        let found = shrink(&finding, &environment, &options, &patience, &|_, _| {});
        let (few, many) = (found.plan.calls.len(), finding.plan.calls.len());
        println!(
            "without the fence at {}:{}: {few} of {many} calls, {} crashes: {}",
            mute.site.0,
            mute.site.1,
            found.crashes.len(),
            found.defect
        );
        assert!(few <= many / 3, "{few} of {many} calls");
        let saved = read(&write(&save(&found))).unwrap();
        let again = replay(&saved, &environment, &options, &|| true);
        assert!(again.is_exact && again.found.is_some());
        findings += 1;
        stayed += u64::from(found.crashes.len() > 1);
    }
    // Sometimes a small run has something else that is wrong with it. But what was found has to be found
    // again as a rule.
    assert!(
        findings > 1,
        "{findings} fences show only after a second crash"
    );
    assert!(stayed * 2 > findings, "{stayed} of {findings}");
}

#[test]
fn who_ends_it_early_has_what_was_found() {
    let environment = Environment::new(EngineKind::Viper, PROFILE, Medium::Pmem);
    let finding = fences(&environment).find_map(|mute| Some((find(&environment, mute)?, mute)));
    let (finding, mute) = finding.expect("a fence that shows only after a second crash");
    let stop = AtomicBool::new(true);
    let patience = Patience {
        stop: &stop,
        ..Patience::default()
    };
    let options = ExploreOptions {
        mute: Some(mute),
        ..ExploreOptions::default()
    };
    let attempts = Cell::new(0);
    let found = shrink(&finding, &environment, &options, &patience, &|count, _| {
        attempts.set(count);
    });
    assert_eq!(attempts.get(), 0);
    assert_eq!(found.plan.calls.len(), finding.plan.calls.len());
    assert_eq!(found.crashes, Failure::from(&finding).crashes);
}
