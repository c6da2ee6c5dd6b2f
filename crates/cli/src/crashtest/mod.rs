//! `everdram crashtest`: does a crash lose an acknowledged write? Each kind of test is a module; a flag
//! selects it.

mod explore;
mod kill;

use crate::Outcome;
use crate::settings::engine;
use everdram::EngineKind;
use rand::RngExt;

/// Look for acknowledged writes that a crash loses.
#[derive(clap::Args)]
#[command(
    group(clap::ArgGroup::new("killing").args(["pool", "expected"]).multiple(true).requires("kill")),
    long_about = "Looks for acknowledged writes that a crash loses.\n\n\
                  Without --kill, the crash lab: workloads run on pools where every store, flush, fence, write and sync \
                  is recorded. For each moment of a run the lab makes the images that a power failure could leave then \
                  (lines evicted early or never, sectors torn, writes reordered between syncs, a sync that fails, a \
                  full disk), recovers each with the real code, compares it with what callers had been told, and uses \
                  it; recoveries are crashed, too. What it finds is made small, explained with the lines of the source \
                  involved, and saved, so that --plan FILE does it again.\n\n\
                  --kill N starts a real server process, loads it from several connections, kills it with SIGKILL at a \
                  random moment (also while it recovers from the kill before), starts it again, reads every key, and so \
                  on, N times. The load mixes SET, GET, DEL, INCR, expiry, MULTI/EXEC and MSET, values from 40 bytes to \
                  1 MiB, and keys that are overwritten all the time; pools are small, so that growth, compaction and \
                  checkpoints happen all the time, too.\n\n\
                  What clients asked for and were told is written to an expected-state file outside the pool before \
                  anybody relies on it. After each start every key is judged by that file:\n  \
                  lost          an acknowledged write is gone, or an older one is there\n  \
                  resurrected   what was deleted, expired or undone by a kill is back\n  \
                  torn          half of a MULTI/EXEC or MSET is there\n  \
                  inconsistent  under load, a reader was shown something older than what was promised before\n\
                  Writes that were under way at the kill may be there or not, but whole. A server that does not come up, \
                  hangs, or ends by itself is a broken promise, too.\n\n\
                  A killed process tests recovery, not the disk: the kernel still holds what the process wrote.\n\n\
                  Examples:\n  \
                  everdram crashtest --budget 10m\n  \
                  everdram crashtest --medium pmem --profile batch,threads --depth 3 --seed 7\n  \
                  everdram crashtest --kill 1000\n  \
                  everdram crashtest --kill 100 --medium emulated --seed 7\n  \
                  everdram crashtest --kill 100 --pool ./p --expected ./p.expected     (and again: it goes on)\n  \
                  everdram crashtest --kill 0 --pool ./p --expected ./p.expected       (only verifies)",
    after_help = "With --kill, after a broken promise the pool and the expected-state file are kept, and the command that makes the same \
                  choices again is printed; the moment of a kill is never the same twice.\n\
                  Exit codes: 0 nothing is wrong; 1 something is, or the test could not run; 2 usage; 3 nothing is, but the time \
                  was too short for every kind of run; 130 interrupted before there was an answer."
)]
pub(crate) struct Arguments {
    /// Kill a loaded server process this many times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    kill: Option<u64>,
    /// pmem, file or both [default: both]; with --kill: file, or emulated, which is emulated persistent
    /// memory on the tmpfs of /dev/shm [default: file]
    #[arg(long)]
    medium: Option<String>,
    /// Engine to test
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// Seed of everything random; without it, a new one each time
    #[arg(long)]
    seed: Option<u64>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    explore_flags: explore::Flags,
    #[command(flatten)]
    kill_flags: kill::Flags,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let seed = arguments.seed;
    let seed = seed.unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    let (engine, json) = (arguments.engine, arguments.json);
    let medium = arguments.medium.as_deref();
    match arguments.kill {
        Some(kills) => {
            let common = kill::Common {
                medium: medium.unwrap_or("file"),
                engine: engine.name(),
                seed,
                json,
            };
            kill::run(kills, &arguments.kill_flags, &common)
        }
        None => {
            let common = explore::Common {
                medium,
                engine,
                seed,
                json,
            };
            explore::run(&arguments.explore_flags, &common)
        }
    }
}
