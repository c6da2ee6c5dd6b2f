//! Operations as shares of the bare loop that does the same: the two take turns, repetition by repetition.

use super::stage::{Best, Pages, Stage, Taken, bare};
use super::{Bar, Group, Host, Outcome, Settings, USUAL, records_of};
use crate::limits::{Kind, Records};
use crate::place::Opened;
use crate::subject::Error;
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
}

const fn goal(group: Group, workload: Workload, limit: &'static [Kind], share: f64) -> Goal {
    Goal {
        group,
        workload,
        limit,
        share,
    }
}

/// Into an empty store each time.
const FILLING: [Goal; 2] = [
    goal(Group::Batch, Workload::PutMany, BATCH_PUT, 0.40),
    goal(Group::Put, Workload::Put, PUT, 0.80),
];

/// On a store that holds the records; removals come last.
const STANDING: [Goal; 9] = [
    goal(Group::Get, Workload::Get, GET, 0.70),
    goal(Group::Absent, Workload::GetAbsent, GET, 1.10),
    goal(Group::Batch, Workload::GetMany, BATCH_GET, 0.80),
    goal(Group::Ycsb, Workload::YcsbC, GET, 0.75),
    goal(Group::Ycsb, Workload::YcsbB, GET, 0.65),
    goal(Group::Ycsb, Workload::YcsbA, GET, 0.42),
    goal(Group::Update, Workload::UpdateWord, UPDATE, 0.85),
    goal(Group::Overwrite, Workload::Overwrite, PUT, 0.65),
    goal(Group::Delete, Workload::Delete, UPDATE, 0.70),
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
        .chain(STANDING)
        .filter(|goal| settings.has(goal.group))
        .collect();
    if !wanted.is_empty() {
        let mut bare = bare(settings, USUAL, settings.records)?;
        for pages in [Pages::Variable, Pages::Fixed] {
            let stage = Stage::new(settings, USUAL, pages, settings.records);
            let mut round = Round {
                settings,
                stage,
                bare: &mut bare,
                pages,
                sizes: None,
            };
            round.measure(&wanted, host, outcome)?;
        }
    }
    if settings.has(Group::Sizes) {
        for sizes in OTHER_SIZES {
            other_sizes(settings, sizes, host, outcome)?;
        }
    }
    Ok(())
}

fn other_sizes(
    settings: &Settings,
    sizes: (usize, usize),
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let records = records_of(settings, sizes);
    let mut round = Round {
        settings,
        stage: Stage::new(settings, sizes, Pages::Variable, records),
        bare: &mut bare(settings, sizes, records)?,
        pages: Pages::Variable,
        sizes: Some(sizes),
    };
    let goals = [
        goal(Group::Sizes, Workload::Put, PUT, OTHER_SHARE),
        goal(Group::Sizes, Workload::Get, GET, OTHER_SHARE),
    ];
    round.measure(&goals, host, outcome)
}

/// Goals over stores of one kind.
struct Round<'a> {
    settings: &'a Settings,
    stage: Stage,
    bare: &'a mut Records,
    pages: Pages,
    sizes: Option<(usize, usize)>,
}

impl Round<'_> {
    fn measure(
        &mut self,
        goals: &[Goal],
        host: &mut dyn Host,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let mut filled = None;
        for goal in goals {
            // Words change in place only where records have a fixed size.
            if goal.workload == Workload::UpdateWord && self.pages == Pages::Variable {
                continue;
            }
            host.begin(goal.group, &self.name(goal));
            let mut limit = Best::of(goal.limit);
            let ours = if goal.workload.begins_empty() {
                let (ours, last) = self.fill(goal, &mut limit)?;
                filled = Some(last);
                ours
            } else {
                let store = match filled.take() {
                    Some(store) => store,
                    None => self.stage.filled()?,
                };
                let ours = self.stand(goal, &mut limit, &store)?;
                filled = Some(store);
                ours
            };
            outcome.bars.push(self.bar(goal, &ours, &limit));
        }
        Ok(())
    }

    fn name(&self, goal: &Goal) -> String {
        let mut name = goal.workload.name().to_owned();
        if let Some((key, value)) = self.sizes {
            name.push_str(&format!(", {key}/{value} B"));
        }
        if self.pages == Pages::Fixed {
            name.push_str(", fixed");
        }
        name
    }

    /// A fresh store for each repetition, into which all records go.
    fn fill(&mut self, goal: &Goal, limit: &mut Best) -> Result<(Taken, Opened), Error> {
        let mut ours = Taken::default();
        let mut last: Option<Opened> = None;
        for _ in 0..self.settings.repeat {
            // First the old one goes: two may not fit.
            drop(last.take());
            limit.take(self.bare);
            let store = self.stage.open()?;
            let mut authors = self.stage.authors(goal.workload, 1);
            let records = self.stage.records;
            let passed = self
                .stage
                .pass(&store, goal.workload, &mut authors, records)?;
            ours.0.push(passed.sample);
            last = Some(store);
        }
        let last = last.map_or_else(|| self.stage.open(), Ok)?;
        Ok((ours, last))
    }

    /// Repetitions on a store that holds the records. Removals share the records among them.
    fn stand(&mut self, goal: &Goal, limit: &mut Best, store: &Opened) -> Result<Taken, Error> {
        let mut ours = Taken::default();
        let mut authors = self.stage.authors(goal.workload, 1);
        let repeat = self.settings.repeat as u64;
        let operations = match goal.workload {
            Workload::Delete => self
                .settings
                .operations
                .min(self.stage.records / (repeat + 1)),
            _ => self.settings.operations,
        }
        .max(1);
        let warm_up = (operations / 10).max(1);
        self.stage
            .pass(store, goal.workload, &mut authors, warm_up)?;
        for _ in 0..repeat {
            limit.take(self.bare);
            let passed = self
                .stage
                .pass(store, goal.workload, &mut authors, operations)?;
            ours.0.push(passed.sample);
        }
        Ok(ours)
    }

    fn bar(&self, goal: &Goal, ours: &Taken, limit: &Best) -> Bar {
        let (name, best) = limit.fastest();
        Bar {
            group: goal.group,
            operation: self.name(goal),
            measured: ours.cpu_rate(),
            unit: "M/s".into(),
            reference: Some(best.cpu_rate()),
            reference_name: Some(name.into()),
            value: ours.cpu_rate() / best.cpu_rate(),
            wall_value: Some(ours.rate() / best.rate()),
            bar: goal.share,
            at_most: false,
        }
    }
}
