//! One store's turn in one scene: every workload for about so many seconds, over stores of so many records.

use super::stand::Stand;
use crate::corpus::Corpus;
use crate::pass;
use crate::place::{Memory, Opened};
use crate::process;
use crate::recovery::Recovery;
use crate::row::Figures;
use crate::sizes::Sizes;
use crate::subject::{Error, Opener};
use crate::workload::Workload;
use anyhow::ensure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Records at once, of batched workloads.
pub(super) const BATCH: usize = 16;

/// What a store is to do in its turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Threads that ask.
    pub threads: usize,
    /// What they ask for, in this order, but those that begin with an empty store come last: what a store
    /// takes of memory shows only in a process that has not yet had and given back any.
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
    Measured(Box<Measured>),
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
        if !filled.is_empty() {
            self.stand(opener, &corpus, self.records, &mut |stand, before| {
                let memory = Memory::of(stand.subject(), before, self.records);
                for workload in &filled {
                    let mut measured = stand.measure(*workload)?;
                    memory.add_to(&mut measured.figures);
                    tell(Part::Measured(Box::new(measured)))?;
                }
                Ok(())
            })?;
        }
        for workload in empty {
            let measured = self.stand(opener, &corpus, 0, &mut |stand, _| stand.measure(workload));
            tell(Part::Measured(Box::new(measured?)))?;
        }
        Ok(())
    }

    /// Has a store opened in a fresh directory, filled with so many records; `then` also hears how much
    /// memory the process had before.
    fn stand<R>(
        &self,
        opener: &dyn Opener,
        corpus: &Corpus,
        records: u64,
        then: &mut dyn FnMut(&mut Stand<'_>, u64) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let before = process::private_bytes();
        let record_bytes = self.keys.mean() + self.values.mean();
        let opened = Opened::new(opener, &self.dir, self.records, record_bytes)?;
        let subject = &*opened.subject;
        pass::load(subject, corpus, records, 1)?;
        then(&mut Stand::new(self, corpus, subject), before)
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
                        // The process includes its threads; the clocks of the two tick apart a little.
                        let Figures {
                            cpu_ns,
                            process_cpu_ns,
                            ..
                        } = &measured.figures;
                        assert!(
                            process_cpu_ns.median >= cpu_ns.median * 0.99,
                            "{measured:?}"
                        );
                        measured.workload
                    }
                    Part::Recovered(_) => panic!("nothing crashed"),
                })
                .collect();
            let (empty, filled): (Vec<_>, Vec<_>) = scene
                .workloads
                .iter()
                .partition(|workload| workload.begins_empty());
            assert_eq!(workloads, [filled, empty].concat());
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
