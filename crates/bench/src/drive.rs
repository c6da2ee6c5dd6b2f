//! One thread's loop over its script: asks the store, and checks every answer.

use crate::pace::{Pace, Timing};
use crate::subject::{Client, Error};
use crate::workload::corpus::{Corpus, Maker};
use crate::workload::{Action, Step};
use anyhow::ensure;

/// What threads do in a pass.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    /// Keys and values.
    pub corpus: &'a Corpus,
    /// Steps that go at once; 1 = each for itself.
    pub batch: usize,
    /// Tells the values of this pass from those of others.
    pub generation: u64,
    /// How it is timed.
    pub timing: Timing,
    /// Whether each thread stays on a core of its own.
    pub pin: bool,
}

/// Takes all `steps`.
///
/// # Errors
/// What the store says, and the first answer that is wrong.
pub(crate) fn drive(
    client: &mut dyn Client,
    pass: Pass<'_>,
    steps: &[Step],
    pace: &mut impl Pace,
) -> Result<(), Error> {
    if pass.batch > 1 {
        return drive_batches(client, pass, steps, pace);
    }
    let mut asker = Asker::new(pass.corpus);
    asker.generation = pass.generation;
    for step in steps {
        pace.before();
        asker.ask(client, *step)?;
        pace.after();
    }
    Ok(())
}

/// Asks for one step after another, and checks the answers. It is a part of each loop that uses it: a call
/// and its state in memory would cost a put of 250 ns a twentieth.
pub(crate) struct Asker<'a> {
    corpus: &'a Corpus,
    maker: Maker<'a>,
    value: Vec<u8>,
    /// Tells the values that are put from those before.
    pub(crate) generation: u64,
}

