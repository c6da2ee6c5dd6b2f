//! Interleavings: few calls of two or three sessions that meet in the middle. Most mistakes in concurrency
//! take hardly more calls than that, and one switch of threads at the right event.
//!
//! Each session stops once, at a random event, and sometimes one stops twice ([`Manner::Stops`]). Its calls
//! are random, or follow a pattern in which features of the store meet. Mistakes show in an answer, or in
//! what a later power failure leaves.

use super::call::{Call, Key, Values};
use super::mix::Mix;
use super::profile::Profile;
use super::weights::Kind;
use super::{CLOCK_START, Manner, SESSIONS_THAT_STOP, Stops};
use rand::RngExt;
use rand::rngs::StdRng;
use std::ops::Range;

/// Random calls.
const CALLS: Range<usize> = 3..10;
/// A session stops after at most so many events.
const STOPS: [u32; 4] = [12, 50, 200, 800];
/// In one of so many interleavings a session stops twice.
const AGAIN_ONE_IN: u32 = 3;
/// One in so many calls of a pattern is left out, or another one comes before it.
const CHANGED_ONE_IN: u32 = 10;
/// One in so many has random calls, the others have a pattern.
const DRAWN_ONE_IN: u32 = 3;

/// The key of a call: mostly the same one.
#[derive(Clone, Copy)]
enum Of {
    One,
    Other,
}

use Kind::{
    Add, Batch, Checkpoint, Clear, Delete, Exec, Get, Guarded, Leave, Many, Put, RandomKey,
    Reclaim, Scan, Tend, Turn,
};
use Of::{One, Other};

