//! Power that fails in the middle of a run: what is left is one of the images that a crash can leave, and the
//! run goes on with it.

use crate::death::agree;
use everdram::EngineKind;
use everdram_lab::call::{Call, Outcome};
use everdram_lab::examine::{Examiner, ExploreOptions};
use everdram_lab::explore::Effort;
use everdram_lab::image::{Image, Medium};
use everdram_lab::lines::Lines;
use everdram_lab::outage::outage;
use everdram_lab::plan::{Fault, Manner, Plan};
use everdram_lab::process::Environment;
use everdram_lab::profile::Profile;
use everdram_lab::run::{Run, run};
use everdram_lab::trace::Step;
use everdram_pm::LINE;
use everdram_pm::lab::StoreKind;
use std::collections::BTreeSet;
use std::panic::Location;

fn word(at: u64, value: u64) -> Step {
    Step::Store {
        actor: 1,
        at,
        bytes: value.to_le_bytes().into(),
        kind: StoreKind::Word,
        site: Location::caller(),
    }
}

/// Two words of different lines are open: there are four ways in which power can fail, each of them is
/// chosen, and nothing is open afterwards.
#[test]
fn an_outage_decides_what_is_open() {
    let start = Image::of_memory(vec![0; 2 * LINE as usize]);
    let trace = vec![word(0, 7), word(LINE, 8)];
    let mut seen = BTreeSet::new();
    for kept in 0..8 {
        let (held, image) = outage(&start, &trace, 2 * LINE, kept);
        let bytes = image.memory.expect("memory leaves memory");
        seen.insert((bytes[0], bytes[LINE as usize]));
        let mut lines = Lines::new(&[0; 2 * LINE as usize], 2 * LINE, None);
        for (id, step) in (0..).zip(trace.iter().chain([&Step::Outage(held)])) {
            lines.step(id, step);
        }
        assert_eq!(lines.base(), bytes);
        assert_eq!(lines.dirty().count(), 0);
        let same = Lines::new(&bytes, 2 * LINE, None);
        assert_eq!(lines.hash(&[], &[]), same.hash(&[], &[]));
    }
    assert_eq!(seen, BTreeSet::from([(0, 0), (0, 8), (7, 0), (7, 8)]));
}

fn events(run: &Run) -> u32 {
    let is_event = |step: &&Step| {
        matches!(
            step,
            Step::Store { .. } | Step::Flush { .. } | Step::Fence { .. }
        )
    };
    let calls = run.record.trace.iter();
    let calls = calls.skip_while(|step| !matches!(step, Step::Invoke(_)));
    calls.filter(is_event).count() as u32
}

/// The write whose fence never came is there or not, by what the outage left; and it stays so.
#[test]
fn the_next_process_finds_what_is_left() {
    for &engine in EngineKind::ALL {
        let mut plan = Plan::draw(engine, Medium::Pmem, Profile::Variable, 1, 0);
        // The fence of the put is the last one: no job works beside it.
        plan.manner = Manner::Turns;
        plan.fault = Fault::None;
        let value = plan.values.make(20, 0);
        plan.calls.push((0, Call::Put(0, value, 0)));
        let environment = Environment::of(&plan);
        let last = events(&run(&plan, &environment, false).unwrap()) - 1;
        plan.calls.push((0, Call::Get(0)));
        let mut found = BTreeSet::new();
        for kept in 0..20 {
            plan.fault = Fault::Outage(last, kept);
            let mut run = run(&plan, &environment, false).unwrap();
            let entries = &run.record.history.entries;
            assert_eq!(entries[0].outcome, None);
            let Some(Outcome::Value(held)) = entries[1].outcome else {
                panic!("{engine}: {:?}", entries[1]);
            };
            found.insert(held);
            let options = ExploreOptions {
                effort: Effort {
                    exhaustive: 16,
                    singles: false,
                    random: 2,
                    pairs: 0,
                },
                lazy: 0,
                ..ExploreOptions::default()
            };
            let mut examiner = Examiner::new(&environment, &options, &|| true);
            let outcome = examiner.run(&mut run);
            assert!(outcome.is_ok(), "{engine} {kept}: {outcome:?}");
        }
        assert_eq!(found, BTreeSet::from([None, Some(value)]), "{engine}");
    }
}

#[test]
fn power_may_fail_anywhere() {
    for &engine in EngineKind::ALL {
        for profile in [Profile::Variable, Profile::Growth] {
            let mut plan = Plan::draw(engine, Medium::Pmem, profile, 3, 14);
            plan.calls.insert(6, (0, Call::Kill));
            // Each time the same events.
            plan.manner = Manner::Turns;
            plan.fault = Fault::None;
            let environment = Environment::of(&plan);
            let all = events(&run(&plan, &environment, false).unwrap());
            let mut outages = 0;
            for event in 0..all {
                plan.fault = Fault::Outage(event, event * 7);
                let what = format!("{engine} {profile}, outage before event {event}");
                let run = run(&plan, &environment, false)
                    .unwrap_or_else(|defect| panic!("{what}: {defect}"));
                agree(&run, &environment, &what);
                let mut trace = run.record.trace.iter();
                outages += u32::from(trace.any(|step| matches!(step, Step::Outage(_))));
            }
            assert_eq!(outages, all);
        }
    }
}
