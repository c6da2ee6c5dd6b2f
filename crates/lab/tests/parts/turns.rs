//! Sessions that take turns at the store's own work, as a worker pool's threads do.

use everdram::EngineKind;
use everdram_lab::call::Call;
use everdram_lab::image::Medium;
use everdram_lab::plan::{Fault, Manner, Plan};
use everdram_lab::process::Environment;
use everdram_lab::profile::Profile;
use everdram_lab::run::run;
use everdram_lab::trace::Step;

/// How many of the turns in narrow runs changed the pool, and how many there were.
fn turns(engine: EngineKind) -> (usize, usize) {
    let (mut worked, mut all) = (0, 0);
    for seed in 0..60 {
        let mut plan = Plan::draw(engine, Medium::Pmem, Profile::Narrow, seed, 60);
        plan.fault = Fault::None;
        plan.manner = Manner::Turns;
        let run = run(&plan, &Environment::of(&plan), false).unwrap();
        let (entries, mut is_turn) = (&run.record.history.entries, false);
        let mut changes = 0;
        for step in &run.record.trace {
            match step {
                Step::Invoke(number) => {
                    is_turn = matches!(entries[*number as usize].call, Call::Turn(_));
                    changes = 0;
                }
                Step::Return(_) if is_turn => {
                    all += 1;
                    worked += usize::from(changes > 0);
                }
                Step::Store { .. } => changes += 1,
                _ => {}
            }
        }
    }
    (worked, all)
}

/// Sessions begin to glean when the logs run full, and stop: passes are under way while others write.
#[test]
fn sessions_of_narrow_runs_change_their_roles() {
    let (worked, all) = turns(EngineKind::Bullet);
    println!("{worked} of {all} turns were at gleaning");
    assert!(worked > 5 && worked < all, "{worked} of {all}");
    assert_eq!(turns(EngineKind::Viper).0, 0, "it has no roles");
}
