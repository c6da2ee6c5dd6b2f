//! A store that is measured in turns with something else: opened, filled, and taken through passes.

use super::{Settings, fixed};
use crate::corpus::Corpus;
use crate::everdram::Everdram;
use crate::limits;
use crate::limits::{Kind, Records};
use crate::pass::{self, Pass, Passed, Timing};
use crate::place::Opened;
use crate::subject::Error;
use crate::timing::{Sample, Spread};
use crate::workload::{Author, Workload};
use everdram::Medium;

/// Records at once, of batches.
pub(super) const BATCH: usize = limits::records::BATCH;

/// Pages that a store is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// For records of any size.
    Variable,
    /// For records of one size.
    Fixed,
}

/// Records of one size, in stores of one kind.
pub(super) struct Stage {
    pub(super) opener: Everdram,
    pub(super) corpus: Corpus,
    pub(super) records: u64,
    record_bytes: usize,
    seed: u64,
    generation: u64,
    dir: std::path::PathBuf,
}

impl Stage {
    pub(super) fn new(
        settings: &Settings,
        sizes: (usize, usize),
        pages: Pages,
        records: u64,
    ) -> Stage {
        let (keys, values) = fixed(sizes);
        Stage {
            opener: Everdram {
                fixed: (pages == Pages::Fixed).then_some((sizes.0 as u32, sizes.1 as u32)),
                ..Everdram::on(Medium::Emulated)
            },
            corpus: Corpus::new(keys, values, settings.seed),
            records,
            record_bytes: sizes.0 + sizes.1,
            seed: settings.seed,
            generation: 0,
            dir: settings.dir.clone(),
        }
    }

    /// An empty store.
    pub(super) fn open(&self) -> Result<Opened, Error> {
        Opened::new(&self.opener, &self.dir, self.records, self.record_bytes)
    }

    /// A store that holds all records.
    pub(super) fn filled(&self) -> Result<Opened, Error> {
        let opened = self.open()?;
        pass::load(&*opened.subject, &self.corpus, self.records, 1)?;
        Ok(opened)
    }

    /// Writes for so many threads.
    pub(super) fn authors(&self, workload: Workload, threads: usize) -> Vec<Author> {
        (0..threads)
            .map(|thread| Author::new(workload, self.records, thread, threads, self.seed))
            .collect()
    }

    /// One pass of all authors, `operations` of them all.
    pub(super) fn pass(
        &mut self,
        opened: &Opened,
        workload: Workload,
        authors: &mut [Author],
        operations: u64,
    ) -> Result<Passed, Error> {
        self.generation += 1;
        let each = operations / authors.len().max(1) as u64;
        let pass = Pass {
            corpus: &self.corpus,
            batch: if workload.is_batched() { BATCH } else { 1 },
            generation: self.generation,
            timing: Timing::Throughput,
            pin: authors.len() > 1,
        };
        let scripts: Vec<_> = authors
            .iter_mut()
            .map(|author| author.write(each))
            .collect();
        pass::run(&*opened.subject, pass, &scripts)
    }
}

/// A bare pool and index for limits, of the same records.
pub(super) fn bare(
    settings: &Settings,
    sizes: (usize, usize),
    records: u64,
) -> Result<Records, Error> {
    Records::new(&limits::Settings {
        dir: settings.dir.clone(),
        file_dir: None,
        records,
        key_bytes: sizes.0,
        value_bytes: sizes.1,
        load_bytes: 0,
        repeat: settings.repeat,
        quick: true,
    })
}

/// Samples of something, by name.
#[derive(Clone, Default)]
pub(super) struct Taken(pub(super) Vec<Sample>);

impl Taken {
    /// Millions of operations a second of processor time: the middle one.
    pub(super) fn cpu_rate(&self) -> f64 {
        Spread::of(self.0.iter().map(Sample::cpu_rate)).median / 1e6
    }

    /// The same by the clock.
    pub(super) fn rate(&self) -> f64 {
        Spread::of(self.0.iter().map(Sample::rate)).median / 1e6
    }
}

/// The fastest of several ways to do the same.
pub(super) struct Best {
    kinds: &'static [Kind],
    taken: Vec<Taken>,
}

impl Best {
    pub(super) fn of(kinds: &'static [Kind]) -> Best {
        Best {
            kinds,
            taken: vec![Taken::default(); kinds.len()],
        }
    }

    /// A repetition of each.
    pub(super) fn take(&mut self, bare: &mut Records) {
        for (kind, taken) in self.kinds.iter().zip(&mut self.taken) {
            taken.0.push(bare.run(*kind));
        }
    }

    /// Name, samples.
    pub(super) fn fastest(&self) -> (&'static str, Taken) {
        let pairs = self.kinds.iter().zip(&self.taken);
        pairs
            .max_by(|one, other| one.1.cpu_rate().total_cmp(&other.1.cpu_rate()))
            .map_or(("", Taken::default()), |(kind, taken)| {
                (kind.name(), taken.clone())
            })
    }
}
