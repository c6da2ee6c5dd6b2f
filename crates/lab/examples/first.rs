//! First looks.
use everdram_lab::examine::{Examiner, Scrutiny, Totals};
use everdram_lab::image::Medium;
use everdram_lab::plan::Plan;
use everdram_lab::profile::Profile;
use everdram_lab::run::run;
use everdram_lab::world::Ground;
use std::time::Instant;

fn main() {
    drop(std::hint::black_box(vec![1u8; 24 << 20]));
    let medium: Medium = std::env::args().nth(1).unwrap().parse().unwrap();
    let seeds: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let from: u64 = std::env::args().nth(3).map_or(1, |s| s.parse().unwrap());
    let only: Option<Profile> = std::env::args().nth(4).map(|s| s.parse().unwrap());
    for profile in Profile::ALL {
        if only.is_some_and(|only| only != profile) {
            continue;
        }
        let begun = Instant::now();
        let mut totals = Totals::default();
        for seed in from..from + seeds {
            let ground = Ground::new(profile, medium);
            let plan = Plan::draw(medium, profile, seed, 60);
            let ran = match profile { Profile::Threads => everdram_lab::threads::run(&plan, &ground), _ => run(&plan, &ground, false) };
            let mut done = match ran {
                Ok(run) => run,
                Err(wrong) => {
                    println!("{profile} {seed}: {wrong}");
                    continue;
                }
            };
            let scrutiny = Scrutiny { seed, ..Scrutiny::default() };
            let mut examiner = Examiner::new(&ground, &scrutiny, &|| true);
            if let Err(violation) = examiner.run(&mut done) {
                println!("{:?} {profile} {seed}: step {} of {}: {}", plan.fault, violation.step, done.record.trace.len(), violation.wrong);
                for step in done.record.trace[violation.step.saturating_sub(12) as usize..].iter().take(14) {
                    match step {
                        everdram_lab::trace::Step::Store { at, bytes, kind, site, .. } => println!("   store {at} {} {kind:?} {}", bytes.len(), everdram_lab::trace::name(site)),
                        everdram_lab::trace::Step::Flush { at, bytes, site, .. } => println!("   flush {at} {} {}", bytes, everdram_lab::trace::name(site)),
                        everdram_lab::trace::Step::Fence { site, .. } => println!("   fence {}", everdram_lab::trace::name(site)),
                        everdram_lab::trace::Step::Invoke(n) => println!("   invoke {n} {:?}", done.record.history.entries[*n as usize]),
                        other => println!("   {:?}", format!("{other:?}").chars().take(150).collect::<String>()),
                    }
                }
                println!("   picked {:?} nested {:?}", violation.picked.len(), violation.nested.len());
            }
            totals.add(&examiner.totals);
        }
        println!("{profile:12} {totals:?} {:?} {:?} each", begun.elapsed(), begun.elapsed() / (totals.judged.max(1) as u32));
    }
}
