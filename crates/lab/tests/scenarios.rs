//! The runs that are written by hand, on both media: no image that a crash could leave loses anything. Of a
//! long run these are so many images, others each day.

use everdram::EngineKind;
use everdram_lab::examine::{Examiner, ExploreOptions};
use everdram_lab::explore::Effort;
use everdram_lab::image::Medium;
use everdram_lab::plan::Manner;
use everdram_lab::process::Environment;
use everdram_lab::run::execute;
use everdram_lab::scenario::{self, Scenario};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Images of a run, beside those of crashes during recovery.
const IMAGES: u64 = if cfg!(feature = "thorough") {
    3_000
} else {
    1_000
};

#[test]
fn no_crash_of_a_scenario_loses_anything() {
    let media = |&engine| Medium::ALL.map(|medium| (engine, medium));
    let work: Vec<(EngineKind, Medium, Scenario)> = EngineKind::ALL
        .iter()
        .flat_map(media)
        .flat_map(|(engine, medium)| {
            let all = scenario::all(engine, medium).into_iter();
            all.map(move |scenario| (engine, medium, scenario))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((engine, medium, scenario)) =
                    work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    examine(*engine, *medium, scenario);
                }
            });
        }
    });
}

/// Judges images of one run. Panics at what it loses.
fn examine(engine: EngineKind, medium: Medium, scenario: &Scenario) {
    let Scenario { name, plan, .. } = scenario;
    let environment = Environment::of(plan);
    let mut run = execute(plan, &environment).unwrap();
    let mut options = ExploreOptions::of_the_day(IMAGES);
    if matches!(engine, EngineKind::Bullet | EngineKind::Tiered) {
        // Long stories, of which the mutation score looks at more; those of `tiered` are viper's, with files
        // below.
        options.effort = Effort {
            exhaustive: 4,
            singles: false,
            random: 1,
            pairs: 4,
        };
        (options.nested_one_in, options.lazy) = (16, 0);
    }
    let is_meeting = matches!(plan.manner, Manner::Stops(_));
    if is_meeting || scenario.is_one_of_many {
        // There are many of each story.
        (options.images, options.each) = (Some(20), 0);
    }
    let mut examiner = Examiner::new(&environment, &options, &|| true);
    examiner.from = if is_meeting { run.met() } else { 0 };
    let outcome = examiner.run(&mut run);
    println!(
        "{engine}, {medium}, {name}: {} images",
        examiner.totals.unique
    );
    if let Err(violation) = outcome {
        let (step, defect) = (violation.step, violation.defect);
        panic!("{engine}, {medium}, {name}: before step {step}: {defect}");
    }
}
