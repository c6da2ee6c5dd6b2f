//! A measurement of one store: what is asked for, and how it goes.
//!
//! A repetition of a workload is a warm-up, a phase whose loops read no clock, and a shorter one that times
//! each call. Workloads that change which keys there are get a fresh store for each repetition; the others
//! share one, loaded once.

use crate::fixture::{Fixture, Memory, Script};
use crate::latency::Latencies;
use crate::machine::Machine;
use crate::pace::Timing;
use crate::pass::Passed;
use crate::row::{Metric, Row, STORES};
use crate::subject::{Error, Opener};
use crate::workload::corpus::Corpus;
use crate::workload::sizes::Sizes;
use crate::workload::{Step, Workload};
use anyhow::{Context, ensure};
use serde_json::json;
use std::path::PathBuf;

/// Operations of the warm-up and of the timed phase: one of so many of the phase between them.
const WARM_UP: u64 = 20;
const TIMED: u64 = 5;
/// Operations of a pass that counts traffic, at most.
const COUNTED: u64 = 100_000;

/// Operations of a thread in the first pass of a phase that goes by time.
const FIRST: u64 = 32;
/// The next pass has at most so many times the operations of the one before.
const GROWTH: u64 = 8;
/// Operations of a thread in such a phase, at most: a script takes 8 bytes each.
const MOST: u64 = 30_000_000;
/// A phase is over when less than this part of its time is left.
const LEFT: f64 = 0.1;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the store is asked for, in this order, removals last. But workloads that begin with an empty
    /// store come after the others: memory shows only in a process that has not yet given back any.
    pub workloads: Vec<Workload>,
    /// Records the store holds, unless the workload begins with an empty one.
    pub records: u64,
    /// How much each repetition does.
    pub extent: Extent,
    /// Threads that ask.
    pub threads: usize,
    /// Lengths of keys.
    pub keys: Sizes,
    /// Lengths of values.
    pub values: Sizes,
    /// Operations at once, of batched workloads.
    pub batch: usize,
    /// Operations a second in the phase that times each call; `None` = each when the one before has ended.
    pub rate: Option<f64>,
    /// Repetitions.
    pub repeat: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// Whether each thread stays on a core of its own.
    pub pin: bool,
    /// Directory on the medium.
    pub dir: PathBuf,
}

/// How much a repetition does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extent {
    /// So many operations of all threads. Latencies of all repetitions are one distribution.
    Operations(u64),
    /// About so many seconds. Stores differ by a factor of a thousand: no number of operations suits all.
    Seconds(f64),
}

/// A part of a repetition that goes by time.
struct Phase {
    /// Of the seconds of a repetition.
    share: f64,
    /// Of the operations that a workload can have.
    eighths: u64,
    /// Operations of all threads, at least: so that 99 of 100 of them says something.
    least: u64,
}

const PHASES: [Phase; 3] = [
    Phase {
        share: 0.1,
        eighths: 1,
        least: 0,
    },
    Phase {
        share: 1.0,
        eighths: 5,
        least: 0,
    },
    Phase {
        share: 0.5,
        eighths: 2,
        least: 100,
    },
];

impl Plan {
    /// Keys and values of this plan.
    #[must_use]
    pub fn corpus(&self) -> Corpus {
        Corpus::new(self.keys, self.values, self.seed)
    }

    /// Records that the store holds before a workload.
    fn held(&self, workload: Workload) -> u64 {
        if workload.begins_empty() {
            0
        } else {
            self.records
        }
    }

    /// Operations of a repetition. Each record can be deleted once: then there are fewer than records.
    fn operations(&self, workload: Workload) -> u64 {
        let Extent::Operations(operations) = self.extent else {
            return self.records;
        };
        let whole = WARM_UP * TIMED;
        let most = self.records * whole / (whole + TIMED + WARM_UP);
        match workload {
            Workload::Delete => operations.min(most),
            _ => operations,
        }
    }

    /// Records that a store needs room for, which all workloads share that begin alike.
    fn room(&self, workload: Workload) -> u64 {
        let alike = self.workloads.iter();
        let alike = alike.filter(|other| other.begins_empty() == workload.begins_empty());
        let room = |workload: &Workload| match self.extent {
            Extent::Operations(_) if workload.changes_keys() => {
                self.held(*workload) + self.operations(*workload) * 5 / 4
            }
            _ => self.records,
        };
        alike.map(room).max().unwrap_or(0)
    }

    fn batch(&self, workload: Workload) -> usize {
        if workload.is_batched() {
            self.batch.max(1)
        } else {
            1
        }
    }

    fn script(&self, workload: Workload) -> Script {
        Script::new(workload, self.records, self.threads, self.seed)
    }

