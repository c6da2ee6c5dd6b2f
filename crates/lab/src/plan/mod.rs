//! A plan: everything that decides a run, so that the run can be repeated.

pub mod call;
pub mod fault;
pub mod found;
pub(super) mod interleaving;
pub(super) mod mix;
pub mod profile;
pub mod scenario;
pub mod text;
pub(super) mod weights;
pub(super) mod words;

use crate::medium::image::Medium;
use call::{Call, Values};
use everdram::EngineKind;
use mix::Mix;
use profile::Profile;
use rand::RngExt;
use rand::rngs::StdRng;

/// Milliseconds that the clock of a workload starts with.
pub const CLOCK_START: u64 = 1_000_000;

/// See the module text.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The engine.
    pub engine: EngineKind,
    /// The medium of the pool.
    pub medium: Medium,
    /// The kind of workload.
    pub profile: Profile,
    /// How sessions take turns.
    pub manner: Manner,
    /// Decides keys, values, secrets and schedules.
    pub seed: u64,
    /// Session and call. With threads, only the order within a session counts.
    pub calls: Vec<(u32, Call)>,
    /// The values that calls name.
    pub values: Values,
    /// The fault of the medium or the process.
    pub fault: Fault,
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// One after the other. Background work is done when a call asks for it.
    #[default]
    Turns,
    /// Sessions run at the same time, and background jobs beside them.
    Threads {
        /// Bit i: whether job i runs.
        jobs: u8,
    },
    /// Session 0 runs alone until the first call of another session. From there on they run at the same time,
    /// without jobs. Each session stops until those after it cannot go on.
    Stops(Stops),
}

/// Where each session stops, by session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// After so many events; 0: not at all.
    pub first: [u32; SESSIONS_THAT_STOP],
    /// After so many more events; 0: not again.
    pub again: [u32; SESSIONS_THAT_STOP],
}

impl Manner {
    /// Whether sessions are threads.
    #[must_use]
    pub fn is_threaded(self) -> bool {
        self != Manner::Turns
    }
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// One sync fails after so many that succeed. The process is started again, and finds in the page cache
    /// what the disk may not have.
    Sync(u32),
    /// The process dies after so many events: on files writes, syncs and changes of the directory, on memory
    /// stores, flushes and fences. The next process finds in caches what the medium may not have.
    Kill(u32),
    /// Power fails after so many events and leaves the image of this number; see [`crate::medium::outage`].
    /// The next process goes on with that.
    Outage(u32, u32),
    /// The disk is full after so many bytes.
    Room(u64),
    /// The disk is full after so many bytes, and has room again after it has refused so many calls.
    Full(u64, u32),
}

/// Most sessions under [`Manner::Stops`].
pub const SESSIONS_THAT_STOP: usize = 3;
/// About one in so many runs has a fault of each kind.
const FAULT_ONE_IN: u32 = 6;
/// Runs of fewer calls may be on a store that was filled before.
const BRIEF: usize = 20;

impl Plan {
    /// Sessions that it may have.
    #[must_use]
    pub fn sessions(&self) -> usize {
        match self.manner {
            Manner::Stops(..) => SESSIONS_THAT_STOP,
            _ => self.profile.sessions(),
        }
    }

    /// Draws `count` calls, the same for every engine, and for a brief run those that fill the store before.
    #[must_use]
    pub fn draw(
        engine: EngineKind,
        medium: Medium,
        profile: Profile,
        seed: u64,
        count: usize,
    ) -> Plan {
        let mut random = profile::random(seed, 1);
        let mut values = Values::default();
        let mix = Mix::draw(profile, count, &mut random);
        let manner = profile.manner(seed);
        let calls = in_a_row(&mix, (manner, count), &mut random, &mut values);
        let fault = fault((medium, manner), FAULT_ONE_IN, &mut random);
        Plan {
            engine,
            medium,
            profile,
            manner,
            seed,
            calls,
            values,
            fault,
        }
    }

    /// Draws an interleaving: few calls within which sessions stop for each other, after those that fill the
    /// store.
    #[must_use]
    pub fn interleaving(engine: EngineKind, medium: Medium, profile: Profile, seed: u64) -> Plan {
        let mut random = profile::random(seed, 1);
        let mut values = Values::default();
        let mix = Mix::draw(profile, BRIEF, &mut random);
        let (mut manner, calls) = interleaving::draw(&mix, &mut random, &mut values);
        if let Manner::Stops(stops) = &mut manner {
            stops.again = interleaving::draw_again(&mut profile::random(seed, 8));
        }
        // Mostly a crash that ends the run is enough.
        let fault = fault((medium, manner), 2 * FAULT_ONE_IN, &mut random);
        Plan {
            engine,
            medium,
            profile,
            manner,
            seed,
            calls,
            values,
            fault,
        }
    }
}

/// Draws a fault: each kind in one of so many runs, and mostly none.
fn fault((medium, manner): (Medium, Manner), one_in: u32, random: &mut StdRng) -> Fault {
    // Events of a run, and syncs among them. Background jobs make more; an interleaving has few.
    let (events, syncs) = match manner {
        Manner::Turns => (200, 80),
        Manner::Threads { .. } => (600, 240),
        Manner::Stops(..) => (40, 16),
    };
    let mut after = |events: u32| random.random_range(events / 50..events);
    let (of_disk, of_memory, sync) = (after(events), after(3 * events), after(syncs));
    let (kind, lasting) = (random.random_range(0..one_in), random.random());
    let mut full = |bytes| Fault::Full(random.random_range(bytes), random.random_range(1..8));
    match (medium, kind) {
        (Medium::File, 0 | 3) => Fault::Sync(sync),
        (Medium::File, 1) if lasting => Fault::Room(random.random_range(80_000..260_000)),
        (Medium::File, 1) => full(80_000..260_000),
        (Medium::File, 2) => Fault::Kill(of_disk),
        (Medium::Pmem, 0..3) => Fault::Kill(of_memory),
        (Medium::Pmem, 3..5) => Fault::Outage(of_memory, random.random()),
        (Medium::File, 4) => Fault::Outage(of_disk, random.random()),
        // Of a store with a tier below.
        (Medium::Pmem, 5) => full(2_000..40_000),
        _ => Fault::None,
    }
}

/// So many calls of random sessions, after those that fill the store.
fn in_a_row(
    mix: &Mix,
    (manner, count): (Manner, usize),
    random: &mut StdRng,
    values: &mut Values,
) -> Vec<(u32, Call)> {
    let mut now = CLOCK_START;
    // In every other run of threads the last session only reads.
    let looks = manner != Manner::Turns && random.random::<bool>();
    let looker = looks.then_some(mix.profile.sessions() - 1);
    let past = match (1..BRIEF).contains(&count) && random.random::<bool>() {
        true => mix.past(random, values),
        false => Vec::new(),
    };
    let past = past.into_iter().map(|call| (0, call));
    let calls = (0..count).map(|_| {
        let session = random.random_range(0..mix.profile.sessions());
        let call = match looker == Some(session) {
            true => mix.look(random),
            false => mix.call(random, values, now),
        };
        if let Call::Advance(by) = call {
            now += by;
        }
        (session as u32, call)
    });
    past.chain(calls).collect()
}
