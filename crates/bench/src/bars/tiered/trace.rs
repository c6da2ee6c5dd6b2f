//! How often the pool has what is asked for, against caches that have as many bytes and know more.

use super::bed::{Bed, Ground, Kind};
use super::{Group, Host, Outcome, Settings, ratio};
use crate::drive::Asker;
use crate::subject::Error;
use crate::workload::{Action, Step, Workload};
use std::collections::{BTreeSet, HashMap};

/// Times as many accesses as records, before and while gets are counted.
const ACCESSES: u64 = 5;
/// Gets that are looked at, about. Each look walks all blocks of the pool.
const LOOKS: u64 = 250_000;

pub(super) fn hits(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let ground = Ground::usual(settings)?;
    let counted = (ground.records * ACCESSES) as usize;
    let every = (counted / LOOKS as usize).max(1);
    for (workload, below_lru) in [
        (Workload::YcsbC, 0.02),
        (Workload::YcsbB, 0.0),
        (Workload::YcsbA, 0.02),
    ] {
        host.begin(Group::Hits, workload.name());
        let bed = ground.bed(Kind::Tight)?;
        let mut script = bed.script(workload, ground.records);
        let trace = script.write(2 * counted as u64).remove(0);
        let is_counted = |at: usize| {
            at >= counted && at.is_multiple_of(every) && trace[at].action() == Action::Get
        };
        let ours = ask(&ground, &bed, &trace, is_counted)?;
        drop(bed);
        host.begin(Group::Hits, "caches");
        let next = next_accesses(&trace);
        let records = ground.pool_records() as usize;
        let lru = simulate(&trace, records, is_counted, |at| at as u64);
        let belady = simulate(&trace, records, is_counted, |at| u64::MAX - next[at]);
        for (name, share, least) in [
            ("exact LRU", lru, (lru - below_lru) / lru),
            ("Belady", belady, 0.88),
        ] {
            let says = format!("gets that the pool answers, {workload}, {name}");
            let (one, other) = ((ours, ""), (share, name));
            let bar = ratio((Group::Hits, &says), one, other, (least, None));
            outcome.bars.push(bar);
        }
    }
    Ok(())
}

/// Share of the counted gets that the log was not read for.
fn ask(
    ground: &Ground<'_>,
    bed: &Bed<'_>,
    trace: &[Step],
    is_counted: impl Fn(usize) -> bool,
) -> Result<f64, Error> {
    let mut client = bed.fixture.subject.client()?;
    let mut asker = Asker::new(&ground.corpus);
    asker.generation = 1;
    let (mut gets, mut hits) = (0u64, 0u64);
    for (at, step) in trace.iter().enumerate() {
        if !is_counted(at) {
            asker.ask(&mut *client, *step)?;
            continue;
        }
        let before = bed.count("tier2_reads")?;
        asker.ask(&mut *client, *step)?;
        gets += 1;
        hits += u64::from(bed.count("tier2_reads")? == before);
    }
    Ok(hits as f64 / gets.max(1) as f64)
}

/// When the record of each access is asked for again; `u64::MAX` = never.
fn next_accesses(trace: &[Step]) -> Vec<u64> {
    let mut next = vec![u64::MAX; trace.len()];
    let mut later = HashMap::new();
    for (at, step) in trace.iter().enumerate().rev() {
        if let Some(then) = later.insert(step.number(), at as u64) {
            next[at] = then;
        }
    }
    next
}

/// Share of the counted accesses that find their record in a cache of so many records. The one of the least
/// rank leaves; a record gets its rank at each access.
fn simulate(
    trace: &[Step],
    records: usize,
    is_counted: impl Fn(usize) -> bool,
    rank: impl Fn(usize) -> u64,
) -> f64 {
    let (mut order, mut ranks) = (BTreeSet::new(), HashMap::new());
    let (mut asked, mut hits) = (0u64, 0u64);
    for (at, step) in trace.iter().enumerate() {
        let number = step.number();
        let old = ranks.insert(number, rank(at));
        if is_counted(at) {
            asked += 1;
            hits += u64::from(old.is_some());
        }
        if let Some(old) = old {
            order.remove(&(old, number));
        }
        order.insert((rank(at), number));
        if order.len() > records
            && let Some((_, number)) = order.pop_first()
        {
            ranks.remove(&number);
        }
    }
    hits as f64 / asked.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> Vec<Step> {
        let letters = text.bytes();
        letters
            .map(|letter| Step::new(Action::Get, u64::from(letter)))
            .collect()
    }

    fn shares(text: &str, records: usize, from: usize) -> (f64, f64) {
        let trace = trace(text);
        let next = next_accesses(&trace);
        let counted = |at| at >= from;
        (
            simulate(&trace, records, counted, |at| at as u64),
            simulate(&trace, records, counted, |at| u64::MAX - next[at]),
        )
    }

    #[test]
    fn caches_keep_what_they_should() {
        // Round and round: Belady has `a` and `b` each time, and never keeps `c`.
        assert_eq!(shares("abcabcabcabc", 2, 4), (0.0, 5.0 / 8.0));
        assert_eq!(shares("abcabcabcabc", 3, 3), (1.0, 1.0));
        // LRU has `a` each time but the first; `c` and `d` come once.
        assert_eq!(shares("abacada", 2, 0), (3.0 / 7.0, 3.0 / 7.0));
        assert_eq!(shares("aabb", 1, 0), (0.5, 0.5));
        assert_eq!(shares("ab", 4, 2), (0.0, 0.0));
    }

    #[test]
    fn an_access_knows_the_next_one() {
        assert_eq!(next_accesses(&trace("abba")), [3, 2, u64::MAX, u64::MAX]);
    }
}
