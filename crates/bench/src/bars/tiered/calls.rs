//! Single calls against those of `viper`: where everything fits the pool, from the log, and the slowest ones.

use super::bed::{Bed, Ground, Kind};
use super::{Group, Host, Outcome, Settings, ratio};
use crate::bars::dstore::percentile;
use crate::bars::{pass, share};
use crate::fixture::Script;
use crate::latency::Latencies;
use crate::pace::Timing;
use crate::process::Pinned;
use crate::subject::Error;
use crate::timing::{Sample, Spread};
use crate::workload::Workload;
use everdram::options::Promote;

/// Puts of an open loop, at least.
const FIRST: u64 = 20_000;

pub(super) fn fits(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    use Workload::{Delete, Get, GetAbsent, GetMany, Overwrite, Put, PutMany, YcsbA, YcsbB, YcsbC};
    let ground = Ground::usual(settings)?;
    for workload in [Put, PutMany] {
        host.begin(Group::Fits, workload.name());
        let mut taken = [const { Vec::new() }; 2];
        for round in 0..settings.repeat {
            for (kind, taken) in in_turn(round, &mut taken) {
                let mut bed = Bed::filled(&ground, kind, 0, |_| {})?;
                let mut script = bed.script(workload, settings.records);
                taken.push(pass(&mut bed.fixture, &mut script, settings.records)?);
            }
        }
        outcome.bars.push(against_viper(workload, &taken));
    }
    let mut beds = [ground.bed(Kind::Viper)?, ground.bed(Kind::Roomy)?];
    // Removals share the records among them, and come last.
    let share = settings.records / (settings.repeat as u64 + 1);
    for workload in [
        Get, GetAbsent, GetMany, YcsbC, YcsbB, YcsbA, Overwrite, Delete,
    ] {
        host.begin(Group::Fits, workload.name());
        let operations = match workload {
            Delete => settings.operations.min(share),
            _ => settings.operations,
        };
        let mut scripts = Vec::new();
        for bed in &mut beds {
            let mut script = bed.script(workload, settings.records);
            pass(&mut bed.fixture, &mut script, (operations / 10).max(1))?;
            scripts.push(script);
        }
        let mut taken = [const { Vec::new() }; 2];
        for round in 0..settings.repeat {
            for (kind, taken) in in_turn(round, &mut taken) {
                let at = usize::from(kind != Kind::Viper);
                taken.push(pass(
                    &mut beds[at].fixture,
                    &mut scripts[at],
                    operations.max(1),
                )?);
            }
        }
        outcome.bars.push(against_viper(workload, &taken));
    }
    if beds[1].count("evicted_records")? > 0 {
        let why = "records left a pool that has room for all of them";
        outcome.skipped.push((Group::Fits, why.into()));
    }
    Ok(())
}

/// `viper` and `tiered` in turns; who is first changes from round to round.
fn in_turn<T>(round: usize, taken: &mut [T; 2]) -> [(Kind, &mut T); 2] {
    let [viper, tiered] = taken;
    let mut both = [(Kind::Viper, viper), (Kind::Roomy, tiered)];
    if round % 2 == 1 {
        both.reverse();
    }
    both
}

fn against_viper(workload: Workload, taken: &[Vec<Sample>; 2]) -> crate::verdict::Verdict {
    let [viper, tiered] = taken;
    let says = format!("{workload}, all in the pool");
    share(Group::Fits.name(), &says, tiered, ("viper", viper), 0.95)
}

