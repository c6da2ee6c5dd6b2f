//! A plan: everything that decides a run, so that it can be run again.

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
use crate::run::process::CLOCK_START;
use call::{Call, Values};
use everdram::EngineKind;
use mix::Mix;
use profile::Profile;
use rand::RngExt;
use rand::rngs::StdRng;

/// A run to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The engine.
    pub engine: EngineKind,
    /// What the pool lies on.
    pub medium: Medium,
    /// The kind of workload.
    pub profile: Profile,
    /// Whether sessions call at the same time.
    pub manner: Manner,
    /// Decides keys, values, secrets, schedules.
    pub seed: u64,
    /// Session and call, in order (of each session, if there are threads).
    pub calls: Vec<(u32, Call)>,
    /// The values that calls name.
    pub values: Values,
    /// What goes wrong with the disk.
    pub fault: Fault,
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// One after the other. The store's own work is done when a call asks for it.
    #[default]
    Turns,
    /// Those of different sessions at the same time, and these jobs of the store beside them: bit i stands
    /// for job i.
    Threads {
        /// Which jobs.
        jobs: u8,
    },
    /// Those of session 0 alone until another session has one. From there on at the same time, without jobs,
    /// where each session stops until those after it have come as far as they can.
    Stops(Stops),
}

/// Where each session stops, by session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// After so many events; 0: not at all.
    pub first: [u32; SESSIONS_THAT_STOP],
    /// After so many events more, when it has gone on; 0: not again.
    pub again: [u32; SESSIONS_THAT_STOP],
}

impl Manner {
    /// Whether sessions are threads.
    #[must_use]
    pub fn is_threaded(self) -> bool {
        self != Manner::Turns
    }
}

/// What goes wrong with a disk in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// One sync fails, after so many that do not; then the process is started again, which finds in the page
    /// cache what the disk may not have.
    Sync(u32),
    /// The process dies before an event, after so many: on files a write, a sync or a change of the
    /// directory, on memory a store, a flush or a fence. The next one finds in caches what the medium may not
    /// have.
    Kill(u32),
    /// Power fails before an event, after so many, and leaves this one of what it can leave; see
    /// [`crate::medium::outage`]. The next process goes on with that.
    Outage(u32, u32),
    /// The disk is full after so many bytes.
    Room(u64),
}

/// Sessions where they stop.
pub const SESSIONS_THAT_STOP: usize = 3;
/// One in so many runs has a fault of each kind, more or less.
const FAULT_ONE_IN: u32 = 6;
/// Runs of fewer calls may have a past.
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

    /// Draws `count` calls, the same ones for every engine, and for a brief run what came before them.
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

    /// Draws an encounter: few calls, in the middle of which sessions stop for each other, and what came
    /// before them.
    #[must_use]
    pub fn interleaving(engine: EngineKind, medium: Medium, profile: Profile, seed: u64) -> Plan {
        let mut random = profile::random(seed, 1);
        let mut values = Values::default();
        let mix = Mix::draw(profile, BRIEF, &mut random);
        let (mut manner, calls) = interleaving::draw(&mix, &mut random, &mut values);
        if let Manner::Stops(stops) = &mut manner {
            stops.again = interleaving::draw_again(&mut profile::random(seed, 8));
        }
        // Mostly it is enough that the power fails in the end.
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

/// What goes wrong with the medium: each kind in so many runs, and mostly nothing.
fn fault((medium, manner): (Medium, Manner), one_in: u32, random: &mut StdRng) -> Fault {
    // Events that a medium hears of, and syncs among them. There are more where jobs run beside the calls,
    // and few in an encounter.
    let (events, syncs) = match manner {
        Manner::Turns => (200, 80),
        Manner::Threads { .. } => (600, 240),
        Manner::Stops(..) => (40, 16),
    };
    let mut after = |events: u32| random.random_range(events / 50..events);
    let (of_disk, of_memory, sync) = (after(events), after(3 * events), after(syncs));
    match (medium, random.random_range(0..one_in)) {
        (Medium::File, 0 | 3) => Fault::Sync(sync),
        (Medium::File, 1) => Fault::Room(random.random_range(80_000..260_000)),
        (Medium::File, 2) => Fault::Kill(of_disk),
        (Medium::Pmem, 0..3) => Fault::Kill(of_memory),
        (Medium::Pmem, 3..5) => Fault::Outage(of_memory, random.random()),
        (Medium::File, 4) => Fault::Outage(of_disk, random.random()),
        _ => Fault::None,
    }
}

/// So many calls, of sessions by chance, and what came before them.
fn in_a_row(
    mix: &Mix,
    (manner, count): (Manner, usize),
    random: &mut StdRng,
    values: &mut Values,
) -> Vec<(u32, Call)> {
    let mut now = CLOCK_START;
    // In every other run of threads the last session only looks.
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
