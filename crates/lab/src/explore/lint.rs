//! Lints: defects that a trace shows without images, and one that takes images.
//!
//! - *Dirty at acknowledgement*: all calls have returned, and a word is neither certain nor declared late
//!   ([`everdram_pm::Lane::exchange_word_late`]).
//! - *Read before durable*: a call returned after it read words that a crash could still undo.
//! - *Redundant flush*, *empty fence*: instructions without effect. They cost time and lose nothing.
//! - *Bypassing*: memory holds bytes that no recorded store put there.
//! - *Trusting*: recovery trusts words that are no commit word and that it has not verified. Found by putting
//!   garbage into undecided bulk words: such an image must be refused, or recover as if they were missing.
//!
//! Torn commit words cannot be written: the interface has aligned words only.

use super::examine::Totals;
use super::examine::look;
use crate::judge::history::Checker;
use crate::medium::image::{Image, Medium};
use crate::medium::lines::{Lines, Waste};
use crate::plan::profile;
use crate::plan::{Manner, Plan};
use crate::run::Run;
use crate::run::process::Environment;
use crate::run::recorder::Record;
use crate::run::trace::{Step, StepId, Trace, name};
use everdram::EngineKind;
use everdram_pm::LINE;
use everdram_pm::lab::Site;
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};

/// How often a lint was found at each place in the source.
pub type Places = BTreeMap<String, u64>;

/// Findings, by place in the source.
#[derive(Clone, Debug, Default)]
pub struct Lints {
    /// Stores that were not certain when all calls had returned.
    pub dirty_at_acknowledgement: Places,
    /// Stores that were not certain when a call answered with them.
    pub read_before_durable: Places,
    /// Flushes without effect.
    pub redundant_flush: Places,
    /// Fences without effect.
    pub empty_fence: Places,
    /// Offsets of lines with bytes that were not stored.
    pub bypassing: BTreeSet<u64>,
    /// What became of images whose garbage recovery trusted.
    pub trusting: Vec<String>,
    /// Images with garbage.
    pub garbled: u64,
    /// Flushes and fences in all.
    pub flushes: u64,
    /// Fences in all.
    pub fences: u64,
}

impl Lints {
    /// Adds others.
    pub fn add(&mut self, other: Lints) {
        let add = |into: &mut Places, from: Places| {
            for (place, count) in from {
                *into.entry(place).or_default() += count;
            }
        };
        add(
            &mut self.dirty_at_acknowledgement,
            other.dirty_at_acknowledgement,
        );
        add(&mut self.read_before_durable, other.read_before_durable);
        add(&mut self.redundant_flush, other.redundant_flush);
        add(&mut self.empty_fence, other.empty_fence);
        self.bypassing.extend(other.bypassing);
        self.trusting.extend(other.trusting);
        self.garbled += other.garbled;
        self.flushes += other.flushes;
        self.fences += other.fences;
    }

    /// Whether a finding loses data.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.dirty_at_acknowledgement.is_empty()
            && self.read_before_durable.is_empty()
            && self.bypassing.is_empty()
            && self.trusting.is_empty()
    }
}

/// Images with garbage at one crash point.
const GARBLED_OF_A_POINT: usize = 2;

struct Linter<'a> {
    environment: &'a Environment,
    lines: Lines,
    checker: Checker,
    open: BTreeSet<u32>,
    /// The step at which the last process died.
    dead: StepId,
    /// Offsets of the words that an open call has read.
    read: BTreeMap<u32, BTreeSet<u64>>,
    lints: Lints,
    random: rand::rngs::StdRng,
}

/// Lints a run on memory. Runs on files have nothing to lint.
///
/// # Errors
/// The run is not linearizable.
pub fn lint(run: &mut Run, environment: &Environment, seed: u64) -> Result<Lints, String> {
    let Some(start) = &run.start.memory else {
        return Ok(Lints::default());
    };
    assert_eq!(environment.medium, Medium::Pmem);
    let mut linter = Linter {
        environment,
        lines: Lines::new(start, environment.options.max_bytes, None),
        checker: Checker::new(environment.profile.keys()),
        open: BTreeSet::new(),
        dead: 0,
        read: BTreeMap::new(),
        lints: Lints::default(),
        random: profile::random(seed, 4),
    };
    linter.walk(&mut run.record)?;
    if let Some(end) = &run.end.memory {
        linter.bypassing(end);
    }
    Ok(linter.lints)
}

