//! What is found is made small, explained with the right lines of the source, written down, and found again.

use everdram::EngineKind;
use everdram_lab::campaign::{Campaign, Limit};
use everdram_lab::crash::Crash;
use everdram_lab::examine::ExploreOptions;
use everdram_lab::explain::{Explanation, explain};
use everdram_lab::image::Medium;
use everdram_lab::judge::catching_panics;
use everdram_lab::lines::{Mute, Muted, key};
use everdram_lab::plan::{Manner, Plan, Stops};
use everdram_lab::plan_text::{Saved, read, write};
use everdram_lab::process::Environment;
use everdram_lab::profile::Profile;
use everdram_lab::replay::{replay, save};
use everdram_lab::run::execute;
use everdram_lab::shrink::{Patience, shrink};
use everdram_lab::trace::{DiskStep, Step, name};
use everdram_pm::lab::Site;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn seed() -> u64 {
    let given = std::env::var("EVERDRAM_SEED").ok();
    let seed = given.map_or_else(rand::random, |text| text.parse().unwrap());
    println!("repeat with EVERDRAM_SEED={seed}");
    seed
}

fn drawn(medium: Medium, profile: Profile, seed: u64) -> Saved {
    let crash = |step, place| Crash {
        step,
        held: vec![(place, vec![1, 2, 250].into()), (place + 1, Box::default())],
    };
    Saved {
        plan: Plan::draw(EngineKind::Viper, medium, profile, seed, 80),
        crashes: vec![crash(812, 7), crash(14, 9)],
        shape: seed,
    }
}

/// The calls with the bytes of their values instead of their numbers.
fn meaning(plan: &Plan) -> String {
    let mut calls = plan.calls.clone();
    let values = calls.iter_mut().flat_map(|(_, call)| {
        let values = call.values_mut();
        values
            .into_iter()
            .map(|value| plan.values.bytes(*value).to_vec())
    });
    let values: Vec<Vec<u8>> = values.collect();
    for value in calls.iter_mut().flat_map(|(_, call)| call.values_mut()) {
        *value = 0;
    }
    format!("{calls:?} {values:?}")
}

#[test]
fn plans_come_back_from_text() {
    let first = seed();
    for medium in Medium::ALL {
        for (number, profile) in Profile::ALL.into_iter().enumerate() {
            let saved = drawn(medium, profile, first.wrapping_add(number as u64));
            let text = write(&saved);
            let again = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(meaning(&again.plan), meaning(&saved.plan));
            assert_eq!(
                (
                    again.plan.medium,
                    again.plan.profile,
                    again.plan.seed,
                    again.plan.fault
                ),
                (medium, profile, saved.plan.seed, saved.plan.fault)
            );
            assert_eq!(again.plan.manner, saved.plan.manner);
            assert_eq!((again.crashes, again.shape), (saved.crashes, saved.shape));
        }
    }
}

#[test]
fn interleavings_come_back_from_text() {
    let first = seed();
    let manners = (0..20).map(|number| {
        let mut saved = drawn(Medium::File, Profile::Batch, 7);
        let seed = first.wrapping_add(number);
        saved.plan = Plan::interleaving(EngineKind::Bullet, Medium::File, Profile::Batch, seed);
        let again = read(&write(&saved)).unwrap().plan;
        assert_eq!(again.manner, saved.plan.manner);
        assert_eq!(meaning(&again), meaning(&saved.plan));
        again.manner
    });
    let stop_again = manners.filter(|manner| match manner {
        Manner::Stops(stops) => stops.again != Stops::default().again,
        _ => false,
    });
    let count = stop_again.count();
    assert!((1..20).contains(&count), "{count} of 20 stop twice");
}

#[test]
fn a_plan_is_of_the_engine_it_names_or_of_viper() {
    let text = write(&drawn(Medium::Pmem, Profile::Variable, 7));
    let silent = text.replace("engine viper\n", "");
    assert_ne!(silent, text);
    assert_eq!(read(&silent).unwrap().plan.engine, EngineKind::Viper);
    for &engine in EngineKind::ALL {
        let mut saved = drawn(Medium::File, Profile::Variable, 7);
        saved.plan.engine = engine;
        assert_eq!(read(&write(&saved)).unwrap().plan.engine, engine);
    }
}

