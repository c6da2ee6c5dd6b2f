//! The runs that are written by hand, on both media: no image that a crash could leave loses anything.

use everdram::EngineKind;
use everdram_lab::campaign::execute;
use everdram_lab::examine::{Examiner, Scrutiny};
use everdram_lab::explore::Effort;
use everdram_lab::image::Medium;
use everdram_lab::plan::Manner;
use everdram_lab::scenario;
use everdram_lab::world::Ground;

#[test]
fn no_crash_of_a_scenario_loses_anything() {
    for (&engine, medium) in EngineKind::ALL
        .iter()
        .flat_map(|engine| Medium::ALL.map(|medium| (engine, medium)))
    {
        for scenario::Scenario { name, plan, .. } in scenario::all(engine, medium) {
            let ground = Ground::of(&plan);
            let mut run = execute(&plan, &ground).unwrap();
            let mut scrutiny = Scrutiny::default();
            if engine == EngineKind::Bullet {
                // Long stories, of which the mutation score looks at more.
                scrutiny.effort = Effort {
                    exhaustive: 4,
                    singles: false,
                    random: 1,
                    pairs: 4,
                };
                (scrutiny.nested_one_in, scrutiny.lazy) = (16, 0);
            }
            let is_meeting = matches!(plan.manner, Manner::Stops(_));
            if is_meeting {
                // There are many of each story.
                (scrutiny.images, scrutiny.each) = (Some(20), 0);
            }
            let mut examiner = Examiner::new(&ground, &scrutiny, &|| true);
            examiner.from = if is_meeting { run.met() } else { 0 };
            let outcome = examiner.run(&mut run);
            println!(
                "{engine}, {medium}, {name}: {} images",
                examiner.totals.unique
            );
            if let Err(violation) = outcome {
                let (step, wrong) = (violation.step, violation.wrong);
                panic!("{engine}, {medium}, {name}: before step {step}: {wrong}");
            }
        }
    }
}
