//! Operations as shares of the bare loop that does the same: the two take turns, repetition by repetition.

use super::{Group, Host, Outcome, Settings, Stores, USUAL, cpu_rate, pass, records_of, share};
use crate::fixture::Fixture;
use crate::limits::{self, Chain, Chains, Kind, Records};
use crate::subject::Error;
use crate::timing::Sample;
use crate::workload::Workload;

/// One record durably, through the cache and flushed: the form that the shares of Viper's own code were taken
/// of. Where streaming stores are much quicker, `bench limits` shows how much.
const PUT: &[Kind] = &[Kind::PutFlushed];
const GET: &[Kind] = &[Kind::Get];
const UPDATE: &[Kind] = &[Kind::UpdateWord];
const BATCH_PUT: &[Kind] = &[Kind::BatchPacked, Kind::BatchPadded];
const BATCH_GET: &[Kind] = &[Kind::MultiGet];

/// An operation and the share of a limit that it has to reach.
#[derive(Clone, Copy)]
struct Goal {
    group: Group,
    workload: Workload,
    limit: &'static [Kind],
    share: f64,
    /// The chain that does the same one call after another, and the share of it.
    chain: Option<(Chain, f64)>,
}

const fn goal(group: Group, workload: Workload, limit: &'static [Kind], share: f64) -> Goal {
    Goal {
        group,
        workload,
        limit,
        share,
        chain: None,
    }
}

impl Goal {
    const fn chained(self, chain: Chain, share: f64) -> Goal {
        Goal {
            chain: Some((chain, share)),
            ..self
        }
    }
}

/// Into an empty store each time.
const FILLING: [Goal; 2] = [
    goal(Group::Batch, Workload::PutMany, BATCH_PUT, 0.40),
    goal(Group::Put, Workload::Put, PUT, 0.80),
];

/// On a store that holds the records; removals come last.
const FILLED: [Goal; 9] = [
    goal(Group::Get, Workload::Get, GET, 0.70).chained(Chain::Get, 0.90),
    goal(Group::Absent, Workload::GetAbsent, GET, 1.10),
    goal(Group::Batch, Workload::GetMany, BATCH_GET, 0.80),
    goal(Group::Ycsb, Workload::YcsbC, GET, 0.75),
    goal(Group::Ycsb, Workload::YcsbB, GET, 0.65),
    goal(Group::Ycsb, Workload::YcsbA, GET, 0.42),
    goal(Group::Update, Workload::UpdateWord, UPDATE, 0.85).chained(Chain::Update, 0.80),
    goal(Group::Overwrite, Workload::Overwrite, PUT, 0.65).chained(Chain::Overwrite, 0.80),
    goal(Group::Delete, Workload::Delete, UPDATE, 0.70).chained(Chain::Delete, 0.80),
];

/// Other sizes, and the share that put and get have to reach.
const OTHER_SIZES: [(usize, usize); 2] = [(8, 8), (100, 900)];
const OTHER_SHARE: f64 = 0.75;

pub(super) fn measure(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let wanted: Vec<Goal> = FILLING
        .into_iter()
        .chain(FILLED)
        .filter(|goal| settings.has(goal.group))
        .collect();
    if !wanted.is_empty() {
        let mut bare = Bare::new(settings, USUAL, settings.records)?;
        if wanted.iter().any(|goal| goal.chain.is_some()) {
            bare.chains = Some(Chains::new(&bare.settings)?);
        }
        for fixed in [false, true] {
            let stores = Stores::new(settings, USUAL, fixed, settings.records);
            let pages = if fixed { ", fixed" } else { "" };
            // Words change in place only where records have a fixed size.
            let can = |goal: &&Goal| fixed || goal.workload != Workload::UpdateWord;
            let goals: Vec<&Goal> = wanted.iter().filter(can).collect();
            measure_goals(&stores, &mut bare, &goals, pages, host, outcome)?;
        }
    }
    if settings.has(Group::Sizes) {
        let [put, get] = [(Workload::Put, PUT), (Workload::Get, GET)]
            .map(|(workload, limit)| goal(Group::Sizes, workload, limit, OTHER_SHARE));
        for sizes in OTHER_SIZES {
            let records = records_of(settings, sizes);
            let stores = Stores::new(settings, sizes, false, records);
            let mut bare = Bare::new(settings, sizes, records)?;
            let name = format!(", {}/{} B", sizes.0, sizes.1);
            measure_goals(&stores, &mut bare, &[&put, &get], &name, host, outcome)?;
        }
    }
    Ok(())
}

