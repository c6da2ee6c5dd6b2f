//! Runs written by hand, for states to which random runs hardly ever come.

use super::call::{Call, Key, ValueId, Values};
use super::profile::Profile;
use super::{Fault, Manner, Plan};
use crate::medium::image::Medium;
use crate::run::process::Environment;
use crate::run::trace::{DiskStep, Step, name};
use crate::run::{self, execute};
use everdram::EngineKind;

mod bullet;
mod dstore;
mod interleavings;
mod tiered;

/// A run with a name.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is about.
    pub name: String,
    /// Its calls.
    pub plan: Plan,
    /// Whether there are many runs of the same calls, so that a few images of each are enough.
    pub is_one_of_many: bool,
}

impl Scenario {
    /// One of its own.
    #[must_use]
    pub fn new(name: impl Into<String>, plan: Plan) -> Scenario {
        Scenario {
            name: name.into(),
            plan,
            is_one_of_many: false,
        }
    }
}

/// All of them, on one medium.
#[must_use]
pub fn all(engine: EngineKind, medium: Medium) -> Vec<Scenario> {
    let mut all = match engine {
        EngineKind::Bullet => bullet::all(medium),
        _ => viper(engine, medium),
    };
    if engine == EngineKind::Dstore {
        all.extend(dstore::all(medium));
    }
    if engine == EngineKind::Tiered {
        all.extend(tiered::all(medium));
    }
    all.extend(interleavings::all(engine, medium));
    if medium == Medium::File {
        all.push(Scenario::new(
            "a segment of the log that only caches know",
            cut_off_in_a_new_segment(plan(engine, medium, Profile::Variable, much)),
        ));
    }
    all
}