    /// Scripts of a repetition that goes by operations; those of others are written pass by pass.
    fn written(&self, script: &mut Script) -> Option<[Vec<Vec<Step>>; 3]> {
        let each = self.operations(script.workload) / self.threads as u64;
        let counts = [each / WARM_UP, each, each / TIMED];
        matches!(self.extent, Extent::Operations(_))
            .then(|| counts.map(|count| script.write(count)))
    }

    /// Opens a store and loads it.
    fn open<'a>(
        &self,
        opener: &dyn Opener,
        corpus: &'a Corpus,
        workload: Workload,
    ) -> Result<Fixture<'a>, Error> {
        let fixture = Fixture::open(opener, &self.dir, corpus, self.room(workload))?;
        let threads = match self.extent {
            Extent::Operations(_) => self.threads,
            // Stores that are compared were all filled by one thread.
            Extent::Seconds(_) => 1,
        };
        fixture.load(self.held(workload), threads)?;
        Ok(fixture)
    }

    /// Measures; tells `progress` how far it is (0 to 1) and what comes, and `tell` the row of each workload
    /// as soon as it is measured.
    ///
    /// # Errors
    /// What the store or `tell` says; a wrong answer of the store is an error, too.
    pub fn measure(
        &self,
        opener: &dyn Opener,
        progress: &mut dyn FnMut(f64, &str),
        tell: &mut dyn FnMut(Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let is_enough = |workload: &Workload| match self.extent {
            Extent::Operations(_) => self.operations(*workload) >= self.threads as u64,
            Extent::Seconds(seconds) => self.records >= 100 && seconds > 0.0,
        };
        ensure!(
            self.threads > 0 && self.repeat > 0 && self.workloads.iter().all(is_enough),
            "a measurement needs at least a thread, a repetition, and an operation for each thread; one that goes by time, \
             100 records and some time"
        );
        let corpus = self.corpus();
        let machine = Machine::here(&self.dir);
        let (empty, filled): (Vec<_>, Vec<_>) = self
            .workloads
            .iter()
            .copied()
            .partition(|workload| workload.begins_empty());
        let mut current: Option<Fixture<'_>> = None;
        let mut memory: Option<Memory> = None;
        let (mut is_changed, mut is_first) = (false, true);
        let steps = (self.workloads.len() * self.repeat) as f64;
        for (number, workload) in filled.into_iter().chain(empty).enumerate() {
            let mut row = self.row(opener, workload, &machine);
            let mut script = self.script(workload);
            let mut latencies = Latencies::default();
            for round in 0..self.repeat {
                let done = (number * self.repeat + round) as f64;
                if is_changed || workload.begins_empty() {
                    // First the old one goes: two may not fit.
                    current = None;
                    script = self.script(workload);
                }
                // Before memory is looked at, of which scripts take some.
                // Before the store is opened: the memory of scripts is not the store's.
                let written = self.written(&mut script);
                let mut fixture = match current.take() {
                    Some(current) => current,
                    None => {
                        progress(done / steps, "loading");
                        let fixture = self.open(opener, &corpus, workload)?;
                        let is_filled = is_first && !workload.begins_empty();
                        memory = is_filled.then(|| fixture.memory(self.records));
                        fixture
                    }
                };
                progress((done + 0.3) / steps, workload.name());
                let (operations, timed) =
                    self.repetition(&mut fixture, &mut script, &written, &mut row)?;
                latencies.add(&timed);
                if is_first && workload.begins_empty() {
                    // Scripts are still there, as they were when the store was opened.
                    memory = Some(fixture.memory(operations));
                }
                if let Some(memory) = memory
                    && row.spread(Metric::DramBytes).is_none()
                {
                    memory.add_to(&mut row);
                }
                (is_first, is_changed) = (false, workload.changes_keys());
                current = Some(fixture);
            }
            latencies.add_to(&mut row);
            tell(row)?;
        }
        Ok(())
    }

    /// Adds a round to `row`; says how many operations there were in all, and the latencies of those that
    /// were timed one by one.
    fn repetition(
        &self,
        fixture: &mut Fixture<'_>,
        script: &mut Script,
        written: &Option<[Vec<Vec<Step>>; 3]>,
        row: &mut Row,
    ) -> Result<(u64, Latencies), Error> {
        let each_call = self.rate.map_or(Timing::Closed, Timing::Open);
        // Only so many records can be put or removed; the others can be asked for again and again.
        let most = match script.workload {
            Workload::Put | Workload::PutMany | Workload::Delete => {
                self.records / self.threads as u64
            }
            _ => MOST,
        };
        let mut count = FIRST;
        let mut phase = |number: usize, timing| {
            let how = (self.batch(script.workload), timing, self.pin);
            match written {
                Some(steps) => fixture.pass(&steps[number], how),
                None => self.timed_phase(most, &PHASES[number], &mut count, &mut |count| {
                    fixture.pass(&script.write(count), how)
                }),
            }
        };
        let warm_up = phase(0, Timing::Throughput)?;
        let whole = phase(1, Timing::Throughput)?;
        let each = phase(2, each_call)?;
        self.add_round(&whole, row);
        let all = [&warm_up, &whole, &each].map(|passed| passed.sample.operations);
        Ok((all.iter().sum(), each.latencies.unwrap_or_default()))
    }

    /// Passes that grow until the time of a phase is filled. The passes count, the pauses between them do
    /// not. A pass that the machine disturbs makes the next one shorter and ends nothing.
    fn timed_phase(
        &self,
        most: u64,
        phase: &Phase,
        count: &mut u64,
        pass: &mut dyn FnMut(u64) -> Result<Passed, Error>,
    ) -> Result<Passed, Error> {
        let Extent::Seconds(seconds) = self.extent else {
            unreachable!("other scripts are written beforehand");
        };
        let seconds = seconds * phase.share;
        let mut total = Passed::default();
        let mut left = (most * phase.eighths / 8).max(1);
        loop {
            let each = (*count).min(left);
            total.add(pass(each)?);
            left -= each;
            let rest = seconds - total.sample.wall.as_secs_f64();
            let is_full = rest < seconds * LEFT && total.sample.operations >= phase.least;
            if is_full || left == 0 {
                return Ok(total);
            }
            let rate = total.sample.rate() / self.threads as f64;
            let fitting = (rate * rest.max(seconds * LEFT)) as u64;
            *count = fitting.clamp(1, (each * GROWTH).max(FIRST));
        }
    }

    fn add_round(&self, whole: &Passed, row: &mut Row) {
        let (sample, threads) = (&whole.sample, self.threads as f64);
        let operations = sample.operations.max(1) as f64;
        let queued = whole.waited.ns as f64 / (sample.wall.as_nanos() as f64 * threads).max(1.0);
        for (metric, value) in [
            (Metric::Operations, sample.operations as f64),
            (Metric::Rate, sample.rate()),
            (Metric::WallNs, sample.wall_ns() * threads),
            (Metric::CpuNs, sample.cpu_ns()),
            (
                Metric::ProcessCpuNs,
                whole.process_cpu.as_nanos() as f64 / operations,
            ),
            // A thread may wait for a core before its clock starts, too.
            (Metric::QueuedShare, queued.min(1.0)),
            (Metric::Preempted, whole.waited.preempted as f64),
        ] {
            row.push(metric, value);
        }
    }

    fn row(&self, opener: &dyn Opener, workload: Workload, machine: &Machine) -> Row {
        let conditions = json!({
            "version": opener.version(),
            "medium": opener.medium(&self.dir),
            "durable": opener.durability().word(),
            "records": self.held(workload),
            "key": self.keys.to_string(),
            "value": self.values.to_string(),
            "batch": self.batch(workload),
            "due_each_second": self.rate,
            "pinned": self.pin,
            "seed": self.seed,
        });
        let (subject, threads) = (opener.label(), self.threads);
        Row::new(
            STORES,
            &subject,
            workload.name(),
            threads,
            conditions,
            machine,
        )
    }

    /// Adds to `row` what an operation of the first workload sends to the medium, over a store that counts;
    /// nothing if it does not.
    ///
    /// # Errors
    /// What the store says; a wrong answer of it is an error, too.
    pub fn count(&self, opener: &dyn Opener, row: &mut Row) -> Result<(), Error> {
        let workload = *self.workloads.first().context("no workload")?;
        let small = Plan {
            workloads: vec![workload],
            records: self.records.min(COUNTED),
            extent: Extent::Operations(self.operations(workload).min(COUNTED)),
            threads: 1,
            ..self.clone()
        };
        let corpus = small.corpus();
        let mut fixture = small.open(opener, &corpus, workload)?;
        let operations = small.operations(workload);
        let steps = small.script(workload).write(operations);
        let Some(before) = fixture.subject.traffic() else {
            return Ok(());
        };
        let how = (small.batch(workload), Timing::Throughput, self.pin);
        fixture.pass(&steps, how)?;
        let after = fixture.subject.traffic().unwrap_or(before);
        for (metric, before, after) in [
            (Metric::Fences, before.fences, after.fences),
            (Metric::Lines, before.lines, after.lines),
            (Metric::StoredBytes, before.bytes, after.bytes),
        ] {
            row.push(
                metric,
                after.saturating_sub(before) as f64 / operations as f64,
            );
        }
        Ok(())
    }
}