/// Bare pools and indexes for limits, of the same records.
struct Bare {
    settings: limits::Settings,
    records: Records,
    chains: Option<Chains>,
}

impl Bare {
    /// Without chains.
    fn new(settings: &Settings, sizes: (usize, usize), records: u64) -> Result<Bare, Error> {
        let settings = limits::Settings {
            dir: settings.dir.clone(),
            file_dir: None,
            records,
            key_bytes: sizes.0,
            value_bytes: sizes.1,
            load_bytes: 0,
            repeat: settings.repeat,
            quick: true,
        };
        Ok(Bare {
            records: Records::new(&settings)?,
            chains: None,
            settings,
        })
    }
}

/// Goals over stores of one kind; `name` is what tells these from others.
fn measure_goals(
    stores: &Stores<'_>,
    bare: &mut Bare,
    goals: &[&Goal],
    name: &str,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let mut filled = None;
    for goal in goals {
        let operation = format!("{}{name}", goal.workload);
        host.begin(goal.group, &operation);
        let mut limits = vec![Vec::new(); goal.limit.len()];
        let mut chained = Vec::new();
        // A repetition of each of the loops, right before everdram's.
        let mut bare_loops = || {
            for (kind, samples) in goal.limit.iter().zip(&mut limits) {
                samples.push(bare.records.run(*kind));
            }
            if let (Some((chain, _)), Some(chains)) = (goal.chain, &mut bare.chains) {
                chained.push(chains.run(chain));
            }
        };
        let ours = if goal.workload.begins_empty() {
            filled = None;
            fill(stores, goal.workload, &mut bare_loops, &mut filled)?
        } else {
            let store = match &mut filled {
                Some(store) => store,
                None => filled.insert(stores.filled()?),
            };
            ask(stores, goal.workload, &mut bare_loops, store)?
        };
        let loops = goal.limit.iter().zip(&limits);
        let best = loops.max_by(|one, other| cpu_rate(one.1).total_cmp(&cpu_rate(other.1)));
        if let Some((kind, samples)) = best {
            let limit = (kind.name(), &samples[..]);
            let bar = share(goal.group.name(), &operation, &ours, limit, goal.share);
            outcome.bars.push(bar);
        }
        if let Some((chain, least)) = goal.chain {
            let says = format!("{operation}, of its chain");
            let limit = (chain.name(), &chained[..]);
            let bar = share(goal.group.name(), &says, &ours, limit, least);
            outcome.bars.push(bar);
        }
    }
    Ok(())
}

/// A fresh store for each repetition, into which all records go; the last one stays.
fn fill<'a>(
    stores: &'a Stores<'_>,
    workload: Workload,
    before_each: &mut dyn FnMut(),
    last: &mut Option<Fixture<'a>>,
) -> Result<Vec<Sample>, Error> {
    let mut ours = Vec::new();
    for _ in 0..stores.settings.repeat {
        // First the old one goes: two may not fit.
        *last = None;
        before_each();
        let store = last.insert(stores.open()?);
        ours.push(pass(
            store,
            &mut stores.script(workload, 1),
            stores.records,
        )?);
    }
    Ok(ours)
}

/// Repetitions on a store that holds the records. Removals share the records among them.
fn ask(
    stores: &Stores<'_>,
    workload: Workload,
    before_each: &mut dyn FnMut(),
    store: &mut Fixture<'_>,
) -> Result<Vec<Sample>, Error> {
    let settings = stores.settings;
    let share = stores.records / (settings.repeat as u64 + 1);
    let operations = match workload {
        Workload::Delete => settings.operations.min(share),
        _ => settings.operations,
    }
    .max(1);
    let mut script = stores.script(workload, 1);
    pass(store, &mut script, (operations / 10).max(1))?;
    (0..settings.repeat)
        .map(|_| {
            before_each();
            pass(store, &mut script, operations)
        })
        .collect()
}