/// What sessions 0, 1 and 2 call.
type Pattern = [&'static [(Kind, Of)]; 3];

/// The first session mostly stops in its first call.
#[rustfmt::skip]
const PATTERNS: [Pattern; 21] = [
    // Death marks that several sessions note, take and fence, and the tombstone that goes.
    [&[(Put, One), (Put, Other), (Put, Other), (Delete, One), (Reclaim, One), (Put, Other)], &[(Checkpoint, One)], &[]],
    [&[(Put, One), (Delete, One), (Reclaim, One), (Put, Other)], &[(Tend, One), (Checkpoint, One)], &[]],
    [&[(Checkpoint, One)], &[(Delete, One), (Reclaim, One), (Put, Other)], &[]],
    [&[(Checkpoint, One)], &[(Put, One), (Put, Other), (Put, Other), (Delete, One), (Reclaim, One), (Put, Other)], &[]],
    [&[(Reclaim, One), (Put, Other)], &[(Put, One), (Delete, One), (Checkpoint, One), (Put, Other)], &[]],
    [&[(Put, One), (Put, Other), (Put, Other), (Delete, One), (Reclaim, One), (Put, Other)], &[(Delete, Other), (Reclaim, One)], &[]],
    // A reader while blocks and pieces are freed and used again.
    [&[(Get, One)], &[(Tend, One), (Put, Other), (Put, Other), (Put, Other)], &[]],
    [&[(Get, One)], &[(Tend, One), (Delete, One), (Tend, One), (Put, Other)], &[(Tend, One), (Put, Other)]],
    [&[(Reclaim, One), (Put, Other)], &[(Put, One), (Put, Other)], &[(Get, One)]],
    [&[(Reclaim, One), (Put, Other)], &[(Put, One), (Get, One)], &[(Put, Other)]],
    [&[(Tend, One), (Put, Other), (Put, Other)], &[(Put, One), (Get, Other)], &[(Put, Other)]],
    // A pool that grows while it is written to its file.
    [&[(Checkpoint, One), (Put, One)], &[(Put, Other), (Put, Other), (Tend, One), (Put, One)], &[(Checkpoint, One)]],
    // Several keys at once while they change.
    [&[(Many, One)], &[(Batch, One)], &[(Batch, One)]],
    [&[(Scan, One)], &[(Delete, One), (Put, One), (Put, Other)], &[]],
    [&[(Guarded, One)], &[(Put, One), (Clear, One), (Delete, One)], &[(Put, One)]],
    // Keys that a process has just found.
    [&[(Delete, One)], &[(Get, One), (Scan, One), (Many, One)], &[(Tend, One)]],
    [&[(Get, One)], &[(Tend, One), (Put, Other)], &[]],
    [&[(Delete, One)], &[(Scan, One)], &[]],
    [&[(Put, One)], &[(Scan, One), (RandomKey, One)], &[(Tend, One)]],
    [&[(Clear, One)], &[(Put, One), (Checkpoint, One), (Get, One)], &[]],
    [&[(Leave, One), (Put, One)], &[(Delete, One), (Reclaim, One), (Put, Other)], &[]],
];

/// Words that are changed in place.
#[rustfmt::skip]
const EDITS: [Pattern; 4] = [
    [&[(Add, One)], &[(Get, One), (Many, One), (Add, One)], &[]],
    [&[(Add, One)], &[(Get, One)], &[(Put, Other)]],
    [&[(Guarded, One)], &[(Add, One)], &[]],
    [&[(Add, One)], &[(Reclaim, One), (Get, One)], &[]],
];

/// Several writes that become one.
#[rustfmt::skip]
const BATCHES: [Pattern; 3] = [
    [&[(Batch, One)], &[(Reclaim, One), (Put, Other), (Tend, One)], &[]],
    [&[(Batch, One)], &[(Many, One), (Get, One)], &[(Checkpoint, One)]],
    [&[(Batch, One), (Put, One)], &[(Delete, One), (Reclaim, One), (Put, Other)], &[]],
];

/// What an engine gleans from its logs, meanwhile.
#[rustfmt::skip]
const GLEANING: [Pattern; 4] = [
    [&[(Turn, One), (Turn, One)], &[(Put, One), (Get, One), (Delete, One)], &[(Get, One)]],
    [&[(Get, One)], &[(Turn, One), (Delete, One), (Turn, One)], &[(Turn, One)]],
    [&[(Put, One), (Get, One)], &[(Turn, One), (Turn, One)], &[(Many, One)]],
    [&[(Delete, One), (Get, One)], &[(Turn, One), (Checkpoint, One)], &[(Turn, One)]],
];

/// Remote clients, who write, go on late, or leave, between calls for the same keys.
#[rustfmt::skip]
const REMOTE: [Pattern; 8] = [
    [&[(Put, One), (Leave, One), (Put, One)], &[(Get, One), (Delete, One)], &[(Put, One)]],
    [&[(Delete, One)], &[(Put, One), (Leave, One)], &[(Get, One), (Leave, One)]],
    [&[(Batch, One)], &[(Put, One), (Put, Other)], &[(Many, One), (Get, One)]],
    [&[(Exec, One)], &[(Put, One), (Put, Other)], &[(Get, Other), (Get, One)]],
    [&[(Get, One), (Get, One)], &[(Put, One), (Leave, One)], &[(Put, One)]],
    [&[(Many, One)], &[(Put, One), (Put, Other)], &[(Delete, One)]],
    [&[(Leave, One), (Put, One)], &[(Put, One), (Delete, One)], &[(Get, One)]],
    [&[(Put, One), (Get, One)], &[(Put, One), (Get, One)], &[(Delete, One), (Leave, One)]],
];

/// The stops of the sessions, and their calls.
pub(crate) fn draw(
    mix: &Mix,
    random: &mut StdRng,
    values: &mut Values,
) -> (Manner, Vec<(u32, Call)>) {
    let mut stop = |always: bool| match always || random.random::<bool>() {
        true => {
            let most = STOPS[random.random_range(0..STOPS.len())];
            random.random_range(1..=most)
        }
        false => 0,
    };
    let manner = Manner::Stops(Stops {
        first: [stop(true), stop(false), stop(false)],
        ..Stops::default()
    });
    let past = mix.past(random, values);
    let mut met = match random.random_range(0..DRAWN_ONE_IN) {
        0 => drawn(mix, random, values),
        _ => patterned(mix, random, values),
    };
    // The calls of session 0 before the first of others are made alone.
    met.sort_by_key(|(session, _)| *session == 0);
    let past = past.into_iter().map(|call| (0, call));
    (manner, past.chain(met).collect())
}

/// Where sessions stop once more: in most interleavings none does.
pub(crate) fn draw_again(random: &mut StdRng) -> [u32; SESSIONS_THAT_STOP] {
    let mut again = [0; SESSIONS_THAT_STOP];
    if random.random_range(0..AGAIN_ONE_IN) == 0 {
        let most = STOPS[random.random_range(0..STOPS.len())];
        again[random.random_range(0..SESSIONS_THAT_STOP)] = random.random_range(1..=most);
    }
    again
}

fn drawn(mix: &Mix, random: &mut StdRng, values: &mut Values) -> Vec<(u32, Call)> {
    let sessions = random.random_range(2..4);
    let count = random.random_range(CALLS);
    let one = |number: usize| {
        let session = match number {
            0 | 1 => number as u32,
            _ => random.random_range(0..sessions),
        };
        (session, mix.call(random, values, CLOCK_START))
    };
    (0..count).map(one).collect()
}

fn patterned(mix: &Mix, random: &mut StdRng, values: &mut Values) -> Vec<(u32, Call)> {
    let own: &[Pattern] = match mix.profile {
        Profile::Fixed => &EDITS,
        Profile::Batch => &BATCHES,
        Profile::Narrow => &GLEANING,
        Profile::Remote => &REMOTE,
        _ => &PATTERNS,
    };
    let patterns = match random.random::<bool>() {
        true => own,
        false => &PATTERNS[..],
    };
    let pattern = patterns[random.random_range(0..patterns.len())];
    let mut pair: [Key; 2] = mix.pair();
    match random.random_range(0..4) {
        0 => pair.reverse(),
        1 => pair[0] = mix.profile.long_key().unwrap_or(pair[0]),
        _ => {}
    }
    let mut calls = Vec::new();
    for (session, kinds) in (0..).zip(pattern) {
        for &(kind, of) in kinds {
            let change = random.random_range(0..2 * CHANGED_ONE_IN);
            if change == 0 {
                continue;
            }
            if change == 1 {
                calls.push((session, mix.call(random, values, CLOCK_START)));
            }
            let key = match of {
                One => pair[0],
                Other => pair[1],
            };
            calls.push((
                session,
                mix.of_kind(kind, key, (random, values), CLOCK_START),
            ));
        }
    }
    calls
}
