//! One store's turn in one scene: every workload for about so many seconds, over stores of so many records.
//!
//! How many operations fill the time is found out by passes that grow, which are the warm-up as well. Then comes a pass
//! whose loop reads no clock, and a shorter one that times each call. Stores differ by a factor of a thousand: with as
//! many operations for all, either the fast ones would be over before the clock ticks or the slow ones never.

use crate::corpus::Corpus;
use crate::pass::{self, Pass, Passed, Timing};
use crate::place::Place;
use crate::process;
use crate::recovery::Recovery;
use crate::row::Figures;
use crate::sizes::Sizes;
use crate::subject::{Error, Opener, Subject};
use crate::timing::Spread;
use crate::workload::{Author, Workload};
use anyhow::ensure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Records at once, of batched workloads.
pub(super) const BATCH: usize = 16;
/// Operations of a thread in the first pass of the warm-up.
const FIRST: u64 = 32;
/// Factor between passes of the warm-up.
const GROWTH: u64 = 4;
/// The warm-up ends with a pass of at least this part of the time.
const WARM_UP: f64 = 0.05;
/// Part of the time that the pass takes that times each call.
const TIMED: f64 = 0.25;
/// Operations of a pass, at most: their script takes 8 bytes each.
const MOST: u64 = 30_000_000;

/// What a store is to do in its turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Threads that ask.
    pub threads: usize,
    /// What they ask for, in this order; those that begin with an empty store come first whatever the order.
    pub workloads: Vec<Workload>,
    /// Records of a filled store; as many are put into an empty one at most.
    pub records: u64,
    /// Lengths of keys.
    pub keys: Sizes,
    /// Lengths of values.
    pub values: Sizes,
    /// About how long each workload is measured.
    pub seconds: f64,
    /// Seed of all choices.
    pub seed: u64,
    /// Directory on the medium.
    pub dir: PathBuf,
}

/// A piece of what a turn gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// A workload is over.
    Measured(Measured),
    /// The store was opened after a crash.
    Recovered(Recovery),
}

/// One repetition of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Which.
    pub workload: Workload,
    /// Operations that were timed as a whole.
    pub operations: u64,
    /// Their figures: each spread is one value.
    pub figures: Figures,
}

/// An open store under the turn's workloads.
struct Stand<'a> {
    turn: &'a Turn,
    corpus: &'a Corpus,
    subject: &'a dyn Subject,
    generation: u64,
}

impl Turn {
    /// Takes the turn, handing over what it gives as it comes.
    ///
    /// # Errors
    /// What the store or `tell` says; a wrong answer of the store is an error, too.
    pub fn take(
        &self,
        opener: &dyn Opener,
        tell: &mut dyn FnMut(Part) -> Result<(), Error>,
    ) -> Result<(), Error> {
        ensure!(
            self.threads > 0 && self.records >= 100 && self.seconds > 0.0,
            "a turn needs at least a thread, 100 records and some time"
        );
        let corpus = Corpus::new(self.keys, self.values, self.seed);
        let (empty, filled): (Vec<_>, Vec<_>) = self
            .workloads
            .iter()
            .partition(|workload| workload.begins_empty());
        for workload in empty {
            let measured = self.stand(opener, &corpus, 0, &mut |stand, _| stand.measure(workload));
            tell(Part::Measured(measured?))?;
        }
        if filled.is_empty() {
            return Ok(());
        }
        self.stand(opener, &corpus, self.records, &mut |stand, before| {
            let memory = self.memory(stand.subject, before);
            for workload in &filled {
                let mut measured = stand.measure(*workload)?;
                memory.clone().add_to(&mut measured.figures);
                tell(Part::Measured(measured))?;
            }
            Ok(())
        })
    }

