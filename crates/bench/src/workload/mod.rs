//! The workloads: what each thread asks a store for, decided before the clock runs.

pub mod corpus;
pub(crate) mod distribution;
pub(crate) mod sizes;

use crate::named::named;
use corpus::ABSENT;
use distribution::{Permutation, Picker};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::fmt;

named! {
    /// What a store is asked for.
    Workload, "workload":
    Put = "put": "new keys into an empty store",
    Insert = "insert": "new keys into a store that holds the records",
    Get = "get": "keys that are there, uniformly",
    GetAbsent = "get-absent": "keys that are not there",
    Overwrite = "overwrite": "new values of keys that are there, uniformly",
    UpdateWord = "update-word": "8 bytes of values that are there, uniformly",
    Delete = "delete": "keys that are there, each once",
    PutMany = "put-many": "new keys into an empty store, several at once",
    GetMany = "get-many": "keys that are there, uniformly, several at once",
    YcsbA = "ycsb-a": "50 % reads, 50 % overwrites, zipf 0.99 scrambled",
    YcsbB = "ycsb-b": "95 % reads, 5 % overwrites, zipf 0.99 scrambled",
    YcsbC = "ycsb-c": "reads, zipf 0.99 scrambled",
    YcsbD = "ycsb-d": "95 % reads of what is young (zipf 0.99), 5 % new keys",
    YcsbE = "ycsb-e": "95 % scans of 1 to 100 records, 5 % new keys",
    YcsbF = "ycsb-f": "50 % reads, 50 % read-modify-writes, zipf 0.99 scrambled",
    Production = "production":
        "77 % reads (zipf 0.99), 3 % of absent keys, 15 % overwrites, 4 % new keys, 1 % removals",
}

impl Workload {
    /// Whether it begins with an empty store.
    #[must_use]
    pub fn begins_empty(self) -> bool {
        matches!(self, Workload::Put | Workload::PutMany)
    }

    /// Whether it leaves the store other than it found it, so that a repetition needs another store.
    #[must_use]
    pub fn changes_keys(self) -> bool {
        matches!(
            self,
            Workload::Put
                | Workload::PutMany
                | Workload::Insert
                | Workload::Delete
                | Workload::YcsbD
                | Workload::YcsbE
                | Workload::Production
        )
    }

    /// Whether operations go several at once.
    #[must_use]
    pub fn is_batched(self) -> bool {
        matches!(self, Workload::PutMany | Workload::GetMany)
    }
}

/// What one step asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// A put.
    Put,
    /// A get of a key that is there.
    Get,
    /// A get of a key that is not there.
    GetAbsent,
    /// An update of the first word.
    UpdateWord,
    /// A delete of a key that is there.
    Delete,
    /// A get, then a put.
    ReadModifyWrite,
    /// A scan of as many records as the step says.
    Scan,
}

/// One step of a script: action 8 | scan length 8 | record 48.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Step(u64);

impl Step {
    /// `action` on record `number`.
    #[must_use]
    pub fn new(action: Action, number: u64) -> Step {
        debug_assert!(number < 1 << 48);
        Step((action as u64) << 56 | number)
    }

    fn scan(number: u64, count: u64) -> Step {
        Step(Step::new(Action::Scan, number).0 | count << 48)
    }

    /// What.
    #[inline]
    #[must_use]
    pub fn action(self) -> Action {
        match (self.0 >> 56) as u8 {
            0 => Action::Put,
            1 => Action::Get,
            2 => Action::GetAbsent,
            3 => Action::UpdateWord,
            4 => Action::Delete,
            5 => Action::ReadModifyWrite,
            _ => Action::Scan,
        }
    }

    /// Which record.
    #[inline]
    #[must_use]
    pub fn number(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }

    /// How many records, of a scan.
    #[inline]
    #[must_use]
    pub fn count(self) -> usize {
        (self.0 >> 48 & 0xff) as usize
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.action(), self.number())
    }
}

/// Makes the script of one thread, step by step.
pub struct Author {
    workload: Workload,
    records: u64,
    random: SmallRng,
    picker: Picker,
    order: Permutation,
    thread: u64,
    threads: u64,
    /// Records that this thread has put so far, beyond those of the store.
    own: u64,
    /// Of them, the first ones that it deleted again.
    gone: u64,
    written: u64,
}

/// It never ends.
impl Iterator for Author {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        Some(self.step())
    }
}

impl Author {
    /// For `thread` of `threads` over a store of `records`.
    #[must_use]
    pub fn new(
        workload: Workload,
        records: u64,
        thread: usize,
        threads: usize,
        seed: u64,
    ) -> Author {
        let (thread, threads) = (thread as u64, threads.max(1) as u64);
        let picker = match workload {
            Workload::YcsbA
            | Workload::YcsbB
            | Workload::YcsbC
            | Workload::YcsbD
            | Workload::YcsbF
            | Workload::Production => Picker::zipfian(records, seed),
            _ => Picker::uniform(records),
        };
        Author {
            workload,
            records: records.max(1),
            random: SmallRng::seed_from_u64(seed ^ (thread + 1).wrapping_mul(0x9e37_79b9)),
            picker,
            order: Permutation::new(records.max(1), seed),
            thread,
            threads,
            own: 0,
            gone: 0,
            written: 0,
        }
    }

    /// The next `count` steps.
    #[must_use]
    pub fn write(&mut self, count: u64) -> Vec<Step> {
        (0..count).map(|_| self.step()).collect()
    }