#[test]
fn bad_plans_are_refused_with_line_and_reason() {
    let head = "everdram crash plan 1\nmedium pmem\nprofile variable\nseed 7\nfault none\n";
    for (text, line, expected) in [
        (String::new(), 0, "`everdram crash plan 1`"),
        ("everdram crash plan 2\n".into(), 1, "plan 1"),
        (
            head.replace("medium", "engine steam\nmedium"),
            2,
            "NAME one of viper",
        ),
        (
            head.replace("medium", "engine model\nmedium"),
            2,
            "NAME one of viper",
        ),
        (
            head.replace("medium pmem", "engine viper"),
            3,
            "`medium pmem`",
        ),
        (head.replace("pmem", "tape"), 2, "`medium pmem`"),
        (head.replace("variable", "strange"), 3, "fixed, variable"),
        (head.replace("seed 7", "seed -7"), 4, "N a number"),
        (head.replace("fault none", "fault all"), 5, "`fault sync N`"),
        (
            head.lines().take(3).collect::<Vec<_>>().join("\n"),
            3,
            "`seed N`",
        ),
        (format!("{head}cal s0 get k1"), 6, "`call`"),
        (format!("{head}call s9 get k1"), 6, "below 2"),
        (format!("{head}call s0 get k8"), 6, "below 8"),
        (format!("{head}\n# words\ncall s0 put k1 v0"), 8, "`vN`"),
        (format!("{head}call s0 get k1 k2"), 6, "nothing more"),
        (format!("{head}call s0 batch"), 6, "`kN=vN`"),
        (format!("{head}call s0 batch k1"), 6, "a key"),
        (
            format!("{head}call s0 advance 99999999999999999"),
            6,
            "at most",
        ),
        (format!("{head}value 1 0g"), 6, "hexadecimal"),
        (
            format!("{head}value 1 00\nvalue 1 01"),
            7,
            "not used before",
        ),
        (format!("{head}value 1 \u{e9}\u{e9}"), 6, "hexadecimal"),
        (format!("{head}hold 1 00"), 6, "`crash`"),
        (format!("{head}recovery 1"), 6, "`crash`"),
        (format!("{head}crash 1"), 6, "`crash STEP SHAPE`"),
        (
            format!("{head}crash 5000000000 00"),
            6,
            "`crash STEP SHAPE`",
        ),
    ] {
        let error = read(&text).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}

/// Whatever is in a file: it is read or refused, and what was read can be replayed without a panic.
#[test]
fn damaged_plans_do_no_harm() {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let whole = write(&drawn(Medium::Pmem, Profile::Batch, seed)).into_bytes();
    let mut readable = 0;
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..3) {
                0 => bytes[at] = random.random(),
                1 => bytes.truncate(at.max(1)),
                _ => drop(bytes.drain(at..(at + random.random_range(1..200)).min(bytes.len()))),
            }
            if bytes.is_empty() {
                break;
            }
        }
        readable += u32::from(read(&String::from_utf8_lossy(&bytes)).is_ok());
    }
    assert!(
        readable > 10,
        "some damage changes only numbers: {readable}"
    );
    for number in 0..20 {
        let mut saved = drawn(Medium::ALL[number % 2], Profile::Variable, seed);
        saved.plan.calls.truncate(6);
        saved.crashes[0].step = random.random_range(0..100);
        let environment = Environment::of(&saved.plan);
        let replayed = replay(&saved, &environment, &ExploreOptions::default(), &|| false);
        assert!(!replayed.is_exact, "nothing holds such bytes");
    }
}

