//! Interleavings written by hand: sessions meet within their calls. Each is run with every event at which the
//! first session may stop.

use super::{FIXED, SMALL, Scenario, WIDE, part, plan, put};
use crate::medium::image::Medium;
use crate::plan::call::{Call, Exec, Reach, Values};
use crate::plan::profile::Profile;
use crate::plan::{Fault, Manner, Stops};
use everdram::EngineKind;
use std::ops::Range;

type Calls = Vec<(u32, Call)>;

struct Interleaving {
    name: &'static str,
    engine: EngineKind,
    profile: Profile,
    /// The calls of session 0 before the others, those of the others, and those of session 0 meanwhile.
    story: fn(&mut Values) -> [Calls; 3],
    /// The events after which each session stops; 0: not at all.
    stops: [Range<u32>; 3],
    /// The events after which it stops again; 0: it does not.
    again: [Range<u32>; 3],
    /// Runs of each. They differ in what is random.
    times: u64,
    /// On files, the syncs that succeed before one fails. Empty: all succeed.
    syncs: Range<u32>,
    /// What it can go wrong on, if that is not every medium.
    medium: Option<Medium>,
}

/// Some records with values of this size fill a block.
const EIGHTH: usize = 90;
/// A value of several blocks.
const LONG: usize = 1400;

/// A value too long for an entry of a log.
const FAR: usize = 3000;
/// A value too long for any pool of the lab.
const TOO_LONG: usize = 180 << 10;

/// Defaults: one run of each, no session stops twice, and nothing fails.
const PLAIN: Interleaving = Interleaving {
    name: "",
    engine: EngineKind::Viper,
    profile: Profile::Threads,
    story: |_| [const { Vec::new() }; 3],
    stops: [const { 0..1 }; 3],
    again: [const { 0..1 }; 3],
    times: 1,
    syncs: 0..0,
    medium: None,
};

/// If there are more runs of the same calls than this, each has few images.
const MANY: u64 = 20;

