//! The slowest puts, with the paper's delays: of two settings of the engine that take turns.

use super::bed::{Bed, Ground, corpus};
use super::calls::percentile;
use super::{Group, Host, Outcome, Settings};
use crate::everdram::Everdram;
use crate::latency::Latencies;
use crate::limits::data::BLOCK_BYTES;
use crate::pace::Timing;
use crate::subject::Error;
use crate::workload::Workload;
use everdram::options::DstoreSystem;

/// Bytes of a log that is full again and again.
const SMALL_LOG_BYTES: u64 = 1 << 20;
/// Bytes that a put of 4 KiB appends, and puts a second, both more than there are.
const LOGGED_BYTES: f64 = 256.0;
const PUTS_A_SECOND: f64 = 200_000.0;
const QUANTILE: f64 = 0.9999;

/// A setting of the engine.
struct Side<'a> {
    name: &'static str,
    set: &'a dyn Fn(&mut Everdram),
    /// Whether checkpoints are to run meanwhile.
    has_checkpoints: bool,
}

impl<'a> Side<'a> {
    fn new(name: &'static str, set: &'a dyn Fn(&mut Everdram), has_checkpoints: bool) -> Side<'a> {
        Side {
            name,
            set,
            has_checkpoints,
        }
    }
}

pub(super) fn checkpoints(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let never = |opener: &mut Everdram| no_checkpoint(settings, opener);
    let sides = [
        Side::new("with checkpoints", &small_logs, true),
        Side::new("without", &never, false),
    ];
    compare(
        (settings, Group::Checkpoints),
        host,
        outcome,
        sides,
        (0.0, Some(1.2)),
    )
}

pub(super) fn systems(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let copying = |opener: &mut Everdram| {
        small_logs(opener);
        opener.dstore.system = DstoreSystem::Cow;
    };
    let sides = [
        Side::new("cow", &copying, true),
        Side::new("+oe", &small_logs, true),
    ];
    compare((settings, Group::Cow), host, outcome, sides, (3.0, None))
}

fn small_logs(opener: &mut Everdram) {
    opener.dstore.log_bytes = SMALL_LOG_BYTES;
}

/// Logs that no measurement fills to the half: a session writes one log as long as it is free.
pub(super) fn no_checkpoint(settings: &Settings, opener: &mut Everdram) {
    let seconds = settings.seconds * (settings.repeat + 1) as f64;
    let needed = 2.0 * seconds * PUTS_A_SECOND * LOGGED_BYTES;
    opener.dstore.logs = 2;
    opener.dstore.log_bytes = (needed as u64)
        .next_multiple_of(1 << 20)
        .clamp(16 << 20, 1 << 30);
}

/// The slowest puts of the first against those of the second.
fn compare(
    (settings, group): (&Settings, Group),
    host: &mut dyn Host,
    outcome: &mut Outcome,
    sides: [Side<'_>; 2],
    bounds: (f64, Option<f64>),
) -> Result<(), Error> {
    let ground = Ground::Modelled;
    let corpus = corpus(settings, BLOCK_BYTES);
    let records = ground.records(settings, BLOCK_BYTES, 2)?;
    let how = (1, Timing::Closed);
    let mut beds = Vec::new();
    for side in &sides {
        host.begin(group, side.name);
        let mut bed = Bed::filled((settings, group), ground, (&corpus, records), side.set)?;
        bed.store()?.checkpoint()?;
        let mut script = bed.script(Workload::Overwrite, 1);
        let operations = bed.warm_up(&mut script, how)?;
        beds.push((bed, script, operations, side));
    }
    let mut taken = [Latencies::default(), Latencies::default()];
    let mut is_as_wanted = true;
    for _ in 0..settings.repeat {
        for ((bed, script, operations, side), taken) in beds.iter_mut().zip(&mut taken) {
            let before = bed.count("checkpoints")?;
            let passed = bed.pass(script, *operations, how, outcome)?;
            passed.latencies.iter().for_each(|more| taken.add(more));
            is_as_wanted &= (bed.count("checkpoints")? > before) == side.has_checkpoints;
        }
    }
    let [one, other] = sides.map(|side| side.name);
    let what = format!("put, 4 KiB, {}, {one} against {other}", ground.name());
    let mut bar = percentile(
        (group, &what),
        &taken[0],
        (other, &taken[1]),
        QUANTILE,
        bounds,
    );
    if !is_as_wanted {
        bar.holds = None;
        let why = "checkpoints did not run where they should, or ran where they should not; take more --seconds";
        outcome.skipped.push((group, why.into()));
    }
    outcome.bars.push(bar);
    Ok(())
}
