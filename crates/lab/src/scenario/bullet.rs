//! Runs of Bullet: processes that are killed behind a store that nothing covers yet, and what the next one makes of it.

use super::{Scenario, plan, put};
use crate::call::{Call, Key, Values};
use crate::image::Medium;
use crate::plan::{Fault, Plan};
use crate::profile::Profile;
use crate::run;
use crate::trace::{Step, name};
use crate::world::Ground;
use everdram::EngineKind;

type Calls = Vec<(u32, Call)>;

/// An object that is longer than an entry of a log may be, and one that is longer than a chunk.
const LINKED: usize = 900;
const RUN: usize = 5000;

struct Story {
    name: &'static str,
    profile: Profile,
    /// Before the kill.
    before: fn(&mut Values) -> Calls,
    /// The last fence in this file is the one that the process dies before.
    file: &'static str,
    /// What the next one does.
    after: fn(&mut Values) -> Calls,
}

/// All of them, on one medium.
pub(super) fn all(medium: Medium) -> Vec<Scenario> {
    let drawn = [
        (
            "runs of chunks come and go",
            Profile::Large,
            runs as fn(&mut Values) -> Calls,
        ),
        ("gleaners take turns", Profile::Threads, turns),
    ];
    let drawn = drawn.into_iter().map(|(name, profile, story)| Scenario {
        name,
        plan: plan(EngineKind::Bullet, medium, profile, story),
    });
    let killed = STORIES
        .iter()
        .filter(|_| medium == Medium::Pmem)
        .map(|story| Scenario {
            name: story.name,
            plan: killed(story),
        });
    // The short ones first.
    killed.chain(drawn).collect()
}

const STORIES: [Story; 6] = [
    Story {
        name: "a ledger in caches",
        profile: Profile::Variable,
        before: |values| {
            let mut calls = fill(values, 22);
            calls.push((0, Call::Reclaim));
            calls
        },
        file: "crl/ledger.rs",
        after: |values| fill(values, 20),
    },
    Story {
        name: "an entry in caches",
        profile: Profile::Variable,
        before: |values| fill(values, 9),
        file: "bullet/write.rs",
        after: |_| read_all(),
    },
    Story {
        name: "an object in caches that an entry names",
        profile: Profile::Large,
        before: |values| vec![(0, put(values, 1, 40)), (0, put(values, 1, LINKED))],
        file: "bullet/write.rs",
        after: |_| read_all(),
    },
    Story {
        name: "a parcel in caches",
        profile: Profile::Batch,
        before: |values| {
            let parts = (0..3).map(|key| (key, Some(values.make(400, 0)))).collect();
            vec![(0, Call::Batch(parts))]
        },
        file: "bullet/write.rs",
        after: |_| read_all(),
    },
    Story {
        name: "a transaction in caches",
        profile: Profile::Growth,
        before: |values| {
            let mut calls: Calls = (0..23).map(|key| (0, put(values, key, 20))).collect();
            calls.push((0, Call::Reclaim));
            calls
        },
        file: "heap/txn.rs",
        after: |values| (0..8).map(|key| (0, put(values, key, 20))).collect(),
    },
    Story {
        name: "a run of chunks in caches that is none any more",
        profile: Profile::Large,
        before: |values| {
            let mut calls = runs(values);
            calls.truncate(5);
            calls
        },
        file: "heap/mod.rs",
        after: |values| {
            let mut calls: Calls = (1..7).map(|key| (0, put(values, key, LINKED))).collect();
            calls.push((0, Call::Reclaim));
            calls
        },
    },
];

/// Small writes of several keys, so many.
fn fill(values: &mut Values, count: usize) -> Calls {
    let keys = (0..count).map(|number| (number % 8) as Key);
    keys.map(|key| (0, put(values, key, 20))).collect()
}

fn read_all() -> Calls {
    (0..8).map(|key| (0, Call::Get(key))).collect()
}

/// Values that need chunks of their own, replaced, removed, and what lies there afterwards.
fn runs(values: &mut Values) -> Calls {
    vec![
        (0, put(values, 1, RUN)),
        (0, Call::Reclaim),
        (0, Call::Delete(1)),
        (0, Call::Reclaim),
        (0, Call::Reclaim),
        (0, put(values, 2, LINKED)),
        (0, put(values, 3, RUN)),
        (0, put(values, 3, RUN + 3000)),
        (0, Call::Reclaim),
        (0, Call::Kill),
        (0, put(values, 3, 40)),
        (0, put(values, 4, RUN)),
        (0, Call::Reclaim),
    ]
}

/// Everybody writes the same keys and gleans, so that several areas have transactions about one slot.
fn turns(values: &mut Values) -> Calls {
    let mut calls = Vec::new();
    for _ in 0..3 {
        for session in 0..3 {
            for key in 0..4 {
                calls.push((session, put(values, key, 20)));
            }
            calls.push((session, Call::Reclaim));
        }
    }
    calls
}

/// The run of a story.
fn killed(story: &Story) -> Plan {
    let mut plan = plan(
        EngineKind::Bullet,
        Medium::Pmem,
        story.profile,
        story.before,
    );
    let ground = Ground::of(&plan);
    let run = run::run(&plan, &ground, false).expect("a plan that runs");
    let calls = run.record.trace.iter();
    let calls = calls.skip_while(|step| !matches!(step, Step::Invoke(_)));
    let is_event = |step: &&Step| {
        matches!(
            step,
            Step::Store { .. } | Step::Flush { .. } | Step::Fence { .. }
        )
    };
    let events: Vec<&Step> = calls.filter(is_event).collect();
    let is_there = |step: &&Step| match step {
        Step::Fence { site, .. } => name(site).contains(story.file),
        _ => false,
    };
    let last = events.iter().rposition(is_there).expect("such a fence");
    plan.fault = Fault::Kill(last as u32);
    plan.calls.extend((story.after)(&mut plan.values));
    plan
}
