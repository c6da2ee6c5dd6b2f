//! The runs that are written by hand, on both media: no image that a crash could leave loses anything.

use everdram_lab::campaign::execute;
use everdram_lab::examine::{Examiner, Scrutiny};
use everdram_lab::image::Medium;
use everdram_lab::scenario;
use everdram_lab::world::Ground;

#[test]
fn no_crash_of_a_scenario_loses_anything() {
    for medium in Medium::ALL {
        for scenario::Scenario { name, plan } in scenario::all(medium) {
            let ground = Ground::new(plan.profile, medium);
            let mut run = execute(&plan, &ground).unwrap();
            let scrutiny = Scrutiny::default();
            let mut examiner = Examiner::new(&ground, &scrutiny, &|| true);
            let outcome = examiner.run(&mut run);
            println!("{medium}, {name}: {} images", examiner.totals.unique);
            if let Err(violation) = outcome {
                let (step, wrong) = (violation.step, violation.wrong);
                panic!("{medium}, {name}: before step {step}: {wrong}");
            }
        }
    }
}