impl<'a> Asker<'a> {
    pub(crate) fn new(corpus: &'a Corpus) -> Asker<'a> {
        Asker {
            corpus,
            maker: Maker::new(corpus),
            value: Vec::with_capacity(1 << 16),
            generation: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn ask(&mut self, client: &mut dyn Client, step: Step) -> Result<(), Error> {
        let number = step.number();
        match step.action() {
            Action::Put => self.put(client, number)?,
            Action::Get => self.get(client, number)?,
            Action::GetAbsent => {
                self.value.clear();
                let found = client.get(self.maker.key(number), &mut self.value)?;
                ensure!(!found, "record {number} is there, and was never put");
            }
            Action::UpdateWord => {
                let found = client.update_word(self.maker.key(number))?;
                ensure!(found, "record {number} is not there to be changed");
            }
            Action::Delete => {
                let found = client.delete(self.maker.key(number))?;
                ensure!(found, "record {number} is not there to be removed");
            }
            Action::ReadModifyWrite => {
                self.get(client, number)?;
                self.put(client, number)?;
            }
            Action::Scan => {
                let count = step.count();
                self.value.clear();
                let visited = client.scan(self.maker.key(number), count, &mut self.value)?;
                ensure!(
                    visited > 0,
                    "a scan of {count} records in a store full of them found none"
                );
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn put(&mut self, client: &mut dyn Client, number: u64) -> Result<(), Error> {
        let (key, value) = self.maker.record(number, self.generation);
        client.put(key, value)
    }

    #[inline(always)]
    fn get(&mut self, client: &mut dyn Client, number: u64) -> Result<(), Error> {
        self.value.clear();
        let found = client.get(self.maker.key(number), &mut self.value)?;
        ensure!(found, "record {number} is not there");
        self.corpus.check(number, &self.value)
    }
}

fn drive_batches(
    client: &mut dyn Client,
    pass: Pass<'_>,
    steps: &[Step],
    pace: &mut impl Pace,
) -> Result<(), Error> {
    let mut makers: Vec<Maker<'_>> = (0..pass.batch).map(|_| Maker::new(pass.corpus)).collect();
    let mut values = Vec::with_capacity(1 << 16);
    for steps in steps.chunks(pass.batch) {
        let are_puts = steps
            .first()
            .is_some_and(|step| step.action() == Action::Put);
        values.clear();
        pace.before();
        if are_puts {
            let pairs = makers.iter_mut().zip(steps);
            let records: Vec<_> = pairs
                .map(|(maker, step)| maker.record(step.number(), pass.generation))
                .collect();
            client.put_many(&records)?;
        } else {
            let pairs = makers.iter_mut().zip(steps);
            let keys: Vec<_> = pairs
                .map(|(maker, step)| maker.key(step.number()))
                .collect();
            let found = client.get_many(&keys, &mut values)?;
            ensure!(
                found == steps.len(),
                "{found} of {} records are there",
                steps.len()
            );
            check_all(pass.corpus, steps, &values)?;
        }
        pace.after();
    }
    Ok(())
}

/// Values lie one after another.
fn check_all(corpus: &Corpus, steps: &[Step], mut values: &[u8]) -> Result<(), Error> {
    for step in steps {
        let length = corpus.check_front(step.number(), values)?;
        values = values.get(length..).unwrap_or_default();
    }
    ensure!(
        values.is_empty(),
        "{} bytes more than the values have",
        values.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::Free;
    use crate::workload::sizes::Sizes;
    use std::collections::HashMap;

    /// A store that damages what it is asked for in one way.
    #[derive(Default)]
    struct Liar {
        map: HashMap<Vec<u8>, Vec<u8>>,
        lie: Lie,
    }

    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    enum Lie {
        #[default]
        None,
        Flip,
        Short,
        OtherRecord,
        Forget,
        Invent,
    }

    impl Client for Liar {
        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
            self.map.insert(key.into(), value.into());
            Ok(())
        }

        fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
            let found = match self.lie {
                Lie::Forget => None,
                Lie::OtherRecord => self.map.iter().find(|(other, _)| other[..] != *key),
                Lie::Invent => self.map.iter().next(),
                _ => self.map.get_key_value(key),
            };
            let Some((_, value)) = found else {
                return Ok(false);
            };
            into.extend_from_slice(value);
            match self.lie {
                Lie::Flip => *into.last_mut().unwrap() ^= 1,
                Lie::Short => into.truncate(into.len() - 1),
                _ => {}
            }
            Ok(true)
        }

        fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
            Ok(self.map.remove(key).is_some())
        }

        fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
            Ok(self.map.get_mut(key).map(|value| value[0] += 1).is_some())
        }

        fn scan(&mut self, _: &[u8], count: usize, _: &mut Vec<u8>) -> Result<usize, Error> {
            Ok(self.map.len().min(count))
        }
    }

    fn run(lie: Lie, actions: &[Action], batch: usize) -> Result<(), Error> {
        let corpus = Corpus::new(Sizes::Fixed(16), Sizes::Fixed(100), 1);
        let mut store = Liar::default();
        let pass = Pass {
            corpus: &corpus,
            batch,
            generation: 1,
            timing: Timing::Throughput,
            pin: false,
        };
        let puts: Vec<Step> = (0..64).map(|n| Step::new(Action::Put, n)).collect();
        drive(&mut store, pass, &puts, &mut Free)?;
        store.lie = lie;
        for action in actions {
            let steps: Vec<Step> = (0..64).map(|n| Step::new(*action, n)).collect();
            drive(&mut store, pass, &steps, &mut Free)?;
        }
        Ok(())
    }

    #[test]
    fn an_honest_store_passes() {
        use Action::{Delete, Get, Put, ReadModifyWrite, UpdateWord};
        run(
            Lie::None,
            &[Get, UpdateWord, Get, ReadModifyWrite, Get, Delete],
            1,
        )
        .unwrap();
        run(Lie::None, &[Get, Put, Get], 16).unwrap();
        run(Lie::None, &[Get], 7).unwrap();
    }

    #[test]
    fn a_wrong_answer_fails_the_run() {
        for lie in [Lie::Flip, Lie::Short, Lie::OtherRecord, Lie::Forget] {
            for batch in [1, 16] {
                run(lie, &[Action::Get], batch).expect_err(&format!("{lie:?} {batch}"));
            }
            run(lie, &[Action::ReadModifyWrite], 1).expect_err(&format!("{lie:?}"));
        }
        run(Lie::Invent, &[Action::GetAbsent], 1).expect_err("invented");
        run(Lie::None, &[Action::Delete, Action::Delete], 1).expect_err("deleted twice");
        run(Lie::None, &[Action::Delete, Action::UpdateWord], 1).expect_err("changed nothing");
    }
}