impl Linter<'_> {
    fn walk(&mut self, record: &mut Record) -> Result<(), String> {
        let trace = std::mem::take(&mut record.trace);
        let walked = self.steps(&trace, record);
        record.trace = trace;
        walked
    }

    fn steps(&mut self, trace: &Trace, record: &mut Record) -> Result<(), String> {
        for (id, step) in trace.iter().enumerate() {
            self.checker
                .step(step, &record.history, &mut record.values)?;
            match step {
                Step::Invoke(call) => {
                    self.open.insert(*call);
                }
                Step::Return(call) => {
                    self.open.remove(call);
                    let entry = &record.history.entries[*call as usize];
                    self.returned(*call, entry.call.tells());
                }
                Step::Death | Step::Outage(_) => {
                    self.dead = id as StepId;
                    let entries = &record.history.entries;
                    self.open
                        .retain(|&call| entries[call as usize].call.outlives_process());
                    self.lines.step(id as StepId, step);
                }
                Step::Load {
                    call: Some(call),
                    at,
                    bytes,
                } => {
                    let words = (*at..at + bytes).step_by(8);
                    self.read.entry(*call).or_default().extend(words);
                }
                Step::Flush { site, .. } => {
                    self.lints.flushes += 1;
                    if self.lines.step(id as u32, step) == Some(Waste::Flush) {
                        count(&mut self.lints.redundant_flush, site);
                    }
                }
                Step::Fence { site, .. } => {
                    self.garble(record);
                    self.lints.fences += 1;
                    if self.lines.step(id as u32, step) == Some(Waste::Fence) {
                        count(&mut self.lints.empty_fence, site);
                    }
                }
                _ => {
                    self.lines.step(id as u32, step);
                }
            }
        }
        Ok(())
    }

    /// A call has returned. `answers`: its answer depends on what it has read.
    fn returned(&mut self, call: u32, answers: bool) {
        let read = self.read.remove(&call).unwrap_or_default();
        for (line, atom) in self.lines.loose() {
            if atom.is_late() {
                continue;
            }
            // Words that a dead process left were not acknowledged, or the next process has flushed them. A
            // read may still touch them on its way.
            if atom.step < self.dead {
                continue;
            }
            if self.open.is_empty() {
                count(&mut self.lints.dirty_at_acknowledgement, atom.site);
            }
            // Single words are marks and states: reading one does not mean answering with it.
            if answers && !atom.kind().is_word() && read.contains(&atom.at(line)) {
                count(&mut self.lints.read_before_durable, atom.site);
            }
        }
    }

    /// Puts garbage into bulk words that a crash at this moment would decide.
    fn garble(&mut self, record: &mut Record) {
        let bulk: Vec<u64> = self
            .lines
            .loose()
            .filter(|(_, atom)| !atom.kind().is_word())
            .map(|(line, atom)| atom.at(line))
            .collect();
        if bulk.is_empty() {
            return;
        }
        let units = self.lines.units(&mut self.random);
        for turn in 0..GARBLED_OF_A_POINT {
            let mut bytes = self.lines.base().to_vec();
            for unit in &units {
                let choice = if turn == 0 {
                    unit.newest()
                } else {
                    self.random.random_range(0..unit.choices.len())
                };
                let at = (unit.place * LINE) as usize;
                bytes[at..at + LINE as usize].copy_from_slice(&unit.choices[choice].bytes);
            }
            let at = bulk[self.random.random_range(0..bulk.len())] as usize;
            let garbage: u64 = self.random.random();
            bytes[at..at + 8].copy_from_slice(&garbage.to_le_bytes());
            self.lints.garbled += 1;
            let allowed = self
                .checker
                .allowed(&record.history, &mut record.values)
                .clone();
            self.environment.clock.set(self.checker.now());
            match look(
                self.environment,
                Image::of_memory(bytes),
                &allowed,
                &record.values,
            ) {
                Err(defect) if !defect.starts_with("recovery refused it") => {
                    self.lints
                        .trusting
                        .push(format!("garbage at byte {at}: {defect}"));
                }
                _ => {}
            }
        }
    }

    fn bypassing(&mut self, end: &[u8]) {
        for (line, seen) in end.chunks_exact(LINE as usize).enumerate() {
            if self.lines.seen(line as u64) != *seen {
                self.lints.bypassing.insert(line as u64 * LINE);
            }
        }
    }
}

fn count(places: &mut Places, site: Site) {
    *places.entry(name(site)).or_default() += 1;
}

/// Lints many runs.
///
/// # Errors
/// A run fails, or is not linearizable.
pub fn survey(
    engine: EngineKind,
    profiles: &[crate::plan::profile::Profile],
    seeds: std::ops::Range<u64>,
    calls: usize,
) -> Result<(Lints, Totals), String> {
    let mut lints = Lints::default();
    let mut totals = Totals::default();
    for seed in seeds {
        for &profile in profiles {
            let mut plan = Plan::draw(engine, Medium::Pmem, profile, seed, calls);
            // With threads, one may be within a write while the others have returned.
            plan.manner = Manner::Turns;
            let environment = Environment::of(&plan);
            let mut run = crate::run::run(&plan, &environment, true)?;
            totals.runs += 1;
            totals.calls += run.record.history.entries.len() as u64;
            lints.add(lint(&mut run, &environment, seed)?);
        }
    }
    Ok((lints, totals))
}