/// All of them, on one medium.
pub(super) fn all(engine: EngineKind, medium: Medium) -> Vec<Scenario> {
    let mut all = Vec::new();
    let ours = |interleaving: &Interleaving| {
        interleaving.engine == engine && interleaving.medium.is_none_or(|only| only == medium)
    };
    for interleaving in INTERLEAVINGS.into_iter().filter(ours) {
        let again = product(&interleaving.again);
        let all_stops: Vec<Stops> = product(&interleaving.stops)
            .into_iter()
            .flat_map(|first| again.iter().map(move |&again| Stops { first, again }))
            .collect();
        let mut faults: Vec<Fault> = interleaving.syncs.map(Fault::Sync).collect();
        if faults.is_empty() {
            faults.push(Fault::None);
        }
        let count = (all_stops.len() * faults.len()) as u64 * interleaving.times;
        for (stops, fault, time) in all_stops.iter().flat_map(|stops| {
            let times = move |fault| (0..interleaving.times).map(move |time| (stops, fault, time));
            faults.iter().flat_map(times)
        }) {
            let mut plan = plan(engine, medium, interleaving.profile, |values| {
                (interleaving.story)(values).concat()
            });
            (plan.manner, plan.fault) = (Manner::Stops(*stops), *fault);
            plan.seed += 1000 * time;
            if *fault == Fault::None {
                // Which session goes on first when all have stopped is random.
                let events = stops.first.iter().chain(&stops.again);
                plan.seed += events.map(|&events| u64::from(events)).sum::<u64>();
            }
            all.push(Scenario {
                name: interleaving.name.into(),
                plan,
                is_one_of_many: count > MANY,
            });
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

const INTERLEAVINGS: [Interleaving; 36] = [
    Interleaving {
        name: "records leave while the index is copied for a checkpoint",
        engine: EngineKind::Tiered,
        profile: Profile::Tiers,
        story: |values| {
            let before = (0..40)
                .map(|key| (0, put(values, key % 12, WIDE)))
                .collect();
            [before, vec![(1, Call::Tend)], vec![(0, Call::Checkpoint)]]
        },
        // Wide, since what moves the events of a Tend must not move them out of here.
        stops: [5..6, 60..220, 0..1],
        medium: Some(Medium::File),
        ..PLAIN
    },
    Interleaving {
        name: "marks are being fenced when a tombstone goes",
        engine: EngineKind::Viper,
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
        ..PLAIN
    },
    Interleaving {
        name: "full logs have room again once the ledger says so",
        engine: EngineKind::Dstore,
        profile: Profile::Variable,
        story: |values| {
            let mut puts = |session, count: u8| -> Calls {
                let keys = (0..count).map(|number| 1 + number % 5);
                keys.map(|key| (session, put(values, key, 12))).collect()
            };
            // Both logs have no room but for one more entry.
            let (before, others) = (puts(0, 46), puts(1, 12));
            [before, others, vec![(0, Call::Reclaim)]]
        },
        stops: [1..48, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a removed key is being shown when its cell is used again",
        engine: EngineKind::Dstore,
        profile: Profile::Variable,
        story: |values| {
            let mut before: Calls = (1..4).map(|key| (0, put(values, key, 12))).collect();
            // A session begins where the last one has freed something.
            before.push((0, Call::Leave));
            let mut others = (1..4).map(|key| (1, Call::Delete(key))).collect::<Calls>();
            others.push((1, Call::Leave));
            others.extend([5, 4, 6].map(|key| (1, put(values, key, 14))));
            [before, others, vec![(0, Call::Scan(0))]]
        },
        stops: [1..12, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "keys are read while a batch of them is published",
        engine: EngineKind::Dstore,
        profile: Profile::Batch,
        story: read_while_published,
        stops: [1..60, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a slot has had several objects since the last checkpoint",
        engine: EngineKind::Dstore,
        profile: Profile::Variable,
        story: |values| {
            let before = vec![(0, put(values, 0, 12)), (0, Call::Leave)];
            let mut others = Calls::new();
            for key in [1, 2, 4, 5] {
                others.extend([(1, put(values, key, 12)), (1, Call::Delete(key))]);
            }
            others.push((1, Call::Leave));
            // The last change has no key.
            others.extend((0..2).map(|_| (1, put(values, 2, 12))));
            [before, others, Vec::new()]
        },
        // How soon it has another one is random.
        times: 12,
        ..PLAIN
    },
    Interleaving {
        name: "a cell changes while it is read, and the change does not survive yet",
        engine: EngineKind::Dstore,
        profile: Profile::Variable,
        story: |values| {
            let before = vec![(0, put(values, 1, 12)), (0, Call::Leave)];
            [
                before,
                vec![(1, put(values, 1, 12))],
                vec![(0, Call::Get(1))],
            ]
        },
        // The reader waits for the writer once, and goes on when that stops again.
        stops: [2..3, 4..14, 0..1],
        again: [0..1, 1..12, 0..1],
        medium: Some(Medium::File),
        ..PLAIN
    },
    Interleaving {
        name: "a key is missed before it survives that everything is removed",
        engine: EngineKind::Dstore,
        profile: Profile::Growth,
        story: |values| {
            let before = [0, 1].map(|key| (0, put(values, key, SMALL))).into();
            let others = [0, 1].map(|key| (1, Call::Get(key))).into();
            [before, others, vec![(0, Call::Clear)]]
        },
        stops: [64..180, 0..1, 0..1],
        medium: Some(Medium::File),
        ..PLAIN
    },
    Interleaving {
        name: "blocks are used again before it survives that everything is removed",
        engine: EngineKind::Dstore,
        profile: Profile::Variable,
        story: |values| {
            // Another session begins where the last one has freed something.
            let before = vec![(0, put(values, 0, LONG)), (0, Call::Leave)];
            let others = vec![(1, Call::Tend), (2, put(values, 1, LONG))];
            [before, others, vec![(0, Call::Clear)]]
        },
        // The first after what it does is seen and before it survives, the second after its sweep.
        stops: [143..149, 40..45, 0..1],
        times: 4,
        medium: Some(Medium::File),
        ..PLAIN
    },
    Interleaving {
        name: "the blocks of a parcel are used again before it survives that its entry is replayed",
        engine: EngineKind::Dstore,
        profile: Profile::Batch,
        story: |values| {
            // The key alone is too long for an entry.
            let before = vec![(0, put(values, 7, SMALL)), (0, Call::Leave)];
            let others = vec![(1, put(values, 1, LONG))];
            [before, others, vec![(0, Call::Reclaim)]]
        },
        stops: [10..50, 0..1, 0..1],
        times: 2,
        medium: Some(Medium::File),
        ..PLAIN
    },
    Interleaving {
        name: "a parcel is logged while a checkpoint ends that has not seen it",
        engine: EngineKind::Dstore,
        profile: Profile::Batch,
        story: |values| {
            let before = vec![(0, put(values, 0, SMALL)), (0, Call::Leave)];
            // The key alone is too long for an entry.
            let others = vec![(1, put(values, 7, SMALL)), (1, Call::Leave)];
            let last = vec![(0, Call::Reclaim), (0, put(values, 2, LONG))];
            [before, others, last]
        },
        stops: [1..30, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a removed record is verified while somebody reads it",
        engine: EngineKind::Viper,
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
        ..PLAIN
    },
    Interleaving {
        name: "an iteration comes to a record that is being removed",
        engine: EngineKind::Viper,
        profile: Profile::Fixed,
        story: |values| {
            let mut before = buried(values);
            before.extend([(0, Call::Checkpoint), (0, Call::Kill)]);
            [before, vec![(1, Call::Scan(0))], vec![(0, Call::Delete(0))]]
        },
        stops: [1..20, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "pieces are let go of while their block is being emptied",
        engine: EngineKind::Viper,
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
        ..PLAIN
    },
    Interleaving {
        name: "a block is emptied that has the journal of a batch",
        engine: EngineKind::Viper,
        profile: Profile::Batch,
        story: |values| {
            let mut before = vec![(0, put(values, 5, SMALL))];
            before.extend((0..2).map(|_| (0, put(values, 5, WIDE))));
            let parts = (0..3).map(|key| part(values, key, WIDE)).collect();
            let others = vec![(1, Call::Reclaim), (1, put(values, 6, WIDE))];
            [before, others, vec![(0, Call::Batch(parts))]]
        },
        stops: [4..40, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "marks are being fenced when one is set",
        engine: EngineKind::Viper,
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
        ..PLAIN
    },
    Interleaving {
        name: "blocks wait for a reader while others are chosen",
        engine: EngineKind::Viper,
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
        ..PLAIN
    },
    Interleaving {
        name: "a block becomes full and is emptied while blocks are listed",
        engine: EngineKind::Viper,
        profile: Profile::Reclamation,
        story: |values| {
            let before = vec![(0, put(values, 4, WIDE))];
            let mut first = vec![(0, Call::Get(4)), (0, put(values, 0, SMALL))];
            // Two more blocks of which half is garbage: the moved records fill a block, too.
            first.extend([4, 5, 4, 6, 4, 4].map(|key| (0, put(values, key, WIDE))));
            first.extend([(0, Call::Tend), (0, put(values, 1, SMALL))]);
            let others = vec![
                (1, Call::Checkpoint),
                (2, Call::Get(4)),
                (2, Call::Delete(0)),
            ];
            [before, others, first]
        },
        stops: [1..3, 1..3, 1..3],
        times: 20,
        ..PLAIN
    },
    Interleaving {
        name: "everything is removed while a long key is being gleaned",
        engine: EngineKind::Bullet,
        profile: Profile::Reclamation,
        story: |values| {
            let long = |values: &mut Values| put(values, 7, WIDE);
            let before = vec![(0, long(values))];
            let first = vec![(1, long(values)), (1, Call::Reclaim)];
            let mut others = vec![(2, Call::Clear), (2, Call::Tend)];
            others.extend((0..2).map(|_| (2, long(values))));
            others.push((2, Call::Reclaim));
            [before, first, others]
        },
        stops: [0..1, 8..32, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a sync fails while a pool grows",
        engine: EngineKind::Bullet,
        profile: Profile::Growth,
        story: |values| {
            let before = (0..14).map(|key| (0, put(values, key, WIDE))).collect();
            let others = vec![(1, Call::Checkpoint)];
            [before, others, vec![(0, put(values, 14, WIDE))]]
        },
        // Between the write of a copy of the superblock and its sync. The seed decides what comes before.
        stops: [340..350, 0..1, 0..1],
        times: 2,
        // The first sync is of the growing pool, the next two are of logs.
        syncs: 3..4,
        medium: Some(Medium::File),
        ..PLAIN
    },
    Interleaving {
        name: "two words of a value are edited while it is read",
        engine: EngineKind::Viper,
        profile: Profile::Fixed,
        story: |values| {
            let mut before = buried(values);
            before.push((0, Call::Add(0, 4)));
            let others = vec![(1, Call::Add(0, 4)), (1, Call::Add(0, 2))];
            [before, others, vec![(0, Call::Get(0))]]
        },
        stops: [1..12, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a block is emptied and used again while a commit marks in it",
        profile: Profile::Batch,
        story: |values| {
            // Another record will lie across the place of key 0.
            let mut before = vec![(0, put(values, 1, SMALL)), (0, put(values, 0, SMALL))];
            before.extend([1, 2, 4, 1, 2, 4].map(|key| (0, put(values, key, WIDE))));
            let parts = vec![(0, None), part(values, 5, SMALL)];
            let mut others = vec![(1, Call::Reclaim)];
            others.extend([6, 6].map(|key| (1, put(values, key, WIDE))));
            others.push((1, Call::Get(0)));
            [before, others, vec![(0, Call::Pipeline(parts))]]
        },
        stops: [1..30, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "the index grows twice while somebody goes through it",
        profile: Profile::Growth,
        story: |values| {
            let before = (0..8).map(|key| (0, put(values, key, SMALL))).collect();
            let others = (8..12).map(|key| (1, put(values, key, SMALL))).collect();
            [before, others, vec![(0, Call::Scan(0))]]
        },
        stops: [1..12, 0..1, 0..1],
        times: 10,
        ..PLAIN
    },
    Interleaving {
        name: "a watched value is edited in place, and its block emptied",
        profile: Profile::Fixed,
        story: |values| {
            let before = buried(values);
            let others = vec![(1, Call::Add(0, 4)), (1, Call::Reclaim)];
            let guarded = Call::Guarded(0, values.make(FIXED, 0), 0);
            [before, others, vec![(0, guarded)]]
        },
        stops: [1..24, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a key is read from the back while it is removed and buried",
        engine: EngineKind::Bullet,
        profile: Profile::Variable,
        story: |values| {
            let before = vec![
                (0, put(values, 1, SMALL)),
                (0, Call::Reclaim),
                (0, Call::Kill),
            ];
            let others = vec![(1, Call::Get(1)), (1, Call::Get(1))];
            [
                before,
                others,
                vec![(0, Call::Delete(1)), (0, Call::Reclaim), (0, Call::Reclaim)],
            ]
        },
        stops: [1..20, 1..12, 0..1],
        times: 2,
        ..PLAIN
    },
    Interleaving {
        name: "an object is freed and its room used again while somebody reads it",
        engine: EngineKind::Bullet,
        profile: Profile::Variable,
        story: |values| {
            let before = vec![(0, put(values, 1, LONG)), (0, Call::Reclaim)];
            let mut others = Calls::new();
            for key in [1, 2, 3] {
                others.extend([(1, put(values, key, LONG)), (1, Call::Reclaim)]);
            }
            [before, others, vec![(0, Call::Get(1))]]
        },
        stops: [1..16, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a transaction removes everything and puts a key again, and somebody iterates",
        profile: Profile::Batch,
        story: cleared_and_put_again,
        stops: [100..200, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a transaction removes everything and puts a key again, and somebody iterates",
        engine: EngineKind::Bullet,
        profile: Profile::Batch,
        story: cleared_and_put_again,
        stops: [70..160, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "everything is removed and a key put again while somebody iterates",
        profile: Profile::Batch,
        story: iterated_while_cleared,
        stops: [1..12, 120..140, 0..1],
        times: 3,
        ..PLAIN
    },
    Interleaving {
        name: "everything is removed and a key put again while somebody iterates",
        engine: EngineKind::Bullet,
        profile: Profile::Batch,
        story: iterated_while_cleared,
        stops: [1..12, 76..92, 0..1],
        times: 3,
        ..PLAIN
    },
    Interleaving {
        name: "a key is read while it is removed and its block emptied",
        profile: Profile::Fixed,
        story: |values| {
            let before = buried(values);
            let mut others = vec![(1, Call::Reclaim)];
            others.extend([1, 2, 3, 4].map(|key| (1, put(values, key, FIXED))));
            others.push((2, Call::Get(0)));
            [before, others, vec![(0, Call::Delete(0))]]
        },
        stops: [1..12, 0..1, 1..16],
        ..PLAIN
    },
    Interleaving {
        name: "keys are read while everything is removed",
        profile: Profile::Growth,
        story: |values| {
            let before = (0..8).map(|key| (0, put(values, key, SMALL))).collect();
            let others = (0..8).chain((0..8).rev());
            let others = others.map(|key| (1, Call::Get(key))).collect();
            [before, others, vec![(0, Call::Clear)]]
        },
        stops: [1..200, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "others write where a batch has been that was refused half-way",
        engine: EngineKind::Bullet,
        profile: Profile::Large,
        story: |values| {
            let before = vec![(0, put(values, 3, SMALL))];
            let others = vec![(1, put(values, 4, FAR)), (1, Call::Get(4))];
            let parts = vec![part(values, 1, FAR), part(values, 2, TOO_LONG)];
            let last = vec![(0, Call::Batch(parts)), (0, put(values, 5, SMALL))];
            [before, others, last]
        },
        stops: [1..60, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "the first key leaves the front while it is read",
        engine: EngineKind::Bullet,
        profile: Profile::Narrow,
        story: |values| {
            let before = vec![(0, put(values, 0, SMALL))];
            let others = vec![(1, Call::Get(0))];
            let mut last = vec![(0, Call::Reclaim), (0, Call::Tend)];
            last.extend([1, 2].map(|key| (0, put(values, key, SMALL))));
            last.push((0, Call::Tend));
            [before, others, last]
        },
        stops: [30..56, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "keys are read while a batch of them is published",
        engine: EngineKind::Bullet,
        profile: Profile::Batch,
        story: read_while_published,
        stops: [1..40, 0..1, 0..1],
        ..PLAIN
    },
    Interleaving {
        name: "a block is opened for edits while somebody reads there",
        profile: Profile::Fixed,
        story: |values| {
            let before = buried(values);
            [before, vec![(1, Call::Get(0))], vec![(0, Call::Add(0, 4))]]
        },
        stops: [4..5, 8..10, 0..1],
        again: [6..12, 0..1, 0..1],
        times: 6,
        ..PLAIN
    },
];

/// Two keys that a batch replaces are read one after the other.
fn read_while_published(values: &mut Values) -> [Calls; 3] {
    let before = vec![(0, put(values, 0, SMALL)), (0, put(values, 1, SMALL))];
    let parts = (0..2).map(|key| part(values, key, SMALL)).collect();
    let others = [0, 1, 0].map(|key| (1, Call::Get(key))).into();
    [before, others, vec![(0, Call::Batch(parts))]]
}

/// The last of three keys is there all the time.
fn cleared_and_put_again(values: &mut Values) -> [Calls; 3] {
    let before = [0, 1, 2].map(|key| (0, put(values, key, SMALL)));
    let exec = Exec {
        reads: Vec::new(),
        parts: vec![part(values, 0, SMALL), part(values, 2, SMALL)],
        linger: 0,
        reach: Reach::Cleared,
    };
    let others = vec![(1, Call::Scan(0)), (1, Call::RandomKey)];
    [before.into(), others, vec![(0, Call::Exec(exec))]]
}

/// The other way round: the transaction begins while the iteration is under way.
fn iterated_while_cleared(values: &mut Values) -> [Calls; 3] {
    let [before, _, mut exec] = cleared_and_put_again(values);
    exec.iter_mut().for_each(|(session, _)| *session = 1);
    [before, exec, vec![(0, Call::Scan(0))]]
}

/// Fills a block, makes another one garbage, and does a round of compaction.
fn round(values: &mut Values) -> Calls {
    let mut calls: Calls = [1, 2, 3].map(|key| (0, put(values, key, WIDE))).into();
    calls.push((0, Call::Tend));
    calls
}

/// Puts key 0 into a block, and fills the block.
fn buried(values: &mut Values) -> Calls {
    let others = (0..28).map(|number| 1 + number % 7);
    let keys = std::iter::once(0).chain(others);
    keys.map(|key| (0, put(values, key, FIXED))).collect()
}