    /// Has a store opened in a fresh directory, filled with so many records; `then` also hears how much memory the
    /// process had before.
    fn stand<R>(
        &self,
        opener: &dyn Opener,
        corpus: &Corpus,
        records: u64,
        then: &mut dyn FnMut(&mut Stand<'_>, u64) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let place = Place::within(&self.dir)?;
        let before = process::private_bytes();
        let record_bytes = self.keys.mean() + self.values.mean();
        let subject = opener.open(place.path(), self.records, record_bytes)?;
        pass::load(&*subject, corpus, records, 1)?;
        let mut stand = Stand {
            turn: self,
            corpus,
            subject: &*subject,
            generation: 0,
        };
        then(&mut stand, before)
    }

    fn memory(&self, subject: &dyn Subject, before: u64) -> Memory {
        let each = |bytes: u64| bytes as f64 / self.records as f64;
        Memory {
            dram: each(process::private_bytes().saturating_sub(before)),
            counted_dram: subject.dram_bytes().map(each),
            medium: subject.medium_bytes().map(each),
        }
    }
}

/// Bytes a record of a filled store.
#[derive(Clone)]
struct Memory {
    dram: f64,
    counted_dram: Option<f64>,
    medium: Option<f64>,
}

impl Memory {
    fn add_to(self, figures: &mut Figures) {
        figures.dram_bytes = Some(self.dram);
        figures.counted_dram_bytes = self.counted_dram;
        figures.medium_bytes = self.medium;
    }
}

impl Stand<'_> {
    fn measure(&mut self, workload: Workload) -> Result<Measured, Error> {
        let turn = self.turn;
        let mut authors: Vec<Author> = (0..turn.threads)
            .map(|thread| Author::new(workload, turn.records, thread, turn.threads, turn.seed))
            .collect();
        // Only so many records can be put or removed; the others can be asked for again and again.
        let threads = turn.threads as u64;
        let mut left = match workload {
            Workload::Put | Workload::PutMany | Workload::Delete => turn.records / threads,
            _ => MOST,
        };
        let mut count = FIRST;
        let rate = loop {
            let each = count.min(left / 8).max(1);
            let passed = self.pass(workload, &mut authors, each, Timing::Throughput)?;
            left = left.saturating_sub(each);
            let is_long = passed.sample.wall.as_secs_f64() >= turn.seconds * WARM_UP;
            if is_long || each < count || count > MOST / GROWTH {
                break passed.sample.rate() / threads as f64;
            }
            count *= GROWTH;
        };
        let fitting = |seconds: f64, most: u64| ((rate * seconds) as u64).min(most).max(1);
        let whole = fitting(turn.seconds, left * 3 / 4);
        let passed = self.pass(workload, &mut authors, whole, Timing::Throughput)?;
        left = left.saturating_sub(whole);
        let timed = fitting(turn.seconds * TIMED, left);
        let each = self.pass(workload, &mut authors, timed, Timing::Closed)?;
        Ok(self.measured(workload, &passed, &each))
    }

    fn pass(
        &mut self,
        workload: Workload,
        authors: &mut [Author],
        each: u64,
        timing: Timing,
    ) -> Result<Passed, Error> {
        self.generation += 1;
        let scripts: Vec<_> = authors
            .iter_mut()
            .map(|author| author.write(each))
            .collect();
        let pass = Pass {
            corpus: self.corpus,
            batch: if workload.is_batched() { BATCH } else { 1 },
            generation: self.generation,
            timing,
            pin: false,
        };
        pass::run(self.subject, pass, &scripts)
    }

    fn measured(&self, workload: Workload, passed: &Passed, each: &Passed) -> Measured {
        let sample = &passed.sample;
        let operations = sample.operations.max(1) as f64;
        let threads = self.turn.threads as f64;
        let one = |value: f64| Spread::of([value]);
        Measured {
            workload,
            operations: sample.operations,
            figures: Figures {
                rate: one(sample.rate()),
                wall_ns: one(sample.wall_ns() * threads),
                cpu_ns: one(sample.cpu_ns()),
                process_cpu_ns: one(passed.process_cpu.as_nanos() as f64 / operations),
                queued_share: passed.waited.ns as f64
                    / (sample.wall.as_nanos() as f64 * threads).max(1.0),
                preempted: passed.waited.preempted,
                latency: each.latencies.as_ref().map(pass::tail),
                ..Figures::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Scene;
    use crate::everdram::Everdram;
    use everdram::Medium;

    #[test]
    fn every_scene_can_be_taken_over_few_records() {
        let dir = tempfile::tempdir().unwrap();
        for scene in Scene::usual() {
            let turn = Turn {
                threads: scene.threads,
                workloads: scene.workloads.clone(),
                records: 800,
                keys: Sizes::Fixed(16),
                values: Sizes::Fixed(200),
                seconds: 0.002,
                seed: 3,
                dir: dir.path().to_owned(),
            };
            let mut parts = Vec::new();
            let opener = Everdram {
                prefault: false,
                ..Everdram::on(Medium::Emulated)
            };
            turn.take(&opener, &mut |part| {
                parts.push(part);
                Ok(())
            })
            .unwrap();
            let workloads: Vec<_> = parts
                .iter()
                .map(|part| match part {
                    Part::Measured(measured) => {
                        assert!(measured.figures.rate.median > 0.0 && measured.operations > 0);
                        assert!(measured.figures.latency.is_some());
                        measured.workload
                    }
                    Part::Recovered(_) => panic!("nothing crashed"),
                })
                .collect();
            assert_eq!(workloads, scene.workloads);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_turn_over_nothing_is_refused() {
        let turn = Turn {
            threads: 1,
            workloads: vec![Workload::Get],
            records: 0,
            keys: Sizes::Fixed(16),
            values: Sizes::Fixed(200),
            seconds: 0.1,
            seed: 3,
            dir: PathBuf::from("."),
        };
        let error = turn
            .take(&Everdram::on(Medium::Emulated), &mut |_| Ok(()))
            .unwrap_err();
        assert!(error.to_string().contains("100 records"), "{error}");
    }
}
