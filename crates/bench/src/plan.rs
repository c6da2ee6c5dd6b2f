//! A measurement of one store under one workload: what is asked for, and how it goes.
//!
//! Each repetition is a warm-up, a pass whose loop reads no clock, and a pass that times each call. Workloads
//! that leave the store other than they found it get a fresh one for each repetition; the others keep theirs,
//! loaded once.

use crate::corpus::Corpus;
use crate::latency::histogram;
use crate::pass::{self, Pass, Passed, Timing};
use crate::place::{Memory, Opened};
use crate::process;
use crate::row::{Configuration, Figures, TrafficEach};
use crate::sizes::Sizes;
use crate::subject::{Error, Opener, Subject};
use crate::timing::{Sample, Spread};
use crate::workload::{Author, Step, Workload};
use anyhow::ensure;
use hdrhistogram::Histogram;
use std::path::PathBuf;

/// One in so many operations goes before, so that caches and allocators have settled.
const WARM_UP: u64 = 20;
/// One in so many operations follows, timed.
const TIMED: u64 = 5;
/// Operations of a pass that counts traffic, at most.
const COUNTED: u64 = 100_000;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the store is asked for.
    pub workload: Workload,
    /// Records it holds, unless the workload begins with an empty one.
    pub records: u64,
    /// Operations of each repetition.
    pub operations: u64,
    /// Threads that ask.
    pub threads: usize,
    /// Lengths of keys.
    pub keys: Sizes,
    /// Lengths of values.
    pub values: Sizes,
    /// Operations at once, of batched workloads.
    pub batch: usize,
    /// Operations a second in the pass that times each call; `None` = each when the one before has ended.
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

/// What the scripts of one repetition are for.
struct Scripts {
    warm_up: Vec<Vec<Step>>,
    timed_as_whole: Vec<Vec<Step>>,
    timed_each: Vec<Vec<Step>>,
}

/// What was gathered over the repetitions.
#[derive(Default)]
struct Gathered {
    samples: Vec<Sample>,
    process_cpu_ns: Vec<f64>,
    queued_ns: u64,
    preempted: u64,
    latencies: Option<(Histogram<u64>, Histogram<u64>)>,
    memory: Option<Memory>,
}