pub(super) fn below(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    host.begin(Group::Below, "filling");
    let ground = Ground::usual(settings)?;
    let viper = ground.bed(Kind::Viper)?;
    let tiered = Bed::filled(&ground, Kind::Tight, ground.records, |opener| {
        opener.tiered.promote = Promote::Update;
    })?;
    tiered.rest()?;
    // Records left in the order in which they were put: the first half of them is in the log.
    let records = ground.records / 2;
    let mut beds = [viper, tiered];
    for (workload, most) in [(Workload::Get, Some(4.0)), (Workload::GetMany, None)] {
        host.begin(Group::Below, workload.name());
        let mut taken = [const { Vec::new() }; 2];
        let mut scripts: Vec<Script> = beds
            .iter()
            .map(|bed| bed.script(workload, records))
            .collect();
        for (bed, script) in beds.iter_mut().zip(&mut scripts) {
            pass(&mut bed.fixture, script, settings.operations / 10)?;
        }
        let before = beds[1].count("tier2_reads")?;
        for _ in 0..settings.repeat {
            for ((bed, script), taken) in beds.iter_mut().zip(&mut scripts).zip(&mut taken) {
                taken.push(pass(&mut bed.fixture, script, settings.operations)?);
            }
        }
        let reads = beds[1].count("tier2_reads")? - before;
        let gets: u64 = taken[1].iter().map(|sample| sample.operations).sum();
        let [viper, tiered] = taken.map(|taken| {
            let middle = |of: fn(&Sample) -> f64| Spread::of(taken.iter().map(of)).median / 1e3;
            (middle(Sample::cpu_ns), middle(Sample::wall_ns))
        });
        let says = format!("{workload} from the log, in the page cache, processor time");
        let (one, other) = ((tiered.0, "us"), (viper.0, "viper"));
        let mut bar = ratio((Group::Below, &says), one, other, (0.0, most));
        bar.measured[0].by_clock = Some(tiered.1 / viper.1);
        if reads < gets {
            bar.holds = None;
            let why = format!("{reads} of {gets} gets were from the log");
            outcome.skipped.push((Group::Below, why));
        }
        outcome.bars.push(bar);
    }
    Ok(())
}

pub(super) fn tail(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let ground = Ground::usual(settings)?;
    let mut rate = None;
    let mut is_as_wanted = true;
    let mut taken = [Latencies::default(), Latencies::default()];
    for _ in 0..settings.repeat {
        // One store at a time: what the other does in the background would disturb.
        for (kind, taken) in [Kind::Tight, Kind::Growing].into_iter().zip(&mut taken) {
            host.begin(Group::Tail, "filling");
            // The thread that asks has a core of its own, and the store's threads have the others. Of two
            // cores Linux gives such a thread the asker's, for 4 to 14 ms, while the other one is idle.
            let others = Pinned::off_the_first();
            let is_alone = others.is_some();
            let mut bed = ground.bed(kind)?;
            let mut script = bed.script(Workload::Overwrite, ground.records);
            host.begin(Group::Tail, "closed loop");
            let mut closed = 0.0;
            // Only in the second round does the log have garbage that is cleaned, as in the open loop.
            for _ in 0..2 {
                let steps = script.write(ground.records);
                let how = (1, Timing::Throughput, is_alone);
                closed = bed.fixture.pass(&steps, how)?.sample.rate();
            }
            // The same load for both: half of what the first one can do.
            let rate = *rate.get_or_insert(closed / 2.0);
            let before = bed.fixture.subject.own("evicted_records");
            host.begin(Group::Tail, "open loop");
            let operations = (rate * settings.seconds) as u64;
            let steps = script.write(operations.max(FIRST));
            let passed = bed
                .fixture
                .pass(&steps, (1, Timing::Open(rate), is_alone))?;
            passed.latencies.iter().for_each(|more| taken.add(more));
            let after = bed.fixture.subject.own("evicted_records");
            is_as_wanted &= (after > before) == (kind == Kind::Tight);
        }
    }
    let rate = rate.unwrap_or_default() / 1e3;
    let what = format!("put, open loop, {rate:.0} k/s");
    for (quantile, most) in [(0.5, None), (0.99, None), (0.999, Some(2.0))] {
        let (what, others) = ((Group::Tail, &*what), ("viper", &taken[1]));
        let bar = percentile(what, &taken[0], others, quantile, (0.0, most));
        outcome.bars.push(bar);
    }
    if !is_as_wanted {
        let why = "no record left the pool meanwhile; take more --seconds";
        outcome.skipped.push((Group::Tail, why.into()));
    }
    Ok(())
}
