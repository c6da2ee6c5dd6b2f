//! Sessions that meet in the middle of something: each story with every event in which the first one may be left alone.

use super::{FIXED, SMALL, Scenario, WIDE, part, plan, put};
use crate::call::{Call, Values};
use crate::image::Medium;
use crate::plan::Manner;
use crate::profile::Profile;
use everdram::EngineKind;
use std::ops::Range;

type Calls = Vec<(u32, Call)>;

struct Meeting {
    name: &'static str,
    profile: Profile,
    /// What session 0 has done before, what the others do, and what session 0 does.
    story: fn(&mut Values) -> [Calls; 3],
    /// After so many events each session stops; 0: not at all.
    stops: [Range<u32>; 3],
    /// Each of them so often: other things are left to chance, too.
    times: u64,
}

/// Some records fill a block of its own size.
const EIGHTH: usize = 90;
/// A value of several blocks.
const LONG: usize = 1400;

/// More runs of a story than this have few images each.
const MANY: u64 = 20;

/// All of them, on one medium.
pub(super) fn all(engine: EngineKind, medium: Medium) -> Vec<Scenario> {
    let mut all = Vec::new();
    for meeting in MEETINGS {
        let count: u64 = meeting
            .stops
            .iter()
            .map(|stops| stops.len() as u64)
            .product();
        for stops in product(&meeting.stops) {
            for time in 0..meeting.times {
                let mut plan = plan(engine, medium, meeting.profile, |values| {
                    (meeting.story)(values).concat()
                });
                plan.manner = Manner::Stops(stops);
                // Who goes on first when all have stopped is drawn.
                plan.seed += stops.iter().map(|&stop| u64::from(stop)).sum::<u64>() + 1000 * time;
                all.push(Scenario {
                    name: meeting.name.into(),
                    plan,
                    is_one_of_many: count * meeting.times > MANY,
                });
            }
        }
    }
    all
}

/// Every way to stop.
fn product([first, second, third]: &[Range<u32>; 3]) -> Vec<[u32; 3]> {
    let mut all = Vec::new();
    for one in first.clone() {
        for two in second.clone() {
            all.extend(third.clone().map(|three| [one, two, three]));
        }
    }
    all
}

const MEETINGS: [Meeting; 7] = [
    Meeting {
        name: "marks are being fenced when a tombstone goes",
        profile: Profile::Batch,
        story: |values| {
            let mut before = vec![(0, put(values, 0, SMALL))];
            before.extend([1, 2, 4].map(|key| (0, put(values, key, WIDE))));
            before.push((0, put(values, 0, SMALL)));
            before.extend([5, 5].map(|key| (0, put(values, key, WIDE))));
            let last = (1, put(values, 4, WIDE));
            let others = vec![(1, Call::Delete(0)), (1, Call::Reclaim), last];
            [before, others, vec![(0, Call::Checkpoint)]]
        },
        stops: [1..12, 0..1, 0..1],
        times: 1,
    },
    Meeting {
        name: "a removed record is verified while somebody reads it",
        profile: Profile::Fixed,
        story: |values| {
            let mut before = buried(values);
            before.extend([(0, Call::Checkpoint), (0, Call::Delete(0)), (0, Call::Kill)]);
            let others = vec![(1, Call::Tend), (1, Call::Tend)];
            [
                before,
                others,
                vec![(0, Call::Get(0)), (0, Call::Many(vec![0, 1]))],
            ]
        },
        stops: [1..12, 0..1, 0..1],
        times: 1,
    },
    Meeting {
        name: "an iteration comes to a record that is being removed",
        profile: Profile::Fixed,
        story: |values| {
            let mut before = buried(values);
            before.extend([(0, Call::Checkpoint), (0, Call::Kill)]);
            [before, vec![(1, Call::Scan(0))], vec![(0, Call::Delete(0))]]
        },
        stops: [1..20, 0..1, 0..1],
        times: 1,
    },
    Meeting {
        name: "pieces are let go of while their block is being emptied",
        profile: Profile::Variable,
        story: |values| {
            let mut before = vec![(0, put(values, 7, SMALL)), (0, put(values, 4, SMALL))];
            before.extend((0..9).map(|_| (0, put(values, 1, EIGHTH))));
            let others = vec![(1, put(values, 7, SMALL)), (2, Call::Get(1))];
            let last = vec![
                (0, Call::Tend),
                (0, put(values, 2, LONG)),
                (0, put(values, 3, LONG)),
            ];
            [before, others, last]
        },
        stops: [18..34, 0..1, 2..4],
        times: 12,
    },
    Meeting {
        name: "a block is emptied that has the journal of a batch",
        profile: Profile::Batch,
        story: |values| {
            let mut before = vec![(0, put(values, 5, SMALL))];
            before.extend((0..2).map(|_| (0, put(values, 5, WIDE))));
            let parts = (0..3).map(|key| part(values, key, WIDE)).collect();
            let others = vec![(1, Call::Reclaim), (1, put(values, 6, WIDE))];
            [before, others, vec![(0, Call::Batch(parts))]]
        },
        stops: [4..40, 0..1, 0..1],
        times: 1,
    },
    Meeting {
        name: "marks are being fenced when one is set",
        profile: Profile::Batch,
        story: |values| {
            let mut before = vec![(0, put(values, 0, SMALL))];
            before.extend([1, 2, 4, 5, 5, 5].map(|key| (0, put(values, key, WIDE))));
            before.extend([(0, put(values, 6, SMALL)), (0, Call::Delete(6))]);
            let mut others = vec![(1, put(values, 0, SMALL)), (1, Call::Delete(0))];
            others.extend([5, 5, 5].map(|key| (1, put(values, key, WIDE))));
            others.extend([(1, Call::Reclaim), (1, put(values, 5, WIDE))]);
            [before, others, vec![(0, Call::Reclaim)]]
        },
        stops: [3..8, 14..26, 0..1],
        times: 3,
    },
    Meeting {
        name: "blocks wait for a reader while others are chosen",
        profile: Profile::Reclamation,
        story: |values| {
            let mut before = vec![(0, put(values, 0, SMALL))];
            before.extend(round(values));
            let mut others: Calls = (0..2).flat_map(|_| round(values)).collect();
            others.push((1, Call::Delete(0)));
            others.extend((0..3).flat_map(|_| round(values)));
            others.iter_mut().for_each(|(session, _)| *session = 1);
            [before, others, vec![(0, Call::Get(0))]]
        },
        stops: [2..6, 0..1, 0..1],
        times: 4,
    },
];

/// What fills a block and makes garbage of another one, and a round of compaction.
fn round(values: &mut Values) -> Calls {
    let mut calls: Calls = [1, 2, 3].map(|key| (0, put(values, key, WIDE))).into();
    calls.push((0, Call::Tend));
    calls
}

/// Key 0 lies in a block that is full.
fn buried(values: &mut Values) -> Calls {
    let others = (0..28).map(|number| 1 + number % 7);
    let keys = std::iter::once(0).chain(others);
    keys.map(|key| (0, put(values, key, FIXED))).collect()
}