impl Plan {
    /// About how many bytes a record has.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.keys.mean() + self.values.mean()
    }

    /// Keys and values of this plan.
    #[must_use]
    pub fn corpus(&self) -> Corpus {
        Corpus::new(self.keys, self.values, self.seed)
    }

    /// As a row says it.
    #[must_use]
    pub fn configuration(&self, opener: &dyn Opener, medium: &str, fixed: bool) -> Configuration {
        Configuration {
            store: opener.name().into(),
            version: opener.version(),
            engine: opener.engine().map(str::to_owned),
            medium: medium.into(),
            durability: opener.durability(),
            workload: self.workload,
            records: self.held(),
            operations: self.operations(),
            threads: self.threads,
            keys: self.keys,
            values: self.values,
            batch: self.batch(),
            rate: self.rate,
            pinned: self.pin,
            fixed,
            seed: self.seed,
            repeat: self.repeat,
        }
    }

    /// Records that the store holds before the workload.
    fn held(&self) -> u64 {
        if self.workload.begins_empty() {
            0
        } else {
            self.records
        }
    }

    /// Each record can be deleted once: then there are fewer operations than records.
    fn operations(&self) -> u64 {
        let whole = WARM_UP * TIMED;
        let most = self.records * whole / (whole + TIMED + WARM_UP);
        match self.workload {
            Workload::Delete => self.operations.min(most),
            _ => self.operations,
        }
    }

    fn batch(&self) -> usize {
        if self.workload.is_batched() {
            self.batch.max(1)
        } else {
            1
        }
    }

    fn authors(&self) -> Vec<Author> {
        (0..self.threads)
            .map(|thread| Author::new(self.workload, self.records, thread, self.threads, self.seed))
            .collect()
    }

    fn scripts(&self, authors: &mut [Author]) -> Scripts {
        let each = self.operations() / self.threads as u64;
        let mut write = |count: u64| -> Vec<Vec<Step>> {
            authors
                .iter_mut()
                .map(|author| author.write(count))
                .collect()
        };
        Scripts {
            warm_up: write(each / WARM_UP),
            timed_as_whole: write(each),
            timed_each: write(each / TIMED),
        }
    }

    fn pass<'a>(&self, corpus: &'a Corpus, generation: u64, timing: Timing) -> Pass<'a> {
        Pass {
            corpus,
            batch: self.batch(),
            generation,
            timing,
            pin: self.pin,
        }
    }

    /// Opens a store in a fresh directory and loads it.
    fn open(&self, opener: &dyn Opener, corpus: &Corpus) -> Result<Opened, Error> {
        let beyond = if self.workload.changes_keys() {
            self.operations() * 5 / 4
        } else {
            0
        };
        let records = self.held() + beyond;
        let opened = Opened::new(opener, &self.dir, records, self.record_bytes())?;
        pass::load(&*opened.subject, corpus, self.held(), self.threads)?;
        Ok(opened)
    }

    /// Measures, telling `progress` how far it is (0 to 1) and what comes.
    ///
    /// # Errors
    /// What the store says; a wrong answer of it is an error, too.
    pub fn measure(
        &self,
        opener: &dyn Opener,
        progress: &mut dyn FnMut(f64, &str),
    ) -> Result<Figures, Error> {
        ensure!(
            self.threads > 0 && self.repeat > 0 && self.operations() / self.threads as u64 > 0,
            "a measurement needs at least a thread, a repetition, and an operation for each thread"
        );
        let corpus = self.corpus();
        let mut authors = self.authors();
        let mut gathered = Gathered::default();
        let mut opened: Option<Opened> = None;
        for round in 0..self.repeat {
            let mut tell = |within: f64, what: &str| {
                progress((round as f64 + within) / self.repeat as f64, what);
            };
            if self.workload.changes_keys() {
                opened = None;
                authors = self.authors();
            }
            let scripts = self.scripts(&mut authors);
            tell(0.0, "loading");
            let before = process::private_bytes();
            let current = match opened.take() {
                Some(current) => current,
                None => self.open(opener, &corpus)?,
            };
            let generation = round as u64 * 3 + 1;
            if gathered.memory.is_none() && !self.workload.begins_empty() {
                gathered.memory = Some(Memory::of(&*current.subject, before, self.held()));
            }
            tell(0.3, self.workload.name());
            self.repetition(
                &*current.subject,
                &corpus,
                &scripts,
                generation,
                &mut gathered,
            )?;
            if gathered.memory.is_none() {
                let records =
                    (self.operations() + self.operations() / WARM_UP) + self.operations() / TIMED;
                gathered.memory = Some(Memory::of(&*current.subject, before, records));
            }
            opened = Some(current);
        }
        Ok(self.figures(&gathered))
    }

    fn repetition(
        &self,
        subject: &dyn Subject,
        corpus: &Corpus,
        scripts: &Scripts,
        generation: u64,
        gathered: &mut Gathered,
    ) -> Result<(), Error> {
        let warm_up = self.pass(corpus, generation, Timing::Throughput);
        pass::run(subject, warm_up, &scripts.warm_up)?;
        let whole = self.pass(corpus, generation + 1, Timing::Throughput);
        gathered.add(&pass::run(subject, whole, &scripts.timed_as_whole)?);
        let timing = self.rate.map_or(Timing::Closed, Timing::Open);
        let each = self.pass(corpus, generation + 2, timing);
        gathered.add_latencies(pass::run(subject, each, &scripts.timed_each)?);
        Ok(())
    }

    fn figures(&self, gathered: &Gathered) -> Figures {
        let samples = &gathered.samples;
        let wall: f64 = samples
            .iter()
            .map(|sample| sample.wall.as_nanos() as f64)
            .sum();
        let threads = self.threads as f64;
        let mut figures = Figures {
            rate: Spread::of(samples.iter().map(Sample::rate)),
            wall_ns: Spread::of(samples.iter().map(|sample| sample.wall_ns() * threads)),
            cpu_ns: Spread::of(samples.iter().map(Sample::cpu_ns)),
            process_cpu_ns: Spread::of(gathered.process_cpu_ns.iter().copied()),
            queued_share: gathered.queued_ns as f64 / (wall * threads).max(1.0),
            preempted: gathered.preempted,
            latency: gathered.latencies.as_ref().map(pass::tail),
            ..Figures::default()
        };
        gathered.memory.unwrap_or_default().add_to(&mut figures);
        figures
    }

    /// What one operation sends to the medium, over a store that counts. `None` if it does not.
    ///
    /// # Errors
    /// What the store says; a wrong answer of it is an error, too.
    pub fn count(&self, opener: &dyn Opener) -> Result<Option<TrafficEach>, Error> {
        let small = Plan {
            records: self.records.min(COUNTED),
            operations: self.operations.min(COUNTED),
            threads: 1,
            ..self.clone()
        };
        let corpus = small.corpus();
        let opened = small.open(opener, &corpus)?;
        let operations = small.operations();
        let steps: Vec<_> = small
            .authors()
            .iter_mut()
            .map(|author| author.write(operations))
            .collect();
        let Some(before) = opened.subject.traffic() else {
            return Ok(None);
        };
        let pass = small.pass(&corpus, 1, Timing::Throughput);
        pass::run(&*opened.subject, pass, &steps)?;
        let after = opened.subject.traffic().unwrap_or(before);
        let each =
            |before: u64, after: u64| after.saturating_sub(before) as f64 / operations as f64;
        Ok(Some(TrafficEach {
            fences: each(before.fences, after.fences),
            lines: each(before.lines, after.lines),
            bytes: each(before.bytes, after.bytes),
        }))
    }
}

impl Gathered {
    fn add(&mut self, passed: &Passed) {
        let cpu_ns = passed.process_cpu.as_nanos() as f64 / passed.sample.operations.max(1) as f64;
        self.samples.push(passed.sample);
        self.process_cpu_ns.push(cpu_ns);
        self.queued_ns += passed.waited.ns;
        self.preempted += passed.waited.preempted;
    }

    fn add_latencies(&mut self, passed: Passed) {
        let Some((all, undisturbed)) = passed.latencies else {
            return;
        };
        let sum = self
            .latencies
            .get_or_insert_with(|| (histogram(), histogram()));
        pass::merge(&mut sum.0, &all);
        pass::merge(&mut sum.1, &undisturbed);
    }
}
