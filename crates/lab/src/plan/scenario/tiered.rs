//! Runs of `tiered`: what a removal leaves behind in the log, by the ways in which a key comes back from
//! there or goes there again.

use super::{SMALL, Scenario, WIDE, before_a_fence, part, plan, put};
use crate::medium::image::Medium;
use crate::plan::call::{Call, Key, Values};
use crate::plan::profile::Profile;
use crate::plan::{CLOCK_START, Fault};
use everdram::EngineKind;

type Calls = Vec<(u32, Call)>;
type Story = fn(&mut Values) -> Calls;

/// The keys that a story is not about.
const OTHERS: std::ops::Range<Key> = 4..12;

/// All of them, on one medium.
pub(super) fn all(medium: Medium) -> Vec<Scenario> {
    let stories: [(&str, Story); 7] = [
        ("keys that came back by a read are removed", read_back),
        ("a key that replaced one of the log expires", expired),
        (
            "a removal in the log is cleaned away from what it removes",
            cleaned,
        ),
        ("a batch over both tiers is removed again", batches),
        ("the mark of a record in an open block is lost", left_open),
        ("a session's list of marks is full", full_list),
        (
            "keys of both tiers are removed before the log is read",
            removed_before_read,
        ),
    ];
    let told = stories.map(|(name, story)| {
        Scenario::new(
            name,
            plan(EngineKind::Tiered, medium, Profile::Tiers, story),
        )
    });
    let full = (medium == Medium::Pmem).then(full_in_a_block);
    let put_again = (medium == Medium::Pmem).then(put_again);
    told.into_iter().chain(put_again).chain(full).collect()
}

/// Fills blocks with other keys so often that what is in the pool leaves it.
fn pass(values: &mut Values, calls: &mut Calls, times: usize) {
    for _ in 0..times {
        calls.extend(OTHERS.map(|key| (0, put(values, key, WIDE))));
        calls.push((0, Call::Tend));
    }
}

/// The first keys, which are in the log at the end.
fn below(values: &mut Values) -> Calls {
    let mut calls: Calls = (0..4).map(|key| (0, put(values, key, WIDE))).collect();
    pass(values, &mut calls, 2);
    calls
}

fn read_back(values: &mut Values) -> Calls {
    let mut calls = below(values);
    calls.extend((0..4).map(|key| (1, Call::Get(key))));
    calls.extend((0..4).map(|key| (1, Call::Delete(key))));
    pass(values, &mut calls, 2);
    calls.extend((0..4).map(|key| (1, Call::Get(key))));
    calls
}

/// The record expires in a block that is emptied before the sweep comes.
fn expired(values: &mut Values) -> Calls {
    let mut calls = below(values);
    for key in 0..4 {
        let value = values.make(WIDE, 1);
        calls.push((0, Call::Put(key, value, CLOCK_START + 10)));
    }
    calls.extend(OTHERS.map(|key| (0, put(values, key, WIDE))));
    calls.push((1, Call::Advance(20)));
    pass(values, &mut calls, 2);
    calls
}

/// The first segment has keys that stay. One of them is removed, too few for the segment to be cleaned; later
/// segments are, with the removal in one of them.
fn cleaned(values: &mut Values) -> Calls {
    const STAY: Key = 9;
    let mut calls: Calls = (0..STAY).map(|key| (0, put(values, key, WIDE))).collect();
    for turn in 0..24 {
        calls.extend((STAY..12).map(|key| (0, put(values, key, WIDE))));
        calls.push((0, Call::Tend));
        if turn == 8 {
            calls.push((1, Call::Delete(0)));
        }
    }
    calls.push((1, Call::Get(0)));
    calls
}

/// Half of a batch replaces keys of the log. The process dies, and recovery repeats the batch.
fn batches(values: &mut Values) -> Calls {
    let mut calls = below(values);
    for turn in 0..3 {
        let parts = (0..6).map(|key| (key, Some(values.make(20, turn))));
        calls.push((0, Call::Batch(parts.collect())));
        calls.push((0, Call::Batch((0..6).map(|key| (key, None)).collect())));
        calls.push((1, Call::Kill));
        pass(values, &mut calls, 1);
    }
    calls
}

/// Session 1 leaves its block open, with the first record of key 0. What replaced that record leaves the
/// pool, and so does the removal, until the log has neither.
fn left_open(values: &mut Values) -> Calls {
    let mut calls = vec![(1, put(values, 0, WIDE)), (0, put(values, 0, WIDE))];
    pass(values, &mut calls, 2);
    calls.push((0, Call::Delete(0)));
    pass(values, &mut calls, 8);
    calls.push((0, Call::Get(0)));
    calls
}

/// Session 1 replaces key 0, whose old record lies in a block of session 0, and so many records after that
/// that its list of marks is full and begins anew. Key 0 is removed, and its newer record, which was the
/// tombstone of the old one, is dropped with its block.
fn full_list(values: &mut Values) -> Calls {
    let mut calls = vec![(0, put(values, 0, SMALL))];
    calls.extend((2..5).map(|key| (0, put(values, key, WIDE))));
    calls.push((1, put(values, 0, SMALL)));
    calls.extend((0..65).map(|_| (1, put(values, 1, SMALL))));
    calls.extend([(0, Call::Delete(0)), (0, Call::Reclaim), (0, Call::Get(0))]);
    calls
}

/// The first keys are in the log, and newer values of them in the pool. The next process removes them at
/// once, and then reads the log.
fn removed_before_read(values: &mut Values) -> Calls {
    let mut calls = below(values);
    calls.extend((0..4).map(|key| (0, put(values, key, SMALL))));
    calls.push((0, Call::Reopen));
    calls.extend((0..4).map(|key| (0, Call::Delete(key))));
    calls.push((0, Call::Tend));
    calls.extend((0..4).map(|key| (0, Call::Get(key))));
    calls
}

/// The first segment of the log is full when a block has been emptied by half, and the disk has no room for
/// the next one. What has left is in the log; the rest stays, and the block.
fn full_in_a_block() -> Scenario {
    let mut plan = plan(EngineKind::Tiered, Medium::Pmem, Profile::Tiers, below);
    plan.fault = Fault::Full(6_000, 1);
    Scenario::new("the log is full in the middle of a block", plan)
}

/// A batch replaces keys of the log. The process dies behind the fence of its journal: recovery writes the
/// records, and only they say that the log is void. The keys are removed again.
fn put_again() -> Scenario {
    let keys = [0, 1];
    let mut plan = plan(EngineKind::Tiered, Medium::Pmem, Profile::Tiers, |values| {
        let mut calls = below(values);
        let parts = keys.map(|key| part(values, key, SMALL));
        calls.push((0, Call::Batch(parts.into())));
        calls
    });
    // The last fence of a batch is that of its records.
    plan.fault = Fault::Kill(before_a_fence(&plan, ("viper/batch.rs", 1)) + 1);
    plan.calls.extend(keys.map(|key| (0, Call::Delete(key))));
    Scenario::new("a batch that recovery put again is removed", plan)
}