    fn step(&mut self) -> Step {
        self.written += 1;
        match self.workload {
            Workload::Put | Workload::PutMany | Workload::Insert => self.put_new(),
            Workload::Get | Workload::GetMany | Workload::YcsbC => self.pick(Action::Get),
            Workload::GetAbsent => Step::new(Action::GetAbsent, ABSENT + self.records_below()),
            Workload::Overwrite => self.pick(Action::Put),
            Workload::UpdateWord => self.pick(Action::UpdateWord),
            Workload::Delete => {
                let turn = (self.written - 1) * self.threads + self.thread;
                Step::new(Action::Delete, self.order.of(turn % self.records))
            }
            Workload::YcsbA => self.either(50, Action::Get, Action::Put),
            Workload::YcsbB => self.either(95, Action::Get, Action::Put),
            Workload::YcsbD => {
                if self.percent() < 95 {
                    self.pick_young()
                } else {
                    self.put_new()
                }
            }
            Workload::YcsbE => {
                if self.percent() < 95 {
                    let count = self.random.random_range(1..=100);
                    Step::scan(self.picker.pick(&mut self.random), count)
                } else {
                    self.put_new()
                }
            }
            Workload::YcsbF => self.either(50, Action::Get, Action::ReadModifyWrite),
            Workload::Production => self.production(),
        }
    }

    fn production(&mut self) -> Step {
        match self.percent() {
            0..77 => self.pick(Action::Get),
            77..80 => Step::new(Action::GetAbsent, ABSENT + self.records_below()),
            80..95 => self.pick(Action::Put),
            95 if self.gone < self.own => {
                self.gone += 1;
                Step::new(Action::Delete, self.own_number(self.gone - 1))
            }
            _ => self.put_new(),
        }
    }

    fn percent(&mut self) -> u64 {
        self.random.random_range(0..100)
    }

    fn either(&mut self, percent: u64, one: Action, other: Action) -> Step {
        let action = if self.percent() < percent { one } else { other };
        self.pick(action)
    }

    fn pick(&mut self, action: Action) -> Step {
        Step::new(action, self.picker.pick(&mut self.random))
    }

    fn records_below(&mut self) -> u64 {
        self.random.random_range(0..self.records)
    }

    /// Numbers of different threads never meet.
    fn own_number(&self, index: u64) -> u64 {
        let first = if self.workload.begins_empty() {
            0
        } else {
            self.records
        };
        first + index * self.threads + self.thread
    }

    fn put_new(&mut self) -> Step {
        self.own += 1;
        Step::new(Action::Put, self.own_number(self.own - 1))
    }

    /// The youngest first: this thread's own records, then those of the store from their end.
    fn pick_young(&mut self) -> Step {
        let age = self.picker.rank(&mut self.random);
        let number = match self.own.checked_sub(age + 1) {
            Some(index) => self.own_number(index),
            None => self.records - 1 - (age - self.own) % self.records,
        };
        Step::new(Action::Get, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const RECORDS: u64 = 5000;

    fn scripts(workload: Workload, threads: usize, count: u64) -> Vec<Vec<Step>> {
        (0..threads)
            .map(|thread| Author::new(workload, RECORDS, thread, threads, 11).write(count))
            .collect()
    }

    #[test]
    fn names_read_back() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse(), Ok(workload));
        }
        assert!("ycsb-z".parse::<Workload>().unwrap_err().contains("ycsb-a"));
    }

    /// A script is true to a model of the store: gets find, absent keys are absent, each delete removes.
    #[test]
    fn every_step_meets_the_store_that_it_expects() {
        for workload in Workload::ALL {
            let records = if workload.begins_empty() { 0 } else { RECORDS };
            let count = if workload == Workload::Delete {
                2000
            } else {
                10_000
            };
            let mut store: HashSet<u64> = (0..records).collect();
            let scripts = scripts(workload, 2, count);
            for steps in &scripts {
                for step in steps {
                    let number = step.number();
                    match step.action() {
                        Action::Put => {
                            let is_new = store.insert(number);
                            if matches!(workload, Workload::Put | Workload::Insert) {
                                assert!(is_new, "{workload} {step:?}");
                            }
                        }
                        Action::GetAbsent => assert!(!store.contains(&number)),
                        Action::Delete => assert!(store.remove(&number), "{workload} {step:?}"),
                        Action::Scan => assert!((1..=100).contains(&step.count())),
                        _ => assert!(store.contains(&number), "{workload} {step:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn mixes_have_their_shares() {
        let share = |workload, action| {
            let steps = scripts(workload, 1, 20_000).remove(0);
            steps.iter().filter(|step| step.action() == action).count() as f64 / 20_000.0
        };
        for (workload, action, wanted) in [
            (Workload::YcsbA, Action::Get, 0.5),
            (Workload::YcsbB, Action::Put, 0.05),
            (Workload::YcsbC, Action::Get, 1.0),
            (Workload::YcsbD, Action::Put, 0.05),
            (Workload::YcsbE, Action::Scan, 0.95),
            (Workload::YcsbF, Action::ReadModifyWrite, 0.5),
            (Workload::Production, Action::Get, 0.77),
            (Workload::Production, Action::Delete, 0.01),
        ] {
            let found = share(workload, action);
            assert!(
                (found - wanted).abs() < 0.015,
                "{workload} {action:?}: {found}"
            );
        }
    }

    #[test]
    fn a_seed_repeats_its_script_and_another_does_not() {
        let write = |seed| Author::new(Workload::Production, RECORDS, 0, 1, seed).write(1000);
        assert_eq!(write(3), write(3));
        assert_ne!(write(3), write(4));
    }

    #[test]
    fn young_records_are_read_most() {
        let steps = scripts(Workload::YcsbD, 1, 20_000).remove(0);
        let reads: Vec<u64> = steps
            .iter()
            .filter(|step| step.action() == Action::Get)
            .map(|step| step.number())
            .collect();
        let young = reads.iter().filter(|number| **number >= RECORDS - 500);
        assert!(young.count() * 2 > reads.len());
    }
}
