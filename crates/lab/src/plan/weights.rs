//! How often each call is made: one table, a column for each profile.
//!
//! Every call comes in every profile, because most mistakes are where two features meet. A profile is a shape
//! of the pool, and calls that are frequent there.

use super::profile::Profile;
use rand::RngExt;
use rand::rngs::StdRng;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get,
    Delete,
    Swap,
    Take,
    Append,
    Add,
    Many,
    Probe,
    Scan,
    RandomKey,
    Guarded,
    Exec,
    Batch,
    Pipeline,
    Slow,
    Clear,
    Tend,
    Turn,
    Reclaim,
    Checkpoint,
    Advance,
    Kill,
    Reopen,
    Leave,
}

/// In the order of [`Profile::ALL`]: threads, fixed, variable, large, batch, expiry, reclamation, growth,
/// narrow, order, objects, tiers, remote.
#[rustfmt::skip]
const WEIGHTS: [(Kind, [u16; 13]); 25] = [
    //                  threads  fixed  variable  large  batch  expiry  reclamation  growth  narrow  order  objects  tiers  remote
    (Kind::Put,        [    400,   400,      400,   400,   360,    360,         420,    480,    360,   360,      200,    420,     480]),
    (Kind::Get,        [     80,    50,       50,    50,    40,     50,          40,     40,     50,    50,      120,    120,      90]),
    (Kind::Delete,     [    140,   100,      120,   110,   100,    110,         140,     60,    110,   160,       90,    160,     140]),
    (Kind::Swap,       [     30,    30,       40,    40,    30,     30,          40,     30,     40,    40,       20,     40,      30]),
    (Kind::Take,       [     20,    10,       15,    15,    10,     15,          15,     10,     10,    15,       15,     15,      20]),
    (Kind::Append,     [     15,    10,       25,    25,    10,     15,          15,     15,     10,    25,      420,     25,      15]),
    (Kind::Add,        [     20,   140,       15,    10,    10,     10,          10,     10,     20,    15,       40,     15,      10]),
    (Kind::Many,       [     30,    15,       15,    15,    25,     20,          10,     10,     15,    15,       15,     15,      40]),
    (Kind::Probe,      [     10,    10,       10,    10,    10,     15,          10,     10,     10,    10,       15,     10,      15]),
    (Kind::Scan,       [     30,    20,       20,    25,    20,     25,          25,     15,     15,   240,       15,     20,      25]),
    (Kind::RandomKey,  [     10,     8,        8,     8,     8,      8,           8,      8,      8,      8,        4,      8,       8]),
    (Kind::Guarded,    [     20,    10,       10,    10,    15,     10,          10,     10,     10,    10,       10,     10,      20]),
    (Kind::Exec,       [     30,    15,       15,    20,    60,     20,          15,     15,     15,    15,       15,     15,      40]),
    (Kind::Batch,      [     40,    15,       15,    20,   120,     15,          15,     15,     40,    15,       20,     15,      40]),
    (Kind::Pipeline,   [     25,    40,       40,    20,    60,     20,          25,     25,     20,    40,       25,     40,      25]),
    (Kind::Slow,       [     15,    15,       15,    15,    20,     10,          15,     15,     10,    15,       15,     15,      15]),
    (Kind::Clear,      [      4,     4,        4,     4,    20,      4,           4,      2,      4,      4,        4,      4,      10]),
    (Kind::Tend,       [     15,    20,       20,    20,    20,     80,          30,     20,     25,    20,       20,     60,      15]),
    (Kind::Turn,       [      5,     2,        2,     2,     2,      2,           2,      2,    150,      2,        2,      2,       2]),
    (Kind::Reclaim,    [     20,    20,       20,    25,    20,     20,          80,     15,     45,    20,       20,     40,      30]),
    (Kind::Checkpoint, [     15,    25,       25,    25,    25,     25,          25,     20,     20,    25,       25,     25,      10]),
    (Kind::Advance,    [      4,     4,        4,     4,     4,    100,           4,      4,      4,      4,        4,     12,       6]),
    (Kind::Kill,       [      6,    14,       14,    14,    14,     14,          14,     14,     14,    14,       14,     14,      20]),
    (Kind::Reopen,     [      6,    14,       14,    14,    14,     14,          14,     14,     14,    14,       14,     14,      14]),
    (Kind::Leave,      [     10,    14,       14,    14,    14,     14,          14,     14,     14,    14,       14,     14,     200]),
];

/// Kinds of calls, and their relative frequency.
pub(crate) type Weights = [(Kind, u16); WEIGHTS.len()];

/// Those of a profile.
pub(crate) fn of(profile: Profile) -> Weights {
    WEIGHTS.map(|(kind, weights)| (kind, weights[profile as usize]))
}

/// One of them.
pub(crate) fn draw(weights: &Weights, random: &mut StdRng) -> Kind {
    let all = weights.iter().map(|(_, weight)| weight).sum();
    let mut pick: u16 = random.random_range(0..all);
    for &(kind, weight) in weights {
        match pick.checked_sub(weight) {
            None => return kind,
            Some(left) => pick = left,
        }
    }
    Kind::Put
}
