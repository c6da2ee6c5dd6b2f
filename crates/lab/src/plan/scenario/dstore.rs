//! Runs of DStore: what a killed process leaves in caches, and a data file whose length nobody knows.

use super::bullet::{Story, fill, gleaned, killed, read_all};
use super::{Scenario, part, plan, put};
use crate::medium::image::Medium;
use crate::plan::CLOCK_START;
use crate::plan::call::{Call, Values};
use crate::plan::profile::Profile;
use crate::plan::{Fault, Manner, Plan, Stops};
use crate::run::execute;
use crate::run::process::Environment;
use crate::run::trace::{DiskStep, Step, name};
use everdram::EngineKind;

/// Bytes of a value that takes a tenth of the blocks that its session has.
const TENTH: usize = 3000;
/// A value of some blocks.
const LONG: usize = 1400;
/// More than half of what a data file of the lab has room for.
const MOST: usize = 40_000;
/// A value that no data file of the lab has room for.
const TOO_LONG: usize = 180 << 10;

/// All of them, on one medium.
pub(super) fn all(medium: Medium) -> Vec<Scenario> {
    let stories = STORIES.iter().filter(|_| medium == Medium::Pmem);
    let killed = stories.map(|story| Scenario::new(story.name, killed(EngineKind::Dstore, story)));
    let cleared = plan(EngineKind::Dstore, medium, Profile::Variable, cleared_twice);
    // What is done at once differs from seed to seed.
    let replaced = (1..8).filter(|_| medium == Medium::File).map(|seed| {
        let mut plan = plan(EngineKind::Dstore, medium, Profile::Variable, replaced);
        // Sessions that take turns do everything at once.
        plan.manner = Manner::Stops(Stops::default());
        Scenario::new(
            "blocks are used again once the record that freed them survives",
            Plan { seed, ..plan },
        )
    });
    killed
        .chain(replaced)
        .chain([
            Scenario::new("everything is removed, and once more", cleared),
            Scenario::new(
                "everything is removed after a checkpoint, and once more",
                plan(
                    EngineKind::Dstore,
                    medium,
                    Profile::Variable,
                    cleared_after_a_checkpoint,
                ),
            ),
            Scenario::new(
                "parts of values are changed, and their blocks used again",
                plan(EngineKind::Dstore, medium, Profile::Objects, parts),
            ),
            Scenario::new(
                "cells are used again before a checkpoint",
                plan(
                    EngineKind::Dstore,
                    medium,
                    Profile::Variable,
                    swept_before_a_checkpoint,
                ),
            ),
            Scenario::new(
                "a key after everything was removed, what a refused batch kept, and a longer root",
                plan(EngineKind::Dstore, medium, Profile::Variable, kept),
            ),
            Scenario::new(
                "a data file whose new length caches alone know",
                growth_not_synced(medium),
            ),
        ])
        .collect()
}

const STORIES: [Story; 2] = [
    Story {
        name: "a ledger in caches",
        profile: Profile::Variable,
        // The ledger before it has a root, too.
        before: |values| [gleaned(values), gleaned(values)].concat(),
        fault: Fault::Kill,
        fence: ("crl/ledger.rs", 0),
        after: gleaned,
    },
    Story {
        name: "an entry in caches",
        profile: Profile::Variable,
        before: |values| fill(values, 9),
        fault: Fault::Kill,
        fence: ("dstore/commit.rs", 0),
        after: |_| read_all(),
    },
];

/// A value of a tenth of the blocks that a session has is replaced more often than that before anybody waits.
/// The session that replaces it begins in the blocks of the one before.
fn replaced(values: &mut Values) -> Vec<(u32, Call)> {
    let parts = (0..14).map(|_| part(values, 0, TENTH)).collect();
    vec![
        (0, put(values, 0, TENTH)),
        (0, Call::Leave),
        (1, Call::Pipeline(parts)),
    ]
}

/// The process is killed before the first clear is swept. In the next one, the long key takes the cells of
/// several objects that are gone.
fn cleared_twice(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = fill(values, 6);
    for key in [7, 1] {
        calls.extend([(0, Call::Clear), (0, Call::Kill), (0, put(values, key, 12))]);
    }
    calls.extend([(0, put(values, 7, 12)), (0, Call::Kill), (0, Call::Clear)]);
    calls.push((0, Call::Tend));
    calls.extend(fill(values, 3));
    calls.push((0, Call::Kill));
    calls
}