/// Hunts with a mistake planted, and follows what is found to the end.
fn hunt(campaign: &Campaign) -> (Explanation, Saved) {
    let mut tally = campaign.run(&|_| {}, &AtomicBool::new(false));
    let judged = tally.sum().totals.judged;
    let finding = tally.findings.pop();
    let finding = finding.unwrap_or_else(|| panic!("nothing found in {judged} images"));
    let environment = campaign.environment(finding.plan.medium, finding.plan.profile);
    let patience = Patience {
        time: Duration::from_secs(60),
        ..Patience::default()
    };
    let mut found = shrink(
        &finding,
        &environment,
        &campaign.options,
        &patience,
        &|_, _| {},
    );
    let explanation = explain(&mut found, &environment, campaign.options.mute);
    let calls = (found.plan.calls.len(), finding.plan.calls.len());
    println!(
        "found after {judged} images, {} of {} calls are enough\n{explanation}",
        calls.0, calls.1
    );
    assert!(calls.0 <= calls.1 / 3, "{calls:?}");
    let again = read(&write(&save(&found))).unwrap();
    (explanation, again)
}

fn campaign(medium: Medium, profile: Profile) -> Campaign {
    Campaign {
        media: vec![medium],
        profiles: vec![profile],
        seed: seed() >> 8,
        workers: 1,
        limit: Limit {
            time: Some(Duration::from_secs(120)),
            ..Campaign::default().limit
        },
        ..Campaign::default()
    }
}

fn sites(explanation: &Explanation) -> String {
    let crashes = explanation.crashes.iter();
    let lost =
        crashes.flat_map(|explained| explained.lost.iter().flat_map(|loss| loss.sites.clone()));
    lost.collect::<Vec<_>>().join("\n")
}

/// The place in the source that most of a workload's steps of one kind come from.
fn busiest(environment: &Environment, of: fn(&Step) -> Option<Site>) -> Site {
    let plan = Plan::draw(
        environment.engine,
        environment.medium,
        environment.profile,
        1,
        60,
    );
    let run = execute(&plan, environment).unwrap();
    let mut sites = HashMap::new();
    for site in run.record.trace.iter().filter_map(of) {
        sites.entry(key(site)).or_insert((0, site)).0 += 1;
    }
    let busiest = sites.into_values().max_by_key(|(count, _)| *count);
    busiest.unwrap().1
}

/// Takes one place out of the program: that is found, names these lines of the source, and is found again;
/// with that place the same image cannot be.
fn is_followed(
    medium: Medium,
    what: Muted,
    of: fn(&Step) -> Option<Site>,
    names: &str,
) -> Explanation {
    let mut campaign = campaign(medium, Profile::Variable);
    let environment = campaign.environment(medium, Profile::Variable);
    let site = key(busiest(&environment, of));
    campaign.options.mute = Some(Mute { what, site });
    let (explanation, saved) = hunt(&campaign);
    let sites = sites(&explanation);
    assert!(sites.contains(names), "{site:?}: {sites}");
    let again = replay(&saved, &environment, &campaign.options, &|| true);
    assert!(again.is_exact && again.found.is_some());
    let sound = replay(&saved, &environment, &ExploreOptions::default(), &|| true);
    assert!(sound.found.is_none());
    explanation
}

#[test]
fn a_missing_fence_is_found_explained_and_replayed() {
    let fence = |step: &Step| match step {
        Step::Fence { site, .. } => Some(*site),
        _ => None,
    };
    let explanation = is_followed(
        Medium::Pmem,
        Muted::Fence,
        fence,
        "the store at kv/src/viper/",
    );
    // Of the run or, if a crash in the use after its recovery is simpler, of that.
    let later = explanation
        .crashes
        .iter()
        .flat_map(|explained| &explained.calls);
    assert!(
        explanation
            .calls
            .iter()
            .chain(later)
            .any(|told| told.answer.is_some()),
        "nobody waited for what was lost"
    );
}

#[test]
fn a_missing_sync_is_found_explained_and_replayed() {
    let sync = |step: &Step| match step {
        Step::Disk {
            step: DiskStep::Sync { .. },
            site,
        } if name(site).contains("log/writer.rs") => Some(*site),
        _ => None,
    };
    is_followed(Medium::File, Muted::Sync, sync, "the write at pm/src/log/");
}

#[test]
fn a_panic_of_judged_code_is_a_finding_with_its_place() {
    let defect = catching_panics::<()>(|| panic!("of {}", "surprise")).unwrap_err();
    assert!(defect.contains("lab/tests/replay.rs:"), "{defect}");
    assert!(defect.ends_with("of surprise"), "{defect}");
}
