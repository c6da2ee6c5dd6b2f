//! Few calls that meet: what goes wrong with two or three threads mostly takes hardly more calls than that,
//! and one switch between them at the right event.
//!
//! Each session stops once, somewhere, and now and then one does so twice ([`Manner::Stops`]), in the middle
//! of calls that were drawn, or that follow a pattern in which features of the store meet. What goes wrong
//! shows in an answer, or in what is left when power fails in what follows.

use super::call::{Call, Key, Values};
use super::mix::Mix;
use super::profile::Profile;
use super::weights::Kind;
use super::{Manner, SESSIONS_THAT_STOP, Stops};
use crate::run::process::CLOCK_START;
use rand::RngExt;
use rand::rngs::StdRng;
use std::ops::Range;

/// Calls that are drawn.
const CALLS: Range<usize> = 3..10;
/// Events after which a session stops, at most.
const STOPS: [u32; 4] = [12, 50, 200, 800];
/// In one of so many encounters a session stops twice.
const AGAIN_ONE_IN: u32 = 3;
/// One in so many calls of a pattern is left out, or another one comes before it.
const CHANGED_ONE_IN: u32 = 10;
/// Most of them are of patterns.
const DRAWN_ONE_IN: u32 = 3;

/// Which key a call is of: mostly the same one.
#[derive(Clone, Copy)]
enum Of {
    One,
    Other,
}

use Kind::{
    Add, Batch, Checkpoint, Clear, Delete, Get, Guarded, Leave, Many, Put, RandomKey, Reclaim,
    Scan, Tend, Turn,
};
use Of::{One, Other};

/// What sessions 0, 1 and 2 call.
type Pattern = [&'static [(Kind, Of)]; 3];

/// The first session mostly stops in its first call.
#[rustfmt::skip]
const PATTERNS: [Pattern; 21] = [
    // Marks that are noted, taken and fenced by several, and the tombstone that goes.
    [&[(Put, One), (Put, Other), (Put, Other), (Delete, One), (Reclaim, One), (Put, Other)], &[(Checkpoint, One)], &[]],
    [&[(Put, One), (Delete, One), (Reclaim, One), (Put, Other)], &[(Tend, One), (Checkpoint, One)], &[]],
    [&[(Checkpoint, One)], &[(Delete, One), (Reclaim, One), (Put, Other)], &[]],
    [&[(Checkpoint, One)], &[(Put, One), (Put, Other), (Put, Other), (Delete, One), (Reclaim, One), (Put, Other)], &[]],
    [&[(Reclaim, One), (Put, Other)], &[(Put, One), (Delete, One), (Checkpoint, One), (Put, Other)], &[]],
    [&[(Put, One), (Put, Other), (Put, Other), (Delete, One), (Reclaim, One), (Put, Other)], &[(Delete, Other), (Reclaim, One)], &[]],
    // Who stays in the store while blocks and pieces are let go of and used again.
    [&[(Get, One)], &[(Tend, One), (Put, Other), (Put, Other), (Put, Other)], &[]],
    [&[(Get, One)], &[(Tend, One), (Delete, One), (Tend, One), (Put, Other)], &[(Tend, One), (Put, Other)]],
    [&[(Reclaim, One), (Put, Other)], &[(Put, One), (Put, Other)], &[(Get, One)]],
    [&[(Reclaim, One), (Put, Other)], &[(Put, One), (Get, One)], &[(Put, Other)]],
    [&[(Tend, One), (Put, Other), (Put, Other)], &[(Put, One), (Get, Other)], &[(Put, Other)]],
    // A pool that grows while it is written to its file.
    [&[(Checkpoint, One), (Put, One)], &[(Put, Other), (Put, Other), (Tend, One), (Put, One)], &[(Checkpoint, One)]],
    // Several keys at once, and what becomes of them meanwhile.
    [&[(Many, One)], &[(Batch, One)], &[(Batch, One)]],
    [&[(Scan, One)], &[(Delete, One), (Put, One), (Put, Other)], &[]],
    [&[(Guarded, One)], &[(Put, One), (Clear, One), (Delete, One)], &[(Put, One)]],
    // What a process has just found.
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

/// How sessions meet, and what they call: session and call.
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
    // What session 0 does before anybody else is done alone.
    met.sort_by_key(|(session, _)| *session == 0);
    let past = past.into_iter().map(|call| (0, call));
    (manner, past.chain(met).collect())
}

/// Where they stop once more: in most encounters nobody does.
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