/// As [`cleared_twice`], and a checkpoint has what is gone.
fn cleared_after_a_checkpoint(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = fill(values, 6);
    calls.extend([(0, Call::Checkpoint), (0, Call::Clear), (0, Call::Kill)]);
    calls.extend([(0, put(values, 7, 12)), (0, Call::Get(7))]);
    calls.extend([(0, Call::Clear), (0, Call::Reclaim)]);
    calls.extend(fill(values, 3));
    calls
}

/// Values with maps of one level and of two: cut within a block and lengthened again, changed from the
/// beginning of a block on, with holes, and after they have expired. Another session uses again what that has
/// freed.
fn parts(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for (key, bytes) in [(0, LONG), (1, 3 * LONG)] {
        let tenth = bytes as u32 / 10;
        let some = values.make(100, 0);
        calls.extend([
            put(values, key, bytes),
            Call::Cut(key, 6 * tenth),
            Call::Cut(key, 9 * tenth),
            Call::Get(key),
            Call::Overwrite(key, 512, some),
            Call::Get(key),
            Call::Overwrite(key, 12 * tenth, some),
            Call::Leave,
            Call::Reclaim,
            put(values, 2, bytes),
            Call::Get(key),
        ]);
    }
    let expires = CLOCK_START + 10;
    calls.push(Call::Put(3, values.make(LONG, 0), expires));
    let last = values.make(100, 1);
    calls.extend([
        Call::Advance(20),
        Call::Overwrite(3, LONG as u32 / 2, last),
        Call::Get(3),
    ]);
    calls.extend([Call::Kill, Call::Many(vec![0, 1, 2, 3])]);
    calls.into_iter().map(|call| (0, call)).collect()
}

/// The first write after a clear is not swept. A batch that has no room changes no cell, and a longer root
/// nothing behind its own.
fn kept(values: &mut Values) -> Vec<(u32, Call)> {
    let batch = vec![part(values, 1, 12), part(values, 2, TOO_LONG)];
    let calls = [
        put(values, 0, 12),
        Call::Clear,
        put(values, 1, 12),
        Call::Reclaim,
        Call::Get(1),
        Call::Leave,
        Call::Batch(batch),
        Call::Leave,
        put(values, 4, 12),
        put(values, 5, 12),
        Call::Get(1),
        // A longer root does not fit its cell, and another one is behind that.
        put(values, 2, LONG),
        put(values, 6, 12),
        put(values, 2, TENTH),
        Call::Get(6),
    ];
    calls.into_iter().map(|call| (0, call)).collect()
}

/// A long value after a clear has no room before that is swept. Then another object has cells of two that are
/// gone, whose records are in the logs before its own. A checkpoint replays what counts of them.
fn swept_before_a_checkpoint(values: &mut Values) -> Vec<(u32, Call)> {
    let calls = [
        put(values, 1, 12),
        put(values, 2, 12),
        put(values, 4, MOST),
        Call::Clear,
        put(values, 5, MOST),
        Call::Leave,
        put(values, 3, 12),
        Call::Checkpoint,
        Call::Kill,
        Call::Get(3),
    ];
    calls.into_iter().map(|call| (0, call)).collect()
}

/// The second session's chunk of blocks lets the data file grow, and the sync of that fails. The next process
/// finds the length, and puts values there.
fn growth_not_synced(medium: Medium) -> Plan {
    let both = |values: &mut Values| {
        (0..2)
            .map(|one| (one, put(values, one as u8, 100)))
            .collect()
    };
    let mut plan = plan(EngineKind::Dstore, medium, Profile::Variable, both);
    let run = execute(&plan, &Environment::of(&plan)).expect("a plan that runs");
    let calls = run.record.trace.iter();
    let calls = calls.skip_while(|step| !matches!(step, Step::Invoke(_)));
    let mut syncs = calls.filter_map(|step| match step {
        Step::Disk {
            step: DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. },
            site,
        } => Some(name(site)),
        _ => None,
    });
    let before = syncs.position(|site| site.contains("dstore/room.rs"));
    plan.fault = Fault::Sync(before.expect("a data file that grows") as u32);
    plan.calls.extend(both(&mut plan.values));
    plan
}
