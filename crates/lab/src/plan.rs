//! A plan: everything that decides a run, so that it can be run again.

use crate::call::{Call, Values};
use crate::image::Medium;
use crate::mix::Mix;
use crate::profile::{self, Profile};
use crate::world::CLOCK_START;
use everdram::EngineKind;
use rand::RngExt;

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
    /// Those of different sessions at the same time, and these jobs of the store beside them: bit i stands for job i.
    Threads {
        /// Which jobs.
        jobs: u8,
    },
}

/// What goes wrong with a disk in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// One sync fails, after so many that do not; then the process is started again, which finds in the page cache
    /// what the disk may not have.
    Sync(u32),
    /// The process dies before an event, after so many: on files a write, a sync or a change of the directory, on
    /// memory a store, a flush or a fence. The next one finds in caches what the medium may not have.
    Kill(u32),
    /// Power fails before an event, after so many, and leaves this one of what it can leave; see [`crate::outage`]. The next process goes on
    /// with that.
    Outage(u32, u32),
    /// The disk is full after so many bytes.
    Room(u64),
}

/// Runs of fewer calls may have a past.
const BRIEF: usize = 20;

impl Plan {
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
        let mut now = CLOCK_START;
        let manner = profile.manner(seed);
        // In every other run of threads the last session only looks.
        let looks = manner != Manner::Turns && random.random::<bool>();
        let looker = looks.then_some(profile.sessions() - 1);
        let mix = Mix::draw(profile, count, &mut random);
        let past = match (1..BRIEF).contains(&count) && random.random::<bool>() {
            true => mix.past(&mut random, &mut values),
            false => Vec::new(),
        };
        let past = past.into_iter().map(|call| (0, call));
        let calls = (0..count).map(|_| {
            let session = random.random_range(0..profile.sessions());
            let call = match looker == Some(session) {
                true => mix.look(&mut random),
                false => mix.call(&mut random, &mut values, now),
            };
            let session = session as u32;
            if let Call::Advance(by) = call {
                now += by;
            }
            (session, call)
        });
        let calls = past.chain(calls).collect();
        // There are more events where jobs run beside the calls.
        let more = match manner {
            Manner::Turns => 1,
            Manner::Threads { .. } => 3,
        };
        let fault = match (medium, random.random_range(0..6)) {
            (Medium::File, 0 | 3) => Fault::Sync(random.random_range(4..80 * more)),
            (Medium::File, 1) => Fault::Room(random.random_range(80_000..260_000)),
            (Medium::File, 2) => Fault::Kill(random.random_range(4..200 * more)),
            (Medium::Pmem, 0..3) => Fault::Kill(random.random_range(10..600 * more)),
            (Medium::Pmem, 3..5) => {
                Fault::Outage(random.random_range(10..600 * more), random.random())
            }
            (Medium::File, 4) => Fault::Outage(random.random_range(4..200 * more), random.random()),
            _ => Fault::None,
        };
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
