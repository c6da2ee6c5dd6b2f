//! The choice of images: everything if that is little, and what tells most otherwise.

use everdram_lab::explore::{Effort, Pick, count, explore};
use everdram_lab::profile;
use everdram_lab::unit::Unit;
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Units of so many choices each. What unit u has stored up to step s is its choice s - u.
fn units(choices: &[u8]) -> Vec<Unit> {
    let units = choices.iter().enumerate();
    units
        .map(|(place, &choices)| {
            let mut unit = Unit::new(place as u64, [0].into());
            for byte in 1..choices {
                let choice = unit.add(&[byte]);
                unit.prefixes.push((place as u32 + u32::from(byte), choice));
            }
            unit
        })
        .collect()
}

fn visited(units: &[Unit], effort: &Effort) -> Vec<Pick> {
    let mut picks = Vec::new();
    let mut random = profile::random(1, 1);
    let _ = explore(units, effort, &mut random, &mut |pick| {
        picks.push(pick.clone());
        ControlFlow::Continue(())
    });
    picks
}

/// No more than what is always looked at.
fn least() -> Effort {
    Effort {
        exhaustive: 0,
        singles: false,
        random: 0,
        pairs: 0,
    }
}

#[test]
fn of_few_each_is_visited_once() {
    let units = units(&[2, 3, 1, 4]);
    assert_eq!(count(&units), 24);
    let effort = Effort {
        exhaustive: 24,
        ..least()
    };
    let picks = visited(&units, &effort);
    assert_eq!(picks.len(), 24);
    assert_eq!(picks.iter().collect::<HashSet<_>>().len(), 24);
    let is_pick = |pick: &Pick| {
        pick.iter()
            .zip(&units)
            .all(|(&at, unit)| at < unit.choices.len())
    };
    assert!(picks.iter().all(is_pick));
    // Without anything open there is one image.
    assert_eq!(visited(&[], &Effort::default()), [Pick::new()]);
}

#[test]
fn of_many_nothing_everything_and_each_prefix_is_visited() {
    let units = units(&[2, 3, 4]);
    let picks = visited(&units, &least());
    let expected = [
        [0, 0, 0],
        [1, 2, 3],
        [1, 0, 0],
        [1, 1, 0],
        [1, 2, 1],
        [1, 2, 2],
    ];
    for pick in expected {
        assert!(picks.contains(&pick.to_vec()), "{pick:?}");
    }
    assert_eq!(picks.iter().collect::<HashSet<_>>().len(), expected.len());
    // Also where no step has everything, as after a sync that failed.
    let mut units = units;
    units.iter_mut().for_each(|unit| unit.prefixes.clear());
    assert_eq!(visited(&units, &least()), [[0, 0, 0], [1, 2, 3]]);
}

#[test]
fn singles_are_by_themselves_there_and_by_themselves_different() {
    let units = units(&[2, 3, 4]);
    let effort = Effort {
        singles: true,
        ..least()
    };
    let picks = visited(&units, &effort);
    for pick in [
        [0, 1, 0],
        [0, 2, 0],
        [0, 0, 2],
        [0, 2, 3],
        [1, 1, 3],
        [1, 2, 1],
    ] {
        assert!(picks.contains(&pick.to_vec()), "{pick:?}");
    }
    assert!(
        !picks.contains(&vec![0, 1, 1]),
        "two of three by themselves"
    );
}

#[test]
fn a_commit_word_meets_each_other_unit() {
    let mut units = units(&[2; 5]);
    units[1].commits = true;
    let effort = Effort {
        pairs: 100,
        ..least()
    };
    let picks = visited(&units, &effort);
    for pick in [
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 1, 1, 1],
        [1, 0, 0, 1, 1],
        // The commit word, without one of those that it may speak of.
        [0, 1, 1, 1, 1],
        [1, 1, 0, 1, 1],
    ] {
        assert!(picks.contains(&pick.to_vec()), "{pick:?}");
    }
    assert!(
        !picks.contains(&vec![1, 0, 1, 0, 0]),
        "nobody asked for these two"
    );
}

/// Where there is no time for all pairs, high units have their turn as often as low ones.
#[test]
fn a_few_pairs_are_not_those_of_the_lowest_units() {
    let mut units = units(&[2; 40]);
    units.iter_mut().for_each(|unit| unit.commits = true);
    let effort = Effort {
        pairs: 4,
        ..least()
    };
    let mut met = HashSet::new();
    for seed in 0..200 {
        let mut look = |pick: &Pick| {
            let there: Vec<usize> = (0..units.len()).filter(|&unit| pick[unit] == 1).collect();
            if there.len() == 2 {
                met.extend(there);
            }
            ControlFlow::Continue(())
        };
        let _ = explore(&units, &effort, &mut profile::random(seed, 1), &mut look);
    }
    assert_eq!(met.len(), units.len(), "{met:?}");
}

#[test]
fn random_picks_differ_by_seed_alone() {
    let units = units(&[4; 20]);
    let effort = Effort {
        random: 30,
        ..least()
    };
    let picks = visited(&units, &effort);
    assert_eq!(picks, visited(&units, &effort));
    let known = visited(&units, &least()).len();
    assert_eq!(picks.len(), known + 2 * 30);
    assert!(picks[known..].iter().collect::<HashSet<_>>().len() > 50);
}

#[test]
fn a_visitor_who_has_enough_is_left_alone() {
    let units = units(&[4; 6]);
    for effort in [Effort::default(), least()] {
        let total = visited(&units, &effort).len();
        for enough in [1, 2, 5, 20].into_iter().filter(|&enough| enough < total) {
            let mut visits = 0;
            let flow = explore(&units, &effort, &mut profile::random(1, 1), &mut |_| {
                visits += 1;
                if visits == enough {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            assert_eq!((visits, flow), (enough, ControlFlow::Break(())));
        }
    }
}

#[test]
fn the_newest_choice_is_the_last_one() {
    let mut unit = Unit::new(0, [0].into());
    let first = unit.add(&[1]);
    unit.prefixes.push((1, first));
    let second = unit.add(&[2]);
    unit.prefixes.push((2, second));
    // The first content once more: it is no other choice, but it is what everything stored amounts to.
    let third = unit.add(&[1]);
    assert_eq!((unit.choices.len(), third), (3, first));
    unit.prefixes.push((3, third));
    unit.put_last(third);
    let held = |choice: usize| unit.choices[choice].bytes[0];
    assert_eq!(held(unit.newest()), 1);
    assert_eq!(
        [0, 1, 2, 3, 9].map(|step| held(unit.at_step(step))),
        [0, 1, 2, 1, 1]
    );
}
