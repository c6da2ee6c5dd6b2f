//! Runs of Bullet in which a process is killed after a store that no fence covers yet, and the next process
//! builds on it.

use super::{Scenario, before_a_fence, plan, put};
use crate::medium::image::Medium;
use crate::plan::call::{Call, Key, Values};
use crate::plan::profile::Profile;
use crate::plan::{Fault, Plan};
use everdram::EngineKind;

type Calls = Vec<(u32, Call)>;

/// An object that is longer than an entry of a log may be, one that fills a chunk, and one that is longer.
const LINKED: usize = 900;
const CHUNK: usize = 3900;
const RUN: usize = 5000;

/// A process that is killed, and the next one.
pub(super) struct Story {
    pub(super) name: &'static str,
    pub(super) profile: Profile,
    pub(super) before: fn(&mut Values) -> Calls,
    /// The fault just before a fence of this file after which so many others come.
    pub(super) fault: fn(u32) -> Fault,
    pub(super) fence: (&'static str, usize),
    /// The calls of the next process.
    pub(super) after: fn(&mut Values) -> Calls,
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
    let drawn = drawn.into_iter().map(|(name, profile, story)| {
        Scenario::new(name, plan(EngineKind::Bullet, medium, profile, story))
    });
    let killed = STORIES
        .iter()
        .filter(|_| medium == Medium::Pmem)
        .map(|story| Scenario::new(story.name, killed(EngineKind::Bullet, story)));
    // Short ones come first.
    killed.chain(drawn).collect()
}

const STORIES: [Story; 11] = [
    Story {
        name: "half a record of a transaction, and what another one lacks",
        profile: Profile::Variable,
        before: gleaned,
        // Everything survives but a word that the next record has as well.
        fault: |last| Fault::Outage(last, 42),
        fence: ("heap/txn.rs", 2),
        after: |values| {
            let mut calls: Calls = (0..6).map(|key| (0, put(values, 5 - key, 90))).collect();
            calls.push((0, Call::Reclaim));
            calls
        },
    },
    Story {
        name: "a ledger in caches",
        profile: Profile::Variable,
        before: gleaned,
        fault: Fault::Kill,
        fence: ("crl/ledger.rs", 0),
        after: gleaned,
    },
    Story {
        name: "an entry in caches",
        profile: Profile::Variable,
        before: |values| fill(values, 9),
        fault: Fault::Kill,
        fence: ("bullet/write.rs", 0),
        after: |_| read_all(),
    },
    Story {
        name: "half an entry, and what another one lacks",
        profile: Profile::Variable,
        before: |values| vec![(0, put(values, 0, 20))],
        // Everything survives but a word that the next entry has as well.
        fault: |last| Fault::Outage(last, 26),
        fence: ("bullet/write.rs", 0),
        after: |values| vec![(0, Call::Get(0)), (0, put(values, 1, 20))],
    },
    Story {
        name: "an object in caches that an entry names",
        profile: Profile::Large,
        before: |values| vec![(0, put(values, 1, 40)), (0, put(values, 1, LINKED))],
        fault: Fault::Kill,
        fence: ("bullet/write.rs", 0),
        after: |_| read_all(),
    },
    Story {
        name: "a parcel in caches",
        profile: Profile::Batch,
        before: |values| {
            let parts = (0..3).map(|key| (key, Some(values.make(400, 0)))).collect();
            vec![(0, Call::Batch(parts))]
        },
        fault: Fault::Kill,
        fence: ("bullet/write.rs", 0),
        after: |_| read_all(),
    },
    Story {
        name: "the record of a transaction in caches",
        profile: Profile::Variable,
        before: gleaned,
        fault: Fault::Kill,
        // The fences of its contents and of its end come after it.
        fence: ("heap/txn.rs", 2),
        after: gleaned,
    },
    Story {
        name: "the end of a transaction in caches",
        profile: Profile::Variable,
        before: gleaned,
        fault: Fault::Kill,
        fence: ("heap/txn.rs", 0),
        after: gleaned,
    },
    Story {
        name: "a transaction in caches",
        profile: Profile::Growth,
        before: |values| {
            let mut calls: Calls = (0..23).map(|key| (0, put(values, key, 20))).collect();
            calls.push((0, Call::Reclaim));
            calls
        },
        fault: Fault::Kill,
        fence: ("heap/txn.rs", 0),
        after: |values| (0..8).map(|key| (0, put(values, key, 20))).collect(),
    },
    Story {
        name: "a run of chunks that nothing names",
        profile: Profile::Large,
        before: |values| vec![(0, put(values, 1, RUN))],
        fault: Fault::Kill,
        fence: ("heap/mod.rs", 0),
        after: second_chunk,
    },
    Story {
        name: "a run of chunks in caches that is none any more",
        profile: Profile::Large,
        before: |values| {
            let mut calls = runs(values);
            calls.truncate(5);
            calls
        },
        fault: Fault::Kill,
        fence: ("heap/mod.rs", 0),
        after: second_chunk,
    },
];

/// `count` small writes of several keys.
pub(super) fn fill(values: &mut Values, count: usize) -> Calls {
    let keys = (0..count).map(|number| (number % 8) as Key);
    keys.map(|key| (0, put(values, key, 20))).collect()
}

pub(super) fn read_all() -> Calls {
    (0..8).map(|key| (0, Call::Get(key))).collect()
}

/// Writes and gleans a few keys.
pub(super) fn gleaned(values: &mut Values) -> Calls {
    let mut calls = fill(values, 6);
    calls.push((0, Call::Reclaim));
    calls
}

/// A run of two chunks is freed. The first chunk gets an object that never counts, the second one that does.
/// Only the freeing has written the header of the first.
fn second_chunk(values: &mut Values) -> Calls {
    vec![
        (0, put(values, 2, CHUNK)),
        (0, put(values, 3, CHUNK)),
        (0, Call::Delete(2)),
        (0, Call::Reclaim),
        (0, Call::Get(3)),
        (0, put(values, 4, 40)),
        (0, Call::Reclaim),
    ]
}

/// Replaces and removes values that need chunks of their own, and uses those chunks again.
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

/// All sessions write the same keys and glean, so that several areas have transactions about one slot.
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

/// The run of a story, cut off at its fault.
pub(super) fn killed(engine: EngineKind, story: &Story) -> Plan {
    let mut plan = plan(engine, Medium::Pmem, story.profile, story.before);
    plan.fault = (story.fault)(before_a_fence(&plan, story.fence));
    plan.calls.extend((story.after)(&mut plan.values));
    plan
}
