//! everdram beside what people use today: where stores are compared, and how their rows become tables and
//! verdicts.
//!
//! Every store has a turn in every round, and every second round goes the other way round, so that whatever
//! else the machine does meets all of them alike. A turn is a [`crate::Plan`] in a process of its own: its
//! memory is then the store's, and a store that ends it ends nothing else. The caller starts the processes.

mod bound;
mod duels;
mod table;

pub use bound::{Bound, bound, chain};
pub use duels::{Duel, Duels, Standing};
pub use table::tables;

use crate::named::named;
use crate::row::{LIMITS, Metric, Row, STORES};
use crate::workload::Workload;

/// Records at once, of batched workloads.
pub const BATCH: usize = crate::limits::records::BATCH;

named! {
    /// What stores lie on; a condition of their rows.
    Ground, "ground":
    Emulated = "emulated": "Emulated persistent memory",
    Disk = "disk": "An ordinary disk",
}

/// One ground, so many threads, some workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Where.
    pub ground: Ground,
    /// Threads that ask.
    pub threads: usize,
    /// What they ask for; removals come last.
    pub workloads: Vec<Workload>,
    /// Whether opening after a crash is timed, too.
    pub recovers: bool,
}

impl Scenario {
    /// Those of the usual comparison.
    #[must_use]
    pub fn usual() -> Vec<Scenario> {
        use Workload::{
            Delete, Get, GetAbsent, GetMany, Overwrite, Put, PutMany, UpdateWord, YcsbA, YcsbB,
            YcsbC,
        };
        let scenario = |ground, threads, workloads: &[Workload], recovers| Scenario {
            ground,
            threads,
            workloads: workloads.to_vec(),
            recovers,
        };
        let all = [
            Put, PutMany, Get, GetAbsent, GetMany, YcsbC, YcsbB, YcsbA, UpdateWord, Overwrite,
            Delete,
        ];
        vec![
            scenario(Ground::Emulated, 1, &all, true),
            scenario(Ground::Emulated, 2, &[Put, Get, YcsbA], false),
            scenario(Ground::Disk, 1, &[Put, Get, YcsbA], true),
            scenario(Ground::Disk, 8, &[Put, Get, YcsbA], false),
        ]
    }

    /// `Emulated persistent memory, 2 threads`.
    #[must_use]
    pub fn title(&self) -> String {
        title(self.ground, self.threads)
    }
}

fn title(ground: Ground, threads: usize) -> String {
    format!("{}, {}", ground.what(), count_of_threads(threads))
}

fn count_of_threads(threads: usize) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("{threads} thread{plural}")
}

/// Rows that may be compared with one another: of one workload in one scenario, the fastest first.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// What the stores lie on.
    pub ground: Ground,
    /// Threads that asked.
    pub threads: usize,
    /// What they asked for.
    pub workload: Workload,
    /// One for each store.
    pub rows: Vec<&'a Row>,
    /// What no store can pass.
    pub bound: Option<Bound>,
    /// What none can pass that is asked for one thing after the other.
    pub chain: Option<Bound>,
}

impl Group<'_> {
    /// `Emulated persistent memory, 2 threads`.
    #[must_use]
    pub fn scenario(&self) -> String {
        title(self.ground, self.threads)
    }

    /// Share of the limit that a row of this group reaches; limits are of durable writes.
    #[must_use]
    pub fn share(&self, row: &Row) -> Option<f64> {
        share_of(self.bound.as_ref(), row)
    }

    /// As [`Group::share`], of the chain.
    #[must_use]
    pub fn share_of_chain(&self, row: &Row) -> Option<f64> {
        share_of(self.chain.as_ref(), row)
    }
}

fn share_of(bound: Option<&Bound>, row: &Row) -> Option<f64> {
    let bound = bound.filter(|_| row.is_durable())?;
    let of = |metric| row.get(metric).median;
    Some(bound.share(of(Metric::Rate), of(Metric::ProcessCpuNs)))
}

/// Rows of one suite.
pub(crate) fn of_suite<'a>(rows: &'a [Row], suite: &'a str) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| row.suite == suite)
}

/// All groups of stores, in the order of the rows.
#[must_use]
pub fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let limits: Vec<&Row> = of_suite(rows, LIMITS).collect();
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in of_suite(rows, STORES) {
        let (Ok(ground), Ok(workload)) = (row.say("ground").parse(), row.workload.parse()) else {
            continue;
        };
        let key = (ground, row.threads, workload);
        let mut others = groups.iter_mut();
        match others.find(|group| (group.ground, group.threads, group.workload) == key) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group {
                ground,
                threads: row.threads,
                workload,
                rows: vec![row],
                bound: bound(&limits, ground, row.threads, workload),
                chain: chain(&limits, ground, row.threads, workload),
            }),
        }
    }
    for group in &mut groups {
        let rate = |row: &Row| row.get(Metric::Rate).median;
        let rows = &mut group.rows;
        rows.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_share_of_the_loop_and_of_the_chain() {
        let rows = crate::report::sample::rows();
        let groups = groups(&rows);
        let own = groups[0].rows.iter().find(|row| row.subject == "everdram");
        let is_about = |share: Option<f64>, wanted: f64| (share.unwrap() - wanted).abs() < 1e-9;
        assert!(is_about(groups[0].share(own.unwrap()), 6.0 / 8.0));
        assert!(is_about(groups[0].share_of_chain(own.unwrap()), 6.0 / 7.0));
        let scc = groups[0].rows.iter().find(|row| row.subject == "scc");
        assert_eq!(groups[0].share_of_chain(scc.unwrap()), None, "not durable");
    }

    #[test]
    fn what_removes_keys_comes_last() {
        for scenario in Scenario::usual() {
            let mut workloads = scenario.workloads.iter();
            workloads.find(|workload| **workload == Workload::Delete);
            assert_eq!(workloads.next(), None, "{}", scenario.title());
        }
    }
}