fn viper(engine: EngineKind, medium: Medium) -> Vec<Scenario> {
    let stories: [(&'static str, Profile, Story); 5] = [
        (
            "a compactor fences the marks of others",
            Profile::Reclamation,
            marks_of_others,
        ),
        (
            "a session fences its marks when it leaves",
            Profile::Reclamation,
            marks_of_the_departed,
        ),
        (
            "recovery marks a journal in a page that is full",
            Profile::Batch,
            journal_of_a_full_page,
        ),
        (
            "recovery makes durable what it found in caches",
            Profile::Reclamation,
            marks_of_the_dead,
        ),
        (
            "compaction has no room half-way through a block",
            Profile::Growth,
            half_emptied_in_a_full_pool,
        ),
    ];
    let told = stories
        .into_iter()
        .map(|(name, profile, story)| Scenario::new(name, plan(engine, medium, profile, story)));
    let cut_off: [(&'static str, Story, &[Call]); 6] = [
        (
            "a removal in a pool that was closed before",
            removal_after_a_close,
            &[],
        ),
        (
            "an addition in a pool that was closed before",
            addition_after_a_close,
            &[],
        ),
        ("a removal is read before it is verified", removal, &[]),
        ("an addition is read before it is verified", addition, &[]),
        ("a removal is verified and read", removal, &[Call::Tend]),
        ("an addition is verified and read", addition, &[Call::Tend]),
    ];
    let read = cut_off.into_iter().map(|(name, story, between)| {
        let plan = plan(engine, medium, Profile::Fixed, story);
        Scenario::new(name, cut_off_and_read(plan, between))
    });
    let begun = (medium == Medium::Pmem)
        .then(|| lives_that_were_begun(plan(engine, medium, Profile::Batch, first_of_a_block)));
    let emptied = (medium == Medium::Pmem).then(|| emptied_in_caches(engine));
    told.chain(read)
        .chain(emptied)
        .chain(begun.into_iter().flatten())
        .collect()
}

fn plan(
    engine: EngineKind,
    medium: Medium,
    profile: Profile,
    story: impl FnOnce(&mut Values) -> Vec<(u32, Call)>,
) -> Plan {
    let mut values = Values::default();
    let calls = story(&mut values);
    Plan {
        engine,
        medium,
        profile,
        manner: Manner::Turns,
        seed: 1,
        calls,
        values,
        fault: Fault::None,
    }
}

/// Calls by session.
type Story = fn(&mut Values) -> Vec<(u32, Call)>;

/// A value that fits many times into a page.
const SMALL: usize = 40;
/// A value that fills most of a page.
const WIDE: usize = 400;
/// A value whose record, with a short key, fills a line.
const LINE: usize = 38;
/// How many images of a power failure after three such records are tried.
const LIVES: u32 = 64;
/// A value of the pool's fixed size.
const FIXED: usize = 48;

fn put(values: &mut Values, key: Key, bytes: usize) -> Call {
    Call::Put(key, values.make(bytes, 0), 0)
}

fn part(values: &mut Values, key: Key, bytes: usize) -> (Key, Option<ValueId>) {
    (key, Some(values.make(bytes, 0)))
}

/// Session 1 replaces key 0 in a block that the same commit fills, so that its mark on the old record, which
/// session 0 wrote, is not fenced and the block is sealed. Session 0 removes the key. Compaction drops the
/// newer record, which was the tombstone of the old one: that one's mark must be durable first.
fn marks_of_others(values: &mut Values) -> Vec<(u32, Call)> {
    let first = put(values, 0, SMALL);
    let mut parts = vec![part(values, 0, SMALL)];
    parts.extend((2..5).map(|key| part(values, key, WIDE)));
    let last = put(values, 1, SMALL);
    vec![
        (0, first),
        (1, Call::Pipeline(parts)),
        (0, Call::Delete(0)),
        (0, Call::Reclaim),
        // On files nothing is durable before a session waits for it.
        (0, last),
    ]
}

/// The journals of these batches end at the end of pages, or nearly there, so that their records are in the
/// next page. Into a full page, recovery only writes the journal's mark; the record that it removes is
/// elsewhere.
fn journal_of_a_full_page(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for filler in (0..5).map(|step| 20 + 45 * step) {
        let mut parts: Vec<_> = (0..2).map(|key| part(values, key, 2 * SMALL)).collect();
        parts.push((5, None));
        calls.extend([
            (1, put(values, 5, SMALL)),
            (0, put(values, 7, filler)),
            (0, Call::Batch(parts)),
            (0, put(values, 6, WIDE)),
            (0, Call::Reclaim),
        ]);
    }
    calls
}

/// Session 1 replaces key 0, whose old record lies in a block that is full, and its process is killed before
/// any fence covers the mark there. The next process finds the mark; the newer record is removed and
/// compacted away.
fn marks_of_the_dead(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = vec![(0, put(values, 0, SMALL))];
    calls.extend((2..5).map(|key| (0, put(values, key, WIDE))));
    calls.extend([
        (1, put(values, 0, SMALL)),
        (0, Call::Kill),
        (0, Call::Delete(0)),
        (0, Call::Reclaim),
    ]);
    calls
}

/// Two long values leave a pool hardly any room, to the block. Compaction moves the live records of seven
/// blocks into the reserved blocks, and the first of two records of the eighth, key 8, which has little
/// garbage. Key 8 is removed, and the block with its copy is emptied and freed. The block with its original
/// stays as it is.
fn half_emptied_in_a_full_pool(values: &mut Values) -> Vec<(u32, Call)> {
    let long = [(10, 70_000), (11, 8_000), (12, WIDE)];
    let seven = (0..7).flat_map(|key| [(key, WIDE), (20, WIDE)]);
    let eighth = [(8, SMALL), (20, 2 * SMALL), (9, WIDE)];
    let next = [(13, WIDE), (20, WIDE)];
    let all = long.into_iter().chain(seven).chain(eighth).chain(next);
    let mut calls: Vec<_> = all.map(|(key, bytes)| put(values, key, bytes)).collect();
    calls.extend([Call::Tend, Call::Delete(0), Call::Delete(8)]);
    // The next record to move does not fit behind the copy.
    calls.extend([13, 14, 13].map(|key| put(values, key, WIDE)));
    calls.extend([Call::Reclaim, Call::Reclaim]);
    calls.into_iter().map(|call| (0, call)).collect()
}

/// Key 0 is in a full block that a checkpoint covers.
fn covered(values: &mut Values) -> Vec<(u32, Call)> {
    let others = (0..28).map(|number| 1 + number % 7);
    let mut calls: Vec<_> = std::iter::once(0)
        .chain(others)
        .map(|key| (0, put(values, key, FIXED)))
        .collect();
    calls.push((0, Call::Checkpoint));
    calls
}

/// Key 0 is removed in the end.
fn removal(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = covered(values);
    calls.push((0, Call::Delete(0)));
    calls
}

/// As [`removal`], by a process that has found the pool closed.
fn removal_after_a_close(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = covered(values);
    calls.extend([(0, Call::Reopen), (0, Call::Delete(0))]);
    calls
}

/// As [`addition`], by a process that has found the pool closed.
fn addition_after_a_close(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = covered(values);
    calls.extend([(0, Call::Reopen), (0, Call::Add(0, 1))]);
    calls
}

/// Key 0 is changed in place in the end.
fn addition(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = covered(values);
    calls.push((0, Call::Add(0, 1)));
    calls
}

/// Each of these puts takes a block of the log, so that it needs more segments.
fn much(values: &mut Values) -> Vec<(u32, Call)> {
    (0..40)
        .map(|number| (0, put(values, number % 6, WIDE)))
        .collect()
}

/// The process dies after it has made and filled a segment of the log, before the segment's name is durable.
/// The next process finds the segment, and must make the name durable before it relies on it.
fn cut_off_in_a_new_segment(mut plan: Plan) -> Plan {
    let environment = Environment::of(&plan);
    let run = run::run(&plan, &environment, false).expect("a plan that runs");
    let calls = run.record.trace.iter();
    let calls = calls.skip_while(|step| !matches!(step, Step::Invoke(_)));
    let of_disk = calls.filter_map(|step| match step {
        Step::Disk { step, .. } => Some(step),
        _ => None,
    });
    let until_named = of_disk.take_while(|step| !matches!(step, DiskStep::SyncDirectory { .. }));
    let before: Vec<&DiskStep> = until_named.collect();
    let makes = |step: &&DiskStep| matches!(step, DiskStep::Create { .. });
    assert!(before.iter().any(makes), "no segment was made");
    plan.fault = Fault::Kill(before.len() as u32);
    plan
}

/// The process dies before the last fence, or sync, of a plan: the stores of the last call are in caches. The
/// next process makes the calls `between` and reads the key. No crash after that may take back what was read.
fn cut_off_and_read(mut plan: Plan, between: &[Call]) -> Plan {
    plan.fault = Fault::Kill(before_the_last_fence(&plan));
    let read = Call::Get(0);
    plan.calls
        .extend(between.iter().chain([&read]).map(|call| (0, call.clone())));
    plan
}

/// Events of a plan before its last fence, or sync.
fn before_the_last_fence(plan: &Plan) -> u32 {
    let environment = Environment::of(plan);
    let run = run::run(plan, &environment, false).expect("a plan that runs");
    let calls = run.record.trace.iter();
    let calls = calls.skip_while(|step| !matches!(step, Step::Invoke(_)));
    let of_memory = |step: &&Step| {
        matches!(
            step,
            Step::Store { .. } | Step::Flush { .. } | Step::Fence { .. }
        )
    };
    let events: Vec<&Step> = match plan.medium {
        Medium::Pmem => calls.filter(of_memory).collect(),
        Medium::File => calls
            .filter(|step| matches!(step, Step::Disk { .. }))
            .collect(),
    };
    let makes_durable = |step: &&Step| match step {
        Step::Disk { step, .. } => matches!(step, DiskStep::Sync { .. }),
        step => matches!(step, Step::Fence { .. }),
    };
    events.iter().rposition(makes_durable).expect("a fence") as u32
}

/// Events of a plan on memory before a fence in this file, which so many others follow.
fn before_a_fence(plan: &Plan, (file, others): (&str, usize)) -> u32 {
    let run = execute(plan, &Environment::of(plan)).expect("a plan that runs");
    let calls = run.record.trace.iter();
    let calls = calls.skip_while(|step| !matches!(step, Step::Invoke(_)));
    let is_event = |step: &&Step| {
        matches!(
            step,
            Step::Store { .. } | Step::Flush { .. } | Step::Fence { .. }
        )
    };
    let is_there = |(_, step): &(usize, &Step)| match step {
        Step::Fence { site, .. } => name(site).contains(file),
        _ => false,
    };
    let events: Vec<&Step> = calls.filter(is_event).collect();
    let mut fences = events.into_iter().enumerate().filter(is_there).rev();
    let (event, _) = fences.nth(others).expect("such a fence");
    event as u32
}

/// A process that removes everything dies before the fence of that. The next process reads from caches that
/// no key is left, and answers so: no crash after that may bring a key back.
fn emptied_in_caches(engine: EngineKind) -> Scenario {
    let mut plan = plan(engine, Medium::Pmem, Profile::Variable, |values| {
        let puts = [0, 1].map(|key| (0, put(values, key, SMALL)));
        puts.into_iter().chain([(0, Call::Clear)]).collect()
    });
    let fence = match engine {
        EngineKind::Dstore => "dstore/commit.rs",
        _ => "viper/batch.rs",
    };
    plan.fault = Fault::Kill(before_a_fence(&plan, (fence, 0)));
    plan.calls.push((0, Call::Many(vec![0, 1])));
    Scenario::new("caches alone know that everything was removed", plan)
}

/// The first records of a block, of one line each.
fn first_of_a_block(values: &mut Values) -> Vec<(u32, Call)> {
    let parts = (0..3).map(|key| part(values, key, LINE)).collect();
    vec![(0, Call::Pipeline(parts))]
}

/// Power fails before the fence of the first records of a block, with every image that it can leave: some of
/// the records, and not the word that opens the block. The block's next life uses the same lines. Behind its
/// first record, recovery must not find the remains of the life before.
fn lives_that_were_begun(plan: Plan) -> impl Iterator<Item = Scenario> {
    let before = before_the_last_fence(&plan);
    (0..LIVES).map(move |kept| {
        let mut plan = plan.clone();
        plan.fault = Fault::Outage(before, kept);
        let next = put(&mut plan.values, 3, LINE);
        plan.calls
            .extend([(0, Call::Many(vec![0, 1, 2])), (0, next)]);
        Scenario {
            name: "a block is opened again that a power failure cut short".into(),
            plan,
            is_one_of_many: true,
        }
    })
}

/// Session 1 replaces key 0 and closes: no other session knows of its mark on the old record.
fn marks_of_the_departed(values: &mut Values) -> Vec<(u32, Call)> {
    let calls = [
        put(values, 0, SMALL),
        put(values, 0, SMALL),
        put(values, 1, SMALL),
    ];
    let [first, second, last] = calls;
    vec![
        (0, first),
        (1, second),
        (1, Call::Leave),
        (0, Call::Delete(0)),
        (0, Call::Reclaim),
        // On files nothing is durable before a session waits for it.
        (0, last),
    ]
}
