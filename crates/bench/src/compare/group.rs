//! Rows that may be compared with one another: same ground, same threads, same workload.

use super::bound::{Bound, bound};
use super::line::Line;
use super::scene::{Ground, title};
use crate::limits::Limit;
use crate::row::Row;
use crate::subject::Durability;
use crate::workload::Workload;

/// Rows of one workload in one scene, the fastest first.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// What the stores stand on.
    pub ground: Ground,
    /// Threads that asked.
    pub threads: usize,
    /// What they asked for.
    pub workload: Workload,
    /// One for each store.
    pub rows: Vec<&'a Row>,
    /// What no store can pass.
    pub bound: Option<Bound>,
}

impl Group<'_> {
    /// `Emulated persistent memory, 2 threads`.
    #[must_use]
    pub fn scene(&self) -> String {
        title(self.ground, self.threads)
    }

    /// Share of the limit that a row of this group reaches; limits are of durable writes.
    #[must_use]
    pub fn share(&self, row: &Row) -> Option<f64> {
        if row.configuration.durability == Durability::Never {
            return None;
        }
        let figures = &row.figures;
        let bound = self.bound.as_ref()?;
        Some(bound.share(figures.rate.median, figures.process_cpu_ns.median))
    }
}

/// All groups, in the order of the lines.
#[must_use]
pub fn groups(lines: &[Line]) -> Vec<Group<'_>> {
    let limits: Vec<&Limit> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Limit { limit, .. } => Some(limit),
            _ => None,
        })
        .collect();
    let mut groups: Vec<Group<'_>> = Vec::new();
    for line in lines {
        let Line::Store { ground, row } = line else {
            continue;
        };
        let (threads, workload) = (row.configuration.threads, row.configuration.workload);
        let same = |group: &&mut Group<'_>| {
            (group.ground, group.threads, group.workload) == (*ground, threads, workload)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group {
                ground: *ground,
                threads,
                workload,
                rows: vec![row],
                bound: bound(&limits, *ground, threads, workload),
            }),
        }
    }
    for group in &mut groups {
        let rate = |row: &Row| row.figures.rate.median;
        group
            .rows
            .sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    }
    groups
}
